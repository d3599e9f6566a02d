"""The broker checks a client's claims before it counts anything: text, counts, TTLs. The real core, virtual time."""

from __future__ import annotations

import pytest
from heliograph_api.policies.policies import Policies
from heliograph_api.protocol import wire_pb2 as wire
from heliograph_api.protocol.frames import EntryError, parse_entry
from heliograph_broker.messaging.messages.batches import BatchError, check_count
from heliograph_broker.messaging.messages.message_ttl import InvalidMessageTtl

from tests.support.core import Client, Core
from tests.support.entries import make_batch, make_frame, make_message, seal
from tests.support.subscription_types import SHARED

NOT_TEXT = b"\xff\xfe"


#: A message of a batch.
INVALID_TTL = make_message(b"x", ttl="soon")


def _field(number: int, value: bytes) -> bytes:
    assert number < 16
    return bytes([number << 3 | 2, len(value)]) + value


def _entry(extra: bytes, payload: bytes = b"x") -> bytes:
    metadata = wire.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1).SerializeToString() + extra
    return seal(metadata, payload)


@pytest.mark.parametrize(
    "extra",
    [
        _field(1, NOT_TEXT),
        _field(6, NOT_TEXT),
        _field(4, _field(1, b"k") + _field(2, NOT_TEXT)),
        _field(4, _field(1, NOT_TEXT) + _field(2, b"v")),
    ],
    ids=["producer_name", "partition_key", "property value", "property key"],
)
def test_text_that_is_not_utf8_is_no_metadata(extra: bytes) -> None:
    with pytest.raises(EntryError, match="UTF-8"):
        parse_entry(_entry(extra))


def _check(metadata: wire.MessageMetadata, frame: bytes) -> None:
    check_count(metadata, frame, parse_entry(frame).payload_offset)


@pytest.mark.parametrize("compression", ["NONE", "ZLIB", "ZSTD", "LZ4", "SNAPPY"])
def test_a_batch_that_cannot_hold_what_it_claims_is_refused(compression: str) -> None:
    _check(*make_batch(b"", b"", codec=compression))
    _check(*make_batch(*[b""] * 5000, codec=compression))
    _check(*make_batch(b"x" * 1000, b"y" * 1000, codec=compression))
    for claimed in (1000, 1_000_000):
        with pytest.raises(BatchError):
            _check(*make_batch(b"five!", codec=compression, claimed=claimed))
    with pytest.raises(BatchError):
        _check(*make_batch(*[b""] * 2000, codec=compression, claimed=1999))


def test_an_encrypted_batch_must_be_large_enough() -> None:
    keys = [wire.EncryptionKeys(key="k", value=b"v")]
    _check(*make_batch(*[b"x"] * 10, encryption_keys=keys))
    with pytest.raises(BatchError, match="does not fit"):
        _check(*make_batch(b"five!", encryption_keys=keys, claimed=1_000_000))
    with pytest.raises(BatchError, match="does not fit"):
        _check(*make_batch(b"five!", encryption_keys=keys, claimed=1_000_000, codec="ZLIB"))


def test_a_single_message_has_no_count_to_check() -> None:
    _check(*make_frame(b""))


def test_a_publish_that_raises_has_moved_nothing(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = core.topic()
    core.broker.policies.set_topic(topic.name, Policies(deduplication=True))
    subscription = topic.create_subscription("s")
    client = Client()
    producer = core.producer(topic, client)
    core.publish(producer, sequence_id=1)
    core.commit()

    def refuse(*_: object) -> None:
        raise ValueError("a field out of its stored range")

    with monkeypatch.context() as patch:
        patch.setattr(core.store.writer, "append", refuse)
        with pytest.raises(ValueError, match="range"):
            core.publish(producer, messages=1_000_000, sequence_id=2)
    core.publish(producer, sequence_id=2)
    core.commit()
    assert subscription.acks.backlog_messages == 2
    stored = sum(len(make_frame(sequence_id=n)[1]) for n in (1, 2))
    assert subscription.acks.backlog_bytes == topic.statistics.stored_bytes == stored
    assert len(client.receipts) == 2
    assert not topic.log.has_in_flight
    core.restart()
    assert core.topic().subscription("s").acks.backlog_messages == 2


def test_an_invalid_ttl_inside_a_batch_with_a_ttl_is_refused(core: Core) -> None:
    topic = core.topic()
    client = Client()
    core.publish_batch(core.producer(topic, client), b"x", INVALID_TTL, ttl="1000")
    assert [type(error) for _, error in client.errors] == [InvalidMessageTtl]
    assert topic.log.end_offset == 0


def test_one_that_was_stored_before_counts_as_none_and_stops_nothing(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As a broker stored it that did not look into batches.
    bad, good = core.topic("bad"), core.topic("good")
    due = core.clock.now_ms() + 2000
    clients = {}
    for topic in (bad, good):
        clients[topic] = Client()
        core.consumer(topic.create_subscription("s"), SHARED, clients[topic], permits=10)
    entry = make_batch(b"x", INVALID_TTL, ttl="1000", deliver_at=due)
    with monkeypatch.context() as patch:
        patch.setattr("heliograph_broker.messaging.topic.topic.ttls_in", lambda *_: [])
        core.publish_entry(core.producer(bad), *entry)
    core.publish(core.producer(good), deliver_at=due)
    core.commit()
    for _ in range(100):
        core.advance(100)
    assert len(clients[good].messages) == 1
    assert len(clients[bad].messages) == 1
    assert core.broker.containment.idle
    assert not bad.subscription("s").expiry.running
