"""What a topic may let go, to the entry: the retention table of Pulsar's cookbook.

Entries are looked up by their cumulative counts and receive times, which only grow along a topic, so every answer is
a binary search over entry headers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from heliograph_broker.storage.entry import EntryHeader

    from .topic import Topic


def _first_offset_where(topic: Topic, low: int, high: int, holds: Callable[[EntryHeader], bool]) -> int:
    """Return the first offset of ``low..high`` whose header satisfies a condition that, once true, stays true.

    ``high`` if none below it does. The first entry is asked first: mostly nothing has become due since the last time.
    Then the last entry of a ledger tells whether it is in that ledger or a later one, and the store looks within it.
    """
    if low >= high:
        return low
    header = topic.header(low)
    if header is not None and holds(header):
        return low
    low += 1
    ledgers = topic.ledgers
    at, beyond = 0, len(ledgers)
    while at < beyond:
        middle = (at + beyond) // 2
        ledger = ledgers[middle]
        end = min(high, ledger.base_offset + ledger.entries)
        if end <= low:
            at = middle + 1
        elif ledger.base_offset >= high or ((header := topic.header(end - 1)) is not None and holds(header)):
            beyond = middle
        else:
            at = middle + 1
    if at == len(ledgers) or ledgers[at].base_offset >= high:
        return high
    base = ledgers[at].base_offset
    end = min(high, base + ledgers[at].entries)
    return base + topic.host.store.first_entry_where(ledgers[at].ledger_id, max(low - base, 0), end - base, holds)


def first_received_after(topic: Topic, low: int, time_ms: int) -> int:
    """Return the first offset from ``low`` on that the broker received after a wall-clock time (ms)."""
    return _first_offset_where(topic, low, topic.end_offset, lambda header: header.receive_ms > time_ms)


def releasable(topic: Topic) -> int:
    """Return the offset below which every durable subscription has acknowledged everything."""
    limit = topic.end_offset
    for subscription in topic.subscriptions.values():
        if subscription.durable:
            limit = min(limit, subscription.cursor.first_unacked())
    return max(limit, topic.first_offset)


def _bytes_before(topic: Topic, offset: int) -> int:
    """Return the bytes ever published before ``offset``; if that cannot be read, those before the first kept."""
    if offset >= topic.end_offset:
        return topic.total_bytes
    header = topic.header(offset - 1)
    return topic.trimmed_bytes if header is None else header.total_bytes


def trim_point(topic: Topic, now_ms: int) -> int:
    """Return the offset below which nothing has to be kept.

    Never beyond the slowest durable subscription. Of what all have acknowledged (or nobody subscribed to),
    retention keeps what is younger than its time *and* within its size; -1 leaves out that limit, 0 keeps nothing.
    The size is of that alone: backlogs are beside it, and governed by their quota.
    """
    first = topic.first_offset
    limit = releasable(topic)
    if limit <= first:
        return first
    retention = topic.effective.retention
    if retention is None or retention.time_ms == 0 or retention.size_bytes == 0:
        return limit
    point = first
    if retention.size_bytes > 0 and topic.stored_bytes > retention.size_bytes:
        # The newest entries that fit the size stay: one stays while it fits with all acknowledged ones after it.
        keep_from = _bytes_before(topic, limit) - retention.size_bytes
        point = _first_offset_where(topic, point, limit, lambda header: header.total_bytes - header.size >= keep_from)
    if retention.time_ms > 0:
        cutoff = now_ms - retention.time_ms
        point = _first_offset_where(topic, point, limit, lambda header: header.receive_ms > cutoff)
    return point


def next_trim_ms(topic: Topic) -> int | None:
    """Return when retention by time lets the next entry go, wall-clock ms; None if time alone will not."""
    retention = topic.effective.retention
    if retention is None or retention.time_ms <= 0 or retention.size_bytes == 0:
        return None
    if releasable(topic) <= topic.first_offset:
        return None
    header = topic.header(topic.first_offset)
    return None if header is None else header.receive_ms + retention.time_ms
