"""Damaged entries are skipped for a subscription: they never block it.

:func:`skip_entry` (or :func:`skip_range` for entries whose headers are lost as well) acknowledges an entry for one
subscription, without delivering it, and puts its position and the reason on the topic's list of damaged entries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from .damaged import totals_up_to

if TYPE_CHECKING:
    from .subscribed_log import LogSubscription

log = structlog.get_logger(__name__)


def skip_entry(subscription: LogSubscription, offset: int, reason: str) -> None:
    """Skip the entry at ``offset`` for one subscription: it is acknowledged, counted and listed, not delivered.

    Whoever reads entries one after the other goes on with the next offset. Safe to call while dispatching.
    """
    skip_range(subscription, offset, offset, reason)


def skip_range(subscription: LogSubscription, first: int, last: int, reason: str) -> None:
    """As :func:`skip_entry` for the offsets ``first..last``, of which some may be acknowledged already.

    What the entries held is taken from their headers, or, where these are lost, from the cumulative counts around
    the range, so that the backlog stays exact.
    """
    topic = subscription.topic
    first = max(first, topic.first_offset, subscription.cursor.first_unacked())
    last = min(last, topic.end_offset - 1)
    if first > last or subscription.closed:
        return
    before = subscription.cursor.acked_messages
    skipped = _acknowledge(subscription, first, last)
    if not skipped:
        return
    messages = subscription.cursor.acked_messages - before
    subscription.skipped_entries += skipped
    subscription.skipped_messages += messages
    topic.damaged.add(first, last, reason)
    ledger_id, entry_id = topic.position(first)
    log.error(
        "damaged entries skipped",
        topic=str(topic.name),
        subscription=subscription.name,
        first=f"{ledger_id}:{entry_id}",
        entries=skipped,
        messages=messages,
        reason=reason,
    )
    subscription.acked(None)


def _acknowledge(subscription: LogSubscription, first: int, last: int) -> int:
    """Acknowledge what is not yet acknowledged of a range; return the number of entries."""
    topic = subscription.topic
    cursor = subscription.cursor
    entries = 0
    lost = False
    for offset in range(first, last + 1):
        if cursor.is_acked(offset):
            continue
        entries += 1
        header = topic.header(offset)
        if header is None:
            # The sum of a run of lost entries is all that is known: it counts as the first one's.
            lost = True
            run = topic.damaged.lost_run(offset)
            cursor.partial.pop(offset, None)
            subscription.acknowledge_entry(offset, *((run.messages, run.size) if offset == run.first else (0, 0)), None)
        else:
            subscription.acknowledge_entry(offset, header.messages, header.size, None)
    if lost and cursor.is_contiguous():
        # Exact again, whatever had been acknowledged one by one in the lost run.
        cursor.acked_messages, cursor.acked_bytes = totals_up_to(topic, cursor.mark_delete)
    return entries
