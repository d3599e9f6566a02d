"""Looks at entries of a log in the thread that reads them, so that the event loop gets only what was found."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from heliograph_broker.storage.base.completion import Completion
    from heliograph_broker.storage.base.entry import Entry

    from .entry_log import EntryLog

T = TypeVar("T")


def examine_entries(
    entry_log: EntryLog,
    offset: int,
    count: int,
    max_bytes: int,
    function: Callable[[list[Entry]], T],
    callback: Completion[list[T]],
) -> None:
    """As :meth:`.EntryLog.read`, but call back with ``function`` of the entries, which the reader's thread calls.

    There is one result, none if there are no entries.
    """
    ledger_id, first = entry_log.position(offset)
    base = offset - first
    entries = next(ledger.entries for ledger in entry_log.ledgers if ledger.ledger_id == ledger_id)
    last = min(first + count, entries, entry_log.end_offset - base) - 1

    def with_offsets(found: list[Entry]) -> T:
        for entry in found:
            entry.offset = base + entry.entry_id
        return function(found)

    entry_log.host.store.reader.examine(ledger_id, first, last, max_bytes, with_offsets, callback)
