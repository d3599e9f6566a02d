"""All segments of a data directory: which hold a ledger, which one is written, whose space is given back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import lmdb
import structlog

from heliograph_broker.clock import Clock
from heliograph_broker.storage.base.damage import DamagedEntries
from heliograph_broker.storage.base.data_dir import DataDirError
from heliograph_broker.storage.base.disk import Disk
from heliograph_broker.storage.base.entry import Entry
from heliograph_broker.storage.base.failure import lacks_space
from heliograph_broker.storage.base.identity import UNREADABLE
from heliograph_broker.storage.base.scheduler import Scheduler

from . import reclaim, segment_records
from .rewrite import Abandoned, Rewriting
from .segment import DAMAGE, DAMAGED_SUFFIX, Segment, parse_name
from .segment_records import MissingSegments

log = structlog.get_logger(__name__)

#: While entries are written, the open segment is not closed early, for the sake of its dead entries, more often.
_SEAL_INTERVAL_S = 10.0
#: After a copy failed, for want of space mostly, the next attempt waits.
_RETRY_S = 5.0
#: A file that is deleted is truncated by so much at a time (bytes), with a pause: to free much of it in one go keeps
#: the file system's syncs waiting.
_CUT_BYTES = 2 * 1024 * 1024
_CUT_PAUSE_S = 0.02
#: While what is live shrinks by more than this share from one check to the next, nothing is copied: it would be dead in
#: a moment, and the disk belongs to those who publish. Nor for this number of checks afterwards, but at most for this
#: time (s).
_SHRINKING = 1 / 8
_CHECKS_AFTER = 3
_PUT_OFF_S = 10.0


class SegmentSet:
    """Owned by the event loop. The last segment of the list is the open one."""

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        segment_bytes: int,
        scheduler: Scheduler,
        clock: Clock,
        room: Callable[[], int],
        store_id: str,
        records: Iterable[tuple[bytes, bytes]],
        write_record: Callable[[bytes, bytes | None], None],
        *,
        adopt: bool,
    ) -> None:
        """``room`` returns how many bytes a copy may take now. ``adopt``: files that say no store's id are this one's.

        ``records`` are those of :mod:`.segment_records`, ``write_record`` writes or deletes (None) one of them.
        Raises :class:`OSError`, ``lmdb.Error`` or, for files of another store, :class:`DataDirError`.
        """
        self._disk = disk
        self._directory = directory
        self._segment_bytes = segment_bytes
        # Virtual room only: the file grows as it is written. A group may go in after the roll size is reached.
        self._map_size = segment_bytes * 4 + 256 * 1024 * 1024
        self._scheduler = scheduler
        self._clock = clock
        self._room = room
        self._store_id = store_id
        self._adopt = adopt
        #: Whether every file says this store's id, but for want of space.
        self.all_adopted = True
        self._segments: list[Segment] = []
        self._by_ledger: dict[int, list[Segment]] = {}
        self._dirty = True
        self._wrote = self._quiet = self._pressed = False
        self._live_before = self._shrinking = 0
        self._put_off_since: float | None = None
        self._other_bytes = 0
        self._writing = self._seal_wanted = False
        self._seal_at = self._retry_at = clock.monotonic()
        self._rewriting: Rewriting | None = None
        self._leaving_bytes = 0
        #: Segments that nobody finds any more, until their names are durably gone.
        self._leaving: dict[Segment, None] = {}
        self._closed = False
        #: The first entry of a ledger that was not trimmed, where that is not 0.
        self._floors: dict[int, int] = {}
        #: Files that are damaged and kept aside, in this directory.
        self.damaged_files: list[Path] = []
        self._write_record = write_record
        known = segment_records.sound(records)
        # A number that was used is not used again, whatever became of its file.
        self._last_order = max((segment_records.orders(key)[1] for key in known), default=0)
        self._load()
        present = {segment_records.key(each.path.name): each for each in self._segments if each.runs}
        self.missing = MissingSegments(known.items(), [each.path for each in present.values()])
        for key in known.keys() - present.keys() - self.missing.keys():
            write_record(key, None)
        for key, segment in present.items():
            is_open = segment is self._segments[-1]
            if key not in known or (known[key] == segment_records.OPEN and not is_open):
                write_record(key, segment_records.OPEN if is_open else segment_records.encode(segment))

    def _load(self) -> None:
        self.damaged_files.clear()
        found: list[tuple[int, int, int, Path]] = []
        for path in self._disk.files(self._directory):
            if path.suffix == DAMAGED_SUFFIX:
                self.damaged_files.append(path)
            elif path.suffix == ".lmdb":
                first, last, generation = parse_name(path)
                # The widest first, of the equally wide the latest.
                found.append((first, -last, -generation, path))
            elif not path.name.endswith("-lock") or not self._disk.exists(
                path.with_name(path.name.removesuffix("-lock"))
            ):
                self._disk.remove(path)
        used = self._last_order
        covered = 0
        for path in self.damaged_files:
            # New entries must not be taken for it.
            used = max(used, parse_name(path.with_suffix(""))[1])
        kept: list[tuple[tuple[int, int], int]] = []
        replaced: list[Path] = []
        for first, minus_last, minus_generation, path in sorted(found):
            if -minus_last <= covered:
                replaced.append(path)
                continue
            covered = -minus_last
            kept.append(((first, covered), -minus_generation))
        for orders, generation in kept:
            # The last one may be written on.
            segment = Segment(
                self._disk,
                self._directory,
                orders,
                generation,
                self._map_size,
                self._store_id,
                writable=orders[1] == covered and generation == 1,
            )
            try:
                segment.load_runs()
                self._check_identity(segment)
            except DAMAGE as error:
                for each in [*self._segments, segment]:
                    each.close()
                self._set_aside(segment, str(error))
                self._segments.clear()
                self._by_ledger.clear()
                # Those in whose place it was may still be there.
                self._load()
                return
            self._segments.append(segment)
            for ledger_id in segment.runs:
                self._by_ledger.setdefault(ledger_id, []).append(segment)
        for path in replaced:
            self._disk.remove(path)
            self._disk.remove(path.with_name(path.name + "-lock"))
        self._last_order = max(used, covered)
        newest = self._segments[-1] if self._segments else None
        if (
            newest is None
            or newest.last_order != self._last_order
            or newest.generation > 1
            or newest.file_bytes >= self._segment_bytes
        ):
            self._open_next()

    def _check_identity(self, segment: Segment) -> None:
        found = segment.found_store_id
        if found == self._store_id or not self._store_id or not (found or segment.runs):
            return
        if found == UNREADABLE:
            log.error("a segment's id is damaged; the file is taken for one of this store", path=str(segment.path))
            return
        if found is None and self._adopt:
            try:
                segment.adopt()
            except (lmdb.Error, OSError) as error:
                if not lacks_space(error):
                    raise
                self.all_adopted = False
            return
        for each in [*self._segments, segment]:
            each.close()
        raise DataDirError(
            f"{segment.path} belongs to {f'the store {found}' if found else 'no store'}, the directory to the store "
            f"{self._store_id}; move the file away, or rescue what is in both with 'heliograph store salvage'"
        )

    def _set_aside(self, segment: Segment, reason: str) -> None:
        """Keep a damaged file under another name, where nothing removes it."""
        log.error(
            "a segment is damaged; its file is kept aside and entries that only it held are lost",
            path=str(segment.path),
            error=reason,
        )
        segment.keep_aside()
        self.damaged_files.append(segment.path.with_name(segment.path.name + DAMAGED_SUFFIX))

    def _open_next(self) -> None:
        if self._segments and self._segments[-1].runs:
            closed = self._segments[-1]
            self._write_record(segment_records.key(closed.path.name), segment_records.encode(closed))
        order = self._last_order = self._last_order + 1
        self._segments.append(
            Segment(self._disk, self._directory, (order, order), 1, self._map_size, self._store_id, writable=True)
        )
        self._seal_wanted = False

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
            self._dirty = self._wrote = True
            if not segment.runs:
                self._write_record(segment_records.key(segment.path.name), segment_records.OPEN)
            segment.added(ledgers, disk_bytes)
            for ledger_id in ledgers:
                holders = self._by_ledger.get(ledger_id)
                if holders is None:
                    self._by_ledger[ledger_id] = [segment]
                elif holders[-1] is not segment:
                    holders.append(segment)
        if segment.file_bytes >= self._segment_bytes or (self._seal_wanted and segment.runs):
            self._open_next()

    # -- looking up ------------------------------------------------------------------------------------------

    def live_bytes(self) -> int:
        """Return the exact bytes of frames that are still wanted."""
        return sum(segment.live_bytes for segment in self._segments)

    def disk_bytes(self) -> int:
        """Return the disk space of all segments, those being unlinked included."""
        return self._leaving_bytes + sum(segment.file_bytes for segment in self._segments)

    def bounds(self, ledger_id: int) -> tuple[int, int] | None:
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
        """Return the segments that are written no more, in the order of their numbers."""
        return self._segments[:-1]

    @property
    def quiet(self) -> bool:
        """Whether no entries were written between the last two calls of :meth:`maintain`."""
        return self._quiet

    # -- space -----------------------------------------------------------------------------------------------

    def bytes_by_ledger(self) -> dict[int, int]:
        """Return the bytes that are still wanted of each ledger."""
        return {
            ledger_id: sum(run.total - run.dead_total for run in (each.runs[ledger_id] for each in holders))
            for ledger_id, holders in self._by_ledger.items()
        }

    def holds(self, ledger_id: int) -> bool:
        """Return whether any file has entries of a ledger, those included that are being unlinked."""
        return ledger_id in self._by_ledger or any(ledger_id in segment.runs for segment in self._leaving)

    def trim(self, ledger_id: int, below: int) -> None:
        if below > self._floors.get(ledger_id, 0):
            self._floors[ledger_id] = below
        for segment in self._by_ledger.get(ledger_id, ()):
            if segment.runs[ledger_id].first >= below:
                break
            if segment.trim(ledger_id, below):
                self._dirty = True

    def drop(self, ledger_id: int) -> None:
        self._floors.pop(ledger_id, None)
        for segment in self._by_ledger.get(ledger_id, ()):
            if segment.trim(ledger_id, segment.runs[ledger_id].last + 1):
                self._dirty = True

    def maintain(self, other_bytes: int, *, pressed: bool) -> None:
        """Give back disk space; call it every now and then.

        ``other_bytes`` is the disk space of other files. ``pressed``: the disk is full, every byte counts.
        """
        self._quiet = not self._wrote
        self._wrote = False
        self._pressed = pressed
        self._other_bytes = other_bytes
        live_bytes = self.live_bytes()
        shrinks = live_bytes < self._live_before * (1 - _SHRINKING)
        self._shrinking = 1 + _CHECKS_AFTER if shrinks else max(0, self._shrinking - 1)
        self._live_before = live_bytes
        self._reclaim()

    def _reclaim(self) -> None:
        """Unlink dead segments and start rewriting those that waste space. Cheap if nothing changed."""
        if not self._dirty or self._closed:
            return
        for segment in [each for each in self._segments[:-1] if not each.live_entries and not each.busy]:
            self._remove(segment)
        now = self._clock.monotonic()
        staying = self._other_bytes + self.disk_bytes() - self._leaving_bytes
        wasting = self._pressed or reclaim.wasteful(staying, self.live_bytes(), self._segment_bytes)
        # The room for a copy changes without anything being written here.
        self._dirty = wasting
        if wasting:
            self._seal_wasteful(now)
        if self._rewriting is not None or now < self._retry_at or self._put_off(now):
            self._dirty = True
            return
        chosen = reclaim.choose(
            self._segments[:-1], wasting=wasting, segment_bytes=self._segment_bytes, room=self._room()
        )
        if chosen:
            self._rewrite(chosen)

    def _put_off(self, now: float) -> bool:
        """Return whether copies wait because what is live shrinks."""
        if not self._shrinking or self._pressed:
            self._put_off_since = None
            return False
        if self._put_off_since is None:
            self._put_off_since = now
        return now - self._put_off_since < _PUT_OFF_S

    def _seal_wasteful(self, now: float) -> None:
        """Close the open segment if much of the waste is in it; while it is being written, as soon as it is not."""
        current = self._segments[-1]
        waste = current.file_bytes - current.compact_bytes
        floor = min(reclaim.FLOOR, self._segment_bytes // 8)
        if not reclaim.worthwhile(current) or waste < max(floor, self.live_bytes() // 10):
            return
        if not self._quiet and now < self._seal_at:
            return
        self._seal_at = now + _SEAL_INTERVAL_S
        if self._writing:
            self._seal_wanted = True
            return
        self._open_next()
        if not current.live_entries:
            self._remove(current)

    def _remove(self, segment: Segment) -> None:
        self._segments.remove(segment)
        self._replace(segment, None)
        self._retire(segment)

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
        """Unlink a segment that nobody finds any more, when those who still read it are ready."""
        if segment.runs:
            self._write_record(segment_records.key(segment.path.name), None)
        self._leaving_bytes += segment.file_bytes
        self._leaving[segment] = None

        def remove() -> None:
            segment.close()
            if segment.damage:
                self._set_aside(segment, str(segment.damage[0]))
                return
            segment.remove_files(_CUT_BYTES, lambda: self._scheduler.pause(_CUT_PAUSE_S))

        def removed(result: object) -> None:
            self._leaving_bytes -= segment.file_bytes
            if isinstance(result, Exception):
                log.error("removing a segment failed", path=str(segment.path), error=str(result))
                return
            del self._leaving[segment]

        def unused() -> None:
            # Unmapping and unlinking take a while for a large file: not on the event loop.
            if self._closed:
                segment.close()
            else:
                self._scheduler.background(remove, removed)

        segment.retire(unused)

    def _rewrite(self, sources: Sequence[Segment]) -> None:
        successor = Segment(
            self._disk,
            self._directory,
            (sources[0].first_order, sources[-1].last_order),
            max(source.generation for source in sources) + 1,
            self._map_size,
            self._store_id,
            writable=False,
        )
        rewriting = self._rewriting = Rewriting(sources, successor, self._scheduler.pause)
        for source in sources:
            source.busy = True
            source.acquire()

        def done(result: Segment | Exception) -> None:
            self._rewriting = None
            self._dirty = True
            for source in sources:
                source.busy = False
                source.release()
            if self._closed or isinstance(result, Abandoned):
                return
            if isinstance(result, Exception):
                self._retry_at = self._clock.monotonic() + _RETRY_S
                log.error("could not rewrite segments; they are kept", path=str(sources[0].path), error=str(result))
                return
            for source, errors in rewriting.damaged.items():
                source.damage = errors
            self._switch(sources, result)
            self._scheduler.soon(self._reclaim)

        self._scheduler.background(rewriting.run, done)

    def _switch(self, sources: Sequence[Segment], successor: Segment) -> None:
        """Put ``successor`` where ``sources`` were; what was trimmed while it was made is dead in it too."""
        at = self._segments.index(sources[0])
        self._segments[at : at + len(sources)] = [successor]
        self._write_record(segment_records.key(successor.path.name), segment_records.encode(successor))
        for source in sources:
            for ledger_id, run in source.runs.items():
                # Only a run that was trimmed says where: an untouched one says nothing of those before it.
                if run.live_from > run.first and ledger_id in successor.runs:
                    successor.trim(ledger_id, run.live_from)
            self._replace(source, successor)
            self._retire(source)

    def close(self) -> None:
        self._closed = True
        for segment in self._segments:
            segment.close()
