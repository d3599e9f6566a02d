"""Rates over a window of a minute, on virtual time."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from heliograph_api.broker_config import BrokerConfig
from heliograph_api.values.names import TopicName
from heliograph_broker.clock import VirtualClock
from heliograph_broker.http.base.rates import RateSampler
from heliograph_broker.messaging.broker.broker import Broker
from heliograph_broker.storage.base.scheduler import InlineScheduler
from heliograph_broker.storage.store import LedgerStore

TOPIC = TopicName.parse("orders")


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def broker(tmp_path: Path, clock: VirtualClock) -> Iterator[Broker]:
    store = LedgerStore.open(tmp_path / "data", clock, scheduler=InlineScheduler())
    broker = Broker(store, clock, BrokerConfig(), random.Random(1))
    broker.load()
    yield broker
    store.writer.commit()
    store.close()


def test_a_rate_is_what_the_last_minute_brought(broker: Broker, clock: VirtualClock) -> None:
    sampler = RateSampler(broker, broker.clock)
    topic = broker.topics.create(TOPIC)
    assert sampler.rates(topic.statistics) == (0.0, 0.0)
    for _ in range(12):
        topic.statistics.msg_in += 100
        topic.statistics.bytes_in += 1000
        clock.advance_ms(10_000)
        assert sampler.rates(topic.statistics) == pytest.approx((10.0, 100.0))
        list(sampler.sweep())
    for _ in range(8):
        clock.advance_ms(10_000)
        list(sampler.sweep())
    assert sampler.rates(topic.statistics) == (0.0, 0.0)


def test_traffic_after_a_pause_counts_from_the_last_look(broker: Broker, clock: VirtualClock) -> None:
    sampler = RateSampler(broker, broker.clock)
    topic = broker.topics.create(TOPIC)
    topic.statistics.msg_in = 50
    list(sampler.sweep())
    for _ in range(20):
        clock.advance_ms(10_000)
        list(sampler.sweep())
    topic.statistics.msg_in += 40
    clock.advance_ms(4_000)
    assert sampler.rates(topic.statistics)[0] == pytest.approx(10.0)


def test_a_deleted_topic_is_forgotten(broker: Broker, clock: VirtualClock) -> None:
    sampler = RateSampler(broker, broker.clock)
    topic = broker.topics.create(TOPIC)
    topic.statistics.msg_in = 5
    clock.advance_ms(10_000)
    list(sampler.sweep())
    broker.topics.delete(TOPIC)
    list(sampler.sweep())
    topic.statistics.msg_in = 0
    assert sampler.rates(topic.statistics) == (0.0, 0.0)
