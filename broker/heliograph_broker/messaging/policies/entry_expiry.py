"""When an entry expires: when its time to live (TTL) begins, and which of its messages it has ended.

A message expires for a subscription when the lower of the subscription's TTL (its own, else its topic's) and the
message's own has passed since the broker received it, or since it became deliverable if it was delayed (unless the
policy ``ttlCountsDelay`` is on).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heliograph_api.protocol.frames import parse_entry

from heliograph_broker.messaging.messages.batches import is_batch
from heliograph_broker.messaging.messages.message_ttl import stored_ttls_in

if TYPE_CHECKING:
    from heliograph_broker.messaging.acknowledgment.stored_topic import StoredTopic
    from heliograph_broker.storage.base.entry import Entry, EntryHeader


def base_ms(topic: StoredTopic, entry: Entry | EntryHeader, offset: int) -> int:
    """Return when the TTL of ``entry`` begins, wall-clock ms."""
    received = topic.log.received_ms(offset, entry.receive_ms)
    if topic.timing.ttl_from_delivery and entry.deliver_at_ms > entry.receive_ms:
        return max(entry.deliver_at_ms, received)
    return received


def is_expired(topic: StoredTopic, entry: Entry, now_ms: int, ttl: int) -> bool:
    """Whether every message of ``entry`` has expired; for a batch with TTLs of its own whether any has.

    ``ttl`` is the subscription's, ms, -1 without.
    """
    if entry.ttl_ms >= 0 and (ttl < 0 or entry.ttl_ms < ttl):
        ttl = entry.ttl_ms
    return ttl >= 0 and base_ms(topic, entry, entry.offset) + ttl <= now_ms


def has_zero_ttl(entry: Entry, ttl_ms: int) -> bool:
    """Whether ``entry`` is to be delivered at once or never."""
    return ttl_ms == 0 or entry.ttl_ms == 0


def expired_messages(topic: StoredTopic, entry: Entry, now_ms: int, ttl_ms: int) -> tuple[int, int | None]:
    """Return the messages of ``entry`` that have expired, a bit for each, and when the next with its own TTL will."""
    whole = (1 << entry.messages) - 1
    base = base_ms(topic, entry, entry.offset)
    if 0 <= ttl_ms <= now_ms - base:
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
    for index, ttl in enumerate(stored_ttls_in(metadata, entry.frame)):
        if 0 <= ttl <= now_ms - base:
            bits |= 1 << index
        elif ttl >= 0:
            later.append(base + ttl)
    return bits, min(later, default=None)


def zero_ttl_messages(entry: Entry, ttl_ms: int) -> int:
    """Return the messages of ``entry`` whose TTL is 0, a bit for each; ``entry`` has one or the subscription's is 0."""
    whole = (1 << entry.messages) - 1
    metadata = parse_entry(entry.frame).metadata
    if ttl_ms == 0 or not is_batch(metadata):
        return whole
    return sum(1 << index for index, ttl in enumerate(stored_ttls_in(metadata, entry.frame)) if ttl == 0)
