"""Invariants of a topic's records when it is loaded, and the healing of those that are broken.

Records of one set are written together, so nothing here should ever be found broken; it may be in a directory of an
older version, which wrote them one by one, or after damage to the disk. Healing loses no message that is still stored
and unacknowledged, and brings none back whose acknowledgment was recorded. It is logged and counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from .damaged import counts_of, totals_up_to
from .recount import MAX_LOOKUPS, recount

if TYPE_CHECKING:
    from heliograph_broker.messaging.base.histograms import BrokerMetrics

    from .cursor import Cursor
    from .entry_log import EntryLog

log = structlog.get_logger(__name__)

#: No trim point is ahead of a durable cursor: trimmed entries were acknowledged.
TRIM_POINT = "trim_point_not_ahead_of_cursors"
#: No cursor has acknowledged an entry that was never stored: that entry's place is the next message's.
CURSOR = "cursor_not_ahead_of_entries"
#: The acknowledged counts of a cursor equal a recount.
COUNTS = "acknowledged_figures_equal_a_recount"
#: The snapshot of sequence ids covers no entry that is not stored: the next entries count, too.
SEQUENCE_IDS = "sequence_ids_not_ahead_of_entries"
#: The snapshot of sequence ids covers every entry that was trimmed.
SNAPSHOT = "sequence_ids_not_behind_trim_point"
#: The trimmed counts of a topic are those before the first entry that it keeps.
TOTALS = "trimmed_totals_equal_the_first_entry"
#: Each cursor belongs to a topic.
OWNER = "cursor_of_a_topic"

INVARIANTS = (TRIM_POINT, CURSOR, COUNTS, SEQUENCE_IDS, SNAPSHOT, TOTALS, OWNER)


def heal_cursor(entry_log: EntryLog, subscription: str, cursor: Cursor) -> bool:
    """Make a cursor that was just loaded agree with its topic; return whether anything was wrong."""
    first, end = entry_log.first_offset, entry_log.end_offset
    broken = False
    before = (cursor.mark_delete, cursor.acked_messages, cursor.acked_bytes)
    if cursor.mark_delete < first - 1:
        cursor.lift(first - 1)
        broken = True
        _healed(entry_log, TRIM_POINT, subscription=subscription, mark_delete=before[0], first_offset=first)
    if cursor.highest() >= end:
        _healed(entry_log, CURSOR, subscription=subscription, highest=cursor.highest(), end_offset=end)
        cursor.cut(end)
        broken = True
    counts: tuple[int, int] | None = None
    if broken or not _plausible(entry_log, cursor):
        counts = recount(entry_log, cursor)
    elif not cursor.is_contiguous() and (entry_log.damaged.entries or entry_log.header(end - 1) is None):
        # Perhaps entries were lost since something of them was acknowledged; lost at the end, they left the totals.
        counts = recount(entry_log, cursor, most=MAX_LOOKUPS)
        cursor.estimated = counts is None
    if counts is not None and counts != (cursor.acked_messages, cursor.acked_bytes):
        if not broken:
            _healed(entry_log, COUNTS, subscription=subscription, was=before[1:], now=counts)
        cursor.acked_messages, cursor.acked_bytes = counts
        broken = True
    return broken


def heal_snapshot(entry_log: EntryLog, offset: int) -> int:
    """Return up to which offset a stored snapshot of sequence ids counts, which says it covers all below ``offset``."""
    if offset > entry_log.end_offset:
        # The ids themselves stay: their producers had receipts for them.
        _healed(entry_log, SEQUENCE_IDS, covered=offset, end_offset=entry_log.end_offset)
        return entry_log.end_offset
    if offset < entry_log.first_offset:
        # Ids of producers that published nothing since are lost with the trimmed entries.
        _healed(entry_log, SNAPSHOT, covered=offset, first_offset=entry_log.first_offset)
        return entry_log.first_offset
    return offset


def heal_totals(entry_log: EntryLog) -> None:
    """Make the trimmed counts of a topic agree with the first entry that it keeps."""
    if entry_log.first_offset >= entry_log.end_offset:
        return
    if entry_log.first_offset == 0:
        # The common case costs a start no read.
        trimmed = 0, 0
    else:
        first = counts_of(entry_log, entry_log.first_offset)
        if first is None:
            return
        trimmed = first.total_messages - first.messages, first.total_bytes - first.size
    if trimmed != (entry_log.trimmed_messages, entry_log.trimmed_bytes):
        _healed(entry_log, TOTALS, was=(entry_log.trimmed_messages, entry_log.trimmed_bytes), now=trimmed)
        entry_log.trimmed_messages, entry_log.trimmed_bytes = trimmed
        entry_log.ledgers_changed()


def note(metrics: BrokerMetrics, invariant: str, **context: object) -> None:
    """Log and count that an invariant was broken and is healed."""
    log.warning("records that contradicted each other were healed", invariant=invariant, **context)
    metrics.healed_invariants[invariant] = metrics.healed_invariants.get(invariant, 0) + 1


def _healed(entry_log: EntryLog, invariant: str, **context: object) -> None:
    note(entry_log.host.metrics, invariant, topic=str(entry_log.name), **context)


def _plausible(entry_log: EntryLog, cursor: Cursor) -> bool:
    """Whether a cursor's counts are right, as far as one header tells."""
    below = totals_up_to(entry_log, cursor.mark_delete)
    if cursor.is_contiguous():
        return below == (cursor.acked_messages, cursor.acked_bytes)
    return (
        below[0] + len(cursor.acked) <= cursor.acked_messages <= entry_log.total_messages
        and below[1] <= cursor.acked_bytes <= entry_log.total_bytes
    )
