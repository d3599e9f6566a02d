"""Clients of roles: when they were there last, and what was denied to them in the last hour."""

from __future__ import annotations

from collections import Counter

from heliograph_broker.clock import VirtualClock
from heliograph_broker.messaging.broker.role_activity import LastHour, RoleActivity
from hypothesis import given
from hypothesis import strategies as st

MINUTE_MS = 60_000


@given(st.lists(st.tuples(st.integers(0, 70), st.integers(0, 3)), max_size=40))
def test_the_last_hour_is_that_of_a_plain_count(steps: list[tuple[int, int]]) -> None:
    minute = 0
    counts, plain = LastHour(minute), Counter[int]()
    for later, events in steps:
        minute += later
        for _ in range(events):
            counts.add(minute)
            plain[minute] += 1
        assert counts.total(minute) == sum(plain[each] for each in range(minute - 59, minute + 1))


def test_a_role_is_seen_to_the_minute_and_while_it_is_connected() -> None:
    clock = VirtualClock()
    activity = RoleActivity({"billing"}, clock)
    assert activity.last_seen_ms("billing") == -1
    clock.advance_ms(MINUTE_MS + 1)
    activity.seen("billing")
    seen = activity.last_seen_ms("billing")
    assert seen == clock.now_ms() // MINUTE_MS * MINUTE_MS
    clock.advance_ms(10 * MINUTE_MS)
    assert activity.last_seen_ms("billing") == seen
    activity.connections = lambda role: 1
    assert activity.last_seen_ms("billing") == seen + 10 * MINUTE_MS


def test_nothing_is_kept_of_strangers_and_of_roles_that_were_forgotten() -> None:
    clock = VirtualClock()
    known = {"billing"}
    activity = RoleActivity(known, clock)
    for role in ("stranger", "billing"):
        activity.seen(role)
        activity.denied(role)
    assert (activity.last_seen_ms("stranger"), activity.denied_last_hour("stranger")) == (-1, 0)
    assert activity.denied_last_hour("billing") == 1
    clock.advance_ms(61 * MINUTE_MS)
    assert activity.denied_last_hour("billing") == 0
    known.clear()
    activity.forget("billing")
    assert activity.last_seen_ms("billing") == -1
