"""What a topic may let go, to the entry: the retention table of Pulsar's cookbook and expiry by age.

Both look up entries by their cumulative counts and receive times, which only grow along a topic, so every answer
is a binary search over entry headers.
"""

from __future__ import annotations

from collections.abc import Callable

from heliograph_broker.resources.policies import Policies
from heliograph_broker.storage.entry import EntryHeader

from .subscription import Subscription
from .topic import Topic


def _first_offset_where(topic: Topic, high: int, holds: Callable[[EntryHeader], bool]) -> int:
    """Return the first kept offset below ``high`` whose header satisfies a condition that, once true, stays true."""
    low = topic.first_offset
    while low < high:
        middle = (low + high) // 2
        header = topic.header(middle)
        if header is not None and holds(header):
            high = middle
        else:
            low = middle + 1
    return low


def trim_point(topic: Topic, policies: Policies, now_ms: int) -> int:
    """Return the offset below which nothing has to be kept.

    Never beyond the slowest durable subscription. Of what all have acknowledged (or nobody subscribed to),
    retention keeps what is younger than its time *and* within its size; -1 leaves out that limit, 0 keeps nothing.
    """
    limit = topic.end_offset
    for subscription in topic.subscriptions.values():
        if subscription.durable:
            limit = min(limit, subscription.cursor.first_unacked())
    if limit <= topic.first_offset:
        return topic.first_offset
    retention = policies.retention
    if retention is None or retention.time_ms == 0 or retention.size_bytes == 0:
        return limit
    point = topic.first_offset
    if retention.size_bytes > 0 and topic.stored_bytes > retention.size_bytes:
        # The newest entries that fit the size stay: an entry stays while all after and including it fit.
        keep_from = topic.total_bytes - retention.size_bytes
        point = max(
            point,
            _first_offset_where(topic, limit, lambda header: header.total_bytes - header.size >= keep_from),
        )
    if retention.time_ms > 0:
        cutoff = now_ms - retention.time_ms
        point = max(point, _first_offset_where(topic, limit, lambda header: header.receive_ms > cutoff))
    return point


def expiry_point(topic: Topic, received_before_ms: int) -> int:
    """Return the offset of the first entry the broker received at or after a wall-clock time (ms)."""
    return _first_offset_where(topic, topic.end_offset, lambda header: header.receive_ms >= received_before_ms)


def expire(subscription: Subscription, older_than_ms: int, now_ms: int) -> None:
    """Acknowledge for ``subscription`` everything received more than ``older_than_ms`` ago."""
    received = subscription.oldest_unacked_receive_ms()
    if received < 0 or received >= now_ms - older_than_ms:
        return
    point = expiry_point(subscription.topic, now_ms - older_than_ms)
    if point > subscription.cursor.first_unacked():
        subscription.acknowledge_up_to(point - 1, None, expired=True)
