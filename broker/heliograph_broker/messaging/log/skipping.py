"""Damaged entries are skipped for a subscription: they never block it.

:func:`skip_entry` (or :func:`skip_range` for entries whose headers are lost as well) acknowledges an entry for one
subscription, without delivering it, and puts its position and the reason on the topic's list of damaged entries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from .recount import MAX_LOOKUPS, acknowledged_of, is_touched, known_size, recount

if TYPE_CHECKING:
    from collections.abc import Mapping

    from heliograph_broker.messaging.clients.deliveries import Delivery

    from .cursor import Cursor
    from .damaged import LostRun
    from .entry_log import EntryLog
    from .subscribed_topic import LogSubscription

log = structlog.get_logger(__name__)


def skip_entry(subscription: LogSubscription, offset: int, reason: str) -> None:
    """Skip the entry at ``offset`` for one subscription: it is acknowledged, counted and listed, not delivered.

    A reader of consecutive entries continues with the next offset. Safe to call while dispatching.
    """
    skip_range(subscription, offset, offset, reason)


def skip_range(subscription: LogSubscription, first: int, last: int, reason: str) -> None:
    """As :func:`skip_entry` for the offsets ``first..last``, of which some may be acknowledged already.

    The counts of the entries come from their headers, or, where these are lost, from the cumulative counts around
    the range, so that the backlog stays exact.
    """
    entry_log = subscription.topic.log
    acks = subscription.acks
    first = max(first, entry_log.first_offset, acks.cursor.first_unacked())
    last = min(last, entry_log.end_offset - 1)
    if first > last or subscription.closed:
        return
    before = acks.cursor.acked_messages
    skipped = _acknowledge(subscription, first, last)
    if not skipped:
        return
    # A recount may have found that too much had been counted.
    messages = max(0, acks.cursor.acked_messages - before)
    acks.count_skipped(skipped, messages)
    entry_log.damaged.add(first, last, reason)
    ledger_id, entry_id = entry_log.position(first)
    log.error(
        "damaged entries skipped",
        topic=str(entry_log.name),
        subscription=subscription.name,
        first=f"{ledger_id}:{entry_id}",
        entries=skipped,
        messages=messages,
        reason=reason,
    )
    acks.acked(None)


def _acknowledge(subscription: LogSubscription, first: int, last: int) -> int:
    """Acknowledge what is not yet acknowledged of a range; return the number of entries."""
    entry_log = subscription.topic.log
    acks = subscription.acks
    cursor = acks.cursor
    entries = 0
    # The lost runs of which nothing was acknowledged before, and their counts here.
    whole: dict[LostRun, list[int]] = {}
    touched: set[LostRun] = set()
    for offset in range(first, last + 1):
        if cursor.is_acked(offset):
            continue
        entries += 1
        header = entry_log.header(offset)
        if header is not None:
            acks.acknowledge_entry(offset, header.messages, header.size, None)
            continue
        run = entry_log.damaged.lost_run(offset)
        if run not in whole and run not in touched:
            if is_touched(cursor, run) or subscription.view is not None:
                touched.add(run)
            else:
                whole[run] = [0, 0]
        before = cursor.acked_messages, cursor.acked_bytes
        # The size in its consumer's delivery is exact; else count the smallest possible one.
        size = known_size(entry_log, offset, acks.pending) or (1, 0)
        acks.acknowledge_entry(offset, *size, None)
        if run in whole:
            whole[run][0] += cursor.acked_messages - before[0]
            whole[run][1] += cursor.acked_bytes - before[1]
    for run, counted in whole.items():
        messages, bytes_of_run = acknowledged_of(entry_log, cursor, run, acks.pending)
        cursor.acked_messages += messages - counted[0]
        cursor.acked_bytes += bytes_of_run - counted[1]
    if touched:
        # Only the totals contain earlier acknowledgments in these runs, one entry at a time.
        cursor.estimated = True
        correct_counts(entry_log, cursor, acks.pending)
    return entries


def correct_counts(entry_log: EntryLog, cursor: Cursor, pending: Mapping[int, Delivery]) -> None:
    """Recount a cursor with estimated counts, unless too much lies beyond its mark-delete."""
    counts = recount(entry_log, cursor, pending, MAX_LOOKUPS)
    if counts is not None:
        cursor.acked_messages, cursor.acked_bytes = counts
        cursor.estimated = False
