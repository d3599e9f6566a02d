"""Entries as official clients make them: plain, in batches, delayed, with a time to live, parts of large ones."""

from __future__ import annotations

import random

from heliograph_api.protocol import wire_pb2 as wire

from tests.support.entries import TTL_PROPERTY, batch_payload, seal
from tests.support.entries import Message as BatchedMessage
from tests.support.entries import make_message as make_batched

from .model import Message, TopicModel

KEYS = ("a", "b", "c", "d")


def metadata_of(number: int, producer: str, sequence_id: int, now_ms: int) -> wire.MessageMetadata:
    # The event time makes every entry's bytes its own.
    return wire.MessageMetadata(producer_name=producer, sequence_id=sequence_id, publish_time=now_ms, event_time=number)


def make_message(
    number: int, topic: TopicModel, producer: str, sequence_id: int, now_ms: int, rng: random.Random
) -> Message:
    """Return a message as an official client would make it."""
    metadata = metadata_of(number, producer, sequence_id, now_ms)
    key = rng.choice(KEYS) if rng.random() < 0.7 else None
    if key is not None:
        metadata.partition_key = key
    deliver_at_ms = 0
    ttl_ms = -1
    if rng.random() < 0.12:
        deliver_at_ms = metadata.deliver_at_time = now_ms + rng.choice([100, 1000, 5000])
    count = 1
    payload = rng.randbytes(rng.choice([5, 5, 60, 400, 3000]))
    shape = rng.random()
    if shape >= 0.3 and rng.random() < 0.1:
        ttl_ms = rng.choice([200, 3000])
        metadata.properties.add(key=TTL_PROPERTY, value=str(ttl_ms))
    batched = shape < 0.3
    if batched:
        count = rng.choice([1, 2, 5, 30, 70])
        metadata.num_messages_in_batch = count
        metadata.highest_sequence_id = sequence_id + count - 1
        singles: list[BatchedMessage] = []
        for index in range(count):
            properties: dict[str, str] = {}
            if rng.random() < 0.03:
                single_ttl = rng.choice([200, 3000])
                properties[TTL_PROPERTY] = str(single_ttl)
                ttl_ms = single_ttl if ttl_ms < 0 else min(ttl_ms, single_ttl)
            singles.append(make_batched(b"%d" % index, properties=properties))
        payload = batch_payload(singles)
    elif shape < 0.36:
        metadata.uuid = f"{producer}-{sequence_id}"
        metadata.chunk_id = rng.randrange(3)
        metadata.num_chunks_from_msg = 3
        metadata.total_chunk_msg_size = 9000
        # The model tracks neither which consumer receives a part, nor deduplication of single parts.
    frame = seal(metadata.SerializeToString(), payload)
    return Message(
        number,
        topic,
        frame,
        sequence_id,
        count=count,
        batched=batched,
        key=key,
        deliver_at_ms=deliver_at_ms,
        ttl_ms=ttl_ms,
    )


def words_of(bits: int) -> list[int]:
    """Return the words of an ``ack_set``, signed as they are on the wire."""
    words = []
    while bits:
        word = bits & ((1 << 64) - 1)
        words.append(word - (1 << 64) if word >> 63 else word)
        bits >>= 64
    return words


def properties_of(frame: bytes) -> dict[str, str]:
    """Return the properties of an entry."""
    size = int.from_bytes(frame[6:10], "big")
    metadata = wire.MessageMetadata.FromString(frame[10 : 10 + size])
    return {pair.key: pair.value for pair in metadata.properties}
