"""Each key is reconciled by one worker at a time, none is forgotten, and delays grow up to a cap."""

from __future__ import annotations

import asyncio

import pytest
from heliograph_operator.act.work_queue import WorkQueue
from heliograph_operator.objects.backoff import UNREACHABLE, Backoff

from tests.support.polling import DEADLINE_S


async def test_a_key_added_often_is_looked_at_once() -> None:
    queue: WorkQueue[str] = WorkQueue()
    for key in ("a", "b", "a", "a"):
        queue.add(key)
    assert len(queue) == 2
    assert [await queue.take(), await queue.take()] == ["a", "b"]
    assert (len(queue), queue.working) == (0, 2)


async def test_what_changes_during_a_look_is_looked_at_again_and_not_at_the_same_time() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    assert await queue.take() == "a"
    queue.add("a")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(queue.take(), 0.05)
    queue.done("a")
    assert await asyncio.wait_for(queue.take(), DEADLINE_S) == "a"
    queue.done("a")
    assert len(queue) == 0


async def test_the_earlier_of_two_times_counts_and_a_look_now_drops_both() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("late", 6000)
    queue.add("late", 0.05)
    queue.add("late", 3000)
    assert await asyncio.wait_for(queue.take(), DEADLINE_S) == "late"
    queue.done("late")
    queue.add("b", 0.05)
    queue.add("b")
    assert await queue.take() == "b"
    queue.done("b")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(queue.take(), 0.2)


async def test_what_is_forgotten_does_not_come() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a", 0.02)
    queue.forget("a")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(queue.take(), 0.2)


def test_waits_double_up_to_a_cap() -> None:
    backoff = Backoff(1.0, 60.0)
    assert [backoff.delay(failures) for failures in (0, 1, 2, 3, 7, 10_000)] == [1, 1, 2, 4, 60, 60]
    assert UNREACHABLE.delay(1) >= 10
