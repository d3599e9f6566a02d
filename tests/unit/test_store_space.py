"""Disk space comes back: how much, whatever runs meanwhile, whenever the process dies, and on a full disk."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from heliograph_broker.clock import SystemClock, VirtualClock
from heliograph_broker.storage.base.completion import completed
from heliograph_broker.storage.disk.data_dir import DataDir
from heliograph_broker.storage.store import LedgerStore, LoopScheduler, StorageFull

from tests.support.polling import DEADLINE_S
from tests.support.store_load import MIB, Load, maintain, open_store, segments


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "d"


@pytest.fixture
def store(path: Path) -> Iterator[LedgerStore]:
    opened = open_store(path)
    yield opened
    opened.close()


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


def test_whenever_the_process_dies_the_old_or_the_new_is_there(path: Path) -> None:
    """Kill -9 before every step of reclaiming: every rename, unlink, sync, and pause of a copy."""
    program = textwrap.dedent(
        """
        import os, shutil, signal, sys
        from pathlib import Path
        sys.path.insert(0, sys.argv[2])
        from heliograph_broker.storage.disk.data_dir import DataDir
        from heliograph_broker.storage.store import InlineScheduler
        from tests.support.store_load import MIB, Load, maintain, open_store
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
