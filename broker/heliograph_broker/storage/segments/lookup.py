"""Finding an entry's chunk or header in a segment's environment, around what is damaged in it.

After an LMDB error a transaction is unusable, so a search that continues after one uses a transaction for each lookup.
"""

from __future__ import annotations

from collections.abc import Callable

import lmdb

from heliograph_broker.storage.base.entry import EntryHeader

from . import chunk
from .chunk import KEY

#: Errors of LMDB for pages that make no sense.
UNSOUND = (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.InvalidError)
UNSUMMED = "their checksum does not agree"


def header_at_or_before(cursor: lmdb.Cursor[memoryview], ledger_id: int, entry_id: int) -> EntryHeader | None:
    """Return the header of an entry or, if no chunk has it, of the last one before it in the segment."""
    key = KEY.pack(ledger_id, entry_id)
    if cursor.set_range(key):
        if cursor.key() != key and not cursor.prev():
            return None
    elif not cursor.last():
        return None
    ledger, first = KEY.unpack(cursor.key())
    if ledger != ledger_id:
        return None
    value = cursor.value()
    if not chunk.rows_are_sound(cursor.key(), value):
        raise lmdb.CorruptedError(UNSUMMED)
    return chunk.header_at(value, first, min(entry_id - first, chunk.count(value) - 1))


def first_sound(cursor: lmdb.Cursor[memoryview], ledger_id: int, step: Callable[[], bool]) -> EntryHeader | None:
    """Return the outermost header of the first sound chunk of a ledger that ``step`` reaches."""
    more = True
    while more:
        ledger, first = KEY.unpack(cursor.key())
        if ledger != ledger_id:
            return None
        value = cursor.value()
        if chunk.rows_are_sound(cursor.key(), value):
            return chunk.header_at(value, first, chunk.count(value) - 1 if step == cursor.prev else 0)
        more = step()
    return None


def until_next(cursor: lmdb.Cursor[memoryview], ledger_id: int, last: int) -> int:
    """Return the last entry that the chunk at the cursor can have, at most ``last``."""
    if cursor.next():
        ledger, first = KEY.unpack(cursor.key())
        if ledger == ledger_id:
            return min(last, int(first) - 1)
    return last


def chunk_below(environment: lmdb.Environment, ledger_id: int, entry_id: int) -> int | None:
    """Return the first entry of the chunk that holds an entry, if the way there from above is damaged.

    A search for an entry reaches the chunk after it before its own chunk; this one approaches from below. Returns None
    if no chunk there holds the entry.
    """
    found = None
    step = 0
    # The last entry from which the search comes to a chunk that is not behind ``entry_id`` is its chunk's first.
    high = entry_id + 1
    while high > 0 and found is None:
        at = max(0, entry_id - step)
        found = _first_from(environment, ledger_id, at, entry_id)
        if found is None:
            high = at
            step = step * 2 + 1
    while found is not None and found + 1 < high:
        middle = (found + high) // 2
        later = _first_from(environment, ledger_id, middle, entry_id)
        if later is None:
            high = middle
        else:
            found = later
    if found is None:
        return None
    with environment.begin(buffers=True) as txn:
        value = txn.get(KEY.pack(ledger_id, found))
        return found if value is not None and entry_id < found + chunk.likely_count(value) else None


def _first_from(environment: lmdb.Environment, ledger_id: int, at: int, last: int) -> int | None:
    """Return the first entry of the first chunk that begins with one of the entries ``at..last``."""
    with environment.begin(buffers=True) as txn, txn.cursor() as cursor:
        try:
            if not cursor.set_range(KEY.pack(ledger_id, at)):
                return None
            ledger, first = KEY.unpack(cursor.key())
        except UNSOUND:
            return None
    return first if ledger == ledger_id and first <= last else None


def header_of(environment: lmdb.Environment, ledger_id: int, entry_id: int) -> EntryHeader | None:
    """As :func:`header_at_or_before`, even if the chunk after the entry's own is damaged."""
    try:
        return _header_in_transaction(environment, ledger_id, entry_id)
    except UNSOUND:
        first = chunk_below(environment, ledger_id, entry_id)
        if first is None:
            raise
        # An exact key needs no neighbouring chunk.
        start = _header_in_transaction(environment, ledger_id, first)
        if start is None or start.entry_id != first:
            raise
        with environment.begin(buffers=True) as txn:
            value = txn.get(KEY.pack(ledger_id, first))
            return None if value is None else chunk.header_at(value, first, entry_id - first)


def _header_in_transaction(environment: lmdb.Environment, ledger_id: int, entry_id: int) -> EntryHeader | None:
    """As :func:`header_at_or_before`, in a transaction of its own: after an error a transaction is unusable."""
    found = _tried(environment, ledger_id, entry_id)
    if isinstance(found, lmdb.Error):
        raise found
    return found


def _tried(environment: lmdb.Environment, ledger_id: int, entry_id: int) -> EntryHeader | lmdb.Error | None:
    with environment.begin(buffers=True) as txn, txn.cursor() as cursor:
        try:
            return header_at_or_before(cursor, ledger_id, entry_id)
        except UNSOUND as error:
            # Its traceback would keep the transaction, and with it one of the places for readers.
            return lmdb.CorruptedError(str(error))


def readable(environment: lmdb.Environment, ledger_id: int, entry_id: int, low: int) -> EntryHeader | None:
    """Return the header of an entry, or of the last readable one before it that is not below ``low``."""
    if entry_id < low:
        return None
    step = 0
    lost = entry_id + 1
    found = None
    while found is None:
        at = max(low, entry_id - step)
        try:
            found = header_of(environment, ledger_id, at)
        except UNSOUND:
            lost = at
            if at <= low:
                return None
            step = step * 2 + 1
            continue
        if found is None:
            return None
    # Damage affects whole pages, so neighbouring entries: it begins between the two.
    while found.entry_id + 1 < lost:
        try:
            later = header_of(environment, ledger_id, (found.entry_id + lost) // 2)
        except UNSOUND:
            lost = (found.entry_id + lost) // 2
            continue
        if later is None or later.entry_id <= found.entry_id:
            break
        found = later
    return found if found.entry_id >= low else None


def seek(cursor: lmdb.Cursor[memoryview], ledger_id: int, entry_id: int) -> bool:
    """Go to the chunk that holds an entry, or else to the first one after it; return whether there is one."""
    key = KEY.pack(ledger_id, entry_id)
    if cursor.set_range(key):
        if cursor.key() == key:
            return True
        before = cursor.prev()
    else:
        before = cursor.last()
    if not before:
        return bool(cursor.first())
    ledger, first = KEY.unpack(cursor.key())
    if ledger == ledger_id and (
        entry_id < first + chunk.count(cursor.value()) or not chunk.rows_are_sound(cursor.key(), cursor.value())
    ):
        return True
    return bool(cursor.next())
