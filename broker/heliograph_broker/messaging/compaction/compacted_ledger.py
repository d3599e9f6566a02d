"""A topic's compacted data: a ledger of its own, whose entries remember where in the topic they had been.

Its entries lie in the topic's order. An entry's header holds, in place of the topic's message total, the entry's
offset in the topic, so that positions are found by binary search over headers; its frame is preceded by
``[topic's messages u64][topic's bytes u64][size as published u32][n u32][n bytes]``: the cumulative totals up to and
including the entry and its size, which acknowledgments need, and one bit for every message of a batch that is kept
(none: all are).
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from heliograph_broker.storage.base.completion import Completion
from heliograph_broker.storage.base.damage import DamagedEntries
from heliograph_broker.storage.base.entry import Entry, EntryHeader

if TYPE_CHECKING:
    from heliograph_broker.messaging.base.records import CompactionRecord
    from heliograph_broker.storage.ledgers.ledger_reader import LedgerReader

_PREFIX = struct.Struct(">QQII")


class CompactedEntry(NamedTuple):
    """An entry with the ids, offset and totals it had in the topic.

    ``size`` are its bytes as published, of which ``entry.frame`` may hold fewer; ``retained`` has a bit for each
    message of its batch that is kept, None if all are.
    """

    entry: Entry
    size: int
    retained: int | None


def pack(source: CompactedEntry, ledger_id: int, entry_id: int, total_bytes: int) -> Entry:
    """Return the stored form of ``source`` as entry ``entry_id``; ``total_bytes`` are in the ledger before it."""
    entry = source.entry
    bits = b"" if source.retained is None else source.retained.to_bytes((entry.messages + 7) // 8, "little")
    prefix = _PREFIX.pack(entry.total_messages, entry.total_bytes, source.size, len(bits))
    frame = b"".join((prefix, bits, entry.frame))
    return Entry(
        ledger_id,
        entry_id,
        entry.receive_ms,
        entry.publish_ms,
        entry.deliver_at_ms,
        entry.ttl_ms,
        entry.messages,
        entry.key_hash,
        entry.offset,
        total_bytes + len(frame),
        frame,
    )


def is_compacted(header: EntryHeader, opening: bytes) -> bool:
    """Return whether an entry, whose frame begins with ``opening``, is one of a compacted ledger, by how it looks.

    A published entry begins with a magic number or the size of its metadata; here that comes behind the totals that
    the entry had in its topic.
    """
    if len(opening) < _PREFIX.size:
        return False
    messages, total_bytes, size, bitmap = _PREFIX.unpack_from(opening)
    return bool(
        header.messages <= messages < 1 << 48
        and size <= total_bytes < 1 << 56
        and bitmap <= (header.messages + 7) // 8
        and header.size <= size + _PREFIX.size + bitmap
    )


class CompactedLedger:
    """The entries of the last compaction, which covers the topic up to and including the offset ``horizon``."""

    __slots__ = ("_bases", "_by_id", "_reader", "entries", "horizon", "ledger_id", "record")

    def __init__(self, reader: LedgerReader, record: CompactionRecord) -> None:
        self._reader = reader
        self.record = record
        self.ledger_id = record.ledger_id
        self.entries = record.entries
        self.horizon = record.horizon
        self._bases = [base for _, base in record.ledgers]
        self._by_id = dict(record.ledgers)

    # -- positions of the topic --------------------------------------------------------------------------------

    def position(self, offset: int) -> tuple[int, int]:
        """Return (ledger id, entry id) that an entry of this ledger has in the topic."""
        ledger_id, base = self.record.ledgers[bisect_right(self._bases, offset) - 1]
        return ledger_id, offset - base

    def offset_at_or_after(self, ledger_id: int, entry_id: int) -> int:
        """Return an offset such that what is kept at or after a position of the topic is what is kept from there on.

        The position's ledger may be trimmed long ago; beyond the horizon it is the first offset behind that.
        """
        base = self._by_id.get(ledger_id)
        if base is not None:
            return base + max(entry_id, 0)
        for later, later_base in self.record.ledgers:
            if later > ledger_id:
                return later_base
        return self.horizon + 1

    # -- entries -----------------------------------------------------------------------------------------------

    def index_of(self, offset: int) -> int:
        """Return the index here of the first entry at or after ``offset`` of the topic, ``entries`` without one."""
        return self._first_index(lambda index: self.offset_at(index) >= offset)

    def index_published_at_or_after(self, publish_ms: int) -> int:
        """Return the index of the first entry whose publish time is not before ``publish_ms``."""
        reader, ledger_id = self._reader, self.ledger_id

        def late_enough(index: int) -> bool:
            header = reader.header(ledger_id, index)
            return header is not None and header.publish_ms >= publish_ms

        return self._first_index(late_enough)

    def _first_index(self, holds: Callable[[int], bool]) -> int:
        low, high = 0, self.entries
        while low < high:
            middle = (low + high) // 2
            if holds(middle):
                high = middle
            else:
                low = middle + 1
        return low

    def offset_at(self, index: int) -> int:
        """Return the topic's offset of the entry at ``index``; beyond the last it is the first behind the horizon."""
        if index >= self.entries:
            return self.horizon + 1
        try:
            header = self._reader.header(self.ledger_id, index)
        except DamagedEntries as lost:
            return self.offset_at(lost.last_entry + 1)
        return self.horizon + 1 if header is None else header.total_messages

    def read(self, index: int, count: int, max_bytes: int, callback: Completion[list[CompactedEntry]]) -> None:
        """Read up to ``count`` entries from ``index`` on, or ``max_bytes`` of them, at least one."""

        def found(result: list[Entry] | Exception) -> None:
            callback(result if isinstance(result, Exception) else [self._unpack(stored) for stored in result])

        self._reader.read(self.ledger_id, index, min(index + count, self.entries) - 1, max_bytes, found)

    def _unpack(self, stored: Entry) -> CompactedEntry:
        messages, size_before, size, bitmap = _PREFIX.unpack_from(stored.frame)
        at = _PREFIX.size + bitmap
        retained = int.from_bytes(stored.frame[_PREFIX.size : at], "little") if bitmap else None
        offset = stored.total_messages
        entry = Entry(
            *self.position(offset),
            stored.receive_ms,
            stored.publish_ms,
            stored.deliver_at_ms,
            stored.ttl_ms,
            stored.messages,
            stored.key_hash,
            messages,
            size_before,
            stored.frame[at:],
        )
        entry.offset = offset
        return CompactedEntry(entry, size, retained)
