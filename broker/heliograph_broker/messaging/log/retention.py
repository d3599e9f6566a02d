"""Finds the entries that a topic may delete: the retention table of Pulsar's cookbook, and whole ledgers without one.

Entries are looked up by their cumulative counts and receive times (as :meth:`~.entry_log.EntryLog.received_ms` has
them), which only grow along a topic, so every answer is a binary search over entry headers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from heliograph_broker.clock import monotonic_ms

from .damaged import last_readable, received_from, totals_up_to

if TYPE_CHECKING:
    from heliograph_broker.storage.base.entry import EntryHeader

    from .entry_log import EntryLog
    from .subscribed_topic import SubscribedTopic


#: A condition on an entry's header, and on an offset of its ledger.
Holds = Callable[["EntryHeader", int], bool]


def _first_offset_where(entry_log: EntryLog, low: int, high: int, holds: Holds) -> int:
    """Return the first offset of ``low..high`` whose header satisfies a condition that, once true, stays true.

    ``high`` if none below it does. The first entry is asked first: mostly nothing has become due since the last time.
    Then the last entry of a ledger tells whether it is in that ledger or a later one, and the store looks within it.
    """
    if low >= high:
        return low
    header = entry_log.header(low)
    if header is not None and holds(header, low):
        return low
    low += 1
    ledgers = entry_log.ledgers
    at, beyond = 0, len(ledgers)
    while at < beyond:
        middle = (at + beyond) // 2
        ledger = ledgers[middle]
        end = min(high, ledger.base_offset + ledger.entries)
        if end <= low:
            at = middle + 1
        elif ledger.base_offset >= high or (
            (header := last_readable(entry_log, max(low, ledger.base_offset), end - 1)) is not None
            and holds(header, ledger.base_offset)
        ):
            beyond = middle
        else:
            at = middle + 1
    if at == len(ledgers) or ledgers[at].base_offset >= high:
        return high
    base = ledgers[at].base_offset
    end = min(high, base + ledgers[at].entries)

    def holds_within(header: EntryHeader) -> bool:
        return holds(header, base)

    return base + entry_log.host.store.reader.first_entry_where(
        ledgers[at].ledger_id, max(low - base, 0), end - base, holds_within
    )


def first_received_after(entry_log: EntryLog, low: int, time_ms: int) -> int:
    """Return the first offset from ``low`` on that the broker received after a wall-clock time (ms)."""
    return _first_offset_where(entry_log, low, entry_log.end_offset, _received_after(entry_log, time_ms))


def _received_after(entry_log: EntryLog, time_ms: int) -> Holds:
    return lambda header, offset: entry_log.received_ms(offset, header.receive_ms) > time_ms


def releasable(topic: SubscribedTopic) -> int:
    """Return the offset below which every durable subscription has acknowledged everything."""
    limit = topic.log.end_offset
    for subscription in topic.subscriptions.values():
        if subscription.durable:
            limit = min(limit, subscription.acks.cursor.first_unacked())
    return max(limit, topic.log.first_offset)


def _end_of_whole_ledgers(entry_log: EntryLog, offset: int) -> int:
    """Return where the last of the ledgers ends that are closed and lie before ``offset`` as a whole.

    The open ledger counts as closed once it is full or old enough: whatever is published next begins another one.
    """
    now_ms = monotonic_ms(entry_log.host.clock)
    end = entry_log.first_offset
    for ledger in entry_log.ledgers:
        if ledger.base_offset + ledger.entries > offset:
            break
        if ledger is entry_log.ledgers[-1] and not entry_log.must_roll(ledger, now_ms):
            break
        end = ledger.base_offset + ledger.entries
    return max(end, entry_log.first_offset)


def trim_point(topic: SubscribedTopic, now_ms: int) -> int:
    """Return the offset below which nothing has to be kept.

    Never beyond the slowest durable subscription. Entries that all have acknowledged (or nobody
    subscribed to) are kept while they are within both limits of retention; -1 disables a limit, 0 keeps nothing.
    The size counts these entries alone: backlogs have their own quota. Where no level sets a retention,
    it stays as long as its ledger, within what limits allow.
    """
    entry_log = topic.log
    first = entry_log.first_offset
    limit = releasable(topic)
    if limit <= first:
        return first
    retention = topic.effective.retention
    if retention is None or retention.keeps_nothing:
        return limit
    point = _end_of_whole_ledgers(entry_log, limit) if retention.by_ledger else first
    if retention.size_bytes > 0 and entry_log.stored_bytes > retention.size_bytes:
        # The newest entries that fit the size stay: one stays while it fits with all acknowledged ones after it.
        keep_from = totals_up_to(entry_log, limit - 1)[1] - retention.size_bytes
        point = _first_offset_where(
            entry_log, point, limit, lambda header, _: header.total_bytes - header.size >= keep_from
        )
    if retention.time_ms > 0:
        cutoff = now_ms - retention.time_ms
        point = _first_offset_where(entry_log, point, limit, _received_after(entry_log, cutoff))
    return point


def next_trim_ms(topic: SubscribedTopic, now_ms: int) -> int | None:
    """Return when time alone lets the next entries go, wall-clock ms; None if it will not."""
    entry_log = topic.log
    retention = topic.effective.retention
    first, limit = entry_log.first_offset, releasable(topic)
    if retention is None or retention.keeps_nothing or limit <= first:
        return None
    due: list[int] = []
    if retention.time_ms > 0 and (received := received_from(entry_log, first)) is not None:
        due.append(received + retention.time_ms)
    # Closed ledgers went before this: what else they wait for is not time. The open one goes when it is old enough.
    if retention.by_ledger and limit >= entry_log.next_offset:
        age_ms = monotonic_ms(topic.host.clock) - entry_log.ledgers[-1].opened_ms
        due.append(now_ms + max(0, topic.host.config.ledger_max_age_ms - age_ms))
    return min(due, default=None)


def kept_by_ledgers(topic: SubscribedTopic) -> tuple[int, int]:
    """Return the messages and bytes that stay only because their ledger does: no backlog and no retention says so."""
    retention = topic.effective.retention
    if retention is None or not retention.by_ledger:
        return 0, 0
    messages, size = totals_up_to(topic.log, releasable(topic) - 1)
    return messages - topic.log.trimmed_messages, size - topic.log.trimmed_bytes
