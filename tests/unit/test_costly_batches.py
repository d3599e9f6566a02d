"""Batches that take few bytes and would take long to open hold up nobody, and are delivered like others."""

from __future__ import annotations

import random

import pytest
from heliograph_api.policies.policies import Policies
from heliograph_api.protocol import wire_pb2 as wire
from heliograph_api.protocol.compression import decompress
from heliograph_api.protocol.frames import parse_entry
from heliograph_broker.messaging.delivery.unacked_search import UnackedSearch
from heliograph_broker.messaging.messages import batches
from heliograph_broker.messaging.messages.batches import (
    CorruptPayload,
    PayloadTooLarge,
    check_count,
    open_batch_at_once,
)
from heliograph_broker.messaging.messages.message_match import Criteria
from heliograph_broker.messaging.topic.topic import Topic

from tests.support.core import Client, Core
from tests.support.entries import make_batch, make_message, open_entry
from tests.support.subscription_types import SHARED

KIB = 1024
MIB = 1024 * KIB
DEAD = "persistent://public/default/dead"

CODECS = pytest.mark.parametrize("codec", ["LZ4", "ZLIB", "ZSTD"])


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes to which payloads were decompressed since."""
    sizes: list[int] = []

    def noting(compression: int, payload: bytes, size: int) -> bytes | memoryview:
        sizes.append(size)
        return decompress(compression, payload, size)

    monkeypatch.setattr(batches, "decompress", noting)
    return sizes


def _bomb(codec: str = "ZSTD", size: int = 16 * MIB) -> tuple[wire.MessageMetadata, bytes]:
    """Return a batch of two messages, one with a TTL of its own, that takes a fraction of its size."""
    metadata, frame = make_batch(make_message(bytes(size), ttl="1000"), b"other", codec=codec, ttl="1000")
    assert len(frame) * 100 < size
    return metadata, frame


@CODECS
def test_a_batch_that_grows_too_much_is_stored_unopened_and_delivered(
    core: Core, opened: list[int], codec: str
) -> None:
    topic = core.topic()
    subscription = topic.create_subscription("s")
    client = Client()
    core.publish_entry(core.producer(topic, client), *_bomb(codec))
    core.commit()
    assert (client.errors, len(client.receipts)) == ([], 1)
    # Nobody could read the TTLs in it, so they do not count.
    core.advance(60_000)
    assert subscription.acks.backlog_messages == 2
    consumer = Client()
    core.consumer(subscription, SHARED, consumer, permits=10)
    assert opened == []
    [(_, entry, _, _)] = consumer.take()
    assert [len(payload) for _, payload in open_entry(entry.frame)] == [16 * MIB, 5]


@CODECS
@pytest.mark.parametrize("size", [MIB // 10, 4 * MIB])
def test_batches_as_clients_make_them_are_opened(core: Core, codec: str, size: int) -> None:
    topic = core.topic()
    subscription = topic.create_subscription("s")
    words = b"".join(b'{"order": %d}' % (number * number) for number in range(size // 20))
    core.publish_batch(topic, make_message(words, ttl="1000"), make_message(bytes(10 * KIB)), codec=codec)
    core.publish_batch(topic, *[make_message(b"", ttl="1000")] * 1000, codec=codec)
    values = random.Random(1)
    many = [make_message(values.randbytes(8), ttl=str(1000 + number)) for number in range(5000)]
    core.publish_batch(topic, *many, codec=codec)
    core.advance(60_000)
    assert subscription.acks.backlog_messages == 1


@CODECS
def test_a_batch_that_cannot_be_counted_at_once_must_say_that_it_is_large_enough(opened: list[int], codec: str) -> None:
    def check(claimed: int) -> None:
        metadata, frame = make_batch(*[b""] * 100_000, codec=codec, claimed=claimed)
        check_count(metadata, frame, parse_entry(frame).payload_offset)

    check(100_000)
    with pytest.raises(CorruptPayload, match="does not fit 600000 bytes"):
        check(1_000_000)
    assert opened == []


def test_a_batch_of_very_many_messages_is_not_opened_though_it_is_not_compressed() -> None:
    metadata, frame = make_batch(*[b""] * 20_000)
    with pytest.raises(PayloadTooLarge, match="20000 messages"):
        open_batch_at_once(metadata, frame[parse_entry(frame).payload_offset :])


def _expiring(core: Core) -> tuple[Topic, Topic]:
    """Return the dead-letter topic, and a topic whose messages expire into it."""
    dead, topic = core.topic("dead"), core.topic("t")
    dead.create_subscription("audit")
    core.broker.policies.set_topic(topic.name, Policies(message_ttl_ms=1000, dead_letter_topic=DEAD))
    return dead, topic


def test_it_is_dead_lettered_as_one_entry(core: Core, opened: list[int]) -> None:
    dead, topic = _expiring(core)
    topic.create_subscription("s")
    core.publish_entry(core.producer(topic), *_bomb())
    core.commit()
    core.advance(2000)
    assert topic.subscription("s").acks.backlog_messages == 0
    assert (dead.log.end_offset, dead.subscription("audit").acks.backlog_messages) == (1, 2)
    assert opened == []


def test_a_search_shows_it_with_the_reason_why_it_is_not_opened(core: Core, opened: list[int]) -> None:
    topic = core.topic()
    subscription = topic.create_subscription("s")
    core.publish_entry(core.producer(topic), *_bomb())
    core.commit()
    search = UnackedSearch(subscription, Criteria(), limit=10)
    while not search.finished:
        search.step(lambda outcome: None)
    [found] = search.found
    assert (found.message.messages, found.message.batch_index) == (2, -1)
    assert "at most" in found.message.unopened
    assert opened == []
