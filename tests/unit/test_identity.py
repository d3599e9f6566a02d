"""A store's parts know each other: a start with a part that is missing or of another store refuses by name."""

from __future__ import annotations

import errno
import random
import shutil
from pathlib import Path

import lmdb
import pytest
from heliograph_broker.clock import VirtualClock
from heliograph_broker.storage.base.entry import Entry
from heliograph_broker.storage.disk import identity
from heliograph_broker.storage.disk.data_dir import DataDirError
from heliograph_broker.storage.disk.disk import Disk
from heliograph_broker.storage.store import InlineScheduler, LedgerStore

from tests.simulation.disk import Crashed, Failure, SimulatedDisk

OURS, THEIRS = "a" * 32, "b" * 32


class Sink:
    def entries_durable(self, entries: list[Entry]) -> None: ...

    def entries_failed(self, entries: list[Entry], error: Exception) -> None:
        raise error


def open_store(path: Path, store_id: str = OURS, disk: Disk | None = None) -> LedgerStore:
    return LedgerStore.open(
        path,
        VirtualClock(),
        scheduler=InlineScheduler(),
        segment_bytes=1 << 18,
        disk_reserve_bytes=0,
        disk=disk,
        new_store_id=store_id,
    )


def fill(path: Path, store_id: str = OURS, disk: Disk | None = None, entries: int = 600) -> None:
    store = open_store(path, store_id, disk)
    store.writer.put(b"next-ledger-id", b"1000")
    for number in range(entries):
        store.writer.append(
            Sink(), Entry(1, number, 0, 0, 0, -1, 1, 1, number + 1, (number + 1) * 1000, b"%d" % number * 1000)
        )
        if number % 20 == 19:
            store.writer.commit()
    store.writer.commit()
    store.close()


def entries_of(path: Path, disk: Disk | None = None) -> list[int]:
    store = open_store(path, THEIRS, disk)
    try:
        found: list[int] = []
        bounds = store.segments.bounds(1)
        assert bounds is not None
        while len(found) <= bounds[1]:
            results: list[list[Entry] | Exception] = []
            store.reader.read(1, len(found), bounds[1], 1 << 20, results.append)
            assert isinstance(results[0], list)
            found += [each.entry_id for each in results[0]]
        return found
    finally:
        store.close(drain=False)


def segments(path: Path) -> list[Path]:
    return sorted((path / "segments").glob("*.lmdb"))


def make_old(path: Path, disk: Disk | None = None) -> None:
    """Make a directory one of format 2, which knows of no identity."""
    for file, key in [
        (path / "metadata.lmdb", b"store/identity"),
        *((f, identity.SEGMENT_KEY) for f in segments(path)),
    ]:
        with lmdb.open(str(file), subdir=False, map_size=1 << 30) as environment, environment.begin(write=True) as txn:
            assert txn.delete(key)
        file.with_name(file.name + "-lock").unlink(missing_ok=True)
    (path / "FORMAT").write_text("heliograph 2\n")


def test_all_parts_say_whose_they_are(tmp_path: Path) -> None:
    fill(tmp_path / "d")
    assert identity.parse_format((tmp_path / "d" / "FORMAT").read_text()) == identity.Format(3, OURS)
    for file in segments(tmp_path / "d"):
        with lmdb.open(str(file), subdir=False, readonly=True, lock=False) as environment:
            assert identity.of_segment(environment) == OURS
    # The id drawn for a new store is not used for this one.
    assert entries_of(tmp_path / "d") == list(range(600))


@pytest.mark.parametrize("version", [2, 3])
def test_without_its_metadata_a_store_refuses_and_keeps_everything(tmp_path: Path, version: int) -> None:
    fill(tmp_path / "d")
    if version == 2:
        make_old(tmp_path / "d")
    (tmp_path / "d" / "metadata.lmdb").unlink()
    before = segments(tmp_path / "d")
    with pytest.raises(DataDirError, match=r"lost its metadata\.lmdb.*heliograph store salvage"):
        open_store(tmp_path / "d")
    assert segments(tmp_path / "d") == before


def test_metadata_of_another_store_is_refused_by_name(tmp_path: Path) -> None:
    fill(tmp_path / "d")
    fill(tmp_path / "e", THEIRS)
    shutil.copy(tmp_path / "e" / "metadata.lmdb", tmp_path / "d" / "metadata.lmdb")
    with pytest.raises(DataDirError, match=rf"metadata.lmdb belongs to the store {THEIRS}, the directory to .*{OURS}"):
        open_store(tmp_path / "d")


def test_a_segment_of_another_store_is_refused_by_name(tmp_path: Path) -> None:
    fill(tmp_path / "d")
    fill(tmp_path / "e", THEIRS)
    shutil.copy(segments(tmp_path / "e")[1], segments(tmp_path / "d")[1])
    with pytest.raises(DataDirError, match=rf"00000002-00000002-0001.lmdb belongs to the store {THEIRS}"):
        open_store(tmp_path / "d")


