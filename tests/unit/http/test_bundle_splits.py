"""The hashes at which bundles are split."""

from __future__ import annotations

import pytest
from heliograph_broker.http.namespaces.bundle_splits import AT_POSITIONS, BY_TOPICS, EQUALLY, new_starts
from hypothesis import given
from hypothesis import strategies as st


def test_a_bundle_is_halved_as_by_pulsar() -> None:
    assert new_starts(EQUALLY, 0, 0x40000000, [], []) == [0x20000000]
    assert new_starts(EQUALLY, 0xC0000000, 0xFFFFFFFF, [], []) == [0xDFFFFFFF]


def test_topics_are_divided_in_two_equal_parts() -> None:
    (start,) = new_starts(BY_TOPICS, 0, 100, [50, 3, 40, 4], [])
    assert sum(each < start for each in (50, 3, 40, 4)) == 2


def test_positions_outside_the_bundle_are_left_out() -> None:
    assert new_starts(AT_POSITIONS, 10, 20, [11, 12], [20, 15, 5, 10, 12, 15]) == [12, 15]


@pytest.mark.parametrize("algorithm", [BY_TOPICS, AT_POSITIONS])
def test_with_fewer_than_two_topics_there_is_nothing_to_divide(algorithm: str) -> None:
    assert new_starts(algorithm, 0, 100, [50], [20]) == []


@given(low=st.integers(0, 2**31), size=st.integers(1, 2**31), hashes=st.lists(st.integers(0, 2**32 - 1)))
def test_parts_are_inside_the_bundle(low: int, size: int, hashes: list[int]) -> None:
    for algorithm in (EQUALLY, BY_TOPICS):
        assert all(low < start < low + size for start in new_starts(algorithm, low, low + size, hashes, []))
