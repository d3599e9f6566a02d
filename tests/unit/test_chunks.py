"""Chunked messages on Shared and Key_Shared: together, also after a restart, and at no cost where there are none."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

import msgspec
import pytest
from heliograph_api.policies.policies import BacklogQuota, Policies, Retention
from heliograph_api.values.names import TopicName
from heliograph_broker.messaging.base import records
from heliograph_broker.messaging.clients import chunks
from heliograph_broker.messaging.clients.subscription_type import SubscriptionType
from heliograph_broker.messaging.delivery import dispatch_shared
from heliograph_broker.messaging.delivery.dispatch_key_shared import KeySharedDispatcher
from heliograph_broker.messaging.delivery.dispatch_shared import SharedDispatcher
from heliograph_broker.messaging.delivery.subscription import AckId, Subscription
from heliograph_broker.messaging.log.skipping import skip_range
from heliograph_broker.messaging.topic.topic import Topic
from heliograph_broker.messaging.topic.truncation import truncate

from tests.support.core import Client, Core
from tests.support.subscription_types import KEY_SHARED, SHARED


def publish_chunks(core: Core, topic: Topic, *sequence_ids: int, count: int = 3) -> None:
    """Publish messages in ``count`` chunks each, interwoven."""
    producer = core.producer_of(topic)
    for chunk in range(count):
        for sequence_id in sequence_ids:
            core.publish(producer, sequence_id=sequence_id, chunk=(chunk, count))
    core.commit()


@pytest.mark.parametrize("sub_type", [SHARED, KEY_SHARED])
@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("core_settings", [{"subscription_key_shared_spread_keyless": True}])
def test_each_message_comes_to_one_consumer(core: Core, sub_type: SubscriptionType, restarted: bool) -> None:
    topic = core.topic()
    topic.create_subscription("s", "earliest")
    publish_chunks(core, topic, *range(20))
    if restarted:
        core.restart()
        topic = core.topic()
    subscription = topic.subscription("s")
    clients = [Client() for _ in range(3)]
    consumers = [
        core.consumer(subscription, sub_type, client, name=f"c{number}", consumer_id=number)
        for number, client in enumerate(clients)
    ]
    for _ in range(60):
        for consumer in consumers:
            subscription.flow(consumer, 1)
    received = [client.take_offsets() for client in clients]
    assert sorted(offset for of_one in received for offset in of_one) == list(range(60))
    assert all(received)
    for of_one in received:
        # Chunk k of message m is at offset 20 * k + m.
        messages = {offset % 20 for offset in of_one}
        assert sorted(of_one) == sorted(20 * chunk + message for message in messages for chunk in range(3))


@pytest.mark.parametrize("sub_type", [SHARED, KEY_SHARED])
def test_a_nack_of_one_chunk_brings_all_of_them_again(core: Core, sub_type: SubscriptionType) -> None:
    topic = core.topic()
    client = Client()
    subscription = topic.create_subscription("s")
    consumer = core.consumer(subscription, sub_type, client, permits=100)
    publish_chunks(core, topic, 1, 2)
    assert client.take_offsets() == [0, 1, 2, 3, 4, 5]
    subscription.redeliver(consumer, [topic.log.position(5)], None)
    assert [(entry.offset, count) for _, entry, count, _ in client.take()] == [(1, 1), (3, 1), (5, 1)]


def test_a_consumer_without_permits_holds_up_its_own_chunks_only(core: Core) -> None:
    topic = core.topic()
    slow, fast = Client(), Client()
    subscription = topic.create_subscription("s")
    first = core.consumer(subscription, SHARED, slow, name="slow", permits=1)
    publish_chunks(core, topic, 1, count=2)
    core.consumer(subscription, SHARED, fast, name="fast", consumer_id=2, permits=100)
    publish_chunks(core, topic, 2, count=2)
    assert (slow.take_offsets(), fast.take_offsets()) == ([0], [2, 3])
    subscription.flow(first, 1)
    assert (slow.take_offsets(), fast.take_offsets()) == ([1], [])
    subscription.remove_consumer(first)
    assert fast.take_offsets() == [0, 1]


def test_metadata_is_looked_at_only_where_chunks_may_be(core: Core) -> None:
    topic = core.topic()
    client = Client()
    subscription = topic.create_subscription("s")
    consumer = core.consumer(subscription, SHARED, client, permits=100)
    producer = core.producer(topic)
    with patch.object(chunks, "chunk_of", side_effect=chunks.chunk_of) as checks:
        core.publish(producer)
        core.commit()
        assert checks.call_count == 0
        publish_chunks(core, topic, 1, count=2)
        assert checks.call_count == 2
        core.publish(producer)
        core.commit()
        assert checks.call_count == 2
        subscription.redeliver(consumer, None, None)
        assert checks.call_count == 5


def test_a_topic_forgets_that_it_had_chunks(core: Core) -> None:
    core.broker.topics.create(TopicName.parse("t"))
    core.broker.policies.set_topic(TopicName.parse("t"), Policies(retention=Retention(0, 0)))
    topic = core.topic()
    subscription = topic.create_subscription("s")
    publish_chunks(core, topic, 1)
    core.crash()
    topic = core.topic()
    assert topic.chunks_below == 3
    subscription = topic.subscription("s")
    subscription.acks.acknowledge(None, [AckId(*topic.log.position(offset)) for offset in range(3)], None)
    core.advance(1_000)
    assert topic.log.first_offset == 3
    core.restart()
    assert core.topic().chunks_below == 0


def test_topics_of_older_releases_may_hold_chunks() -> None:
    record = msgspec.msgpack.decode(msgspec.msgpack.encode({"created_ms": 1}), type=records.TopicRecord)
    assert record.chunked


def _tables(subscription: Subscription) -> tuple[int, int, int, int]:
    """Return how much the dispatcher remembers of chunks: chunks, messages, unfinished ones, chunks that wait."""
    dispatcher = subscription.dispatcher
    assert isinstance(dispatcher, SharedDispatcher | KeySharedDispatcher)
    table = dispatcher._chunks
    held = dispatcher._held if isinstance(dispatcher, SharedDispatcher) else {}
    return len(table), len(table._messages), len(table.unfinished), sum(len(each) for each in held.values())


def _expire(core: Core, topic: Topic, subscription: Subscription) -> None:
    core.broker.policies.set_topic(topic.name, Policies(message_ttl_ms=1000))
    core.advance(2000)


def _dead_letter(core: Core, topic: Topic, subscription: Subscription) -> None:
    core.broker.policies.set_topic(topic.name, Policies(message_ttl_ms=1000, dead_letter_topic="dead"))
    core.advance(2000)
    core.advance(2000)


def _skip_damaged(core: Core, topic: Topic, subscription: Subscription) -> None:
    skip_range(subscription, 0, topic.log.end_offset - 1, "bit rot")


def _clear(core: Core, topic: Topic, subscription: Subscription) -> None:
    subscription.acks.clear_backlog(lambda error: None)


def _skip(core: Core, topic: Topic, subscription: Subscription) -> None:
    subscription.acks.skip(1000, lambda error: None)


def _truncate(core: Core, topic: Topic, subscription: Subscription) -> None:
    truncate(topic, lambda error: None)
    core.advance(2000)


def _evict(core: Core, topic: Topic, subscription: Subscription) -> None:
    core.broker.policies.set_topic(
        topic.name, Policies(backlog_quota_size=BacklogQuota(10, "consumer_backlog_eviction"))
    )
    core.advance(2000)


def _trim(core: Core, topic: Topic, subscription: Subscription) -> None:
    core.broker.policies.set_topic(topic.name, Policies(retention=Retention(0, 0)))
    core.advance(2000)
    topic.trim(topic.log.end_offset)


def _acknowledge_unseen(core: Core, topic: Topic, subscription: Subscription) -> None:
    ids = [AckId(*topic.log.position(offset)) for offset in range(topic.log.end_offset)]
    subscription.acks.acknowledge(None, ids, None)


def _seek(core: Core, topic: Topic, subscription: Subscription) -> None:
    subscription.seek(topic.log.end_offset, None, lambda error: None)
    core.commit()


ENDS = [_expire, _dead_letter, _skip_damaged, _clear, _skip, _truncate, _evict, _acknowledge_unseen, _trim, _seek]


@pytest.mark.parametrize("sub_type", [SHARED, KEY_SHARED])
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("contiguous", [True, False])
def test_nothing_is_remembered_of_chunks_that_end_while_their_consumer_takes_no_more(
    core: Core, sub_type: SubscriptionType, end: Callable[[Core, Topic, Subscription], None], contiguous: bool
) -> None:
    topic = core.topic()
    subscription = topic.create_subscription("s", durable=end is not _trim)
    slow, fast = Client(), Client()
    first = core.consumer(subscription, sub_type, slow, name="slow", permits=2)
    publish_chunks(core, topic, 1, 2, 3, count=3)
    if sub_type == SHARED:
        # Its messages' other chunks wait for it, even if others could take them.
        core.consumer(subscription, sub_type, fast, name="fast", consumer_id=2, permits=100)
        assert _tables(subscription)[3] == 4
    assert _tables(subscription)[0] >= 2
    if not contiguous:
        subscription.acks.acknowledge(first, [AckId(*topic.log.position(1))], None)
    end(core, topic, subscription)
    core.commit()
    assert subscription.acks.backlog_messages == 0
    assert subscription.dispatcher is None or _tables(subscription) == (0, 0, 0, 0)
    # And those that come later are delivered.
    consumer = first
    if subscription.dispatcher is None:
        consumer = core.consumer(subscription, sub_type, slow, name="slow", consumer_id=3)
    slow.take(), fast.take()
    core.broker.policies.set_topic(topic.name, Policies())
    subscription.flow(consumer, 100)
    begin = topic.log.end_offset
    publish_chunks(core, topic, 4, count=3)
    assert sorted(slow.take_offsets() + fast.take_offsets()) == [begin, begin + 1, begin + 2]
    assert _tables(subscription) == (3, 1, 0, 0)
    subscription.acks.acknowledge(None, [AckId(*topic.log.position(begin + number)) for number in range(3)], None)
    assert _tables(subscription) == (0, 0, 0, 0)


def test_chunks_that_expire_one_after_the_other_are_forgotten_one_after_the_other(core: Core) -> None:
    topic = core.topic()
    subscription = topic.create_subscription("s")
    client = Client()
    core.consumer(subscription, SHARED, client, permits=1)
    core.consumer(subscription, SHARED, Client(), name="d", consumer_id=2, permits=1000)
    core.broker.policies.set_topic(topic.name, Policies(message_ttl_ms=10_000))
    producer = core.producer(topic)
    most = 0
    for chunk in range(300):
        core.publish(producer, sequence_id=1, chunk=(chunk, 1000))
        core.commit()
        core.advance(1000)
        most = max(most, *_tables(subscription))
    assert most <= 12


def test_so_many_chunks_wait_for_one_consumer_and_no_more(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch_shared, "MAX_WAITING_CHUNKS", 20)
    topic = core.topic()
    subscription = topic.create_subscription("s")
    slow, fast = Client(), Client()
    first = core.consumer(subscription, SHARED, slow, name="slow", permits=1)
    publish_chunks(core, topic, 1, count=1000)
    core.consumer(subscription, SHARED, fast, name="fast", consumer_id=2, permits=1000)
    core.publish(core.producer(topic, name="q"), b"whole")
    core.commit()
    assert _tables(subscription) == (21, 1, 1, 20)
    subscription.flow(first, 2000)
    received = slow.take_offsets()
    assert received[:1000] == list(range(1000))
    assert received[1000:] + fast.take_offsets() == [1000]
    assert _tables(subscription) == (1000, 1, 0, 0)
