"""Chunked messages on Shared and Key_Shared: together, also after a restart, and at no cost where there are none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import msgspec
import pytest
from heliograph_broker.messaging import chunks, records
from heliograph_broker.messaging.subscription import KEY_SHARED, SHARED, AckId
from heliograph_broker.messaging.topic import Topic
from heliograph_broker.resources.names import TopicName
from heliograph_broker.resources.policies import Policies, Retention

from tests.support.core import Client, Core


@pytest.fixture
def core(tmp_path: Path) -> Iterator[Core]:
    opened = Core(tmp_path / "d")
    yield opened
    opened.close()


def offsets(client: Client) -> list[int]:
    return [entry.offset for _, entry, _, _ in client.take()]


def publish_chunks(core: Core, topic: Topic, *sequence_ids: int, count: int = 3) -> None:
    """Publish messages in ``count`` chunks each, interwoven."""
    producer = next(iter(topic.producers.values()), None) or core.producer(topic)
    for chunk in range(count):
        for sequence_id in sequence_ids:
            core.publish(producer, sequence_id=sequence_id, chunk=(chunk, count))
    core.commit()


@pytest.mark.parametrize("sub_type", [SHARED, KEY_SHARED])
@pytest.mark.parametrize("restarted", [False, True])
def test_each_message_comes_to_one_consumer(core: Core, sub_type: int, restarted: bool) -> None:
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
    received = [offsets(client) for client in clients]
    assert sorted(offset for of_one in received for offset in of_one) == list(range(60))
    assert all(received)
    for of_one in received:
        # Chunk k of message m is at offset 20 * k + m.
        messages = {offset % 20 for offset in of_one}
        assert sorted(of_one) == sorted(20 * chunk + message for message in messages for chunk in range(3))


@pytest.mark.parametrize("sub_type", [SHARED, KEY_SHARED])
def test_a_nack_of_one_chunk_brings_all_of_them_again(core: Core, sub_type: int) -> None:
    topic = core.topic()
    client = Client()
    subscription = topic.create_subscription("s")
    consumer = core.consumer(subscription, sub_type, client, permits=100)
    publish_chunks(core, topic, 1, 2)
    assert offsets(client) == [0, 1, 2, 3, 4, 5]
    subscription.redeliver(consumer, [topic.position(5)], None)
    assert [(entry.offset, count) for _, entry, count, _ in client.take()] == [(1, 1), (3, 1), (5, 1)]


def test_a_consumer_without_permits_holds_up_its_own_chunks_only(core: Core) -> None:
    topic = core.topic()
    slow, fast = Client(), Client()
    subscription = topic.create_subscription("s")
    first = core.consumer(subscription, SHARED, slow, name="slow", permits=1)
    publish_chunks(core, topic, 1, count=2)
    core.consumer(subscription, SHARED, fast, name="fast", consumer_id=2, permits=100)
    publish_chunks(core, topic, 2, count=2)
    assert (offsets(slow), offsets(fast)) == ([0], [2, 3])
    subscription.flow(first, 1)
    assert (offsets(slow), offsets(fast)) == ([1], [])
    subscription.remove_consumer(first)
    assert offsets(fast) == [0, 1]


def test_metadata_is_looked_at_only_where_chunks_may_be(core: Core) -> None:
    topic = core.topic()
    client = Client()
    subscription = topic.create_subscription("s")
    consumer = core.consumer(subscription, SHARED, client, permits=100)
    producer = core.producer(topic)
    with patch.object(chunks, "chunk_of", side_effect=chunks.chunk_of) as looks:
        core.publish(producer)
        core.commit()
        assert looks.call_count == 0
        publish_chunks(core, topic, 1, count=2)
        assert looks.call_count == 2
        core.publish(producer)
        core.commit()
        assert looks.call_count == 2
        subscription.redeliver(consumer, None, None)
        assert looks.call_count == 5


def test_a_topic_forgets_that_it_had_chunks(core: Core) -> None:
    core.broker.create_topic(TopicName.parse("t"))
    core.broker.set_topic_policies(TopicName.parse("t"), Policies(retention=Retention(0, 0)))
    topic = core.topic()
    subscription = topic.create_subscription("s")
    publish_chunks(core, topic, 1)
    core.crash()
    topic = core.topic()
    assert topic.chunks_below == 3
    subscription = topic.subscription("s")
    subscription.acknowledge(None, [AckId(*topic.position(offset)) for offset in range(3)], None)
    core.advance(1_000)
    assert topic.first_offset == 3
    core.restart()
    assert core.topic().chunks_below == 0


def test_topics_of_older_releases_may_hold_chunks() -> None:
    record = msgspec.msgpack.decode(msgspec.msgpack.encode({"created_ms": 1}), type=records.TopicRecord)
    assert record.chunked
