"""Pulsar's internal statistics: ledgers and cursors of a topic."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from pyroaring import BitMap64

from heliograph_broker.messaging.broker import AnyTopic
from heliograph_broker.messaging.subscription import Subscription
from heliograph_broker.messaging.topic import Topic

from .stats import iso

#: More ranges than this are counted as this many: the answer stays readable and the event loop free.
MAX_RANGES = 1000


def acked_ranges(acked: BitMap64) -> Iterator[tuple[int, int]]:
    """Yield the runs of a bitmap as (first, last)."""
    first = acked.next_set_bit(0) if acked else None
    top = acked.max() if acked else -1
    while first is not None and first <= top:
        last = _run_end(acked, first)
        yield first, last
        first = acked.next_set_bit(last + 1) if last < top else None


def _run_end(acked: BitMap64, first: int) -> int:
    """Return the last element of the run at ``first``, in a logarithmic number of looks."""
    length = 1
    while acked.contains_range(first, first + 2 * length):
        length *= 2
    low, high = length, 2 * length
    while high - low > 1:
        middle = (low + high) // 2
        if acked.contains_range(first, first + middle):
            low = middle
        else:
            high = middle
    return first + low - 1


def _text(position: tuple[int, int]) -> str:
    return f"{position[0]}:{position[1]}"


def _total_bytes_before(topic: Topic, offset: int) -> int:
    """Return the topic's cumulative bytes before an offset that is kept, or the end (one point read)."""
    if offset <= topic.first_offset:
        return topic.trimmed_bytes
    if offset >= topic.end_offset:
        return topic.total_bytes
    header = topic.header(offset - 1)
    return header.total_bytes if header is not None else topic.total_bytes


def _ledgers(topic: Topic) -> list[dict[str, Any]]:
    """What is kept in each ledger; a ledger trimmed in part counts what is left of it."""
    ledgers = []
    for ledger in topic.ledgers:
        end = min(ledger.base_offset + ledger.entries, topic.end_offset)
        start = max(ledger.base_offset, topic.first_offset)
        kept = max(0, end - start)
        size = _total_bytes_before(topic, end) - _total_bytes_before(topic, start) if kept else 0
        ledgers.append(
            {
                "ledgerId": ledger.ledger_id,
                "entries": kept,
                "size": size,
                "offloaded": False,
                "underReplicated": False,
            }
        )
    return ledgers


def _cursor(topic: Topic, subscription: Subscription) -> dict[str, Any]:
    cursor = subscription.cursor
    dispatcher = subscription.dispatcher
    ranges = list(islice(acked_ranges(cursor.acked), MAX_RANGES))
    read_offset = dispatcher.read_offset if dispatcher is not None else cursor.first_unacked()
    deleted = []
    for first, last in ranges:
        deleted.append(f"({_text(topic.position(first - 1))}..{_text(topic.position(last))}]")
    return {
        "markDeletePosition": _text(topic.position(cursor.mark_delete)),
        "readPosition": _text(topic.position(read_offset)),
        "waitingReadOp": dispatcher is not None and not dispatcher.reading and read_offset >= topic.end_offset,
        "pendingReadOps": int(dispatcher is not None and dispatcher.reading),
        "messagesConsumedCounter": subscription.messages_acked,
        "cursorLedger": -1,
        "cursorLedgerLastEntry": -1,
        "individuallyDeletedMessages": f"[{', '.join(deleted)}]",
        "lastLedgerSwitchTimestamp": iso(subscription.created_ms),
        "state": "Open" if subscription.durable else "NoLedger",
        "active": dispatcher is not None,
        "numberOfEntriesSinceFirstNotAckedMessage": read_offset - cursor.mark_delete,
        "totalNonContiguousDeletedMessagesRange": len(ranges),
        "subscriptionHavePendingRead": dispatcher is not None and dispatcher.reading,
        "subscriptionHavePendingReplayRead": False,
        "properties": {},
    }


def internal_stats(topic: AnyTopic) -> dict[str, Any]:
    """Return the document; of a non-persistent topic, which has neither ledgers nor cursors, an empty one."""
    persistent = topic if isinstance(topic, Topic) else None
    ledgers = _ledgers(persistent) if persistent is not None else []
    open_ledger = persistent.ledgers[-1] if persistent is not None and persistent.ledgers else None
    cursors: dict[str, Any] = {}
    last_confirmed = "-1:-1"
    if persistent is not None:
        cursors = {name: _cursor(persistent, sub) for name, sub in persistent.subscriptions.items()}
        last_confirmed = _text(persistent.position(persistent.end_offset - 1))
    return {
        "entriesAddedCounter": persistent.end_offset if persistent is not None else 0,
        "numberOfEntries": persistent.end_offset - persistent.first_offset if persistent is not None else 0,
        "totalSize": topic.stored_bytes,
        "currentLedgerEntries": open_ledger.entries if open_ledger is not None else 0,
        "currentLedgerSize": ledgers[-1]["size"] if ledgers else 0,
        "lastLedgerCreatedTimestamp": iso(open_ledger.created_ms if open_ledger is not None else topic.created_ms),
        "waitingCursorsCount": sum(cursor["waitingReadOp"] for cursor in cursors.values()),
        "pendingAddEntriesCount": (
            open_ledger.base_offset + open_ledger.entries - persistent.end_offset
            if persistent is not None and open_ledger is not None
            else 0
        ),
        "lastConfirmedEntry": last_confirmed,
        "state": "LedgerOpened",
        "ledgers": ledgers,
        "cursors": cursors,
        "properties": topic.properties,
        "schemaLedgers": [],
        "compactedLedger": {
            "ledgerId": -1,
            "entries": -1,
            "size": -1,
            "offloaded": False,
            "underReplicated": False,
        },
    }
