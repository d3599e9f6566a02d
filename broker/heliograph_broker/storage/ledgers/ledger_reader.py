"""Reads the entries of ledgers: off the event loop in short transactions, or single ones in the calling thread.

Lost entries are reported as :mod:`heliograph_broker.storage.base.damage` describes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from heliograph_broker.storage.base.completion import Completion
from heliograph_broker.storage.base.damage import DamagedEntries
from heliograph_broker.storage.base.entry import Entry, EntryHeader
from heliograph_broker.storage.base.scheduler import Scheduler
from heliograph_broker.storage.segments.segment import Segment
from heliograph_broker.storage.segments.segment_set import SegmentSet

T = TypeVar("T")


class LedgerReader:
    """All methods are called on the event loop's thread."""

    def __init__(self, segments: SegmentSet, scheduler: Scheduler) -> None:
        self._segments = segments
        self._scheduler = scheduler

    def read_with(self, scheduler: Scheduler) -> None:
        """Read with another scheduler from now on, which runs jobs inline: the store's own is closed."""
        self._scheduler = scheduler

    def read(
        self,
        ledger_id: int,
        first_entry: int,
        last_entry: int,
        max_bytes: int,
        callback: Completion[list[Entry]],
    ) -> None:
        """Read entries from ``first_entry`` on, at least one if there is one; a later call gets the rest.

        Lost entries are reported as :mod:`.damage` describes; trimmed entries are left out.
        """
        self._read(
            ledger_id,
            first_entry,
            last_entry,
            lambda segment, first: segment.reader.read_entries(ledger_id, first, last_entry, max_bytes),
            callback,
        )

    def examine(
        self,
        ledger_id: int,
        first_entry: int,
        last_entry: int,
        max_bytes: int,
        function: Callable[[list[Entry]], T],
        callback: Completion[list[T]],
    ) -> None:
        """As :meth:`read`, but call back with ``function`` of the entries, which the thread that read them calls.

        There is one result, none if there are no entries.
        """

        def job(segment: Segment, first: int) -> list[T]:
            entries = segment.reader.read_entries(ledger_id, first, last_entry, max_bytes)
            return [function(entries)] if entries else []

        self._read(ledger_id, first_entry, last_entry, job, callback)

    def read_headers(
        self,
        ledger_id: int,
        first_entry: int,
        last_entry: int,
        callback: Completion[list[EntryHeader]],
    ) -> None:
        """As :meth:`read`, without the frames."""
        self._read(
            ledger_id,
            first_entry,
            last_entry,
            lambda segment, first: segment.reader.read_headers(ledger_id, first, last_entry),
            callback,
        )

    def _read(
        self,
        ledger_id: int,
        first_entry: int,
        last_entry: int,
        job: Callable[[Segment, int], list[T]],
        callback: Completion[list[T]],
    ) -> None:
        try:
            found = self._segments.holder(ledger_id, first_entry)
        except DamagedEntries as error:
            callback(error.within(last_entry))
            return
        if found is None:
            callback([])
            return
        segment, first = found
        segment.acquire()

        def done(result: list[T] | Exception) -> None:
            segment.release()
            callback(result)

        self._scheduler.read(lambda: job(segment, first), done)

    def map_frames(
        self, ledger_id: int, first_entry: int, last_entry: int, function: Callable[[memoryview], T]
    ) -> Iterator[T]:
        """Yield ``function`` of the frame of each entry, read in the calling thread: for a bounded number of them.

        Only the pages that ``function`` touches are read. Its argument is invalid after it has returned. Raises
        :class:`DamagedEntries` after everything before the entries that are lost.
        """
        at = first_entry
        while at <= last_entry:
            try:
                found = self._segments.holder(ledger_id, at)
            except DamagedEntries as error:
                raise error.within(last_entry) from None
            if found is None or found[1] > last_entry:
                return
            segment, at = found
            mapped = segment.reader.map_frames(ledger_id, at, last_entry, function)
            at = mapped[-1][0] + 1
            for _, value in mapped:
                yield value

    def header(self, ledger_id: int, entry_id: int) -> EntryHeader | None:
        """Return one header by a point read in the calling thread, None if it was trimmed or never stored.

        Raises :class:`DamagedEntries` if the entry is lost.
        """
        found = self._segments.holder(ledger_id, entry_id)
        if found is None or found[1] != entry_id:
            return None
        return found[0].reader.header(ledger_id, entry_id)

    def first_entry_where(self, ledger_id: int, low: int, high: int, holds: Callable[[EntryHeader], bool]) -> int:
        """Return the first entry id of ``low..high-1`` whose header ``holds``, ``high`` if there is none.

        ``holds`` must stay true for all entries after one for which it is. It counts as false for a trimmed entry, and
        for a lost one as for the readable one before it. Runs in the calling thread: one short transaction for each
        segment that has to be searched.
        """
        segments = [
            segment
            for segment in self._segments.holders(ledger_id)
            if segment.runs[ledger_id].last >= low and segment.runs[ledger_id].first < high
        ]
        while len(segments) > 1:
            # The last entry of the first half tells which half to search.
            middle = (len(segments) - 1) // 2
            header = None
            for segment in reversed(segments[: middle + 1]):
                header = segment.reader.readable_header(ledger_id, segment.runs[ledger_id].last)
                if header is not None:
                    break
            if header is not None and header.entry_id >= low and holds(header):
                high = min(high, header.entry_id)
                segments = segments[: middle + 1]
            else:
                low = max(low, segments[middle].runs[ledger_id].last + 1)
                segments = segments[middle + 1 :]
        if not segments:
            return high
        return segments[0].reader.first_where(ledger_id, low, high, holds)
