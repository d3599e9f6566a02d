"""Pulsar's internal statistics: ledgers and cursors of a topic."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from msgspec import UNSET
from pyroaring import BitMap64

from heliograph_broker.messaging.base.offsets import run_end
from heliograph_broker.messaging.delivery.subscription import Subscription
from heliograph_broker.messaging.log.damaged import totals_up_to
from heliograph_broker.messaging.log.entry_log import LedgerInfo
from heliograph_broker.messaging.topic.directory import AnyTopic
from heliograph_broker.messaging.topic.topic import Topic

from .stats import iso, ranges_of
from .stats_documents import CursorStats, InternalStats, LedgerStats

#: More ranges than this are counted as this many: the answer stays readable and the event loop free.
MAX_RANGES = 1000


def acked_ranges(acked: BitMap64) -> Iterator[tuple[int, int]]:
    """Yield the runs of a bitmap as (first, last)."""
    first = acked.next_set_bit(0) if acked else None
    top = acked.max() if acked else -1
    while first is not None and first <= top:
        last = run_end(acked, first) - 1
        yield first, last
        first = acked.next_set_bit(last + 1) if last < top else None


def _text(position: tuple[int, int]) -> str:
    return f"{position[0]}:{position[1]}"


def _total_bytes_before(topic: Topic, offset: int) -> int:
    """Return the topic's cumulative bytes before an offset that is kept, or the end (one point read)."""
    return totals_up_to(topic.log, offset - 1)[1]


def _metadata(topic: Topic, ledger: LedgerInfo) -> str:
    state = "OPEN" if ledger is topic.log.ledgers[-1] and not topic.terminated else "CLOSED"
    return f"LedgerMetadata{{state={state}, created={iso(ledger.created_ms)}, firstOffset={ledger.base_offset}}}"


def _ledgers(topic: Topic, *, metadata: bool) -> list[LedgerStats]:
    """Return the stored part of each ledger; a ledger trimmed in part counts what is left of it."""
    ledgers = []
    for ledger in topic.log.ledgers:
        end = min(ledger.base_offset + ledger.entries, topic.log.end_offset)
        start = max(ledger.base_offset, topic.log.first_offset)
        kept = max(0, end - start)
        size = _total_bytes_before(topic, end) - _total_bytes_before(topic, start) if kept else 0
        text = _metadata(topic, ledger) if metadata else UNSET
        first = min(start - ledger.base_offset, ledger.entries)
        ledgers.append(LedgerStats(ledger.ledger_id, kept, size, first, metadata=text))
    return ledgers


def _cursor(topic: Topic, subscription: Subscription) -> CursorStats:
    cursor = subscription.acks.cursor
    dispatcher = subscription.dispatcher
    ranges = list(islice(acked_ranges(cursor.acked), MAX_RANGES))
    read_offset = dispatcher.read_offset if dispatcher is not None else cursor.first_unacked()
    deleted = [f"({_text(topic.log.position(first - 1))}..{_text(topic.log.position(last))}]" for first, last in ranges]
    reading = dispatcher is not None and dispatcher.reading
    return CursorStats(
        mark_delete_position=_text(topic.log.position(cursor.mark_delete)),
        read_position=_text(topic.log.position(read_offset)),
        waiting_read_op=dispatcher is not None and not reading and read_offset >= topic.log.end_offset,
        pending_read_ops=int(reading),
        messages_consumed_counter=subscription.acks.messages_acked,
        individually_deleted_messages=f"[{', '.join(deleted)}]",
        last_ledger_switch_timestamp=iso(subscription.created_ms),
        state="Open" if subscription.durable else "NoLedger",
        active=dispatcher is not None,
        number_of_entries_since_first_not_acked_message=read_offset - cursor.mark_delete,
        total_non_contiguous_deleted_messages_range=ranges_of(cursor.acked)[0],
        subscription_have_pending_read=reading,
    )


def _compacted(topic: Topic) -> LedgerStats:
    record = topic.compaction.record
    return LedgerStats(record.ledger_id, record.entries, record.size) if record is not None else LedgerStats(-1, -1, -1)


def internal_stats(topic: AnyTopic, *, metadata: bool = False) -> InternalStats:
    """Return the document, with each ledger's metadata on demand; a non-persistent topic has no ledgers."""
    if not topic.persistent:
        return InternalStats(
            entries_added_counter=0,
            number_of_entries=0,
            total_size=0,
            current_ledger_entries=0,
            current_ledger_size=0,
            waiting_cursors_count=0,
            pending_add_entries_count=0,
            cursors={},
        )
    ledgers = _ledgers(topic, metadata=metadata)
    open_ledger = topic.log.ledgers[-1] if topic.log.ledgers else None
    cursors = {name: _cursor(topic, subscription) for name, subscription in topic.subscriptions.items()}
    pending = open_ledger.base_offset + open_ledger.entries - topic.log.end_offset if open_ledger is not None else 0
    return InternalStats(
        entries_added_counter=topic.log.end_offset,
        number_of_entries=topic.log.end_offset - topic.log.first_offset,
        total_size=topic.statistics.stored_bytes,
        current_ledger_entries=open_ledger.entries if open_ledger is not None else 0,
        current_ledger_size=ledgers[-1].size if ledgers else 0,
        last_ledger_created_timestamp=iso(open_ledger.created_ms if open_ledger is not None else topic.created_ms),
        waiting_cursors_count=sum(cursor.waiting_read_op for cursor in cursors.values()),
        pending_add_entries_count=pending,
        last_confirmed_entry=_text(topic.log.position(topic.log.end_offset - 1)),
        ledgers=ledgers,
        cursors=cursors,
        properties=topic.properties,
        state="Terminated" if topic.terminated else "LedgerOpened",
        schema_ledgers=[],
        compacted_ledger=_compacted(topic),
    )
