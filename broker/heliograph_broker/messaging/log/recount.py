"""Recounts the acknowledged messages of a cursor from the headers of the entries.

A *lost run* is a range of entries whose headers cannot be read: only their sum is known. It counts like this: while
nothing of the run is acknowledged, all of it is owed. From then on an entry that is not acknowledged counts for what is
known of it (the batch indexes that are left of it, or what was delivered of it and is not acknowledged), and for one
message, the least it can hold, where nothing is known. So a backlog is never below 0 and never above the truth.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from .damaged import counts_of, totals_up_to

if TYPE_CHECKING:
    from heliograph_broker.messaging.clients.deliveries import Delivery

    from .cursor import Cursor
    from .damaged import LostRun
    from .entry_log import EntryLog


#: So many entries beyond the mark-delete position are looked up at a time while the broker serves others.
MAX_LOOKUPS = 1000
_NOTHING: Mapping[int, Delivery] = {}


def known_size(entry_log: EntryLog, offset: int, pending: Mapping[int, Delivery]) -> tuple[int, int] | None:
    """Return the messages and bytes of an entry as they are remembered in memory, None if they are not."""
    delivery = pending.get(offset)
    if delivery is not None:
        return delivery.messages, delivery.size
    entry = entry_log.tail.get(offset)
    return None if entry is None else (entry.messages, len(entry.frame))


def is_touched(cursor: Cursor, run: LostRun) -> bool:
    """Whether anything of a lost run is acknowledged."""
    return (
        cursor.mark_delete >= run.first
        or cursor.acked.range_cardinality(run.first, run.last + 1) > 0
        or any(run.first <= offset <= run.last for offset in cursor.partial)
    )


def acknowledged_of(
    entry_log: EntryLog, cursor: Cursor, run: LostRun, pending: Mapping[int, Delivery] = _NOTHING
) -> tuple[int, int]:
    """Return the messages and bytes of a lost run that count as acknowledged, see the module."""
    if not is_touched(cursor, run):
        return 0, 0
    first = max(run.first, cursor.mark_delete + 1)
    if first > run.last:
        return run.messages, run.size
    owed = run.last + 1 - first - cursor.acked.range_cardinality(first, run.last + 1)
    owed_bytes = 0
    if owed:
        known: set[int] = set()
        for places in (cursor.partial, pending, entry_log.tail):
            # Whichever is shorter: a run may be a whole segment, and a tail a whole entry_log.
            if len(places) < run.last - first:
                known.update(offset for offset in places if first <= offset <= run.last)
            else:
                known.update(offset for offset in range(first, run.last + 1) if offset in places)
        for offset in known:
            if not cursor.is_acked(offset):
                size = known_size(entry_log, offset, pending)
                bits = cursor.partial.get(offset)
                if size is not None:
                    owed_bytes += size[1]
                if bits is not None:
                    owed += bits.bit_count() - 1
                elif size is not None:
                    owed += size[0] - 1
    return max(0, run.messages - owed), max(0, run.size - owed_bytes)


def recount(
    entry_log: EntryLog, cursor: Cursor, pending: Mapping[int, Delivery] = _NOTHING, most: int | None = None
) -> tuple[int, int] | None:
    """Return the messages and bytes that a cursor has acknowledged; None if that takes more than ``most`` look-ups."""
    if most is not None and len(cursor.acked) + len(cursor.partial) > most:
        return None
    # Part of a run that has grown meanwhile would be taken for all of it.
    entry_log.damaged.forget_run()
    mark = cursor.mark_delete
    messages, size = totals_up_to(entry_log, mark)
    counted = mark
    runs: set[int] = set()
    if entry_log.first_offset <= mark < entry_log.end_offset - 1 and entry_log.header(mark) is None:
        run = entry_log.damaged.lost_run(mark)
        acknowledged = acknowledged_of(entry_log, cursor, run, pending)
        messages = run.total_messages - run.messages + acknowledged[0]
        size = run.total_bytes - run.size + acknowledged[1]
        counted = run.last
        runs.add(run.first)

    def add_run(offset: int) -> int:
        nonlocal messages, size
        run = entry_log.damaged.lost_run(offset)
        if run.first not in runs:
            runs.add(run.first)
            acknowledged = acknowledged_of(entry_log, cursor, run, pending)
            messages += acknowledged[0]
            size += acknowledged[1]
        return run.last

    for offset in cursor.acked:
        if offset > counted:
            counts = counts_of(entry_log, offset)
            if counts is None:
                counted = add_run(offset)
            else:
                messages += counts.messages
                size += counts.size
    for offset, remaining in cursor.partial.items():
        counts = counts_of(entry_log, offset)
        if counts is None:
            add_run(offset)
        else:
            messages += counts.messages - remaining.bit_count()
    return messages, size
