"""Disk space comes back: how much, whatever runs meanwhile, whenever the process dies, and on a full disk."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lmdb
import pytest
from heliograph_broker.clock import SystemClock, VirtualClock
from heliograph_broker.storage.base.completion import completed
from heliograph_broker.storage.base.entry import Entry
from heliograph_broker.storage.base.scheduler import Scheduler
from heliograph_broker.storage.disk.data_dir import DataDir
from heliograph_broker.storage.segments.chunk import Repacker
from heliograph_broker.storage.segments.rewrite import Abandoned, Rewriting
from heliograph_broker.storage.segments.segment import Segment
from heliograph_broker.storage.store import InlineScheduler, LedgerStore, LoopScheduler, StorageFull

from tests.support.polling import DEADLINE_S

MIB = 1 << 20


class Load:
    """Entries of known content in any number of ledgers, and what should be left of them."""

    def __init__(self, store: LedgerStore, size: int = 1024) -> None:
        self.store = store
        self.size = size
        self.first: dict[int, int] = {}
        self.end: dict[int, int] = {}
        self.durable = 0
        self.errors: list[Exception] = []

    def append(self, ledger_id: int) -> None:
        entry_id = self.end.get(ledger_id, 0)
        self.end[ledger_id] = entry_id + 1
        self.first.setdefault(ledger_id, 0)
        total = (entry_id + 1) * self.size
        frame = self.frame(ledger_id, entry_id)
        self.store.writer.append(self, Entry(ledger_id, entry_id, 7, 0, 0, -1, 1, 0, entry_id + 1, total, frame))

    def frame(self, ledger_id: int, entry_id: int) -> bytes:
        return (b"%d:%d " % (ledger_id, entry_id)).ljust(self.size, b"x")

    def fill(self, ledgers: int, total_bytes: int) -> None:
        """Append to the ledgers in turn, in groups of 200, by an inline scheduler."""
        for number in range(total_bytes // self.size):
            self.append(1 + number % ledgers)
            if number % 200 == 199:
                self.store.writer.commit()
        self.store.writer.commit()

    def trim(self, share: float) -> None:
        for ledger_id, end in self.end.items():
            first = self.first[ledger_id]
            self.first[ledger_id] = first + int((end - first) * share)
            self.store.segments.trim(ledger_id, self.first[ledger_id])

    @property
    def live_bytes(self) -> int:
        return sum(end - self.first[ledger_id] for ledger_id, end in self.end.items()) * self.size

    def assert_all_there(self, store: LedgerStore | None = None) -> None:
        """Read back every live entry by an inline scheduler."""
        for ledger_id, end in self.end.items():
            at = self.first[ledger_id]
            while at < end:
                results: list[list[Entry] | Exception] = []
                (store or self.store).reader.read(ledger_id, at, end - 1, MIB, results.append)
                (found,) = results
                assert isinstance(found, list)
                assert found, (ledger_id, at)
                for each in found:
                    assert (each.entry_id, each.frame) == (at, self.frame(ledger_id, at))
                    at += 1

    def entries_durable(self, entries: list[Entry]) -> None:
        self.durable += len(entries)

    def entries_failed(self, entries: list[Entry], error: Exception) -> None:
        self.errors.append(error)
        for each in reversed(entries):
            self.end[each.ledger_id] = each.entry_id


def open_store(
    path: Path,
    scheduler: Scheduler | None = None,
    clock: VirtualClock | None = None,
    segment_bytes: int = MIB,
    reserve: int = 0,
) -> LedgerStore:
    return LedgerStore.open(
        path,
        clock or VirtualClock(),
        scheduler=scheduler or InlineScheduler(),
        segment_bytes=segment_bytes,
        disk_reserve_bytes=reserve,
    )


def maintain(store: LedgerStore, times: int = 30) -> None:
    for _ in range(times):
        store.maintain()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "d"


@pytest.fixture
def store(path: Path) -> Iterator[LedgerStore]:
    opened = open_store(path)
    yield opened
    opened.close()


def segments(path: Path) -> list[str]:
    return sorted(each.name for each in (path / "segments").iterdir() if each.suffix == ".lmdb")


@pytest.mark.parametrize("ledgers", [1, 40])
@pytest.mark.parametrize("size", [100, 1024, 3000, 70_000])
def test_after_nine_tenths_are_trimmed_the_directory_is_at_most_half_as_large_again_as_what_is_live(
    path: Path, ledgers: int, size: int
) -> None:
    store = open_store(path)
    load = Load(store, size)
    load.fill(ledgers, min(24 * MIB, 60_000 * size))
    load.trim(0.9)
    maintain(store)
    assert store.segments.live_bytes() == load.live_bytes
    assert DataDir.files_bytes(path) <= 1.5 * load.live_bytes
    load.assert_all_there()
    store.close()
    store = open_store(path)
    store.ledgers.retain(load.first)
    assert store.segments.live_bytes() == load.live_bytes
    load.assert_all_there(store)
    store.close()


@pytest.mark.parametrize("ledgers", [1, 40])
@pytest.mark.parametrize("busy", [False, True])
async def test_space_comes_back_in_time_beside_an_event_loop(path: Path, ledgers: int, busy: bool) -> None:
    loop = asyncio.get_running_loop()
    store = LedgerStore.open(
        path, SystemClock(), scheduler=LoopScheduler(loop), segment_bytes=4 * MIB, disk_reserve_bytes=0
    )
    load = Load(store)

    async def commit() -> None:
        await completed(store.writer.after_commit)

    async def publish() -> None:
        while True:
            for _ in range(10):
                load.append(1000)
            await commit()
            await asyncio.sleep(0.01)

    for number in range(64 * 1024):
        load.append(1 + number % ledgers)
        if number % 500 == 499:
            await commit()
    await commit()
    load.trim(0.9)
    publishing = asyncio.create_task(publish()) if busy else None
    deadline = time.monotonic() + 3 * DEADLINE_S
    while DataDir.files_bytes(path) > 1.5 * load.live_bytes:
        assert time.monotonic() < deadline
        store.maintain()
        await asyncio.sleep(0.1)
    if publishing is not None:
        publishing.cancel()
        await asyncio.wait([publishing])
    await commit()
    assert not load.errors
    store.close()
    store = open_store(path, segment_bytes=4 * MIB)
    store.ledgers.retain(load.first)
    load.assert_all_there(store)
    store.close()


def test_a_small_open_segment_gives_its_space_back(store: LedgerStore, path: Path) -> None:
    load = Load(store)
    load.fill(3, MIB // 2)
    load.trim(0.9)
    maintain(store)
    assert DataDir.files_bytes(path) < MIB // 4
    load.assert_all_there()
    load.fill(3, MIB // 4)
    load.assert_all_there()


def test_while_entries_are_written_the_open_segment_is_not_closed_again_and_again(path: Path) -> None:
    clock = VirtualClock()
    store = open_store(path, clock=clock, segment_bytes=8 * MIB)
    load = Load(store)
    for _ in range(40):
        load.fill(1, MIB)
        load.trim(1.0)
        store.maintain()
        clock.advance_ms(500)
    # Numbers are used up by size (40 MiB in 8) and every ten seconds (20 of them), not by every check.
    (name, *_) = reversed(segments(path))
    assert int(name.split("-")[0]) <= 9
    store.close()


def test_many_small_segments_become_few(path: Path) -> None:
    # A ledger that keeps a little of every segment.
    store = open_store(path)
    load = Load(store)
    for _ in range(60):
        load.append(1)
        for _ in range(1024):
            load.append(2)
        store.writer.commit()
        store.segments.trim(2, load.end[2])
        load.first[2] = load.end[2]
        store.maintain()
    maintain(store)
    assert len(segments(path)) <= 10
    load.assert_all_there()
    store.close()


def test_metadata_that_was_large_once_is_small_after_a_start(path: Path, store: LedgerStore) -> None:
    for number in range(200):
        store.writer.put(b"m/%d" % number, bytes(60_000))
    store.writer.commit()
    large = DataDir.files_bytes(path)
    assert large > 8 * MIB
    for number in range(200):
        store.writer.put(b"m/%d" % number, b"%d" % number)
    store.writer.commit()
    store.close()
    (path / "metadata.tmp").write_bytes(b"left by a crash")
    again = open_store(path)
    assert DataDir.files_bytes(path) < MIB
    assert again.disk_bytes() < MIB
    assert dict(again.metadata.scan(b"m/")) == {b"m/%d" % number: b"%d" % number for number in range(200)}
    again.writer.put(b"m/new", b"1")
    again.writer.commit()
    again.close()
    again = open_store(path)
    assert again.metadata.get(b"m/new") == b"1"
    again.close()


class Deferring(InlineScheduler):
    """Keeps background jobs until they are asked for, and what they return until later still."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []

    def background(self, job: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self.jobs.append((job, done))


def copies(scheduler: Deferring) -> list[Callable[[], Any]]:
    return [job for job, _ in scheduler.jobs if getattr(job, "__func__", None) is Rewriting.run]


class Ending(Deferring):
    """Its third pause is cut short, as by a store that is being closed."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses = 0

    def pause(self, seconds: float) -> bool:
        self.pauses += 1
        return self.pauses < 3


def test_a_dead_file_is_cut_shorter_step_by_step_and_a_start_removes_what_is_left(path: Path) -> None:
    scheduler = Ending()
    store = open_store(path, scheduler, segment_bytes=16 * MIB)
    load = Load(store)
    load.fill(1, 20 * MIB)
    first = path / "segments" / segments(path)[0]
    size = first.stat().st_size
    load.trim(0.9)
    maintain(store, 6)
    removal, _ = scheduler.jobs[0]
    assert removal() is None
    assert scheduler.pauses == 3
    left = first.with_suffix(".leaving")
    assert not first.exists()
    assert left.stat().st_size == size - 3 * 2 * MIB
    store.close(drain=False)
    again = open_store(path, segment_bytes=16 * MIB)
    assert not left.exists()
    load.assert_all_there(again)
    again.close()


def test_while_what_is_live_shrinks_nothing_is_copied_but_for_a_full_disk(path: Path) -> None:
    scheduler = Deferring()
    store = open_store(path, scheduler)
    load = Load(store)
    load.fill(10, 8 * MIB)
    store.maintain()
    for _ in range(5):
        load.trim(0.3)
        store.maintain()
        assert copies(scheduler) == []
    maintain(store, 3)
    assert copies(scheduler) == []
    store.maintain()
    assert copies(scheduler)
    store.close()


def test_on_a_full_disk_space_is_given_back_while_it_shrinks(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = Deferring()
    store = open_store(path, scheduler)
    load = Load(store)
    load.fill(1, 8 * MIB)
    store.maintain()
    monkeypatch.setattr(store.space, "full", True)
    monkeypatch.setattr(store.space, "_reserve", 1 << 60)
    load.trim(0.6)
    store.maintain()
    assert scheduler.jobs
    store.close()


def test_what_is_trimmed_or_dropped_during_a_copy_is_dead_in_the_copy(path: Path) -> None:
    scheduler = Deferring()
    store = open_store(path, scheduler)
    load = Load(store)
    load.fill(10, 8 * MIB)
    load.trim(0.5)
    for _ in range(30):
        store.maintain()
        jobs, scheduler.jobs = scheduler.jobs, []
        results = []
        for job, done in jobs:
            results.append((done, job()))
        load.trim(0.1)
        if 10 in load.end:
            store.ledgers.delete(10)
            store.writer.commit()
            del load.end[10], load.first[10]
        for done, result in results:
            done(result)
        assert store.segments.live_bytes() == load.live_bytes
        load.assert_all_there()
    assert load.live_bytes < MIB // 4
    assert store.disk_bytes() <= 1.5 * load.live_bytes + MIB // 4
    store.close()


def test_a_copy_that_fails_leaves_everything_and_is_tried_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = VirtualClock()
    store = open_store(path, clock=clock)
    load = Load(store)
    load.fill(40, 8 * MIB)
    attempts = 0

    def fail(*_: object) -> bool:
        nonlocal attempts
        attempts += 1
        raise OSError(28, "No space left on device")

    load.trim(0.9)
    with monkeypatch.context() as patched:
        patched.setattr(Rewriting, "_yield_to_traffic", fail)
        maintain(store)
        assert attempts == 1
        clock.advance_ms(10_000)
        maintain(store)
        assert attempts == 2
    assert not list((path / "segments").glob("*.tmp*"))
    load.assert_all_there()
    clock.advance_ms(10_000)
    maintain(store)
    assert DataDir.files_bytes(path) <= 1.5 * load.live_bytes
    load.assert_all_there()
    store.close()


async def test_closing_does_not_wait_for_a_copy_and_loses_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(path, segment_bytes=64 * MIB)
    load = Load(store)
    load.fill(40, 40 * MIB)
    store.close()
    scheduler = LoopScheduler(asyncio.get_running_loop())
    store = load.store = open_store(path, scheduler, segment_bytes=MIB)
    load.trim(0.3)
    store.ledgers.retain(load.first)
    copying = threading.Event()
    slices = 0
    put = Rewriting._put

    def held(target: lmdb.Environment, packer: Repacker) -> None:
        """Write a slice of the copy when the store is being closed."""
        nonlocal slices
        slices += 1
        copying.set()
        assert scheduler._closing.wait(DEADLINE_S)
        put(target, packer)

    monkeypatch.setattr(Rewriting, "_put", staticmethod(held))
    store.maintain()
    assert await asyncio.to_thread(copying.wait, DEADLINE_S)
    assert list((path / "segments").glob("*.tmp"))
    store.close()
    # The whole copy has 29 slices.
    assert slices == 1
    assert not list((path / "segments").glob("*.tmp"))
    store = open_store(path)
    store.ledgers.retain(load.first)
    load.assert_all_there(store)
    store.close()


def mapped(path: Path) -> list[str]:
    """Return the files below ``path`` that the process has mapped into its memory, by open environments."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sorted({line.split(maxsplit=5)[5] for line in lines if f"{path}/" in line})


class Abandoning(Deferring):
    """Is closed as soon as a copy pauses."""

    def pause(self, seconds: float) -> bool:
        return False


def _begin_copy(path: Path, scheduler: Deferring) -> tuple[LedgerStore, Load]:
    store = open_store(path, scheduler)
    load = Load(store)
    load.fill(10, 8 * MIB)
    for ledger_id in range(1, 9):
        load.first[ledger_id] = load.end[ledger_id]
        store.segments.trim(ledger_id, load.end[ledger_id])
    maintain(store, 6)
    assert copies(scheduler)
    return store, load


@pytest.mark.parametrize("scheduler", [Deferring, Abandoning])
@pytest.mark.parametrize("reported", [False, True])
def test_a_store_that_is_closed_during_a_copy_leaves_no_file_open(
    path: Path, scheduler: type[Deferring], reported: bool
) -> None:
    jobs = scheduler()
    store, load = _begin_copy(path, jobs)
    results = []
    for job, done in jobs.jobs:
        try:
            results.append((done, job()))
        except Abandoned as error:
            results.append((done, error))
    assert mapped(path)
    store.close()
    assert mapped(path) == []
    # What the threads did last may be reported only after that.
    for done, result in results if reported else []:
        done(result)
    assert mapped(path) == []
    again = open_store(path)
    again.ledgers.retain(load.first)
    load.assert_all_there(again)
    again.close()


def test_a_copy_that_cannot_be_opened_leaves_no_file_open(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = Deferring()
    store, _ = _begin_copy(path, jobs)
    opened = mapped(path)

    def fail(environment: Segment) -> None:
        environment.environment()
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Segment, "load_runs", fail)
    [(job, done)] = [each for each in jobs.jobs if each[0] in copies(jobs)]
    with pytest.raises(OSError, match="Input") as failed:
        job()
    done(failed.value)
    assert mapped(path) == opened
    store.close()
    assert mapped(path) == []


def test_a_store_that_is_closed_while_a_removed_file_is_read_leaves_no_file_open(path: Path) -> None:
    store = open_store(path, Deferring())
    load = Load(store)
    load.fill(1, 8 * MIB)
    pinned = store.segments.pin()
    load.trim(1.0)
    maintain(store, 6)
    store.close()
    assert mapped(path) == []
    for segment in pinned:
        segment.release()
    assert mapped(path) == []


def test_whenever_the_process_dies_the_old_or_the_new_is_there(path: Path) -> None:
    """Kill -9 before every step of reclaiming: every rename, unlink, sync, and pause of a copy."""
    program = textwrap.dedent(
        """
        import os, shutil, signal, sys
        from pathlib import Path
        sys.path.insert(0, sys.argv[2])
        from tests.unit.test_store_space import *
        path = Path(sys.argv[1])
        store = open_store(path / "full")
        load = Load(store)
        load.fill(20, 6 * MIB)
        load.trim(0.7)
        store.close()

        steps = 0
        def counted(function):
            def step(*arguments, **options):
                global steps
                if steps == survive:
                    os.kill(os.getpid(), signal.SIGKILL)
                steps += 1
                return function(*arguments, **options)
            return step

        for survive in range(1000):
            copy = path / str(survive)
            shutil.copytree(path / "full", copy)
            child = os.fork()
            if not child:
                for owner, name in ((Path, "rename"), (Path, "unlink"), (os, "fsync"), (InlineScheduler, "pause")):
                    setattr(owner, name, counted(getattr(owner, name)))
                store = open_store(copy)
                store.ledgers.retain(load.first)
                maintain(store)
                store.close()
                os._exit(0)
            _, status = os.waitpid(child, 0)
            store = open_store(copy)
            store.ledgers.retain(load.first)
            assert store.segments.live_bytes() == load.live_bytes, survive
            load.assert_all_there(store)
            maintain(store)
            assert DataDir.files_bytes(copy) <= 1.5 * load.live_bytes, survive
            load.assert_all_there(store)
            store.close()
            assert not [each for each in (copy / "segments").iterdir() if each.suffix == ".tmp"]
            shutil.rmtree(copy)
            if status == 0:
                break
            assert os.WTERMSIG(status) == signal.SIGKILL
        print(survive)
        """
    )
    path.mkdir()
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", program, str(path), str(root)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": f"{root / 'api'}:{root / 'broker'}"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 15


def test_on_a_full_disk_publishing_fails_the_rest_goes_on_and_space_still_comes_back(tmp_path: Path) -> None:
    mounted = tmp_path / "small"
    mounted.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(mounted)]
    if os.geteuid() != 0 or subprocess.run(command, check=False, capture_output=True).returncode != 0:
        pytest.skip("a small file system cannot be mounted here")
    clock = VirtualClock()
    store = open_store(mounted / "d", clock=clock, segment_bytes=2 * MIB, reserve=2 * MIB)
    try:
        load = Load(store)
        while not store.space.full:
            load.fill(20, 200 * load.size)
        assert isinstance(load.errors[0], StorageFull)
        load.assert_all_there()
        committed: list[Exception | None] = []
        store.writer.put(b"cursor", b"1")
        store.writer.after_commit(committed.append)
        store.writer.commit()
        assert committed == [None]
        # Somebody else takes almost all of the rest.
        (mounted / "other").write_bytes(bytes(max(0, store.space.free_bytes() - MIB)))
        load.trim(0.6)
        clock.advance_ms(10_000)
        maintain(store, 60)
        assert not store.space.full
        assert DataDir.files_bytes(mounted / "d") <= 1.5 * load.live_bytes
        load.assert_all_there()
        load.errors.clear()
        load.fill(20, MIB)
        assert not load.errors
    finally:
        store.close()
        subprocess.run(["umount", str(mounted)], check=True)


