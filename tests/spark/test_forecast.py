"""The forecast of a topic's growth, on series whose future is known."""

from __future__ import annotations

import math
import random

import pytest
from heliograph_spark.jobs.plan.forecast import Forecast, forecast, interval_for
from hypothesis import given
from hypothesis import strategies as st

HOUR_S = 3600


def made(values: list[float], interval_s: float = 60.0) -> Forecast:
    found = forecast(values, interval_s)
    assert found is not None
    return found


@given(rate=st.floats(0.01, 1e9), count=st.integers(10, 200), amount=st.floats(0.01, 1e9))
def test_a_steady_rate_goes_on_and_the_time_follows_from_it(rate: float, count: int, amount: float) -> None:
    found = made([rate] * count)
    assert found.model == "level"
    assert found.error == pytest.approx(0, abs=1e-9)
    expected = amount / rate
    until = found.intervals_until(amount)
    if expected > 20 * count:
        assert until is None or until == pytest.approx(20 * count)
    else:
        assert until == pytest.approx(expected)


def test_a_growing_rate_is_a_trend_and_the_limit_comes_earlier_than_at_the_mean_rate() -> None:
    found = made([float(10 * n) for n in range(100)])
    assert found.model == "trend"
    assert found.error == pytest.approx(0, abs=1e-9)
    # 1000 + 1010 + … reaches 10,450 with the tenth.
    assert found.intervals_until(10_450) == pytest.approx(10)


def test_a_shrinking_rate_ends_and_a_limit_beyond_is_never_reached() -> None:
    found = made([float(100 - n) for n in range(100)])
    assert found.model == "trend"
    assert found.intervals_until(1e6) is None
    assert min(found.future) == 0


def day(hours: int, noise: random.Random | None = None) -> list[float]:
    """Bytes an hour: much at noon, little at night, a fifth of noise."""
    return [
        1000 * (1 + 0.9 * math.sin(2 * math.pi * (n % 24) / 24)) * (noise.uniform(0.8, 1.2) if noise else 1)
        for n in range(hours)
    ]


def test_a_day_is_seen_and_says_when_within_it_the_limit_comes() -> None:
    # Sixteen days and eight hours: what comes next begins in the middle of one.
    series = day(16 * 24 + 8)
    found = made(series, HOUR_S)
    assert found.model == "seasonal (a day)"
    coming = day(17 * 24 + 8)[len(series) :]
    assert found.future[:24] == pytest.approx(coming)
    assert found.intervals_until(sum(coming[:10]) + 0.5 * coming[10]) == pytest.approx(10.5)


@pytest.mark.parametrize("seed", range(20))
def test_the_error_on_what_is_held_back_is_about_that_of_the_future(seed: int) -> None:
    noise = random.Random(seed)
    series = day(24 * 20, noise)
    found = made(series[: 24 * 15], HOUR_S)
    assert found.error is not None
    assert found.error < 0.1
    to_come = sum(series[24 * 15 :])
    assert abs(sum(found.future[: 24 * 5]) - to_come) / to_come < 0.1


def test_a_single_backfill_does_not_become_the_rate() -> None:
    series = [100.0] * 100
    series[40] = 1e6
    assert sum(made(series).future[:100]) == pytest.approx(10_000, rel=0.05)


def test_a_rate_that_changes_at_the_end_shows_as_an_error_and_its_sign_says_which_way() -> None:
    found = made([100.0] * 80 + [10.0] * 20)
    assert found.error == pytest.approx(9)
    assert found.bias == pytest.approx(9)
    assert made([10.0] * 80 + [100.0] * 20).bias == pytest.approx(-0.9)


def test_a_topic_that_is_silent_in_the_held_back_part_has_no_error_to_say() -> None:
    found = made([100.0] * 50 + [0.0] * 50)
    assert found.error is None


@given(
    values=st.lists(st.floats(0, 1e12), min_size=10, max_size=120),
    interval_s=st.sampled_from([1, 60, 3600, 86400]),
    amount=st.floats(0, 1e13),
    drained=st.floats(0, 1e12),
)
def test_any_series_has_a_forecast_that_is_never_negative_and_never_late(
    values: list[float], interval_s: int, amount: float, drained: float
) -> None:
    found = made(values, interval_s)
    assert all(each >= 0 and math.isfinite(each) for each in found.future)
    assert len(found.future) == 20 * len(values)
    until = found.intervals_until(amount, drained)
    sooner = found.intervals_until(amount)
    if until is not None:
        assert sooner is not None
        assert 0 <= sooner <= until * (1 + 1e-9) + 1e-9


def test_what_is_drained_as_fast_as_it_comes_never_reaches_a_limit() -> None:
    assert made([100.0] * 50).intervals_until(1000, drained=100) is None
    assert made([100.0] * 50).intervals_until(1000, drained=50) == pytest.approx(20)
    assert made([100.0] * 50).intervals_until(0, drained=500) == 0


def test_too_short_a_series_has_no_forecast() -> None:
    assert forecast([1.0] * 9, 60) is None


@given(st.floats(0.001, 5e8))
def test_a_span_is_at_most_400_intervals(span_s: float) -> None:
    assert span_s / interval_for(span_s) <= 400
