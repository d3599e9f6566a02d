"""What must hold between the records of a topic when it is loaded, and how what does not hold is healed.

Records of one set are written together, so nothing here should ever be found broken; it may be in a directory of an
older version, which wrote them one by one, or after damage to the disk. Healing loses no message that is still stored
and unacknowledged, and brings none back whose acknowledgment was recorded. It is logged and counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from .damaged import counts_of, totals_up_to
from .recount import MOST_LOOKUPS, recount

if TYPE_CHECKING:
    from heliograph_broker.messaging.base.histograms import BrokerMetrics

    from .cursor import Cursor
    from .damaged import RecordedLog

log = structlog.get_logger(__name__)

#: No trim point is ahead of a durable cursor: what is trimmed was acknowledged.
TRIM_POINT = "trim_point_not_ahead_of_cursors"
#: No cursor has acknowledged an entry that was never stored: that entry's place is the next message's.
CURSOR = "cursor_not_ahead_of_entries"
#: What a cursor says it has acknowledged is what a recount of it gives.
COUNTS = "acknowledged_figures_equal_a_recount"
#: The snapshot of sequence ids covers no entry that is not stored: the next entries count, too.
SEQUENCE_IDS = "sequence_ids_not_ahead_of_entries"
#: The snapshot of sequence ids covers every entry that was trimmed.
SNAPSHOT = "sequence_ids_not_behind_trim_point"
#: What a topic says it has trimmed is what comes before the first entry it keeps.
TOTALS = "trimmed_totals_equal_the_first_entry"
#: Each cursor belongs to a topic.
OWNER = "cursor_of_a_topic"

INVARIANTS = (TRIM_POINT, CURSOR, COUNTS, SEQUENCE_IDS, SNAPSHOT, TOTALS, OWNER)


def heal_cursor(topic: RecordedLog, subscription: str, cursor: Cursor) -> bool:
    """Make a cursor that was just loaded agree with its topic; return whether anything was wrong."""
    first, end = topic.first_offset, topic.end_offset
    broken = False
    before = (cursor.mark_delete, cursor.acked_messages, cursor.acked_bytes)
    if cursor.mark_delete < first - 1:
        cursor.lift(first - 1)
        broken = True
        _healed(topic, TRIM_POINT, subscription=subscription, mark_delete=before[0], first_offset=first)
    if cursor.highest() >= end:
        _healed(topic, CURSOR, subscription=subscription, highest=cursor.highest(), end_offset=end)
        cursor.cut(end)
        broken = True
    counts: tuple[int, int] | None = None
    if broken or not _plausible(topic, cursor):
        counts = recount(topic, cursor)
    elif not cursor.is_contiguous() and (topic.damaged.entries or topic.header(end - 1) is None):
        # Perhaps entries were lost since something of them was acknowledged; lost at the end, they left the totals.
        counts = recount(topic, cursor, most=MOST_LOOKUPS)
        cursor.estimated = counts is None
    if counts is not None and counts != (cursor.acked_messages, cursor.acked_bytes):
        if not broken:
            _healed(topic, COUNTS, subscription=subscription, was=before[1:], now=counts)
        cursor.acked_messages, cursor.acked_bytes = counts
        broken = True
    return broken


def heal_snapshot(topic: RecordedLog, offset: int) -> int:
    """Return up to which offset a stored snapshot of sequence ids counts, which says it covers all below ``offset``."""
    if offset > topic.end_offset:
        # The ids themselves stay: their producers had receipts for them.
        _healed(topic, SEQUENCE_IDS, covered=offset, end_offset=topic.end_offset)
        return topic.end_offset
    if offset < topic.first_offset:
        # Ids of producers that published nothing since are lost with what was trimmed.
        _healed(topic, SNAPSHOT, covered=offset, first_offset=topic.first_offset)
        return topic.first_offset
    return offset


def heal_totals(topic: RecordedLog) -> None:
    """Make what a topic says it has trimmed agree with the first entry it keeps."""
    if topic.first_offset >= topic.end_offset:
        return
    if topic.first_offset == 0:
        # The common case costs a start no read.
        trimmed = 0, 0
    else:
        first = counts_of(topic, topic.first_offset)
        if first is None:
            return
        trimmed = first.total_messages - first.messages, first.total_bytes - first.size
    if trimmed != (topic.trimmed_messages, topic.trimmed_bytes):
        _healed(topic, TOTALS, was=(topic.trimmed_messages, topic.trimmed_bytes), now=trimmed)
        topic.trimmed_messages, topic.trimmed_bytes = trimmed
        topic.records.commit(topic)


def note(metrics: BrokerMetrics, invariant: str, **context: object) -> None:
    """Log and count that an invariant was broken and is healed."""
    log.warning("records that contradicted each other were healed", invariant=invariant, **context)
    metrics.healed_invariants[invariant] = metrics.healed_invariants.get(invariant, 0) + 1


def _healed(topic: RecordedLog, invariant: str, **context: object) -> None:
    note(topic.host.metrics, invariant, topic=str(topic.name), **context)


def _plausible(topic: RecordedLog, cursor: Cursor) -> bool:
    """Whether a cursor's counts are right, as far as one header tells."""
    below = totals_up_to(topic, cursor.mark_delete)
    if cursor.is_contiguous():
        return below == (cursor.acked_messages, cursor.acked_bytes)
    return (
        below[0] + len(cursor.acked) <= cursor.acked_messages <= topic.total_messages
        and below[1] <= cursor.acked_bytes <= topic.total_bytes
    )