@pytest.mark.parametrize("segment_bytes", [MIB, 64 * MIB])
def test_regular_bursts_give_their_space_back(path: Path, segment_bytes: int) -> None:
    # A queue that fills and drains in less time than copies are put off for after what is live shrank.
    clock = VirtualClock()
    store = open_store(path, clock=clock, segment_bytes=segment_bytes)
    load = Load(store)
    for second in range(60):
        load.fill(1, 2 * MIB)
        store.maintain()
        clock.advance_ms(500)
        load.trim(1.0)
        store.maintain()
        clock.advance_ms(500)
        # Within the 10 s after which the open segment may be closed, 20 MiB are written.
        assert store.disk_bytes() < 32 * MIB, second
    store.close()


def test_copies_are_put_off_for_a_bounded_time_while_what_is_live_shrinks_again_and_again(path: Path) -> None:
    clock = VirtualClock()
    scheduler = Deferring()
    store = open_store(path, scheduler, clock=clock)
    load = Load(store)
    # Each segment keeps a little for good, so that none of them is wholly dead.
    while not copies(scheduler) and clock.monotonic() < 60:
        load.fill(8, MIB)
        store.maintain()
        clock.advance_ms(500)
        for ledger_id in range(2, 9):
            load.first[ledger_id] = load.end[ledger_id]
            store.segments.trim(ledger_id, load.end[ledger_id])
        store.maintain()
        clock.advance_ms(500)
    assert copies(scheduler)
    assert 5 < clock.monotonic() < 20
    store.close()
