"""Ranges of individually acknowledged entries."""

from __future__ import annotations

from heliograph_broker.http.stats.internal_stats import acked_ranges
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64


def _brute_force(values: set[int]) -> list[tuple[int, int]]:
    firsts = sorted(value for value in values if value - 1 not in values)
    lasts = sorted(value for value in values if value + 1 not in values)
    return list(zip(firsts, lasts, strict=True))


@given(st.sets(st.integers(0, 300)))
def test_ranges_are_the_runs_of_the_bitmap(values: set[int]) -> None:
    assert list(acked_ranges(BitMap64(values))) == _brute_force(values)


def test_a_long_run_is_one_range() -> None:
    acked = BitMap64()
    acked.add_range(10, 3_000_000)
    acked.add(2**40)
    assert list(acked_ranges(acked)) == [(10, 2_999_999), (2**40, 2**40)]
