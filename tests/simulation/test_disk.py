"""The simulated disk does what the real one does, and a crash takes from it what it may and nothing else."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import lmdb
import pytest
from heliograph_broker.storage.disk.disk import Disk, Locked, RealDisk

from .disk import WRITES, Crashed, SimulatedDisk
from .environment import EnvironmentFile

_MAP = 1 << 20


def _outcome(call: Callable[[], Any]) -> Any:
    """Return what a call returns or the class of what it raises."""
    try:
        result = call()
    except (lmdb.Error, OSError) as error:
        return type(error)
    return bytes(result) if isinstance(result, memoryview) else result


def _same(real: Any, simulated: Any, method: str, *given: Any, **named: Any) -> Any:
    """Call a method of both and compare what comes of it."""
    expected = _outcome(lambda: getattr(real, method)(*given, **named))
    got = _outcome(lambda: getattr(simulated, method)(*given, **named))
    assert got == expected, f"{method}{given!r:.200}: the real one {expected!r}, the simulation {got!r}"
    return got


def _key(rng: random.Random) -> bytes:
    if rng.random() < 0.02:
        return rng.choice([b"", b"k" * 511, b"k" * 512])
    return b"%02d" % rng.randrange(40)


def _value(rng: random.Random) -> bytes:
    return rng.randbytes(rng.choice([0, 3, 30, 3000, 9000]))


def _write(rng: random.Random, real: Any, simulated: Any) -> None:
    mine, theirs = real.begin(write=True), simulated.begin(write=True)
    for _ in range(rng.randrange(12)):
        action = rng.randrange(5)
        if action == 0:
            _same(mine, theirs, "delete", _key(rng))
        elif action == 1:
            items = [((_key(rng) or b"0")[:511], _value(rng)) for _ in range(5)]
            append = rng.random() < 0.5
            if append:
                items.sort()
            _same(mine.cursor(), theirs.cursor(), "putmulti", items, append=append)
        else:
            _same(mine, theirs, "put", _key(rng), _value(rng))
    _same(mine, theirs, "abort" if rng.random() < 0.2 else "commit")


def _read(rng: random.Random, real: Any, simulated: Any) -> None:
    buffers = rng.random() < 0.5
    with real.begin(buffers=buffers) as mine, simulated.begin(buffers=buffers) as theirs:
        for _ in range(rng.randrange(6)):
            _same(mine, theirs, "get", _key(rng))
        with mine.cursor() as one, theirs.cursor() as other:
            for _ in range(rng.randrange(20)):
                move = rng.choice(["first", "last", "set_range", "next", "prev"])
                _same(one, other, move, *([_key(rng) or b"0"] if move == "set_range" else []))
                _same(one, other, "key")
                _same(one, other, "value")
                if not one.key():
                    # LMDB decides by earlier moves where a cursor goes from beyond the end.
                    one.first()
                    other.first()
        assert _items(mine) == _items(theirs)
    assert real.stat()["entries"] == simulated.stat()["entries"]


def _items(txn: Any) -> list[tuple[bytes, bytes]]:
    return [(bytes(key), bytes(value)) for key, value in txn.cursor()]


@pytest.mark.parametrize("seed", range(25))
def test_an_environment_does_what_lmdb_does(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    real, simulated = RealDisk(), SimulatedDisk(random.Random(seed))
    simulated.make_directory(tmp_path)
    path = tmp_path / "e.lmdb"
    mine, theirs = (cast(Disk, disk).open_environment(path, _MAP) for disk in (real, simulated))
    for _ in range(40):
        action = rng.randrange(8)
        if action < 4:
            _write(rng, mine, theirs)
        elif action < 7:
            _read(rng, mine, theirs)
        else:
            mine.close()
            theirs.close()
            if rng.random() < 0.3:
                opened = [disk.open_environment(path, _MAP, readonly=True, lock=False) for disk in (real, simulated)]
                _same(opened[0], opened[1], "begin", write=True)
                for environment in opened:
                    environment.close()
            mine, theirs = (cast(Disk, disk).open_environment(path, _MAP) for disk in (real, simulated))
    mine.close()
    theirs.close()
    _same(mine, theirs, "begin")


def test_a_full_map_is_refused_as_lmdb_refuses_it(tmp_path: Path) -> None:
    for disk in (RealDisk(), SimulatedDisk(random.Random(1))):
        cast(Disk, disk).make_directory(tmp_path)
        environment = disk.open_environment(tmp_path / "small.lmdb", 64 * 1024)
        with pytest.raises(lmdb.MapFullError), environment.begin(write=True) as txn:
            txn.put(b"k", bytes(128 * 1024))
        with environment.begin() as txn:
            assert txn.get(b"k") is None
        environment.close()


@pytest.mark.parametrize("seed", range(25))
def test_files_and_names_are_those_of_a_real_file_system(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    directory = tmp_path / "data"
    real, simulated = RealDisk(), SimulatedDisk(random.Random(seed))
    for disk in (real, simulated):
        cast(Disk, disk).make_directory(directory)
    paths = [directory / name for name in ("a", "b", "c.tmp", "d")]
    for _ in range(120):
        path, other = rng.sample(paths, 2)
        match rng.randrange(6):
            case 0:
                _same(real, simulated, "write", path, rng.randbytes(rng.choice([1, 5, 9000])))
            case 1:
                _same(real, simulated, "rename", path, other)
            case 2:
                _same(real, simulated, "remove", path)
            case 3:
                _same(real, simulated, "read", path)
            case 4:
                _same(real, simulated, "sync_directory", directory)
            case 5:
                assert sorted(real.files(directory)) == sorted(simulated.files(directory))
        _same(real, simulated, "exists", path)
        assert (real.file_bytes(path) > 0) == (simulated.file_bytes(path) > 0)


def test_one_lock_at_a_time() -> None:
    disk = SimulatedDisk(random.Random(1))
    disk.make_directory(Path("/data"))
    lock = disk.lock(Path("/data/LOCK"), "12\n")
    with pytest.raises(Locked, match="12"):
        disk.lock(Path("/data/LOCK"), "13\n")
    disk.unlock(lock)
    disk.lock(Path("/data/LOCK"), "13\n")


# -- crashes -------------------------------------------------------------------------------------------------------


def _values(disk: SimulatedDisk, path: Path) -> dict[bytes, bytes]:
    environment = disk.open_environment(path, _MAP)
    with environment.begin() as txn:
        found = {bytes(key): bytes(value) for key, value in txn.cursor()}
    environment.close()
    return found


def _outcomes(steps: Callable[[SimulatedDisk], None], inspect_now: Callable[[SimulatedDisk], Any]) -> set[Any]:
    """Return everything that is found after a power cut at any of the steps, or right after the last."""
    found = set()
    for crash_at in range(1, 12):
        for seed in range(20):
            disk = SimulatedDisk(random.Random(seed))
            disk.make_directory(Path("/data"))
            disk.root.sync()
            disk.crash_at = crash_at + disk.steps
            try:
                steps(disk)
                disk.crash()
            except Crashed:
                pass
            with pytest.raises(Crashed):
                disk.sync_directory(Path("/data"))
            found.add(inspect_now(disk.reboot(power_lost=True)))
    return found


def test_a_commit_is_there_whole_or_not_at_all_and_stays_once_it_returned() -> None:
    path = Path("/data/e.lmdb")
    returned: list[int] = []

    def steps(disk: SimulatedDisk) -> None:
        returned.clear()
        environment = disk.open_environment(path, _MAP)
        disk.sync_directory(Path("/data"))
        for number in (1, 2):
            with environment.begin(write=True) as txn:
                txn.put(b"a", b"%d" % number)
                txn.put(b"b", b"%d" % number)
            returned.append(number)

    def inspect_now(disk: SimulatedDisk) -> tuple[int, ...]:
        values = _values(disk, path)
        number = int(values.get(b"a", b"0"))
        assert values.get(b"a") == values.get(b"b")
        assert number >= len(returned)
        return len(returned), number

    # No commit, or the first, or the second came to its end; the one under way is there or not.
    assert _outcomes(steps, inspect_now) == {(0, 0), (0, 1), (1, 1), (1, 2), (2, 2)}


def test_names_are_durable_with_their_directory_only() -> None:
    def steps(disk: SimulatedDisk) -> None:
        disk.write(Path("/data/new"), b"x")
        disk.rename(Path("/data/new"), Path("/data/final"))
        disk.sync_directory(Path("/data"))
        disk.remove(Path("/data/final"))

    def inspect_now(disk: SimulatedDisk) -> tuple[str, ...]:
        names = sorted(path.name for path in disk.files(Path("/data")))
        for name in names:
            assert disk.read(Path("/data") / name) in (b"", b"x")
        return tuple(names)

    assert _outcomes(steps, inspect_now) >= {(), ("new",), ("final",)}


def test_an_environment_written_without_syncs_is_broken_by_a_power_cut_or_goes_back() -> None:
    path = Path("/data/e.lmdb")

    def steps(disk: SimulatedDisk) -> None:
        environment = disk.open_environment(path, _MAP, sync=False)
        disk.sync_directory(Path("/data"))
        for number in (1, 2):
            with environment.begin(write=True) as txn:
                txn.put(b"a", b"%d" % number)
        environment.sync(True)
        with environment.begin(write=True) as txn:
            txn.put(b"a", b"3")

    def inspect_now(disk: SimulatedDisk) -> bytes:
        try:
            return _values(disk, path).get(b"a", b"")
        except lmdb.InvalidError:
            return b"broken"

    assert _outcomes(steps, inspect_now) == {b"", b"1", b"2", b"3", b"broken"}


def test_a_process_that_is_killed_loses_no_name_and_no_commit() -> None:
    disk = SimulatedDisk(random.Random(1))
    disk.make_directory(Path("/data"))
    environment = disk.open_environment(Path("/data/e.lmdb"), _MAP, sync=False)
    with environment.begin(write=True) as txn:
        txn.put(b"a", b"1")
    disk.crash()
    assert _values(disk.reboot(power_lost=False), Path("/data/e.lmdb")) == {b"a": b"1"}


# -- failures ------------------------------------------------------------------------------------------------------


def test_calls_fail_for_a_while_and_then_succeed() -> None:
    disk = SimulatedDisk(random.Random(1))
    disk.make_directory(Path("/data"))
    environment = disk.open_environment(Path("/data/e.lmdb"), _MAP)
    disk.fail(frozenset({"commit"}), errno.ENOSPC, 2, within="e.lmdb")
    for _ in range(2):
        with pytest.raises(lmdb.DiskError), environment.begin(write=True) as txn:
            txn.put(b"a", b"1")
    with environment.begin() as reading:
        assert reading.get(b"a") is None
    with environment.begin(write=True) as txn:
        txn.put(b"a", b"2")
    assert _values(disk, Path("/data/e.lmdb")) == {b"a": b"2"}
    disk.fail(WRITES, errno.EIO, 1)
    with pytest.raises(OSError, match="Input/output"):
        disk.sync_directory(Path("/data"))
    disk.sync_directory(Path("/data"))


def test_a_read_that_fails_succeeds_the_next_time() -> None:
    disk = SimulatedDisk(random.Random(1))
    disk.make_directory(Path("/data"))
    environment = disk.open_environment(Path("/data/e.lmdb"), _MAP)
    disk.fail(frozenset({"view"}), errno.EIO, 1)
    with environment.begin(write=True) as txn:
        txn.put(b"a", b"1")
    with pytest.raises(lmdb.Error, match="Input/output"):
        environment.begin()
    with environment.begin() as txn:
        assert txn.get(b"a") == b"1"
    assert (disk.reads_failed, disk.failed) == (1, 0)


def test_an_environment_whose_meta_page_failed_refuses_everything_until_it_is_opened_again() -> None:
    disk = SimulatedDisk(random.Random(1))
    disk.make_directory(Path("/data"))
    environment = disk.open_environment(Path("/data/e.lmdb"), _MAP)
    disk.fail(frozenset({"commit"}), errno.EIO, 1)
    with pytest.raises(lmdb.Error, match="Input/output"), environment.begin(write=True) as txn:
        txn.put(b"a", b"1")
    with pytest.raises(lmdb.PanicError):
        environment.begin()
    environment.close()
    disk.open_environment(Path("/data/e.lmdb"), _MAP).close()


def test_a_full_disk_refuses_growth_and_takes_it_when_there_is_room() -> None:
    disk = SimulatedDisk(random.Random(1), capacity=64 * 1024)
    disk.make_directory(Path("/data"))
    environment = disk.open_environment(Path("/data/e.lmdb"), _MAP)
    disk.write(Path("/data/ballast"), bytes(40 * 1024))
    free = disk.free_bytes(Path("/data"))
    with pytest.raises(lmdb.DiskError), environment.begin(write=True) as txn:
        txn.put(b"a", bytes(free))
    with pytest.raises(OSError, match="No space"):
        disk.write(Path("/data/more"), bytes(free + 1))
    disk.remove(Path("/data/ballast"))
    with environment.begin(write=True) as txn:
        txn.put(b"a", bytes(free))
    assert disk.free_bytes(Path("/data")) < 64 * 1024 - free


def test_a_flipped_bit_changes_one_value_by_one_bit() -> None:
    disk = SimulatedDisk(random.Random(1))
    disk.make_directory(Path("/data"))
    environment = disk.open_environment(Path("/data/e.lmdb"), _MAP)
    with environment.begin(write=True) as txn:
        txn.put(b"a", bytes(100))
    assert disk.flip_bit("e.lmdb") is not None
    value = _values(disk, Path("/data/e.lmdb"))[b"a"]
    assert sum(byte.bit_count() for byte in value) == 1
    file = disk.walk()[0][1]
    assert isinstance(file, EnvironmentFile)
    disk.lose(Path("/data/e.lmdb"))
    assert not disk.exists(Path("/data/e.lmdb"))
