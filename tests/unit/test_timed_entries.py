"""Entries that wait for their time are released, whenever the index learns of it."""

from __future__ import annotations

from heliograph_broker.messaging.base.timed_entries import TimedEntries
from pyroaring import BitMap64


def test_what_waited_before_the_index_was_made_is_released_though_its_time_is_over() -> None:
    # The clock was set, or a policy: the entries are searched for again, and a tick comes while that is under way.
    timed = TimedEntries(BitMap64([3, 4]))
    assert not timed.release(1000)
    timed.add_delayed(3, 900, waits=False)
    timed.add_delayed(4, 2000, waits=True)
    assert timed.next_due_ms == 900
    assert list(timed.release(1001)) == [3]
    assert timed.next_due_ms == 2000
    assert list(timed.release(2000)) == [4]


def test_what_is_due_when_it_is_noted_does_not_wait() -> None:
    timed = TimedEntries()
    timed.add_delayed(3, 900, waits=False)
    assert not timed.waiting
    assert not timed.release(1000)
