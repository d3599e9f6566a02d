"""Reasons that a history on virtual time does not come to by itself, and those of whole topics."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from heliograph_api.policies.policies import BacklogQuota, Policies, Rate
from heliograph_api.values.names import TopicName
from heliograph_broker.http.stats.explain import topic_explanation
from heliograph_broker.messaging.base.names import COMPACTION
from heliograph_broker.messaging.clients.consumer import Consumer, KeyRange, KeySharedPolicy
from heliograph_broker.messaging.clients.producer import Producer
from heliograph_broker.messaging.clients.subscription_type import SubscriptionType
from heliograph_broker.messaging.delivery import dispatch_key_shared, explanation
from heliograph_broker.messaging.delivery.delivery_reasons import DeliveryReason
from heliograph_broker.messaging.delivery.dispatch_key_shared import KeySharedDispatcher, WaitingEntry
from heliograph_broker.messaging.delivery.explanation import explain, explain_consumer
from heliograph_broker.messaging.delivery.subscription import AckId, Subscription
from heliograph_broker.messaging.topic.non_persistent import NonPersistentTopic
from heliograph_broker.messaging.topic.topic_explanation import (
    PublishReason,
    explain_delivery,
    explain_publishing,
)
from heliograph_broker.messaging.topic.topic_explanation import explain_consumer as explain_any_consumer
from heliograph_broker.storage.base.completion import Completion
from heliograph_broker.storage.base.entry import Entry

from tests.support.core import Client, Core
from tests.support.entries import make_frame
from tests.support.subscription_types import EXCLUSIVE, FAILOVER, KEY_SHARED, SHARED


def reason(subscription: Subscription) -> DeliveryReason:
    return explain(subscription).reason


def acknowledge(subscription: Subscription, *offsets: int) -> None:
    log = subscription.topic.log
    subscription.acks.acknowledge(None, [AckId(*log.position(offset)) for offset in offsets], None)


@pytest.mark.parametrize("sub_type", [EXCLUSIVE, FAILOVER, SHARED, KEY_SHARED])
def test_a_read_under_way_and_one_that_failed(
    core: Core, monkeypatch: pytest.MonkeyPatch, sub_type: SubscriptionType
) -> None:
    topic = core.topic()
    subscription = topic.create_subscription("s")
    core.publish_all(topic, count=3)
    topic.log.tail.clear()
    waiting: list[Completion[list[Entry]]] = []
    with monkeypatch.context() as context:
        context.setattr(core.store.reader, "read", lambda ledger, first, last, size, callback: waiting.append(callback))
        began_ms = core.clock.now_ms()
        client = Client()
        core.consumer(subscription, sub_type, client, permits=10)
        core.clock.advance_ms(70)
        found = explain(subscription)
        assert (found.reason, found.since_ms) == (DeliveryReason.READING, began_ms)
        waiting.pop()(OSError("the disk is gone"))
        found = explain(subscription)
        assert (found.reason, found.since_ms) == (DeliveryReason.SUSPENDED, core.clock.now_ms())
        assert "the disk is gone" in found.text
        assert found.until_ms == core.clock.now_ms() + 1000
    core.advance(1001)
    assert client.take_offsets() == [0, 1, 2]
    assert reason(subscription) is DeliveryReason.ALL_DELIVERED


def test_a_dispatch_that_raised(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = core.topic()
    subscription = topic.create_subscription("s")
    client = Client()
    core.consumer(subscription, SHARED, client, permits=10)
    with monkeypatch.context() as context:
        context.setattr(client, "send_message", lambda *_: 1 // 0)
        core.publish_all(topic, count=2)
        # The entry that was being sent counts as sent, the other one waits.
        assert reason(subscription) is DeliveryReason.SUSPENDED
    core.advance(1001)
    assert client.take_offsets() == [1]
    assert reason(subscription) is DeliveryReason.ALL_DELIVERED


def test_a_chunk_waits_for_the_consumer_with_the_others(core: Core) -> None:
    topic = core.topic()
    subscription = topic.create_subscription("s")
    first, second = Client(), Client()
    with_chunk = core.consumer(subscription, SHARED, first, permits=1)
    producer = core.producer(topic)
    core.publish_all(producer, chunk=(0, 2))
    core.consumer(subscription, SHARED, second, consumer_id=2, name="other", permits=5)
    core.publish_all(producer, chunk=(1, 2))
    found = explain(subscription)
    assert (found.reason, found.consumer) == (DeliveryReason.CHUNK_WAITS, with_chunk)
    assert found.position == topic.log.position(1)
    subscription.flow(with_chunk, 1)
    assert first.take_offsets() == [0, 1]
    assert reason(subscription) is DeliveryReason.ALL_DELIVERED


def test_a_key_whose_range_nobody_declared(core: Core) -> None:
    topic = core.topic()
    subscription = topic.create_subscription("s")
    core.publish_all(topic, key="k")
    slot = core.read_all(topic)[0].key_hash % 65536

    def sticky(name: str, start: int, end: int) -> Client:
        client = Client()
        policy = KeySharedPolicy(sticky=True, ranges=(KeyRange(start, end),))
        consumer = Consumer(subscription, client, 1, name, key_shared=policy)
        subscription.add_consumer(consumer, KEY_SHARED)
        subscription.flow(consumer, 10)
        return client

    sticky("elsewhere", slot + 1, 65535)
    found = explain(subscription)
    assert (found.reason, found.position) == (DeliveryReason.KEY_WITHOUT_CONSUMER, topic.log.position(0))
    assert f"declared a range with {slot}, the slot" in found.text
    assert sticky("there", 0, slot).take_offsets() == [0]


def test_a_key_is_held_since_its_holder_got_it(core: Core) -> None:
    topic = core.topic()
    subscription = topic.create_subscription("s")
    holder = core.consumer(subscription, KEY_SHARED, Client(), name="a", permits=100)
    for number in range(40):
        core.publish_all(topic, key=str(number))
    since_ms = core.clock.now_ms()
    core.advance(5000)
    core.consumer(subscription, KEY_SHARED, Client(), consumer_id=2, name="b", permits=100)
    for number in range(40):
        core.publish_all(topic, key=str(number))
    found = explain(subscription)
    assert (found.reason, found.consumer) == (DeliveryReason.KEY_HELD, holder)
    assert found.since_ms == since_ms + 5000
    assert found.position is not None
    held = topic.log.offset_of(*found.position)
    assert held is not None
    acknowledge(subscription, held)
    after = explain(subscription)
    assert after.position != found.position


def test_what_has_expired_and_waits_for_its_dead_letter_topic(core: Core) -> None:
    topic = core.topic()
    subscription = topic.create_subscription("s")
    letters = core.topic("letters")
    core.broker.policies.set_topic(
        TopicName.parse("t"), Policies(message_ttl_ms=1000, dead_letter_topic=str(letters.name))
    )
    core.broker.policies.set_topic(
        TopicName.parse("letters"), Policies(backlog_quota_size=BacklogQuota(0, "producer_exception"))
    )
    letters.create_subscription("reads")
    core.publish_all(topic, count=3)
    client = Client()
    core.consumer(subscription, SHARED, client, permits=0)
    core.advance(1500)
    subscription.flow(subscription.consumers[0], 10)
    assert client.take() == []
    found = explain(subscription)
    assert found.reason is DeliveryReason.EXPIRED
    assert "cannot be acknowledged yet" in found.text
    core.broker.policies.set_topic(TopicName.parse("letters"), Policies())
    core.advance(70_000)
    assert reason(subscription) is DeliveryReason.ALL_ACKNOWLEDGED


def test_a_seek_under_way_and_the_cursor_of_compaction(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = core.topic()
    subscription = topic.create_subscription("s")
    core.publish_all(topic, count=5)
    with monkeypatch.context() as context:
        context.setattr(core.store.reader, "read_headers", lambda *_: None)
        subscription.seek(2, None, lambda error: None)
        assert reason(subscription) is DeliveryReason.SEEKING
    assert reason(topic.create_subscription(COMPACTION)) is DeliveryReason.COMPACTION


def test_a_reader_of_the_compacted_view_is_told_of_its_permits(core: Core) -> None:
    topic = core.topic()
    keys = ["a", "b", "a", "b", "c"]
    for key in keys:
        core.publish_all(topic, key=key)
    topic.compaction.start()
    core.advance(1000)
    assert topic.compaction.ledger is not None
    subscription = topic.create_subscription("s", "earliest")
    client = Client()
    consumer = Consumer(subscription, client, 1, "c")
    consumer.read_compacted = True
    subscription.add_consumer(consumer, EXCLUSIVE)
    assert reason(subscription) is DeliveryReason.NO_PERMITS
    subscription.flow(consumer, 2)
    assert client.take_offsets() == [2, 3]
    assert reason(subscription) is DeliveryReason.NO_PERMITS
    subscription.flow(consumer, 2)
    assert client.take_offsets() == [4]
    assert reason(subscription) is DeliveryReason.ALL_DELIVERED
    acknowledge(subscription, 2, 3, 4)
    assert reason(subscription) is DeliveryReason.ALL_ACKNOWLEDGED


def test_who_stands_by_is_told_whom_for(core: Core) -> None:
    topic = core.topic()
    subscription = topic.create_subscription("s")
    active = core.consumer(subscription, FAILOVER, Client(), permits=0)
    standby = core.consumer(subscription, FAILOVER, Client(), consumer_id=2, name="d", permits=10)
    core.publish_all(topic)
    assert explain_consumer(subscription, active, explain(subscription)).reason is DeliveryReason.NO_PERMITS
    found = explain_consumer(subscription, standby, explain(subscription))
    assert (found.reason, found.consumer) == (DeliveryReason.STANDBY, active)


def test_what_waits_is_looked_at_once_for_all_consumers(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be thousands of both: once for each would hold up the broker."""
    topic = core.topic()
    subscription = topic.create_subscription("s")
    for number in range(20):
        core.consumer(subscription, KEY_SHARED, Client(), consumer_id=number, name=f"c{number}", permits=1)
    for number in range(60):
        core.publish_all(topic, key=str(number))
    looked: list[KeySharedDispatcher] = []

    def first_waiting(dispatcher: KeySharedDispatcher) -> WaitingEntry | None:
        looked.append(dispatcher)
        return dispatch_key_shared.first_waiting(dispatcher)

    monkeypatch.setattr(explanation, "first_waiting", first_waiting)
    answer = topic_explanation(topic, None, None).subscriptions["s"]
    assert len(answer.consumers) == 20
    assert {each.reason for each in answer.consumers} == {DeliveryReason.NO_PERMITS}
    assert len(looked) == 1


