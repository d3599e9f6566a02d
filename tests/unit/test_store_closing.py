"""A store that is closed while it gives space back: nothing is lost, and no file stays open."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import lmdb
import pytest
from heliograph_broker.storage.segments.chunk import Repacker
from heliograph_broker.storage.segments.rewrite import Abandoned, Rewriting
from heliograph_broker.storage.segments.segment import Segment
from heliograph_broker.storage.store import LedgerStore, LoopScheduler

from tests.support.polling import DEADLINE_S
from tests.support.store_load import MIB, Deferring, Load, copies, maintain, open_store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "d"


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
