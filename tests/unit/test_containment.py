"""A task that raises is suspended and tried again with growing pauses; everything else goes on."""

from __future__ import annotations

from itertools import pairwise

import pytest
from heliograph_broker.clock import VirtualClock
from heliograph_broker.messaging.base.containment import FIRST_PAUSE_MS, MAX_PAUSE_MS, Containment


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


def _raise() -> None:
    raise ValueError("first line\nsecond line")


def test_a_duty_that_raises_is_suspended_with_the_reason_and_not_tried_in_its_pause(clock: VirtualClock) -> None:
    containment = Containment(clock)
    done: list[str] = []
    containment.attempt("a", "duty", _raise)
    containment.attempt("a", "duty", lambda: done.append("paused"))
    containment.attempt("a", "other", lambda: done.append("other duty"))
    containment.attempt("b", "duty", lambda: done.append("other owner"))
    assert done == ["other duty", "other owner"]
    (suspension,) = containment.all()
    assert suspension.reason == "ValueError: first line"
    assert (suspension.failures, suspension.since_ms) == (1, clock.now_ms())
    clock.advance_ms(FIRST_PAUSE_MS)
    containment.attempt("a", "duty", lambda: done.append("again"))
    assert done[-1] == "again"
    assert not containment.all()


def test_it_is_tried_again_with_growing_pauses(clock: VirtualClock) -> None:
    containment = Containment(clock)
    began = clock.now_ms()
    tries: list[int] = []

    def attempt() -> None:
        containment.attempt("a", "duty", action, attempt)

    def action() -> None:
        tries.append(clock.now_ms() - began)
        _raise()

    attempt()
    while clock.now_ms() < began + 10 * MAX_PAUSE_MS:
        clock.advance_ms(100)
        containment.run()
    pauses = [after - before for before, after in pairwise(tries)]
    assert pauses[:7] == [1000, 2000, 4000, 8000, 16000, 32000, MAX_PAUSE_MS]
    assert set(pauses[7:]) == {MAX_PAUSE_MS}
    assert containment.failures == {"duty": len(tries)}


def test_what_the_retry_itself_raises_is_contained(clock: VirtualClock) -> None:
    containment = Containment(clock)
    containment.failed("a", "duty", ValueError("x"), _raise)
    containment.failed("b", "duty", ValueError("x"), _raise)
    clock.advance_ms(FIRST_PAUSE_MS)
    containment.run()
    assert [each.failures for each in containment.all()] == [2, 2]
