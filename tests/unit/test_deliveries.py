"""Deliveries of consumers: settled at a cost that does not grow with others' deliveries, and forgotten in time."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from heliograph_api.policies.policies import Policies
from heliograph_api.values.names import TopicName
from heliograph_broker.messaging.base.offsets import run_end
from heliograph_broker.messaging.clients.consumer import Consumer
from heliograph_broker.messaging.clients.deliveries import Deliveries
from heliograph_broker.messaging.clients.subscription_type import SubscriptionType
from heliograph_broker.messaging.delivery.subscription import AckId
from pyroaring import BitMap64

from tests.support.core import Client, Core
from tests.support.subscription_types import EXCLUSIVE, FAILOVER, KEY_SHARED, SHARED


class CountingDeliveries(Deliveries):
    """Counts the deliveries that are settled, and refuses a walk along all there are."""

    settled = 0

    def pop(self, offset: int, *default: Any) -> Any:
        self.settled += 1
        return super().pop(offset, *default)

    def items(self) -> Any:
        raise AssertionError("nobody walks along all deliveries")

    __iter__ = items


@pytest.mark.parametrize("in_flight", [100, 10_000])
def test_a_cumulative_ack_looks_at_what_it_settles_only(core: Core, in_flight: int) -> None:
    topic = core.topic()
    subscription = topic.create_subscription("s")
    subscription.acks.pending = pending = CountingDeliveries()
    core.publish_all(topic, count=in_flight)
    consumer = core.consumer(subscription, EXCLUSIVE, Client(), permits=in_flight)
    assert len(pending) == in_flight
    subscription.acks.acknowledge_cumulative(consumer, AckId(*topic.log.position(9)), None)
    assert (pending.settled, len(pending), consumer.unacked) == (10, in_flight - 10, in_flight - 10)


@pytest.mark.parametrize("others", [1, 50])
def test_a_consumer_that_leaves_costs_what_it_holds(core: Core, others: int) -> None:
    topic = core.topic()
    subscription = topic.create_subscription("s")
    subscription.acks.pending = pending = CountingDeliveries()
    leaving = core.consumer(subscription, SHARED, Client(), permits=20, name="leaving")
    core.publish_all(topic, count=20)
    for number in range(others):
        core.consumer(subscription, SHARED, Client(), permits=20, name=f"other{number}", consumer_id=2 + number)
    core.publish_all(topic, count=20 * others)
    pending.settled = 0
    for consumer in subscription.consumers[1:]:
        consumer.permits = 0
    subscription.remove_consumer(leaving)
    assert (pending.settled, len(pending)) == (20, 20 * others)


@pytest.mark.parametrize("sub_type", [EXCLUSIVE, FAILOVER])
def test_in_order_delivery_has_no_unacked_limit(tmp_path: Path, sub_type: SubscriptionType) -> None:
    core = Core(tmp_path / "limited", max_unacked_per_consumer=3, max_unacked_per_subscription=4)
    topic = core.topic()
    client = Client()
    subscription = topic.create_subscription("s")
    consumer = core.consumer(subscription, sub_type, client, permits=100)
    core.publish_all(topic, count=10)
    assert [entry.offset for _, entry, _, _ in client.take()] == list(range(10))
    assert not consumer.blocked_on_unacked
    subscription.remove_consumer(consumer)
    consumer = core.consumer(subscription, SHARED, client, permits=100)
    assert len(client.take()) == 3
    assert consumer.blocked_on_unacked
    core.close()


@pytest.mark.parametrize("sub_type", [SHARED, KEY_SHARED])
def test_the_consumers_of_a_subscription_hold_no_more_than_its_limit(
    tmp_path: Path, sub_type: SubscriptionType
) -> None:
    core = Core(tmp_path / "limited", max_unacked_per_consumer=0, max_unacked_per_subscription=7)
    topic = core.topic()
    subscription = topic.create_subscription("s")
    core.publish_all(topic, count=40)
    clients = [Client(), Client()]
    for number, client in enumerate(clients):
        core.consumer(subscription, sub_type, client, consumer_id=number, name=f"c{number}", permits=100)
    seen: list[int] = []
    while subscription.acks.backlog_messages:
        delivered = [entry.offset for client in clients for _, entry, _, _ in client.take()]
        assert delivered
        seen += delivered
        assert subscription.acks.unacked_messages <= 7
        subscription.acks.acknowledge(None, [AckId(*topic.log.position(offset)) for offset in delivered], None)
    assert sorted(seen) == list(range(40))
    core.close()


def test_counts_of_redeliveries_end_with_their_entries(core: Core) -> None:
    topic = core.topic()
    subscription = topic.create_subscription("s")
    core.publish_all(topic, count=300)
    consumer = core.consumer(subscription, SHARED, Client(), permits=300)
    subscription.redeliver(consumer, None, None)
    assert len(subscription.acks.redelivery_counts) == 300
    # Taken back and not delivered again: nobody holds them when they are settled.
    subscription.acks.acknowledge(None, [AckId(*topic.log.position(offset)) for offset in range(50, 100)], None)
    assert len(subscription.acks.redelivery_counts) == 250
    subscription.acks.skip(20, lambda error: None)
    assert len(subscription.acks.redelivery_counts) == 230
    core.broker.policies.set_topic(TopicName.parse("t"), Policies(message_ttl_ms=1000))
    core.advance(2000)
    assert subscription.acks.backlog_messages == 0
    assert not subscription.acks.redelivery_counts
    assert not subscription.acks.redelivery_counts._offsets


def test_a_seek_begins_to_count_again(core: Core) -> None:
    topic = core.topic()
    subscription = topic.create_subscription("s")
    core.publish_all(topic, count=3)
    consumer = core.consumer(subscription, SHARED, Client(), permits=3)
    subscription.redeliver(consumer, None, None)
    subscription.seek(0, None, lambda error: None)
    core.commit()
    assert not subscription.acks.redelivery_counts
    assert not subscription.acks.redelivery_counts._offsets


@pytest.mark.parametrize("length", [0, 1, 2, 3, 64, 65_535, 65_536, 65_537, 1_000_000])
def test_the_end_of_a_run_is_found_in_few_steps(length: int) -> None:
    offsets = BitMap64()
    offsets.add_range(10, 10 + length)
    offsets.add_range(12 + length, 20 + length)
    assert run_end(offsets, 10) == 10 + length
    assert run_end(offsets, 5) == 5


def test_a_long_run_of_acknowledged_entries_is_passed_at_once(core: Core) -> None:
    topic = core.topic()
    client = Client()
    subscription = topic.create_subscription("s")
    core.publish_all(topic, count=2_000)
    subscription.acks.cursor.ack_range(1, 1_998, 1_998, 1_998)
    with patch("heliograph_broker.messaging.delivery.dispatch_single.run_end", side_effect=run_end) as steps:
        core.consumer(subscription, EXCLUSIVE, client, permits=10)
    assert [entry.offset for _, entry, _, _ in client.take()] == [0, 1999]
    assert steps.call_count == 1


def test_who_has_nothing_to_deliver_asks_no_consumer(core: Core) -> None:
    topic = core.topic()
    subscription = topic.create_subscription("s")
    for number in range(50):
        core.consumer(subscription, SHARED, Client(), permits=10, name=f"c{number}", consumer_id=number)
    core.publish_all(topic, count=100)
    with patch.object(Consumer, "ready", property(lambda consumer: pytest.fail("nothing is to be delivered"))):
        subscription.flow(subscription.consumers[3], 5)
        subscription.acks.acknowledge(None, [AckId(*topic.log.position(7))], None)
    assert subscription.acks.unacked_messages == sum(consumer.unacked for consumer in subscription.consumers) == 99
