"""Messages: plain ones, batches, delayed ones, with a time to live, parts of large ones, and those meant to do harm."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, cast

from heliograph_broker.messaging.producer import Producer, Receipt
from heliograph_broker.protocol import wire_pb2 as wire

from .model import Message, TopicModel, Violation
from .network import Connection
from .wire_frames import batch_payload, entry_frame, text_field

if TYPE_CHECKING:
    from .world import World

_KEYS = ("a", "b", "c", "d")
_TTL = "x-message-ttl"
#: What a socket may cost the broker before it has said who it is (bytes).
STRANGERS_BYTES = 16 * 1024


def _metadata(number: int, producer: str, sequence_id: int, now_ms: int) -> wire.MessageMetadata:
    # The event time makes every entry's bytes its own.
    return wire.MessageMetadata(producer_name=producer, sequence_id=sequence_id, publish_time=now_ms, event_time=number)


def make_message(
    number: int, topic: TopicModel, producer: str, sequence_id: int, now_ms: int, rng: random.Random
) -> Message:
    """Return a message as an official client would make it."""
    metadata = _metadata(number, producer, sequence_id, now_ms)
    key = rng.choice(_KEYS) if rng.random() < 0.7 else None
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
        metadata.properties.add(key=_TTL, value=str(ttl_ms))
    batched = shape < 0.3
    if batched:
        count = rng.choice([1, 2, 5, 30, 70])
        metadata.num_messages_in_batch = count
        metadata.highest_sequence_id = sequence_id + count - 1
        singles: list[tuple[dict[str, str], bytes]] = []
        for index in range(count):
            properties: dict[str, str] = {}
            if rng.random() < 0.03:
                single_ttl = rng.choice([200, 3000])
                properties[_TTL] = str(single_ttl)
                ttl_ms = single_ttl if ttl_ms < 0 else min(ttl_ms, single_ttl)
            singles.append((properties, b"%d" % index))
        payload = batch_payload(singles)
    elif shape < 0.36:
        metadata.uuid = f"{producer}-{sequence_id}"
        metadata.chunk_id = rng.randrange(3)
        metadata.num_chunks_from_msg = 3
        metadata.total_chunk_msg_size = 9000
        # Which of its consumers a part reaches is not followed here, nor is deduplication by parts.
    frame = entry_frame(metadata.SerializeToString(), payload)
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


def hostile_message(
    number: int, topic: TopicModel, producer: str, sequence_id: int, now_ms: int, rng: random.Random
) -> Message:
    """Return a message that no client makes: a broker may refuse it, or take it, and neither may harm others."""
    frame, count = _hostile_frame(number, producer, sequence_id, now_ms, rng)
    return Message(number, topic, frame, sequence_id, count=count, hostile=True)


def _hostile_frame(number: int, producer: str, sequence_id: int, now_ms: int, rng: random.Random) -> tuple[bytes, int]:
    metadata = _metadata(number, producer, sequence_id, now_ms)
    match rng.randrange(5):
        case 0:
            # A key that is not text, of a batch of a million that is not there.
            metadata.num_messages_in_batch = 1_000_000
            return entry_frame(metadata.SerializeToString() + text_field(6, b"\xff\xfe"), b"x"), 1
        case 1:
            # A time to live that is good for the batch and bad inside of it.
            metadata.num_messages_in_batch = 2
            metadata.properties.add(key=_TTL, value="200")
            metadata.deliver_at_time = now_ms + 300
            payload = batch_payload([({_TTL: "soon"}, b"1"), ({_TTL: "-5"}, b"2")])
            return entry_frame(metadata.SerializeToString(), payload), 2
        case 2:
            # A property that is not text.
            return entry_frame(
                metadata.SerializeToString() + text_field(4, text_field(1, b"\xff") + text_field(2, b"\xfe")), b"x"
            ), 1
        case 3:
            # More messages announced than there are.
            metadata.num_messages_in_batch = 50
            return entry_frame(metadata.SerializeToString(), batch_payload([({}, b"1"), ({}, b"2")])), 50
        case _:
            # Not a batch at all.
            metadata.num_messages_in_batch = 3
            metadata.properties.add(key=_TTL, value="300")
            return entry_frame(metadata.SerializeToString(), rng.randbytes(20)), 3


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


class _Nobody:
    """The sink of a producer that came from an older version."""

    def send_receipts(self, producer: Producer, receipts: list[Receipt]) -> None:
        """Nobody waits for it."""

    def send_publish_error(self, producer_id: int, sequence_id: int, server_error: int, message: str) -> None:
        """Nobody waits for it."""

    def hold_publishing(self, reason: object, ms: int) -> None:
        """It has nothing more to say."""

    def release_publishing(self, reason: object) -> None:
        """It has nothing more to say."""

    def send_producer_ready(self, producer: Producer) -> None:
        """It does not wait."""

    def send_close_producer(self, producer: Producer) -> None:
        """It is closed."""


def smuggle(world: World, topic: TopicModel, rng: random.Random) -> None:
    """Store an entry whose bytes are hostile although its metadata passed: as an older version, or bit rot, left it."""
    stored = world.stored(topic)
    if stored is None or stored.terminated:
        return
    number = len(world.messages.messages) + 1
    now_ms = world.machine.clock.now_ms()
    frame, count = _hostile_frame(number, "old", number, now_ms, rng)
    if rng.random() < 0.3:
        frame = rng.randbytes(30)
    metadata = _metadata(number, "old", number, now_ms)
    if count > 1:
        metadata.num_messages_in_batch = count
    ttl_ms = -1
    if rng.random() < 0.6:
        ttl_ms = 200
        metadata.properties.add(key=_TTL, value=str(ttl_ms))
    if rng.random() < 0.4:
        metadata.deliver_at_time = now_ms + 300
    message = Message(number, topic, frame, number, count=count, ttl_ms=ttl_ms, hostile=True)
    message.times_sent = 1
    message.wall_ms = now_ms
    message.earliest_ms = world.earliest_ms()
    message.passed_ms = world.machine.clock.passed_ms
    world.messages.add(message)
    producer = Producer(stored, _Nobody(), 0, "old")
    try:
        stored.publish(producer, number, 0, count, metadata, frame)
    except ValueError:
        # Where the batch is opened at once, it is found out at once.
        message.refused = True


def stranger(world: World, rng: random.Random) -> None:
    """Two connections that never say who they are, or announce more than they may. Raises :class:`Violation`.

    A buffer that all connections share costs nothing; one of its own is counted.
    """
    try:
        connections = [Connection(world.machine.loop, ("10.9.9.9", port), lambda data: None) for port in (1, 2)]
    except ConnectionRefusedError:
        return
    world.advance(1)
    if rng.random() < 0.7:
        for connection in connections:
            if not connection.lost:
                connection.send((4 << 20).to_bytes(4, "big") + (100).to_bytes(4, "big"))
        world.advance(5)
    buffers = [
        cast(memoryview, connection.protocol.get_buffer(-1)) for connection in connections if not connection.lost
    ]
    if len(buffers) == 2 and buffers[0].obj is not buffers[1].obj and len(buffers[0]) > STRANGERS_BYTES:
        raise Violation("a stranger costs too much", f"{len(buffers[0])} bytes of buffer before CONNECT")
    for connection in connections:
        connection.cut()
