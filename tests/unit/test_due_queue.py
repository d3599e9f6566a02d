"""Keys are taken in the order of their times, and replaced times do not pile up."""

from __future__ import annotations

import pytest
from heliograph_api.due_queue import DueQueue


@pytest.mark.parametrize("replaced", [True, False])
def test_a_queue_of_due_times_is_bounded_and_in_order(replaced: bool) -> None:
    queue: DueQueue[str] = DueQueue()
    for due in range(10_000, 0, -1):
        (queue.schedule if replaced else queue.sooner)("a", due)
    queue.schedule("b", 500)
    assert len(queue) == 2
    assert len(queue._heap) <= 70
    assert queue.take(0) is None
    assert [queue.take(1_000), queue.take(1_000), queue.take(1_000)] == ["a", "b", None]
    queue.schedule("c", 7)
    queue.sooner("c", 9)
    queue.forget("c")
    assert queue.take(100) is None


def test_the_next_time_is_that_of_a_key_which_still_waits() -> None:
    queue: DueQueue[str] = DueQueue()
    assert queue.next_ms() is None
    queue.schedule("a", 5)
    queue.schedule("b", 7)
    assert queue.next_ms() == 5
    queue.schedule("a", 9)
    assert queue.next_ms() == 7
    queue.forget("b")
    assert queue.next_ms() == 9
    assert queue.take(9) == "a"
    assert queue.next_ms() is None


def test_keys_due_at_the_same_time_come_by_their_order_and_then_as_they_were_scheduled() -> None:
    queue: DueQueue[str] = DueQueue()
    for key, order in (("last", 9), ("first", 1), ("second", 1)):
        queue.schedule(key, 5, order)
    queue.schedule("before", 4, 99)
    assert "last" in queue
    assert [queue.take(5) for _ in range(5)] == ["before", "first", "second", "last", None]
    assert "last" not in queue
    queue.schedule("gone", 5)
    queue.clear()
    assert queue.take(9) is None
