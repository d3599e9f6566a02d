"""Reads the entries of one segment, around those that are damaged."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

import lmdb

from heliograph_broker.storage.base.damage import DamagedEntries, LostRange
from heliograph_broker.storage.base.entry import Entry, EntryHeader
from heliograph_broker.storage.disk.identity import SEGMENT_KEY

from . import chunk
from .chunk import KEY
from .lookup import UNSOUND, UNSUMMED, chunk_below, header_of, readable, seek, until_next

T = TypeVar("T")
#: Returns whether a chunk's key and value are what was written.
Sound = Callable[[memoryview, memoryview], bool]

_MISSING = "no segment has them"


class Run:
    """The entries ``first..last`` of one ledger in a segment; those from ``live_from`` on are still wanted.

    ``total`` is the ledger's cumulative bytes up to ``last``, ``dead_total`` those below ``live_from``.
    """

    __slots__ = ("dead_total", "first", "last", "live_from", "total")

    def __init__(self, first: int, last: int, before: int, total: int) -> None:
        self.first = first
        self.last = last
        self.live_from = first
        self.dead_total = before
        self.total = total


class SegmentReader:
    """Reads in the calling thread, which keeps the segment's environment open meanwhile: see :class:`Segment`."""

    __slots__ = ("_environment", "_runs")

    def __init__(self, environment: Callable[[], lmdb.Environment], runs: Mapping[int, Run]) -> None:
        """``environment`` opens the segment's environment at first use; ``runs`` are its entries by ledger."""
        self._environment = environment
        self._runs = runs

    def chunks(
        self, ledger_id: int, first: int, last: int, sound: Sound = chunk.is_sound
    ) -> Iterator[tuple[memoryview, int, int, int]]:
        """Yield chunks with any of the entries ``first..last``: value, its first entry id, indexes from and to.

        A value is valid until the next one is asked for. ``first`` is not below the ledger's first entry here. Raises
        :class:`DamagedEntries` at the first entry that is stored no more, or whose chunk is not ``sound``.
        """
        return self._chunks(ledger_id, first, first, min(last, self._runs[ledger_id].last), sound)

    def _chunks(
        self, ledger_id: int, begin: int, first: int, last: int, sound: Sound
    ) -> Iterator[tuple[memoryview, int, int, int]]:
        """As :meth:`chunks`, beginning with the chunk that holds the entry ``begin``."""
        below: int | None = None
        with self._environment().begin(buffers=True) as txn, txn.cursor() as cursor:
            more = None
            try:
                more = seek(cursor, ledger_id, begin)
                while more and first <= last:
                    ledger, at = KEY.unpack(cursor.key())
                    if ledger != ledger_id or at > first:
                        until = last if ledger != ledger_id else min(last, at - 1)
                        raise DamagedEntries(ledger_id, first, until, _MISSING)
                    value = cursor.value()
                    if not sound(cursor.key(), value):
                        raise DamagedEntries(ledger_id, first, until_next(cursor, ledger_id, last), UNSUMMED)
                    low, high = first - at, min(chunk.count(value), last - at + 1) - 1
                    if low <= high:
                        yield value, at, low, high
                        first = at + high + 1
                    more = cursor.next()
            except UNSOUND as error:
                if more is None and begin == first:
                    # A search reaches the chunk after the first one before it, and that chunk may be damaged.
                    below = chunk_below(self._environment(), ledger_id, first)
                if below is None or below == first:
                    raise DamagedEntries(
                        ledger_id, first, self._unsound_until(ledger_id, first, last), str(error)
                    ) from None
        if below is not None:
            yield from self._chunks(ledger_id, below, first, last, sound)
        elif first <= last:
            raise DamagedEntries(ledger_id, first, last, _MISSING)

    def _unsound_until(self, ledger_id: int, first: int, last: int) -> int:
        """Return the last of the entries ``first..last`` that cannot be read for damaged pages.

        Damage affects whole pages, so neighbouring entries: steps of growing size find its end well enough.
        """
        step = 1
        readable = last + 1
        unsound = first
        while unsound + step <= last:
            if self._leads_to(ledger_id, unsound + step):
                readable = unsound + step
                break
            unsound += step
            step *= 2
        while unsound + 1 < readable:
            middle = (unsound + readable) // 2
            if self._leads_to(ledger_id, middle):
                readable = middle
            else:
                unsound = middle
        return unsound

    def _leads_to(self, ledger_id: int, entry_id: int) -> bool:
        """Return whether sound pages lead to an entry's chunk."""
        return (
            self._seek_succeeds(ledger_id, entry_id)
            or chunk_below(self._environment(), ledger_id, entry_id) is not None
        )

    def _seek_succeeds(self, ledger_id: int, entry_id: int) -> bool:
        # After an error a transaction is unusable.
        with self._environment().begin(buffers=True) as txn, txn.cursor() as cursor:
            try:
                seek(cursor, ledger_id, entry_id)
            except UNSOUND:
                return False
        return True

    def read_entries(self, ledger_id: int, first: int, last: int, max_bytes: int) -> list[Entry]:
        """Return entries ``first..last`` up to ``max_bytes`` of frames, at least 1. Raises :class:`DamagedEntries`."""
        found: list[Entry] = []
        taken = 0
        try:
            for value, at, low, high in self.chunks(ledger_id, first, last):
                for index in range(low, high + 1):
                    entry = chunk.entry_at(value, ledger_id, at, index)
                    taken += len(entry.frame)
                    if found and taken > max_bytes:
                        return found
                    found.append(entry)
                if taken >= max_bytes:
                    break
        except DamagedEntries:
            if not found:
                raise
        return found

    def read_headers(self, ledger_id: int, first: int, last: int) -> list[EntryHeader]:
        """Return the headers of entries ``first..last``. Raises :class:`DamagedEntries`."""
        found: list[EntryHeader] = []
        try:
            for value, at, low, high in self.chunks(ledger_id, first, last, chunk.rows_are_sound):
                found += [chunk.header_at(value, at, index) for index in range(low, high + 1)]
        except DamagedEntries:
            if not found:
                raise
        return found

    def map_frames(
        self, ledger_id: int, first: int, last: int, function: Callable[[memoryview], T]
    ) -> list[tuple[int, T]]:
        """Return (entry id, ``function`` of the frame) of entries ``first..last``. Raises :class:`DamagedEntries`."""
        found: list[tuple[int, T]] = []
        try:
            for value, at, low, high in self.chunks(ledger_id, first, last, chunk.rows_are_sound):
                for index in range(low, high + 1):
                    start, end = chunk.frame_bounds(value, index)
                    found.append((at + index, function(value[start:end])))
        except DamagedEntries:
            if not found:
                raise
        return found

    def header(self, ledger_id: int, entry_id: int) -> EntryHeader:
        """Return the header of an entry between the ledger's first and last here. Raises :class:`DamagedEntries`."""
        try:
            header = header_of(self._environment(), ledger_id, entry_id)
        except UNSOUND as error:
            raise DamagedEntries(ledger_id, entry_id, entry_id, str(error)) from None
        if header is None or header.entry_id != entry_id:
            raise DamagedEntries(ledger_id, entry_id, entry_id, _MISSING)
        return header

    def readable_header(self, ledger_id: int, entry_id: int) -> EntryHeader | None:
        """Return the header of an entry or, if that is lost, of the last readable one before it here."""
        return readable(self._environment(), ledger_id, entry_id, self._runs[ledger_id].first)

    def first_where(self, ledger_id: int, low: int, high: int, holds: Callable[[EntryHeader], bool]) -> int:
        """Return the first entry of ``low..high-1`` that ``holds``, ``high`` if none: log2 lookups.

        ``holds`` must stay true once it is. An entry that was trimmed, or is not here, does not hold; one that is lost
        is like the readable one before it.
        """
        run = self._runs[ledger_id]
        environment = self._environment()
        while low < high:
            middle = (low + high) // 2
            header = readable(environment, ledger_id, middle, max(low, run.first)) if middle <= run.last else None
            if header is not None and holds(header):
                high = header.entry_id
            else:
                low = middle + 1
        return low

    def scrub(self, at: bytes | None, max_bytes: int) -> tuple[bytes | None, int, list[LostRange]]:
        """Verify chunks from the key ``at`` on (None: all) until ``max_bytes`` were read.

        Return the key to go on from (None: that was all), the bytes that were read and what is damaged. Raises
        :class:`lmdb.Error` that says nothing of the entries.
        """
        damaged: list[LostRange] = []
        size = 0
        with self._environment().begin(buffers=True) as txn, txn.cursor() as cursor:
            ledger_id, unverified = (-1, 0) if at is None else KEY.unpack(at)
            try:
                more = cursor.first() if at is None else cursor.set_range(at)
                while more and size < max_bytes:
                    if cursor.key() != SEGMENT_KEY:
                        ledger_id, first = KEY.unpack(cursor.key())
                        size += len(cursor.value())
                        if not chunk.is_sound(cursor.key(), cursor.value()):
                            until = first + chunk.likely_count(cursor.value()) - 1
                            damaged.append(LostRange(ledger_id, first, until, UNSUMMED))
                        unverified = first + chunk.likely_count(cursor.value())
                    more = cursor.next()
                return (bytes(cursor.key()) if more else None), size, damaged
            except UNSOUND as error:
                reason = f"pages are damaged: {error}"
        run = self._runs.get(ledger_id)
        if run is None or unverified > run.last:
            following = min((each for each in self._runs if each > ledger_id), default=None)
            if following is None:
                return None, size, damaged
            ledger_id, run = following, self._runs[following]
            unverified = run.first
        until = self._unsound_until(ledger_id, unverified, run.last)
        damaged.append(LostRange(ledger_id, unverified, until, reason))
        return KEY.pack(ledger_id, until + 1), size, damaged
