"""Latency and size buckets: each entry in the one it belongs to, and quantiles of the last minute."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from heliograph_broker.clock import VirtualClock
from heliograph_broker.messaging.base.histograms import (
    ENTRY_SIZE,
    ENTRY_SIZE_SUM,
    LATENCY_BOUNDS_S,
    LEDGER_LATENCY,
    LEDGER_SUM_US,
    SIZE_BOUNDS,
    WRITE_LATENCY,
    WRITE_SUM_US,
    BrokerMetrics,
    LatencySummary,
    TopicMetrics,
)
from heliograph_broker.storage.base.entry import Entry
from hypothesis import given
from hypothesis import strategies as st

from tests.support.core import Client, Core
from tests.support.subscription_types import EXCLUSIVE

#: Off the bounds themselves: there, what a subtraction of floats leaves decides.
_LATENCIES = st.floats(0.0001, 5.0).filter(lambda s: all(abs(s - bound) > 1e-6 for bound in LATENCY_BOUNDS_S))


def _entry(taken_at: float, size: int) -> Entry:
    entry = Entry(1, 0, 0, 0, 0, -1, 1, 0, 0, 0, b"x" * size)
    entry.taken_at = taken_at
    return entry


def _bucket(bounds: tuple[float, ...], value: float) -> int:
    return next((at for at, bound in enumerate(bounds) if value <= bound), len(bounds))


@given(st.lists(st.tuples(_LATENCIES, st.integers(0, 5000) | st.sampled_from(SIZE_BOUNDS)), min_size=1), _LATENCIES)
def test_each_entry_counts_in_its_bucket(entries: list[tuple[float, int]], commit_s: float) -> None:
    now = 1000.0
    metrics, broker = TopicMetrics(), BrokerMetrics(VirtualClock())
    metrics.entries_durable([_entry(now - latency, size) for latency, size in entries], now, commit_s, broker)
    latencies, ledger = [0] * (len(LATENCY_BOUNDS_S) + 1), [0] * (len(LATENCY_BOUNDS_S) + 1)
    sizes = [0] * (len(SIZE_BOUNDS) + 1)
    for latency, size in entries:
        latencies[_bucket(LATENCY_BOUNDS_S, latency)] += 1
        ledger[_bucket(LATENCY_BOUNDS_S, commit_s)] += 1
        sizes[_bucket(SIZE_BOUNDS, size)] += 1
    assert metrics.counts[WRITE_LATENCY:WRITE_SUM_US] == latencies
    assert metrics.counts[LEDGER_LATENCY:LEDGER_SUM_US] == ledger
    assert metrics.counts[ENTRY_SIZE:ENTRY_SIZE_SUM] == sizes
    assert metrics.counts[ENTRY_SIZE_SUM] == sum(size for _, size in entries)
    assert metrics.counts[WRITE_SUM_US] == pytest.approx(sum(latency for latency, _ in entries) * 1e6, abs=2)
    assert broker.publish_latency.count == len(entries)


@given(st.lists(_LATENCIES, min_size=1, max_size=200))
def test_quantiles_are_near_the_true_ones(latencies: list[float]) -> None:
    summary = LatencySummary(VirtualClock())
    for latency in latencies:
        summary.observe(latency)
    ordered = sorted(latencies)
    wanted = (0.0, 0.5, 0.95, 0.99, 1.0)
    for quantile, found in zip(wanted, summary.quantiles(wanted), strict=True):
        true = ordered[max(0, math.ceil(quantile * len(ordered)) - 1)]
        assert true <= found * 1.000001
        assert found <= true * 1.11
    assert summary.quantiles([0.0, 1.0]) == [ordered[0], ordered[-1]]


def test_what_is_older_than_a_minute_is_in_no_quantile_but_still_counted() -> None:
    clock = VirtualClock()
    summary = LatencySummary(clock)
    assert all(math.isnan(value) for value in summary.quantiles([0.5, 1.0]))
    summary.observe(2.0)
    clock.advance_ms(50_000)
    summary.observe(0.001)
    assert summary.quantiles([1.0]) == [2.0]
    clock.advance_ms(11_000)
    assert summary.quantiles([1.0]) == [0.001]
    clock.advance_ms(60_000)
    assert math.isnan(summary.quantiles([1.0])[0])
    assert summary.count == 2
    assert summary.total == pytest.approx(2.001)


def test_a_publish_takes_from_its_arrival_until_it_is_durable(tmp_path: Path) -> None:
    core = Core(tmp_path)
    topic = core.topic()
    producer = core.producer(topic)
    for waited_ms in (30, 0, 15):
        core.publish(producer, b"x" * 100)
        core.clock.advance_ms(waited_ms)
    core.commit()
    # 45, 15 and 15 ms.
    assert topic.log.metrics.counts[WRITE_LATENCY:WRITE_SUM_US] == [0, 0, 0, 0, 2, 1, 0, 0, 0, 0]
    assert topic.log.metrics.counts[WRITE_SUM_US] == 75_000
    summary = core.broker.metrics.publish_latency
    assert summary.count == 3
    assert summary.total == pytest.approx(0.075)
    assert summary.quantiles([0.0, 1.0]) == pytest.approx([0.015, 0.045])
    core.close()


def test_entries_read_from_the_store_are_cache_misses(tmp_path: Path) -> None:
    core = Core(tmp_path, tail_cache_bytes=0)
    topic = core.topic()
    subscription = topic.create_subscription("s")
    producer = core.producer(topic)
    core.publish_all(producer, count=5)
    core.consumer(subscription, EXCLUSIVE, Client(), permits=10)
    assert topic.log.metrics.cache_misses == 5
    assert subscription.sent.entries_out == 5
    core.close()
