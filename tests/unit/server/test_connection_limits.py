"""Limits of connections: in all, from one address, and of descriptors; refused by name and counted."""

from __future__ import annotations

import pytest
from heliograph_broker.messaging.base.histograms import ConnectionMetrics
from heliograph_broker.server.connection_limits import ConnectionLimits
from heliograph_broker.server.descriptors import reserve_of


def make_limits(metrics: ConnectionMetrics, total: int = 0, per_address: int = 0) -> ConnectionLimits:
    return ConnectionLimits(metrics, total=total, per_address=per_address, descriptors=100, reserve=40)


def test_one_more_connection_than_allowed_is_refused() -> None:
    metrics = ConnectionMetrics()
    limits = make_limits(metrics, total=2)
    limits.opened("a")
    assert limits.refusal("b", 9) == ""
    limits.opened("b")
    assert "maximum number of connections: 2 (max_connections)" in limits.refusal("c", 9)
    limits.closed("a")
    assert limits.refusal("c", 9) == ""
    assert metrics.refused == {"total": 1, "address": 0, "role": 0, "descriptors": 0}
    assert metrics.open == 1


def test_one_address_may_not_take_all() -> None:
    metrics = ConnectionMetrics()
    limits = make_limits(metrics, per_address=2)
    for _ in range(2):
        assert limits.refusal("a", 9) == ""
        limits.opened("a")
    assert "on address a: 2 (max_connections_per_address)" in limits.refusal("a", 9)
    assert limits.refusal("b", 9) == ""
    limits.closed("a")
    assert limits.refusal("a", 9) == ""
    assert metrics.refused["address"] == 1


def test_the_last_descriptors_are_not_for_connections() -> None:
    metrics = ConnectionMetrics()
    limits = make_limits(metrics)
    assert limits.refusal("a", 59) == ""
    assert "of 100 file descriptors 40 are kept for the store (reserved_descriptors)" in limits.refusal("a", 60)
    assert metrics.refused["descriptors"] == 1


@pytest.mark.parametrize(("limit", "wanted", "reserve"), [(20_000, 512, 512), (256, 512, 128), (1000, 0, 0)])
def test_at_most_half_of_the_descriptors_are_reserved(limit: int, wanted: int, reserve: int) -> None:
    assert reserve_of(limit, wanted) == reserve
