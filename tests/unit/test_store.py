"""The ledger store: one process a directory, disk space that comes back, failures that are reported."""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
import textwrap
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from heliograph_broker.clock import SystemClock, VirtualClock
from heliograph_broker.storage.base.completion import Completion
from heliograph_broker.storage.base.entry import Entry, EntryHeader
from heliograph_broker.storage.base.scheduler import Job
from heliograph_broker.storage.disk.data_dir import DataDir
from heliograph_broker.storage.segments.segment import Segment
from heliograph_broker.storage.store import (
    DataDirError,
    InlineScheduler,
    LedgerStore,
    LoopScheduler,
    StorageFull,
)

from tests.support.store_entries import Sink, entry


def open_store(path: Path, *, segment_bytes: int = 1 << 20, reserve: int = 0) -> LedgerStore:
    return LedgerStore.open(
        path, VirtualClock(), scheduler=InlineScheduler(), segment_bytes=segment_bytes, disk_reserve_bytes=reserve
    )


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LedgerStore]:
    opened = open_store(tmp_path / "d")
    yield opened
    opened.close()


def test_second_opening_is_refused_and_names_the_holder(tmp_path: Path, store: LedgerStore) -> None:
    with pytest.raises(DataDirError, match=rf"in use by another process \(pid {os.getpid()}\)"):
        open_store(tmp_path / "d")


def test_unknown_format_is_refused_by_name(tmp_path: Path) -> None:
    open_store(tmp_path / "d").close()
    (tmp_path / "d" / "FORMAT").write_text("heliograph 99\n")
    with pytest.raises(
        DataDirError, match="format 'heliograph 99'; this version knows 'heliograph 2' and 'heliograph 3'"
    ):
        open_store(tmp_path / "d")


def test_a_file_is_no_data_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataDirError, match="is not a directory"):
        open_store(tmp_path / "file")


def test_receipts_only_after_commit(store: LedgerStore) -> None:
    sink = Sink()
    store.writer.append(sink, entry(0))
    assert sink.durable == []
    assert store.writer.pending_bytes == 1024
    store.writer.commit()
    assert sink.durable == [0]
    assert store.writer.pending_bytes == 0


def test_space_comes_back_after_trim(tmp_path: Path) -> None:
    store = open_store(tmp_path / "d", segment_bytes=1 << 20)
    sink = Sink()
    for start in range(0, 8000, 200):
        for entry_id in range(start, start + 200):
            store.writer.append(sink, entry(entry_id))
        store.writer.commit()
    full = store.disk_bytes()
    assert full > 8 << 20
    store.segments.trim(1, 7200)
    for _ in range(20):
        store.maintain()
    assert store.segments.live_bytes() == 800 * 1024
    # One open segment and LMDB's own pages come on top of what is live.
    assert store.disk_bytes() < 3 << 20
    found: list[int] = []
    while len(found) < 800:
        part = read(store, 7200 + len(found), 7999)
        assert part
        found += [each.entry_id for each in part]
    assert found == list(range(7200, 8000))
    store.ledgers.delete(1)
    store.writer.commit()
    for _ in range(5):
        store.maintain()
    assert store.segments.live_bytes() == 0
    store.close()


def read(store: LedgerStore, first: int, last: int) -> list[Entry]:
    result: list[list[Entry] | Exception] = []
    store.reader.read(1, first, last, 1 << 30, result.append)
    assert isinstance(result[0], list)
    return result[0]


def test_orphans_and_files_that_others_cover_are_removed(tmp_path: Path) -> None:
    store = open_store(tmp_path / "d")
    store.writer.append(Sink(), entry(0))
    store.writer.commit()
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
    assert store.segments.bounds(1) == (0, 0)
    store.close()


def test_full_disk_refuses_entries_and_keeps_metadata(tmp_path: Path) -> None:
    store = open_store(tmp_path / "d", reserve=1 << 60)
    sink = Sink()
    committed: list[Exception | None] = []
    store.writer.append(sink, entry(0))
    store.writer.put(b"cursor", b"1")
    store.writer.after_commit(committed.append)
    store.writer.append(sink, entry(1))
    store.writer.commit()
    assert sink.failed == [0, 1]
    assert isinstance(sink.errors[0], StorageFull)
    assert store.space.full
    assert committed == [None]
    assert store.metadata.get(b"cursor") == b"1"
    store.close()


def test_space_that_returns_is_noticed_without_traffic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(tmp_path / "d", reserve=1 << 20)
    monkeypatch.setattr(DataDir, "free_bytes", lambda _: 1 << 10)
    store.writer.append(Sink(), entry(0))
    store.writer.commit()
    store.maintain()
    assert store.space.full
    monkeypatch.setattr(DataDir, "free_bytes", lambda _: 1 << 30)
    store.maintain()
    assert not store.space.full
    store.close()


