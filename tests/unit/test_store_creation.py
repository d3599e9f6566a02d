"""Files and directories are created so that a power cut at any moment leaves a store that opens."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from heliograph_broker.clock import VirtualClock
from heliograph_broker.storage.base.entry import Entry
from heliograph_broker.storage.disk.disk import RealDisk
from heliograph_broker.storage.disk.environment import open_writable
from heliograph_broker.storage.store import InlineScheduler, LedgerStore


class NotedDisk(RealDisk):
    """Notes which names were created, renamed to and synced, in order; syncs of one directory fail when told to."""

    def __init__(self) -> None:
        self.noted: list[tuple[str, str]] = []
        self.failing: str | None = None

    def rename(self, path: Path, target: Path) -> None:
        self.noted.append(("rename", target.name))
        super().rename(path, target)

    def sync_directory(self, path: Path) -> None:
        if path.name == self.failing:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self.noted.append(("sync", path.name))
        super().sync_directory(path)

    def shrink(self, path: Path, step_bytes: int) -> Iterator[None]:
        self.noted.append(("shrink", path.name))
        yield from super().shrink(path, step_bytes)


class Sink:
    def __init__(self) -> None:
        self.durable = 0
        self.errors: list[Exception] = []

    def entries_durable(self, entries: list[Entry]) -> None:
        self.durable += len(entries)

    def entries_failed(self, entries: list[Entry], error: Exception) -> None:
        self.errors.append(error)


def open_store(path: Path, disk: RealDisk) -> LedgerStore:
    return LedgerStore.open(
        path, VirtualClock(), scheduler=InlineScheduler(), segment_bytes=1 << 20, disk_reserve_bytes=0, disk=disk
    )


def entry(entry_id: int, ledger_id: int = 1, size: int = 1000) -> Entry:
    return Entry(ledger_id, entry_id, 0, 0, 0, -1, 1, 0, entry_id + 1, (entry_id + 1) * size, bytes(size))


def test_the_names_of_a_new_directory_are_durable_before_it_is_used(tmp_path: Path) -> None:
    disk = NotedDisk()
    store = open_store(tmp_path / "d", disk)
    store.close()
    # After the last name was given, the directory that holds it was synced.
    assert disk.noted[0] == ("sync", tmp_path.name)
    assert disk.noted[-1] == ("sync", "d")
    assert ("rename", "metadata.lmdb") in disk.noted
    # FORMAT says that the rest is there.
    assert disk.noted[-2] == ("rename", "FORMAT")


@pytest.mark.parametrize("content", [b"", bytes(8192)])
def test_an_environment_that_was_being_created_is_created_again(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "metadata.new").write_bytes(content)
    open_store(tmp_path / "d", RealDisk()).close()
    assert not (tmp_path / "d" / "metadata.new").exists()


def test_nothing_is_durable_in_a_segment_whose_name_is_not(tmp_path: Path) -> None:
    disk = NotedDisk()
    store = open_store(tmp_path / "d", disk)
    sink = Sink()
    disk.failing = "segments"
    store.writer.append(sink, entry(0))
    store.writer.commit()
    assert sink.durable == 0
    assert len(sink.errors) == 1
    assert "Input/output error" in str(sink.errors[0])
    store.close(drain=False)


def test_a_name_whose_sync_failed_is_synced_before_the_environment_is_used(tmp_path: Path) -> None:
    disk = NotedDisk()
    disk.failing = tmp_path.name
    with pytest.raises(OSError, match="Input/output error"):
        open_writable(disk, tmp_path / "x.lmdb", 1 << 20)
    assert (tmp_path / "x.lmdb").exists()
    disk.failing = None
    disk.noted.clear()
    open_writable(disk, tmp_path / "x.lmdb", 1 << 20).close()
    assert disk.noted == [("sync", tmp_path.name)]


def test_a_segment_that_leaves_is_cut_short_only_under_a_durable_other_name(tmp_path: Path) -> None:
    disk = NotedDisk()
    store = open_store(tmp_path / "d", disk)
    sink = Sink()
    for number in range(1500):
        store.writer.append(sink, entry(number))
        if number % 100 == 99:
            store.writer.commit()
    store.ledgers.delete(1)
    for _ in range(20):
        store.maintain()
        store.writer.commit()
    left = [index for index, (what, name) in enumerate(disk.noted) if what == "rename" and name.endswith(".leaving")]
    assert left
    for index in left:
        assert disk.noted[index + 1 : index + 3] == [("sync", "segments"), ("shrink", disk.noted[index][1])]
    store.close()
