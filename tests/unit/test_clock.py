"""The clock that ages are measured by."""

from __future__ import annotations

import pytest
from heliograph_broker.clock import CONFIRM_S, STEP_MS, SteadyClock, VirtualClock

HOUR_MS = 3_600_000
YEAR_MS = 365 * 24 * HOUR_MS
TICK_MS = 50


@pytest.fixture
def wall() -> VirtualClock:
    return VirtualClock()


def _run(steady: SteadyClock, wall: VirtualClock, ms: int) -> int:
    """Let time pass tick by tick; return by how much the clock was moved meanwhile. It never goes back otherwise."""
    moved = 0
    last = steady.now_ms()
    for _ in range(ms // TICK_MS):
        wall.advance_ms(TICK_MS)
        by = steady.follow()
        moved += by
        assert steady.now_ms() - by >= last
        last = steady.now_ms()
    return moved


def test_it_is_the_wall_clock_while_nobody_sets_that(wall: VirtualClock) -> None:
    steady = SteadyClock(wall)
    for _ in range(2000):
        wall.advance_ms(7)
        assert steady.follow() == 0
        assert steady.now_ms() == wall.now_ms()


@pytest.mark.parametrize("step", [-YEAR_MS, -HOUR_MS, -STEP_MS - 1, STEP_MS + 1, HOUR_MS, YEAR_MS])
def test_a_clock_that_is_set_and_set_back_changes_nothing(wall: VirtualClock, step: int) -> None:
    steady = SteadyClock(wall)
    wall.step_wall_ms(step)
    assert _run(steady, wall, round(CONFIRM_S * 1000) - 2 * TICK_MS) == 0
    wall.step_wall_ms(-step)
    assert _run(steady, wall, 10 * round(CONFIRM_S * 1000)) == 0
    assert steady.now_ms() == wall.now_ms()


@pytest.mark.parametrize("step", [-YEAR_MS, -HOUR_MS, HOUR_MS, YEAR_MS])
def test_a_clock_that_stays_set_is_believed_after_a_while(wall: VirtualClock, step: int) -> None:
    steady = SteadyClock(wall)
    wall.step_wall_ms(step)
    assert _run(steady, wall, 2 * round(CONFIRM_S * 1000)) == step
    assert steady.now_ms() == wall.now_ms()


def test_a_clock_that_jumps_to_and_fro_is_not_believed(wall: VirtualClock) -> None:
    steady = SteadyClock(wall)
    began = steady.now_ms()
    for _ in range(100):
        wall.step_wall_ms(HOUR_MS)
        assert _run(steady, wall, 30_000) == 0
        wall.step_wall_ms(HOUR_MS)
        assert _run(steady, wall, 30_000) == 0
        wall.step_wall_ms(-2 * HOUR_MS)
        assert _run(steady, wall, 10_000) == 0
    assert steady.now_ms() - began == 100 * 70_000


@pytest.mark.parametrize("step", [-STEP_MS + 1, -200, 200, STEP_MS - 1])
def test_small_differences_are_made_up_for_slowly_and_never_backwards(wall: VirtualClock, step: int) -> None:
    steady = SteadyClock(wall)
    wall.step_wall_ms(step)
    before = steady.now_ms()
    assert _run(steady, wall, 10_000) == 0
    assert abs(steady.now_ms() - before - 10_000) <= 501
    assert _run(steady, wall, 1_200_000) == 0
    assert abs(steady.now_ms() - wall.now_ms()) <= 3


def test_virtual_wall_steps_leave_monotonic_time_alone(wall: VirtualClock) -> None:
    before = wall.monotonic()
    wall.step_wall_ms(-HOUR_MS)
    assert wall.monotonic() == before