def test_a_disk_that_others_fill_is_noticed_without_traffic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(tmp_path / "d", reserve=1 << 20)
    store.maintain()
    assert not store.space.full
    monkeypatch.setattr(DataDir, "free_bytes", lambda _: 1 << 10)
    store.maintain()
    assert store.space.full
    store.close()
    # Before the first tick, too: a broker that starts here is not ready.
    store = open_store(tmp_path / "d", reserve=1 << 20)
    assert store.space.full
    store.close()


def test_an_entry_that_cannot_be_packed_is_refused_and_the_group_goes_on(store: LedgerStore) -> None:
    sink = Sink()
    store.writer.append(sink, entry(0))
    unpackable = entry(1)
    unpackable.messages = -1
    with pytest.raises(ValueError, match="entry 1:1 has a field out of its stored range"):
        store.writer.append(sink, unpackable)
    store.writer.append(sink, entry(1))
    assert store.writer.pending_bytes == 2048
    store.writer.commit()
    assert sink.durable == [0, 1]
    assert store.segments.bounds(1) == (0, 1)


def test_an_error_of_the_entries_is_not_reported_of_the_metadata(
    store: LedgerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> int:
        raise RuntimeError("no reason known here")

    sink = Sink()
    committed: list[Exception | None] = []
    monkeypatch.setattr(Segment, "write", fail)
    store.writer.append(sink, entry(0))
    store.writer.put(b"record", b"1")
    store.writer.after_commit(committed.append)
    store.writer.commit()
    assert sink.failed == [0]
    assert str(sink.errors[0]) == "no reason known here"
    assert committed == [None]
    assert store.metadata.get(b"record") == b"1"
    assert store.writer.pending_bytes == 0


def test_a_sink_that_raises_keeps_no_other_from_its_receipts(store: LedgerStore) -> None:
    class Broken(Sink):
        def entries_durable(self, entries: list[Entry]) -> None:
            raise RuntimeError("a mistake")

        def entries_failed(self, entries: list[Entry], error: Exception) -> None:
            raise RuntimeError("another mistake")

    broken, sink = Broken(), Sink()
    committed: list[Exception | None] = []
    store.writer.append(broken, entry(0, ledger_id=1))
    store.writer.append(sink, entry(0, ledger_id=2))
    store.writer.after_commit(committed.append)
    store.writer.commit()
    store.space._reserve = 1 << 60
    store.writer.append(broken, entry(1, ledger_id=1))
    store.writer.append(sink, entry(1, ledger_id=2))
    store.writer.after_commit(committed.append)
    store.writer.commit()
    assert sink.durable == [0]
    assert sink.failed == [1]
    assert committed == [None, None]


def test_much_at_once_is_several_transactions_reported_in_order(store: LedgerStore) -> None:
    sink = Sink()
    committed: list[int] = []
    for entry_id in range(40):
        store.writer.append(sink, entry(entry_id, 1 << 20))
        if entry_id == 19:
            store.writer.after_commit(lambda _: committed.append(len(sink.durable)))
    store.writer.after_commit(lambda _: committed.append(len(sink.durable)))
    store.writer.commit()
    assert sink.durable == list(range(40))
    # And one for the record of the segment that was full.
    assert store.writer.stats.groups == 4
    assert committed == [32, 40]


def test_what_follows_a_failed_group_fails_with_it(store: LedgerStore, monkeypatch: pytest.MonkeyPatch) -> None:
    free = iter([1 << 40, 0, 1 << 40])
    monkeypatch.setattr(DataDir, "free_bytes", lambda _: next(free))
    sink = Sink()
    for entry_id in range(40):
        store.writer.append(sink, entry(entry_id, 1 << 20))
    store.writer.commit()
    assert sink.durable == list(range(16))
    assert sink.failed == list(range(16, 40))
    assert store.writer.pending_bytes == 0
    assert store.segments.bounds(1) == (0, 15)


def test_closing_writes_and_reports_what_was_submitted(tmp_path: Path) -> None:
    store = open_store(tmp_path / "d")
    sink = Sink()
    committed: list[Exception | None] = []
    store.writer.append(sink, entry(0))
    store.writer.put(b"record", b"1")
    store.writer.after_commit(committed.append)
    store.close()
    assert sink.durable == [0]
    assert committed == [None]
    store = open_store(tmp_path / "d")
    assert store.segments.bounds(1) == (0, 0)
    assert store.metadata.get(b"record") == b"1"
    store.close()


async def test_closing_waits_for_the_writer_and_keeps_the_order(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    store = LedgerStore.open(tmp_path / "d", SystemClock(), scheduler=LoopScheduler(loop), disk_reserve_bytes=0)
    sink = Sink()
    # The first group is with the writer when the others come, and nothing returns to the loop before it is closed.
    store.writer.append(sink, entry(0, 1 << 20))
    await asyncio.sleep(0)
    assert not store.writer.idle
    for entry_id in range(1, 40):
        store.writer.append(sink, entry(entry_id, 1 << 20))
    store.close()
    assert sink.durable == list(range(40))
    await asyncio.sleep(0)
    assert sink.durable == list(range(40))
    store = open_store(tmp_path / "d")
    assert store.segments.bounds(1) == (0, 39)
    store.close()


def test_the_writer_ends_quietly_when_its_loop_has(tmp_path: Path) -> None:
    loop = asyncio.new_event_loop()
    scheduler = LoopScheduler(loop)
    begin = threading.Event()
    notified: list[object] = []
    scheduler.write(lambda: begin.wait(10), notified.append)
    loop.close()
    # An exception in the thread would fail the test.
    begin.set()
    scheduler.close()
    assert notified == [True]


def test_the_first_entry_of_a_kind_is_found_across_segments(tmp_path: Path) -> None:
    store = open_store(tmp_path / "d", segment_bytes=1 << 17)
    sink = Sink()
    for entry_id in range(1000):
        store.writer.append(sink, entry(entry_id))
        if entry_id % 7 == 0:
            store.writer.commit()
    store.writer.commit()
    assert len(list((tmp_path / "d" / "segments").glob("*.lmdb"))) > 5
    asked: list[int] = []

    def search(low: int, high: int, wanted: int) -> int:
        asked.clear()

        def holds(header: EntryHeader) -> bool:
            asked.append(header.entry_id)
            return header.entry_id >= wanted

        return store.reader.first_entry_where(1, low, high, holds)

    for low, high, wanted in itertools.product(
        (0, 1, 130, 998), (130, 500, 999, 1000), (0, 1, 129, 131, 500, 999, 5000)
    ):
        if low <= high:
            assert search(low, high, wanted) == min(max(low, wanted), high), (low, high, wanted)
            assert len(asked) <= 14
    assert store.reader.first_entry_where(2, 0, 10, lambda _: True) == 10
    store.close()


def test_sizes_are_known_without_reading_the_directory(store: LedgerStore, tmp_path: Path) -> None:
    for entry_id in range(100):
        store.writer.append(Sink(), entry(entry_id))
    store.writer.put(b"record", b"x" * 100_000)
    store.writer.commit()
    # Lock files are LMDB's, of 8 KiB, and are not counted.
    assert abs(store.disk_bytes() - DataDir.files_bytes(tmp_path / "d")) <= 32 * 1024
    assert store.segments.live_bytes() == 100 * 1024
    store.segments.trim(1, 33)
    assert store.segments.live_bytes() == 67 * 1024


def test_receipted_entries_survive_kill(tmp_path: Path) -> None:
    program = textwrap.dedent(
        """
        import os, signal, sys
        from pathlib import Path
        sys.path.insert(0, sys.argv[2])
        from tests.support.store_entries import Sink, entry
        from tests.unit.test_store import open_store
        store = open_store(Path(sys.argv[1]), segment_bytes=1 << 18)
        sink = Sink()
        for group in range(20):
            for entry_id in range(group * 50, group * 50 + 50):
                store.writer.append(sink, entry(entry_id))
            store.writer.commit()
        store.writer.append(sink, entry(1000))
        print(len(sink.durable), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "d"), str(root)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": f"{root / 'api'}:{root / 'broker'}"},
        check=False,
    )
    assert done.returncode == -9, done.stderr
    assert done.stdout == "1000\n"
    store = open_store(tmp_path / "d")
    assert store.segments.bounds(1) == (0, 999)
    store.close()


def test_ledger_ids_are_never_repeated_after_a_crash(tmp_path: Path) -> None:
    store = open_store(tmp_path / "d")
    first = [store.ledger_ids.next() for _ in range(3)]
    store.writer.commit()
    store.close()
    store = open_store(tmp_path / "d")
    assert store.ledger_ids.next() > max(first)
    store.close()


class _HeldWrites(InlineScheduler):
    """Writes come back when :meth:`run` is called, as the writer's thread gives them back to the loop."""

    concurrent = True

    def __init__(self) -> None:
        self._jobs: deque[Callable[[], None]] = deque()

    def soon(self, callback: Callable[[], None]) -> None:
        self._jobs.append(callback)

    def write(self, job: Job[Any], done: Completion[Any]) -> None:
        self._jobs.append(lambda: done(job()))

    def run(self) -> None:
        while self._jobs:
            self._jobs.popleft()()

    def close(self) -> None:
        self.run()
        self.concurrent = False


def test_who_waits_for_a_group_is_told_after_the_receivers_of_its_entries(tmp_path: Path) -> None:
    scheduler = _HeldWrites()
    store = LedgerStore.open(tmp_path / "d", VirtualClock(), scheduler=scheduler)
    sink = Sink()
    store.writer.append(sink, entry(0))
    scheduler.run()
    notified: list[str] = []
    sink.entries_durable = lambda entries: notified.append("durable")  # type: ignore[method-assign]
    store.writer.append(sink, entry(1))
    seal = scheduler._jobs.popleft()
    seal()
    # The group is being written: the next one has nothing to write, as when a producer is closed right after a send.
    store.writer.after_commit(lambda error: notified.append("closed"))
    scheduler.run()
    assert notified == ["durable", "closed"]
    store.close()