def test_a_lower_priority_stands_by_for_a_higher_one(core: Core) -> None:
    topic = core.topic()
    subscription = topic.create_subscription("s")
    before = core.consumer(subscription, SHARED, Client(), permits=10)
    after = core.consumer(subscription, SHARED, Client(), consumer_id=2, name="d", permits=10, priority=1)
    core.publish_all(topic, deliver_at=core.clock.now_ms() + 5000)
    found = explain_consumer(subscription, after, explain(subscription))
    assert (found.reason, found.consumer) == (DeliveryReason.STANDBY, before)
    assert explain_consumer(subscription, before, explain(subscription)).reason is DeliveryReason.DELAYED


@pytest.mark.parametrize("sub_type", [EXCLUSIVE, FAILOVER, SHARED, KEY_SHARED])
def test_non_persistent_topics_drop_what_finds_no_permit(core: Core, sub_type: SubscriptionType) -> None:
    topic = core.broker.topics.get_or_create(TopicName.parse("non-persistent://public/default/n"))
    assert isinstance(topic, NonPersistentTopic)
    subscription = topic.create_subscription("s")
    assert explain_delivery(subscription).reason is DeliveryReason.NO_CONSUMER
    client = Client()
    consumer = Consumer(subscription, client, 1, "c")
    subscription.add_consumer(consumer, sub_type)
    producer = Producer(topic, Client(), 1, "p")
    topic.producer_registry.add(producer, None)
    topic.publish(producer, 0, 0, *make_frame())
    found = explain_delivery(subscription)
    assert (found.reason, found.consumer) == (DeliveryReason.NO_PERMITS, consumer)
    assert "dropped, 1 so far" in found.text
    subscription.flow(consumer, 1)
    assert explain_delivery(subscription).reason is DeliveryReason.ALL_ACKNOWLEDGED
    core.clock.advance_ms(40)
    topic.publish(producer, 1, 1, *make_frame())
    assert len(client.take()) == 1
    found = explain_any_consumer(subscription, consumer, explain_delivery(subscription))
    assert (found.reason, found.since_ms) == (DeliveryReason.NO_PERMITS, core.clock.now_ms())
    assert explain_publishing(topic).reason is PublishReason.NONE


