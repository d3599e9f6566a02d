"""Subscriptions of non-persistent topics: who gets an entry, of each type, and what an acknowledgment does."""

from __future__ import annotations

import pytest
from heliograph_api.values.names import TopicName
from heliograph_broker.messaging.base.errors import BrokerError, ConsumerBusy, NotAllowed
from heliograph_broker.messaging.clients.access_mode import AccessMode
from heliograph_broker.messaging.clients.consumer import AckId, Consumer
from heliograph_broker.messaging.clients.producer import Producer
from heliograph_broker.messaging.clients.subscription_type import SubscriptionType
from heliograph_broker.messaging.delivery.delivery_reasons import DeliveryReason
from heliograph_broker.messaging.topic.non_persistent import NonPersistentSubscription, NonPersistentTopic
from heliograph_broker.messaging.topic.topic_explanation import explain_consumer, explain_delivery

from tests.support.core import Client, Core
from tests.support.entries import make_frame
from tests.support.subscription_types import EXCLUSIVE, FAILOVER, KEY_SHARED, SHARED


def open_topic(core: Core, name: str = "t") -> NonPersistentTopic:
    topic = core.broker.topics.get_or_create(TopicName.parse(f"non-persistent://public/default/{name}"))
    assert isinstance(topic, NonPersistentTopic)
    return topic


def attach(
    subscription: NonPersistentSubscription, sub_type: SubscriptionType, name: str, *, priority: int = 0
) -> Consumer:
    consumer = Consumer(subscription, Client(), len(subscription.consumers) + 1, name, priority=priority)
    subscription.add_consumer(consumer, sub_type)
    subscription.flow(consumer, 1000)
    return consumer


def publish(topic: NonPersistentTopic, *keys: str | None) -> None:
    producer = next(iter(topic.producers.values()), None)
    if producer is None:
        producer = Producer(topic, Client(), 1, "p", epoch=0, access_mode=AccessMode.SHARED)
        topic.producer_registry.add(producer, None)
    for key in keys:
        metadata, frame = make_frame(b"x", key=key)
        topic.publish(producer, 0, 0, metadata, frame)


def taken(consumer: Consumer) -> list[int]:
    """Return the ids of the entries that ``consumer`` got since the last call."""
    client = consumer.sink
    assert isinstance(client, Client)
    return [entry.entry_id for _, entry, _, _ in client.take()]


def active(consumer: Consumer) -> bool | None:
    """Return whether the consumer is the active one by the last notification it got, None if it got none."""
    assert isinstance(consumer.sink, Client)
    return consumer.sink.active.get(consumer.consumer_id)


def test_failover_spreads_partitions_by_name(core: Core) -> None:
    core.broker.partitioned.create(TopicName.parse("non-persistent://public/default/parted"), 3)
    chosen = []
    for index in range(3):
        topic = open_topic(core, f"parted-partition-{index}")
        subscription = topic.create_subscription("s")
        consumers = [attach(subscription, FAILOVER, name) for name in ("c", "a", "b")]
        publish(topic, None)
        chosen += [consumer.name for consumer in consumers if taken(consumer)]
        assert [consumer.name for consumer in consumers if active(consumer)] == chosen[-1:]
    assert chosen == ["a", "b", "c"]


@pytest.mark.parametrize("name", ["whole", "parted-partition-1"])
def test_failover_prefers_the_higher_priority(core: Core, name: str) -> None:
    core.broker.partitioned.create(TopicName.parse("non-persistent://public/default/parted"), 3)
    topic = open_topic(core, name)
    subscription = topic.create_subscription("s")
    low = attach(subscription, FAILOVER, "a", priority=1)
    publish(topic, None)
    high = attach(subscription, FAILOVER, "z", priority=0)
    publish(topic, None)
    assert (taken(low), taken(high)) == ([0], [1])
    assert (active(low), active(high)) == (False, True)
    subscription.remove_consumer(high)
    publish(topic, None)
    assert taken(low) == [2]
    assert active(low) is True


def test_without_partitions_the_first_to_subscribe_is_active(core: Core) -> None:
    topic = open_topic(core)
    subscription = topic.create_subscription("s")
    consumers = [attach(subscription, FAILOVER, name) for name in ("c", "a", "b")]
    assert [active(consumer) for consumer in consumers] == [True, False, False]
    publish(topic, None, None)
    assert [taken(consumer) for consumer in consumers] == [[0, 1], [], []]
    subscription.remove_consumer(consumers[0])
    publish(topic, None)
    assert [taken(consumer) for consumer in consumers[1:]] == [[2], []]