def test_a_segment_that_says_no_store_is_adopted_only_from_an_older_format(tmp_path: Path) -> None:
    fill(tmp_path / "d")
    make_old(tmp_path / "d")
    old = segments(tmp_path / "d")[1].read_bytes()
    assert entries_of(tmp_path / "d") == list(range(600))
    segments(tmp_path / "d")[1].write_bytes(old)
    with pytest.raises(DataDirError, match=r"00000002-00000002-0001.lmdb belongs to no store"):
        open_store(tmp_path / "d")


def test_a_segment_whose_id_is_damaged_is_served(tmp_path: Path) -> None:
    fill(tmp_path / "d")
    for file in segments(tmp_path / "d"):
        with lmdb.open(str(file), subdir=False, map_size=1 << 30) as environment, environment.begin(write=True) as txn:
            value = txn.get(identity.SEGMENT_KEY)
            assert value is not None
            assert txn.put(identity.SEGMENT_KEY, b"c" + value[1:])
    assert entries_of(tmp_path / "d") == list(range(600))


def test_a_damaged_record_of_a_segment_stops_nobody(tmp_path: Path) -> None:
    fill(tmp_path / "d")
    for key, value in ((b"store/segment/x", b"\x90"), (b"store/segment/00000001-00000001-0001.lmdb", b"\xc1")):
        store = open_store(tmp_path / "d")
        store.writer.put(key, value)
        store.close()
    assert entries_of(tmp_path / "d") == list(range(600))


def test_segments_without_format_are_refused(tmp_path: Path) -> None:
    fill(tmp_path / "d")
    (tmp_path / "d" / "FORMAT").unlink()
    with pytest.raises(DataDirError, match="has segments but no FORMAT file"):
        open_store(tmp_path / "d")


def test_damaged_metadata_is_named_with_the_way_on(tmp_path: Path) -> None:
    fill(tmp_path / "d")
    content = (tmp_path / "d" / "metadata.lmdb").read_bytes()
    (tmp_path / "d" / "metadata.lmdb").write_bytes(b"\x55" * 8192 + content[8192:])
    with pytest.raises(DataDirError, match=r"metadata\.lmdb is damaged.*heliograph restore"):
        open_store(tmp_path / "d")


@pytest.mark.parametrize("power_lost", [False, True])
def test_a_first_start_may_end_at_any_step(power_lost: bool) -> None:
    path = Path("/d")
    for step in range(1, 200):
        disk = SimulatedDisk(random.Random(step))
        disk.crash_at = step
        try:
            fill(path, disk=disk, entries=40)
        except Crashed:
            pass
        else:
            assert step > 10
            return
        fill(path, disk=disk.reboot(power_lost=power_lost), entries=40)
    raise AssertionError("it takes more steps than were tried")


@pytest.mark.parametrize("power_lost", [False, True])
def test_an_upgrade_may_end_at_any_step(power_lost: bool) -> None:
    path = Path("/d")
    for step in range(1, 200):
        disk = SimulatedDisk(random.Random(step))
        fill(path, disk=disk)
        age(path, disk)
        disk = disk.reboot(power_lost=False)
        disk.crash_at = disk.steps + step
        try:
            entries_of(path, disk)
        except Crashed:
            pass
        else:
            assert step > 10
            return
        assert entries_of(path, disk.reboot(power_lost=power_lost)) == list(range(600))
    raise AssertionError("it takes more steps than were tried")


@pytest.mark.parametrize("room", [0, 2, 6])
def test_on_a_full_disk_a_start_goes_on_in_the_older_format(room: int) -> None:
    path = Path("/d")
    disk = SimulatedDisk(random.Random(1))
    fill(path, disk=disk)
    age(path, disk)
    commits = 0

    class LeavingRoom(Failure):
        """The first commits have room."""

        @property
        def times(self) -> int:
            nonlocal commits
            commits += 1
            return 0 if commits <= room else 1

        @times.setter
        def times(self, value: int) -> None: ...

    disk.failures[:] = [LeavingRoom(frozenset({"commit"}), "", errno.ENOSPC, 1)]
    assert entries_of(path, disk) == list(range(600))
    assert disk.read(path / "FORMAT") == b"heliograph 2\n"
    disk.heal()
    assert entries_of(path, disk) == list(range(600))
    assert disk.read(path / "FORMAT").startswith(b"heliograph 3\n")


def age(path: Path, disk: SimulatedDisk) -> None:
    """As :func:`make_old`, on a simulated disk."""
    files = [file for file in disk.files(path / "segments") if file.suffix == ".lmdb"]
    for file, key in [(path / "metadata.lmdb", b"store/identity"), *((f, identity.SEGMENT_KEY) for f in files)]:
        environment = disk.open_environment(file, 1 << 30, lock=False)
        with environment.begin(write=True) as txn:
            assert txn.delete(key)
        environment.close()
    disk.write(path / "FORMAT", b"heliograph 2\n")
    disk.sync_directory(path)