def test_why_a_topic_takes_no_messages(core: Core) -> None:
    topic = core.topic()
    name = TopicName.parse("t")
    topic.create_subscription("s")
    assert explain_publishing(topic).reason is PublishReason.NONE
    core.broker.policies.set_topic(name, Policies(publish_rate=Rate(messages=2, period_s=10)))
    core.publish_all(topic, count=2)
    found = explain_publishing(topic)
    assert (found.reason, found.until_ms) == (PublishReason.PUBLISH_RATE, core.clock.now_ms() + 10_000)
    core.advance(10_000)
    assert explain_publishing(topic).reason is PublishReason.NONE
    core.broker.policies.set_topic(name, Policies(backlog_quota_size=BacklogQuota(10, "producer_request_hold")))
    found = explain_publishing(topic)
    assert found.reason is PublishReason.BACKLOG_QUOTA
    assert "10 bytes" in found.text
    assert "held" in found.text
    core.store.space.full = True
    assert explain_publishing(topic).reason is PublishReason.DISK_FULL


def test_the_guide_lists_every_reason() -> None:
    guide = (Path(__file__).resolve().parents[2] / "docs" / "stuck.md").read_text(encoding="utf-8")
    guide = guide[guide.index("## What to do about it") :]
    listed = {match[1] for match in re.finditer(r"^\| `(\w+)` \|", guide, re.MULTILINE)}
    assert listed == {each.value for each in DeliveryReason} - {DeliveryReason.NONE.value}
    assert [each for each in PublishReason if each is not PublishReason.NONE and f"`{each}`" not in guide] == []


