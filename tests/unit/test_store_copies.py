"""When what is live in a segment is copied, so that the rest of its space comes back, and what changes meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest
from heliograph_broker.clock import VirtualClock
from heliograph_broker.storage.disk.data_dir import DataDir
from heliograph_broker.storage.segments.rewrite import Rewriting

from tests.support.store_load import MIB, Deferring, Load, copies, maintain, open_store, segments


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "d"


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
