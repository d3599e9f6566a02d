"""The time to live (TTL) of a message: where it comes from, when it begins, and which messages of an entry it ended.

A message expires for a subscription when the lower of the topic's TTL and its own has passed since the broker
received it, or since it became deliverable if it was delayed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heliograph_broker.protocol import wire_pb2 as wire
from heliograph_broker.protocol.frames import parse_entry

from .batches import BatchError, is_batch, open_batch
from .errors import NotAllowed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from heliograph_broker.storage.entry import Entry, EntryHeader

    from .topic import Topic

#: The message property that holds a TTL of its own, a decimal number of ms as text.
TTL_PROPERTY = "x-message-ttl"
_MAX_TTL_MS = (1 << 63) - 1


class InvalidMessageTtl(NotAllowed):
    """A message carries a TTL that is not a number of ms."""


def ttl_of(properties: Iterable[wire.KeyValue]) -> int:
    """Return the TTL among a message's properties in ms, -1 if there is none. Raises :class:`InvalidMessageTtl`."""
    for pair in properties:
        if pair.key == TTL_PROPERTY:
            text = pair.value
            if not (text.isascii() and text.isdigit()) or len(text) > 19 or int(text) > _MAX_TTL_MS:
                shown = text if len(text) <= 40 else f"{text[:40]}..."
                raise InvalidMessageTtl(
                    f"property {TTL_PROPERTY} is '{shown}'; valid: milliseconds as decimal text, 0 to {_MAX_TTL_MS}"
                )
            return int(text)
    return -1


def ttls_in(metadata: wire.MessageMetadata, frame: bytes) -> list[int]:
    """Return the TTL of every message of a batch (-1 without), empty if it cannot be opened.

    Raises :class:`InvalidMessageTtl`.
    """
    try:
        opened = open_batch(metadata, frame[parse_entry(frame).payload_offset :])
    except BatchError:
        # Encrypted, or of no use to any consumer either: the topic's own TTL is all that counts.
        return []
    return [ttl_of(single.properties) for single, _ in opened]


def _stored_ttls_in(metadata: wire.MessageMetadata, frame: bytes) -> list[int]:
    """As :func:`ttls_in` for an entry that is stored, whatever was checked then: one that is invalid counts as none."""
    try:
        return ttls_in(metadata, frame)
    except InvalidMessageTtl:
        opened = open_batch(metadata, frame[parse_entry(frame).payload_offset :])
    ttls = []
    for single, _ in opened:
        try:
            ttls.append(ttl_of(single.properties))
        except InvalidMessageTtl:
            ttls.append(-1)
    return ttls


def base_ms(topic: Topic, entry: Entry | EntryHeader, offset: int) -> int:
    """Return when the TTL of ``entry`` begins, wall-clock ms."""
    received = topic.received_ms(offset, entry.receive_ms)
    if topic.delayed_delivery and entry.deliver_at_ms > entry.receive_ms:
        return max(entry.deliver_at_ms, received)
    return received


def is_expired(topic: Topic, entry: Entry, now_ms: int) -> bool:
    """Whether every message of ``entry`` has expired; for a batch with TTLs of its own whether any has."""
    ttl = topic.ttl_ms
    if entry.ttl_ms >= 0 and (ttl < 0 or entry.ttl_ms < ttl):
        ttl = entry.ttl_ms
    return ttl >= 0 and base_ms(topic, entry, entry.offset) + ttl <= now_ms


def has_zero_ttl(topic: Topic, entry: Entry) -> bool:
    """Whether ``entry`` is to be delivered at once or never."""
    return topic.ttl_ms == 0 or entry.ttl_ms == 0


def expired_messages(topic: Topic, entry: Entry, now_ms: int) -> tuple[int, int | None]:
    """Return the messages of ``entry`` that have expired, a bit for each, and when the next with its own TTL will."""
    whole = (1 << entry.messages) - 1
    base = base_ms(topic, entry, entry.offset)
    if 0 <= topic.ttl_ms <= now_ms - base:
        return whole, None
    if entry.ttl_ms < 0:
        return 0, None
    if base + entry.ttl_ms > now_ms:
        return 0, base + entry.ttl_ms
    metadata = parse_entry(entry.frame).metadata
    if not is_batch(metadata):
        return whole, None
    bits = 0
    later: list[int] = []
    for index, ttl in enumerate(_stored_ttls_in(metadata, entry.frame)):
        if 0 <= ttl <= now_ms - base:
            bits |= 1 << index
        elif ttl >= 0:
            later.append(base + ttl)
    return bits, min(later, default=None)


def zero_ttl_messages(topic: Topic, entry: Entry) -> int:
    """Return the messages of ``entry`` whose TTL is 0, a bit for each; ``entry`` has one or the topic's is 0."""
    whole = (1 << entry.messages) - 1
    metadata = parse_entry(entry.frame).metadata
    if topic.ttl_ms == 0 or not is_batch(metadata):
        return whole
    return sum(1 << index for index, ttl in enumerate(_stored_ttls_in(metadata, entry.frame)) if ttl == 0)