def test_every_reason_says_what_ends_it(tmp_path: Path) -> None:
    core = Core(tmp_path / "d")
    found = explain(core.topic().create_subscription("s"))
    assert {bool(found._replace(reason=each).ends) for each in DeliveryReason} == {True}
    publishing = explain_publishing(core.topic())
    assert [each for each in PublishReason if not publishing._replace(reason=each).ends] == [PublishReason.NONE]
    core.close()


@pytest.mark.parametrize("sub_type", [EXCLUSIVE, FAILOVER, SHARED, KEY_SHARED])
def test_what_a_lifted_ttl_gives_back_is_delivered_at_once(core: Core, sub_type: SubscriptionType) -> None:
    topic = core.topic()
    subscription = topic.create_subscription("s")
    core.broker.policies.set_topic(TopicName.parse("t"), Policies(message_ttl_ms=1000))
    core.publish_all(topic, count=2)
    core.clock.advance_ms(1000)
    client = Client()
    core.consumer(subscription, sub_type, client, permits=10)
    assert reason(subscription) is DeliveryReason.EXPIRED
    core.broker.policies.set_topic(TopicName.parse("t"), Policies())
    assert client.take_offsets() == [0, 1]


def test_keys_beyond_the_ranges_of_an_exclusive_consumer(core: Core) -> None:
    topic = core.topic()
    subscription = topic.create_subscription("s")
    core.publish_all(topic, key="k")
    slot = core.read_all(topic)[0].key_hash % 65536
    policy = KeySharedPolicy(sticky=True, ranges=(KeyRange(slot + 1, 65535),))
    consumer = Consumer(subscription, Client(), 1, "c", key_shared=policy)
    subscription.add_consumer(consumer, EXCLUSIVE)
    subscription.flow(consumer, 10)
    found = explain(subscription)
    assert (found.reason, found.consumer) == (DeliveryReason.KEY_WITHOUT_CONSUMER, consumer)
