"""The ledger store: one process a directory, disk space that comes back, failures that are said."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from heliograph_broker.clock import VirtualClock
from heliograph_broker.storage.data_dir import DataDir
from heliograph_broker.storage.entry import Entry
from heliograph_broker.storage.store import DataDirError, InlineScheduler, LedgerStore, StorageFull


class Sink:
    def __init__(self) -> None:
        self.durable: list[int] = []
        self.failed: list[int] = []
        self.errors: list[Exception] = []

    def entries_durable(self, entries: list[Entry]) -> None:
        self.durable += [entry.entry_id for entry in entries]

    def entries_failed(self, entries: list[Entry], error: Exception) -> None:
        self.failed += [entry.entry_id for entry in entries]
        self.errors.append(error)


def open_store(path: Path, *, segment_bytes: int = 1 << 20, reserve: int = 0) -> LedgerStore:
    return LedgerStore.open(
        path, VirtualClock(), scheduler=InlineScheduler(), segment_bytes=segment_bytes, disk_reserve_bytes=reserve
    )


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LedgerStore]:
    opened = open_store(tmp_path / "d")
    yield opened
    opened.close()


def entry(entry_id: int, size: int = 1024, ledger_id: int = 1) -> Entry:
    return Entry(ledger_id, entry_id, 0, 0, 0, -1, 1, 1, entry_id + 1, (entry_id + 1) * size, b"x" * size)


def test_second_opening_is_refused_and_names_the_holder(tmp_path: Path, store: LedgerStore) -> None:
    with pytest.raises(DataDirError, match=rf"in use by another process \(pid {os.getpid()}\)"):
        open_store(tmp_path / "d")


def test_unknown_format_is_refused_by_name(tmp_path: Path) -> None:
    open_store(tmp_path / "d").close()
    (tmp_path / "d" / "FORMAT").write_text("heliograph 99\n")
    with pytest.raises(DataDirError, match="format 'heliograph 99'; this version knows 'heliograph 2'"):
        open_store(tmp_path / "d")


def test_a_file_is_no_data_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataDirError, match="is not a directory"):
        open_store(tmp_path / "file")


def test_receipts_only_after_commit(store: LedgerStore) -> None:
    sink = Sink()
    store.append(sink, entry(0))
    assert sink.durable == []
    assert store.pending_bytes == 1024
    store.commit()
    assert sink.durable == [0]
    assert store.pending_bytes == 0


def test_space_comes_back_after_trim(tmp_path: Path) -> None:
    store = open_store(tmp_path / "d", segment_bytes=1 << 20)
    sink = Sink()
    for start in range(0, 8000, 200):
        for entry_id in range(start, start + 200):
            store.append(sink, entry(entry_id))
        store.commit()
    full = store.disk_bytes()
    assert full > 8 << 20
    store.trim(1, 7200)
    for _ in range(20):
        store.maintain()
    assert store.live_bytes() == 800 * 1024
    # One open segment and LMDB's own pages come on top of what is live.
    assert store.disk_bytes() < 3 << 20
    found: list[int] = []
    while len(found) < 800:
        part = read(store, 7200 + len(found), 7999)
        assert part
        found += [each.entry_id for each in part]
    assert found == list(range(7200, 8000))
    store.drop_ledger(1)
    for _ in range(5):
        store.maintain()
    assert store.live_bytes() == 0
    store.close()


def read(store: LedgerStore, first: int, last: int) -> list[Entry]:
    result: list[list[Entry] | Exception] = []
    store.read(1, first, last, 1 << 30, result.append)
    assert isinstance(result[0], list)
    return result[0]


def test_orphans_and_files_that_others_cover_are_removed(tmp_path: Path) -> None:
    store = open_store(tmp_path / "d")
    store.append(Sink(), entry(0))
    store.commit()
    store.close()
    segments = tmp_path / "d" / "segments"
    (current,) = segments.glob("*.lmdb")
    assert current.name == "00000001-00000001-0001.lmdb"
    (segments / "00000001-00000001-0002.tmp").write_bytes(b"half a copy")
    for covered in ("00000001-00000001-0002", "00000003-00000003-0001", "00000001-00000003-0002"):
        (segments / f"{covered}.lmdb").write_bytes(current.read_bytes())
    (segments / "00000001-00000003-0003.lmdb").write_bytes(current.read_bytes())
    store = open_store(tmp_path / "d")
    assert sorted(path.name for path in segments.iterdir()) == ["00000001-00000003-0003.lmdb"]
    assert store.bounds(1) == (0, 0)
    store.close()


def test_full_disk_refuses_entries_and_keeps_metadata(tmp_path: Path) -> None:
    store = open_store(tmp_path / "d", reserve=1 << 60)
    sink = Sink()
    committed: list[Exception | None] = []
    store.append(sink, entry(0))
    store.put(b"cursor", b"1")
    store.after_commit(committed.append)
    store.append(sink, entry(1))
    store.commit()
    assert sink.failed == [0, 1]
    assert isinstance(sink.errors[0], StorageFull)
    assert store.disk_full
    assert committed == [None]
    assert store.get(b"cursor") == b"1"
    store.close()


def test_space_that_returns_is_noticed_without_traffic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(tmp_path / "d", reserve=1 << 20)
    monkeypatch.setattr(DataDir, "free_bytes", lambda _: 1 << 10)
    store.append(Sink(), entry(0))
    store.commit()
    store.maintain()
    assert store.disk_full
    monkeypatch.setattr(DataDir, "free_bytes", lambda _: 1 << 30)
    store.maintain()
    assert not store.disk_full
    store.close()


def test_receipted_entries_survive_kill(tmp_path: Path) -> None:
    program = textwrap.dedent(
        """
        import os, signal, sys
        from pathlib import Path
        sys.path.insert(0, sys.argv[2])
        from tests.unit.test_store import Sink, entry, open_store
        store = open_store(Path(sys.argv[1]), segment_bytes=1 << 18)
        sink = Sink()
        for group in range(20):
            for entry_id in range(group * 50, group * 50 + 50):
                store.append(sink, entry(entry_id))
            store.commit()
        store.append(sink, entry(1000))
        print(len(sink.durable), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "d"), str(root)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(root / "broker")},
        check=False,
    )
    assert done.returncode == -9, done.stderr
    assert done.stdout == "1000\n"
    store = open_store(tmp_path / "d")
    assert store.bounds(1) == (0, 999)
    store.close()


def test_ledger_ids_are_never_repeated_after_a_crash(tmp_path: Path) -> None:
    store = open_store(tmp_path / "d")
    first = [store.next_ledger_id() for _ in range(3)]
    store.commit()
    store.close()
    store = open_store(tmp_path / "d")
    assert store.next_ledger_id() > max(first)
    store.close()