@pytest.mark.parametrize("sub_type", [SHARED, KEY_SHARED])
def test_nobody_stands_by_where_consumers_share(core: Core, sub_type: SubscriptionType) -> None:
    subscription = open_topic(core).create_subscription("s")
    first, second = (attach(subscription, sub_type, name) for name in ("a", "b"))
    subscription.flow(first, -1000)
    of_all = explain_delivery(subscription)
    no_room = sub_type is KEY_SHARED
    assert of_all.reason is (DeliveryReason.NO_PERMITS if no_room else DeliveryReason.ALL_ACKNOWLEDGED)
    assert explain_consumer(subscription, first, of_all).reason is DeliveryReason.NO_PERMITS
    assert explain_consumer(subscription, second, of_all).reason is of_all.reason


def test_shared_takes_turns_among_those_with_permits(core: Core) -> None:
    topic = open_topic(core)
    subscription = topic.create_subscription("s")
    one, two = attach(subscription, SHARED, "one"), attach(subscription, SHARED, "two")
    publish(topic, *[None] * 10)
    shares = taken(one), taken(two)
    assert sorted(shares[0] + shares[1]) == list(range(10))
    assert len(shares[0]) == 5
    one.permits = 0
    publish(topic, *[None] * 4)
    assert (taken(one), taken(two)) == ([], [10, 11, 12, 13])
    two.permits = 0
    publish(topic, None)
    assert (taken(one), taken(two), subscription.dropped) == ([], [], 1)


@pytest.mark.parametrize("core_settings", [{}, {"subscription_key_shared_use_consistent_hashing": False}])
def test_key_shared_keeps_a_key_with_one_consumer(core: Core) -> None:
    topic = open_topic(core)
    subscription = topic.create_subscription("s")
    consumers = [attach(subscription, KEY_SHARED, name) for name in ("a", "b", "c")]
    keys = [f"key-{number}" for number in range(30)]
    publish(topic, *keys, *keys, *[None] * 5)
    shares = [taken(consumer) for consumer in consumers]
    assert all(shares)
    owner = {entry_id: index for index, share in enumerate(shares) for entry_id in share}
    assert [owner[entry_id] for entry_id in range(30)] == [owner[entry_id] for entry_id in range(30, 60)]
    assert len({owner[entry_id] for entry_id in range(60, 65)}) == 1, "messages without a key have one consumer"


@pytest.mark.parametrize("core_settings", [{"subscription_key_shared_spread_keyless": True}])
def test_messages_without_a_key_can_be_spread(core: Core) -> None:
    topic = open_topic(core)
    subscription = topic.create_subscription("s")
    consumers = [attach(subscription, KEY_SHARED, name) for name in ("a", "b", "c")]
    producer = Producer(topic, Client(), 1, "p", epoch=0, access_mode=AccessMode.SHARED)
    topic.producer_registry.add(producer, None)
    for number in range(60):
        metadata, frame = make_frame(b"x", sequence_id=number)
        topic.publish(producer, number, 0, metadata, frame)
    assert all(taken(consumer) for consumer in consumers)


def test_exclusive_has_one_consumer(core: Core) -> None:
    topic = open_topic(core)
    subscription = topic.create_subscription("s")
    one = attach(subscription, EXCLUSIVE, "one")
    with pytest.raises(ConsumerBusy, match="Exclusive consumer is already connected"):
        attach(subscription, EXCLUSIVE, "two")
    with pytest.raises(ConsumerBusy, match="is of type Exclusive"):
        attach(subscription, SHARED, "two")
    publish(topic, None)
    assert taken(one) == [0]


@pytest.mark.parametrize("sub_type", [EXCLUSIVE, FAILOVER, SHARED, KEY_SHARED])
def test_an_acknowledgment_is_answered_and_changes_nothing(core: Core, sub_type: SubscriptionType) -> None:
    topic = open_topic(core)
    subscription = topic.create_subscription("s")
    consumer = attach(subscription, sub_type, "a")
    publish(topic, "k", "k")
    assert taken(consumer) == [0, 1]
    answers: list[BrokerError | None] = []
    subscription.acks.acknowledge(consumer, [AckId(0, 0)], answers.append)
    subscription.acks.acknowledge_cumulative(consumer, AckId(0, 1), answers.append)
    assert answers[0] is None
    if sub_type in (SHARED, KEY_SHARED):
        assert isinstance(answers[1], NotAllowed)
    else:
        assert answers[1] is None
    subscription.redeliver(consumer, None, None)
    assert taken(consumer) == []
    assert (subscription.acks.backlog_messages, consumer.unacked) == (0, 0)
    publish(topic, "k")
    assert taken(consumer) == [2]
