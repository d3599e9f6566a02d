"""All segments of a data directory: which hold a ledger, which one is written, and what of them is still wanted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from heliograph_broker.storage.base.damage import DamagedEntries
from heliograph_broker.storage.base.entry import Entry
from heliograph_broker.storage.base.scheduler import Scheduler

from . import segment_records
from .leaving import LeavingSegments
from .segment import Segment
from .segment_files import SegmentFiles
from .segment_records import MissingSegments, SegmentRecords


class SegmentSet:
    """Owned by the event loop. The last segment of the list is the open one."""

    def __init__(self, files: SegmentFiles, found: Iterable[tuple[bytes, bytes]], scheduler: Scheduler) -> None:
        """Load the segments of a directory; ``found`` are the records of :mod:`.segment_records`.

        Raises :class:`OSError`, ``lmdb.Error`` or, for files of another store, :class:`DataDirError`.
        """
        self.files = files
        self.records = SegmentRecords()
        #: Segments that are no longer in the index, until their names are durably gone.
        self._leaving = LeavingSegments(files, scheduler)
        self._writing = self._close_wanted = False
        #: The first entry of a ledger that was not trimmed, where that is not 0.
        self._floors: dict[int, int] = {}
        #: Number of writes of entries, and number of times that entries came or went.
        self.writes = self.changes = 0
        known = segment_records.sound(found)
        self._segments = files.load()
        self._by_ledger: dict[int, list[Segment]] = {}
        for segment in self._segments:
            for ledger_id in segment.runs:
                self._by_ledger.setdefault(ledger_id, []).append(segment)
        # A number is never used twice, even if its file is gone.
        used = [segment_records.orders(key)[1] for key in known]
        used += [segment.last_order for segment in self._segments]
        self._last_order = max([*used, *files.damaged_orders()], default=0)
        newest = self._segments[-1] if self._segments else None
        if (
            newest is None
            or newest.last_order != self._last_order
            or newest.generation > 1
            or newest.file_bytes >= files.segment_bytes
        ):
            self.open_next()
        present = {segment_records.key(each.path.name): each for each in self._segments if each.runs}
        self.missing = MissingSegments(known.items(), [each.path for each in present.values()])
        for name in segment_records.names(known.keys() - present.keys() - self.missing.keys()):
            self.records.delete(name)
        for key, segment in present.items():
            is_open = segment is self._segments[-1]
            if key in known and not (known[key] == segment_records.OPEN and not is_open):
                continue
            if is_open:
                self.records.put_open(segment)
            else:
                self.records.put(segment)

    def open_next(self) -> None:
        """Begin another segment; the open one is closed."""
        if self._segments and self._segments[-1].runs:
            self.records.put(self._segments[-1])
        order = self._last_order = self._last_order + 1
        self._segments.append(self.files.segment((order, order), 1, writable=True))
        self._close_wanted = False

    def close_open(self) -> bool:
        """Begin another segment as soon as the open one is not being written; return whether that was so now."""
        if self._writing:
            self._close_wanted = True
            return False
        self.open_next()
        return True

    @property
    def open_segment(self) -> Segment:
        """The segment that entries go to now."""
        return self._segments[-1]

    # -- writing ---------------------------------------------------------------------------------------------

    def begin_write(self) -> Segment:
        """Return the segment the next entries go to; :meth:`end_write` follows."""
        self._writing = True
        return self._segments[-1]

    def end_write(self, ledgers: Mapping[int, Sequence[Entry]] | None, disk_bytes: int) -> None:
        """Account for entries that are durable in the open segment (None: nothing is), and close it if it is full."""
        self._writing = False
        segment = self._segments[-1]
        if ledgers is not None:
            self.writes += 1
            self.changes += 1
            if not segment.runs:
                self.records.put_open(segment)
            segment.added(ledgers, disk_bytes)
            for ledger_id in ledgers:
                holders = self._by_ledger.get(ledger_id)
                if holders is None:
                    self._by_ledger[ledger_id] = [segment]
                elif holders[-1] is not segment:
                    holders.append(segment)
        if segment.file_bytes >= self.files.segment_bytes or (self._close_wanted and segment.runs):
            self.open_next()

    # -- looking up ------------------------------------------------------------------------------------------

    def live_bytes(self) -> int:
        """Return the exact bytes of frames that are still wanted. Cheap: kept as entries come and go."""
        return sum(segment.live_bytes for segment in self._segments)

    def disk_bytes(self) -> int:
        """Return the disk space of all segments, those being unlinked included."""
        return self._leaving.disk_bytes + self.staying_bytes()

    def staying_bytes(self) -> int:
        """Return the disk space of the segments that are in use."""
        return sum(segment.file_bytes for segment in self._segments)

    def bounds(self, ledger_id: int) -> tuple[int, int] | None:
        """Return the first and last stored entry id of a ledger, None if it has none."""
        found = [(run.first, run.last) for run in (each.runs[ledger_id] for each in self.holders(ledger_id))]
        if self.missing:
            found += [(lost.first, lost.last) for lost in self.missing.ranges(ledger_id)]
        if not found:
            return None
        return min(first for first, _ in found), max(last for _, last in found)

    def ledgers(self) -> Iterable[int]:
        """Return the ids of all ledgers that have entries here."""
        return self._by_ledger.keys()

    def holder(self, ledger_id: int, entry_id: int) -> tuple[Segment, int] | None:
        """Return the segment that has ``entry_id`` or, if that was trimmed, the first entry after it; and which it is.

        Raises :class:`DamagedEntries` if the entry was neither trimmed nor is stored, but a later one is.
        """
        for segment in self._by_ledger.get(ledger_id, ()):
            run = segment.runs[ledger_id]
            if run.last >= entry_id:
                if run.first <= entry_id:
                    return segment, entry_id
                if entry_id < run.first <= self._floors.get(ledger_id, 0):
                    return segment, run.first
                raise DamagedEntries(ledger_id, entry_id, run.first - 1, "no segment has them")
        lost = self.missing.covering(ledger_id, entry_id)
        if lost is not None:
            raise DamagedEntries(ledger_id, entry_id, lost.last, lost.reason)
        return None

    def holders(self, ledger_id: int) -> Sequence[Segment]:
        """Return the segments with entries of a ledger, in the order of their entries."""
        return self._by_ledger.get(ledger_id, ())

    def pin(self) -> list[Segment]:
        """Keep the files of all segments there are until each is released, even if it is replaced meanwhile."""
        for segment in self._segments:
            segment.acquire()
        return list(self._segments)

    def closed(self) -> Sequence[Segment]:
        """Return the closed segments in the order of their numbers."""
        return self._segments[:-1]

    # -- space -----------------------------------------------------------------------------------------------

    def bytes_by_ledger(self) -> dict[int, int]:
        """Return the bytes that are still wanted of each ledger."""
        return {
            ledger_id: sum(run.total - run.dead_total for run in (each.runs[ledger_id] for each in holders))
            for ledger_id, holders in self._by_ledger.items()
        }

    def holds(self, ledger_id: int) -> bool:
        """Return whether any file has entries of a ledger, those included that are being unlinked."""
        return ledger_id in self._by_ledger or self._leaving.holds(ledger_id)

    def trim(self, ledger_id: int, below: int) -> None:
        """Delete a ledger's entries below ``below``; their space comes back in the background."""
        if below > self._floors.get(ledger_id, 0):
            self._floors[ledger_id] = below
        for segment in self._by_ledger.get(ledger_id, ()):
            if segment.runs[ledger_id].first >= below:
                break
            if segment.trim(ledger_id, below):
                self.changes += 1

    def drop(self, ledger_id: int) -> None:
        """Delete all entries of a ledger."""
        self._floors.pop(ledger_id, None)
        for segment in self._by_ledger.get(ledger_id, ()):
            if segment.trim(ledger_id, segment.runs[ledger_id].last + 1):
                self.changes += 1

    def keep_missing(self, kept: Mapping[int, int]) -> None:
        """Forget missing segments of which nothing is wanted; ``kept`` is the first wanted entry by ledger."""
        for name in self.missing.keep(kept):
            self.records.delete(name)

    def remove(self, segment: Segment) -> None:
        """Take out a closed segment of which nothing is wanted."""
        self._segments.remove(segment)
        self._replace(segment, None)
        self._retire(segment)

    def switch(self, sources: Sequence[Segment], successor: Segment) -> None:
        """Put ``successor`` where ``sources`` were; what was trimmed while it was made is dead in it too."""
        at = self._segments.index(sources[0])
        self._segments[at : at + len(sources)] = [successor]
        self.records.put(successor)
        for source in sources:
            for ledger_id, run in source.runs.items():
                # Only a run that was trimmed says where: an untouched one says nothing of those before it.
                if run.live_from > run.first and ledger_id in successor.runs:
                    successor.trim(ledger_id, run.live_from)
            self._replace(source, successor)
            self._retire(source)

    def _replace(self, segment: Segment, successor: Segment | None) -> None:
        """Let ``successor``, where it has the ledger and is not there yet, replace a segment in the index."""
        for ledger_id in segment.runs:
            holders = self._by_ledger[ledger_id]
            at = holders.index(segment)
            if successor is not None and ledger_id in successor.runs and successor not in holders:
                holders[at] = successor
                continue
            del holders[at]
            if not holders:
                del self._by_ledger[ledger_id]

    def _retire(self, segment: Segment) -> None:
        if segment.runs:
            self.records.delete(segment.path.name)
        self._leaving.retire(segment)

    def close(self) -> None:
        """Close every file; those that are still to be unlinked stay."""
        self._leaving.close()
        for segment in self._segments:
            segment.close()
