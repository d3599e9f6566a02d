"""A segment: one LMDB environment that holds chunks of many ledgers, written once and then only read.

Keys are ``ledger id · entry id`` (big-endian u64s), so a ledger's chunks lie together in order. The file is named
``<first>-<last>-<generation>.lmdb``: segments are numbered in the order of their writing, and a file rewritten from
several neighbours stands for all their numbers. A file replaces every other whose numbers it covers.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import lmdb

from heliograph_broker.storage.base.damage import DamagedEntries, LostRange
from heliograph_broker.storage.base.disk import Disk
from heliograph_broker.storage.base.entry import Entry, EntryHeader
from heliograph_broker.storage.base.environment import open_writable
from heliograph_broker.storage.base.identity import SEGMENT_KEY, parse_segment_value, segment_value

from . import chunk
from .chunk import KEY
from .lookup import UNSOUND, UNSUMMED, chunk_below, first_sound, header_of, readable, seek, until_next

T = TypeVar("T")
#: Says of a chunk's key and value whether they are what was written.
Sound = Callable[[memoryview, memoryview], bool]

_SUFFIX = ".lmdb"
#: Suffix of a file that is being removed.
_LEAVING_SUFFIX = ".leaving"
#: Suffix of a damaged file that is kept aside.
DAMAGED_SUFFIX = ".damaged"
#: Errors of LMDB and the chunks for a file that is damaged permanently.
DAMAGE = (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.InvalidError, lmdb.VersionMismatchError, struct.error)
#: Overhead of LMDB beside the values, in its pages and for each file (share, bytes).
_PAGE_OVERHEAD = 1.03
_FILE_OVERHEAD = 16 * 1024
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


class Segment:
    """One environment. ``runs`` and the counts belong to the event loop, the rest to the thread that is named.

    The writer thread alone calls :meth:`write`; reader threads call the read methods between :meth:`acquire` and
    :meth:`release` of the loop, which keep the environment open under them.
    """

    __slots__ = (
        "_env",
        "_map_size",
        "_readers",
        "_retired",
        "_writable",
        "busy",
        "damage",
        "disk",
        "file_bytes",
        "first_order",
        "found_store_id",
        "generation",
        "last_order",
        "live_bytes",
        "live_entries",
        "path",
        "runs",
        "store_id",
        "written_bytes",
        "written_entries",
    )

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        orders: tuple[int, int],
        generation: int,
        map_size: int,
        store_id: str,
        *,
        writable: bool,
    ) -> None:
        self.disk = disk
        self.first_order, self.last_order = orders
        self.generation = generation
        self.path = directory / f"{orders[0]:08d}-{orders[1]:08d}-{generation:04d}{_SUFFIX}"
        self.runs: dict[int, Run] = {}
        #: Frames' bytes and entries that were written here, and those of them that are still wanted.
        self.written_bytes = self.written_entries = 0
        self.live_bytes = self.live_entries = 0
        #: Disk space of the file, as of the last write.
        self.file_bytes = 0
        #: Whether a successor is being made of it.
        self.busy = False
        #: Entries that could not be read when it was rewritten: then its file is kept aside, not unlinked.
        self.damage: list[DamagedEntries] = []
        #: Id of the store it is written for, and the id in the file, None if it has none.
        self.store_id = store_id
        self.found_store_id: str | None = None
        self._map_size = map_size
        self._writable = writable
        self._env: lmdb.Environment | None = None
        self._readers = 0
        self._retired: Callable[[], None] | None = None

    @property
    def compact_bytes(self) -> int:
        """The approximate disk space of the live entries if they were rewritten.

        For a file that was rewritten, its own fill says what it would be: its dead share is what can be won.
        """
        live = _estimate(self.live_bytes, self.live_entries)
        if self.generation == 1:
            return min(live, self.file_bytes)
        return self.file_bytes * live // _estimate(self.written_bytes, self.written_entries)

    def environment(self) -> lmdb.Environment:
        """Return the environment, created or opened at first use."""
        if self._env is None:
            if self._writable:
                self._env = open_writable(self.disk, self.path, self._map_size)
            else:
                # A file that is no longer written needs no table of readers.
                self._env = self.disk.open_environment(self.path, self._map_size, readonly=True, lock=False)
        return self._env

    def create(self, path: Path) -> lmdb.Environment:
        """Return a new environment to fill this segment under another name; syncing it is the caller's."""
        environment = self.disk.open_environment(path, self._map_size, lock=False, sync=False)
        if self.store_id:
            with environment.begin(write=True) as txn:
                txn.put(SEGMENT_KEY, segment_value(self.store_id))
        return environment

    def adopt(self) -> None:
        """Make a file that says no store's id one of this store's; nobody uses it yet. Raises :class:`lmdb.Error`."""
        self.close()
        environment = self.disk.open_environment(self.path, self._map_size, lock=False)
        try:
            with environment.begin(write=True) as txn:
                txn.put(SEGMENT_KEY, segment_value(self.store_id))
        finally:
            environment.close()
        self.found_store_id = self.store_id

    def load_runs(self) -> None:
        """Find every ledger's first and last entry: two seeks a ledger.

        Where those are damaged, what is left of their ledger says what it can. Raises :class:`lmdb.Error`.
        """
        environment = self.environment()
        pages = environment.info()["last_pgno"] + 1
        if self.disk.file_length(self.path) < pages * environment.stat()["psize"]:
            # To read a page that is not there would end the process.
            raise lmdb.CorruptedError(f"the file is shorter than its {pages} pages")
        with environment.begin(buffers=True) as txn, txn.cursor() as cursor:
            found = cursor.first()
            if found and cursor.key() == SEGMENT_KEY:
                self.found_store_id = parse_segment_value(cursor.value())
                found = cursor.next()
            while found:
                ledger_id, first = KEY.unpack(cursor.key())
                opening = first_sound(cursor, ledger_id, cursor.next)
                if not cursor.set_range(KEY.pack(ledger_id + 1, 0)):
                    cursor.last()
                else:
                    cursor.prev()
                at = KEY.unpack(cursor.key())[1]
                end = at + chunk.likely_count(cursor.value()) - 1
                closing = first_sound(cursor, ledger_id, cursor.prev)
                if opening is None or closing is None:
                    self.runs[ledger_id] = Run(first, end, 0, 0)
                else:
                    last = closing.entry_id if closing.entry_id >= at else end
                    before = opening.total_bytes - opening.size
                    self.runs[ledger_id] = Run(first, last, before, closing.total_bytes)
                run = self.runs[ledger_id]
                self.written_bytes += run.total - run.dead_total
                self.written_entries += run.last - first + 1
                found = cursor.set_range(KEY.pack(ledger_id + 1, 0))
        self.live_bytes = self.written_bytes
        self.live_entries = self.written_entries
        self.file_bytes = self.disk.file_bytes(self.path)

    # -- writing ---------------------------------------------------------------------------------------------

    def write(self, ledgers: Mapping[int, Sequence[Entry]]) -> int:
        """Commit and sync entries, by ledger, as one transaction; return the file's disk space after it.

        Raises :class:`lmdb.Error` or :class:`OSError`.
        """
        items = [item for ledger_id in sorted(ledgers) for item in chunk.pack(ledgers[ledger_id])]
        with self.environment().begin(write=True) as txn, txn.cursor() as cursor:
            empty = not cursor.last()
            if empty and self.store_id:
                cursor.put(SEGMENT_KEY, segment_value(self.store_id))
            # Appending fills pages which inserting would split in two halves.
            append = empty or bytes(cursor.key()) < items[0][0]
            cursor.putmulti(items, append=append)
        try:
            return self.disk.file_bytes(self.path)
        except OSError:
            # The entries are durable although the size of the file is unknown: their sinks get their receipts.
            return self.file_bytes

    def added(self, ledgers: Mapping[int, Sequence[Entry]], disk_bytes: int) -> None:
        """Account for entries that :meth:`write` made durable."""
        runs = self.runs
        written = entries = 0
        for ledger_id, batch in ledgers.items():
            last = batch[-1]
            run = runs.get(ledger_id)
            if run is None:
                first = batch[0]
                run = runs[ledger_id] = Run(
                    first.entry_id, last.entry_id, first.total_bytes - len(first.frame), last.total_bytes
                )
                written += run.total - run.dead_total
            else:
                written += last.total_bytes - run.total
                run.last = last.entry_id
                run.total = last.total_bytes
            entries += len(batch)
        self.written_bytes += written
        self.live_bytes += written
        self.written_entries += entries
        self.live_entries += entries
        self.file_bytes = disk_bytes

    def trim(self, ledger_id: int, below: int) -> bool:
        """Count the ledger's entries below ``below`` as dead; return whether that is new for any."""
        run = self.runs[ledger_id]
        below = min(below, run.last + 1)
        if below <= run.live_from:
            return False
        if below > run.last:
            dead_total = run.total
        else:
            header = self.readable_header(ledger_id, below - 1)
            dead_total = run.dead_total if header is None else max(run.dead_total, header.total_bytes)
        self.live_bytes -= dead_total - run.dead_total
        self.live_entries -= below - run.live_from
        run.dead_total = dead_total
        run.live_from = below
        return True

    def wanted(self) -> dict[int, tuple[int, int]]:
        """Return the first and last entry still wanted of each ledger that has any."""
        return {
            ledger_id: (run.live_from, run.last) for ledger_id, run in self.runs.items() if run.live_from <= run.last
        }

    # -- readers ---------------------------------------------------------------------------------------------

    def acquire(self) -> None:
        self._readers += 1

    def begin(self) -> lmdb.Transaction | None:
        """Return a read transaction, or None if nothing was ever written here; between acquire and release."""
        return None if self._env is None else self._env.begin(buffers=True)

    def probe(self) -> None:
        """Begin to write, if anything ever was, and write nothing. Raises what the environment says."""
        if self._env is not None:
            self._env.begin(write=True).abort()

    def release(self) -> None:
        self._readers -= 1
        if self._readers == 0 and self._retired is not None:
            self._retired()

    def retire(self, unused: Callable[[], None]) -> None:
        """Call ``unused`` as soon as nobody reads: now, or when the last reader is ready."""
        self._retired = unused
        if self._readers == 0:
            unused()

    def close(self) -> None:
        """Close the environment, which nobody uses any more."""
        if self._env is not None:
            self._env.close()
            self._env = None

    def chunks(
        self, ledger_id: int, first: int, last: int, sound: Sound = chunk.is_sound
    ) -> Iterator[tuple[memoryview, int, int, int]]:
        """Yield chunks with any of the entries ``first..last``: value, its first entry id, indexes from and to.

        A value is valid until the next one is asked for. ``first`` is not below the ledger's first entry here. Raises
        :class:`DamagedEntries` at the first entry that is stored no more, or whose chunk is not ``sound``.
        """
        return self._chunks(ledger_id, first, first, min(last, self.runs[ledger_id].last), sound)

    def _chunks(
        self, ledger_id: int, begin: int, first: int, last: int, sound: Sound
    ) -> Iterator[tuple[memoryview, int, int, int]]:
        """As :meth:`chunks`, beginning with the chunk that holds the entry ``begin``."""
        below: int | None = None
        with self.environment().begin(buffers=True) as txn, txn.cursor() as cursor:
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
                    # The chunk behind the first one may be damaged, to which a search comes before.
                    below = chunk_below(self.environment(), ledger_id, first)
                if below is None or below == first:
                    raise DamagedEntries(
                        ledger_id, first, self._unsound_until(ledger_id, first, last), str(error)
                    ) from None
        if below is not None:
            yield from self._chunks(ledger_id, below, first, last, sound)
        elif first <= last:
            raise DamagedEntries(ledger_id, first, last, _MISSING)

    def _unsound_until(self, ledger_id: int, first: int, last: int) -> int:
        """Return the last of the entries ``first..last`` that pages which make no sense keep from being read.

        Damage is of pages, which hold neighbours: steps of growing size find its end well enough.
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
        """Return whether any pages that make sense lead to an entry's chunk."""
        return (
            self._seek_succeeds(ledger_id, entry_id) or chunk_below(self.environment(), ledger_id, entry_id) is not None
        )

    def _seek_succeeds(self, ledger_id: int, entry_id: int) -> bool:
        # A transaction that came to one that does not is good for nothing any more.
        with self.environment().begin(buffers=True) as txn, txn.cursor() as cursor:
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
            header = header_of(self.environment(), ledger_id, entry_id)
        except UNSOUND as error:
            raise DamagedEntries(ledger_id, entry_id, entry_id, str(error)) from None
        if header is None or header.entry_id != entry_id:
            raise DamagedEntries(ledger_id, entry_id, entry_id, _MISSING)
        return header

    def readable_header(self, ledger_id: int, entry_id: int) -> EntryHeader | None:
        """Return the header of an entry or, if that is lost, of the last readable one before it here."""
        return readable(self.environment(), ledger_id, entry_id, self.runs[ledger_id].first)

    def first_where(self, ledger_id: int, low: int, high: int, holds: Callable[[EntryHeader], bool]) -> int:
        """Return the first entry of ``low..high-1`` that ``holds``, ``high`` if none: log2 lookups.

        ``holds`` must stay true once it is. An entry that was trimmed, or is not here, does not hold; one that is lost
        is like the readable one before it.
        """
        run = self.runs[ledger_id]
        environment = self.environment()
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
        with self.environment().begin(buffers=True) as txn, txn.cursor() as cursor:
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
        run = self.runs.get(ledger_id)
        if run is None or unverified > run.last:
            following = min((each for each in self.runs if each > ledger_id), default=None)
            if following is None:
                return None, size, damaged
            ledger_id, run = following, self.runs[following]
            unverified = run.first
        until = self._unsound_until(ledger_id, unverified, run.last)
        damaged.append(LostRange(ledger_id, unverified, until, reason))
        return KEY.pack(ledger_id, until + 1), size, damaged

    def keep_aside(self) -> None:
        """Take the segment's file out of use under another name, for inspection. Raises :class:`OSError`."""
        self.disk.remove(self.path.with_name(self.path.name + "-lock"))
        self.disk.rename(self.path, self.path.with_name(self.path.name + DAMAGED_SUFFIX))
        self.disk.sync_directory(self.path.parent)

    def remove_files(self, cut_bytes: int, pause: Callable[[], bool]) -> None:
        """Take away the segment's files, ``cut_bytes`` at a time with a ``pause`` between; call it off the event loop.

        Under another name first: a start removes what bears no segment's name. If ``pause`` says that it is time to
        end, it has that left to do. Raises :class:`OSError`.
        """
        leaving = self.path.with_suffix(_LEAVING_SUFFIX)
        disk = self.disk
        disk.remove(self.path.with_name(self.path.name + "-lock"))
        if not disk.exists(self.path):
            # Nothing was ever written to it.
            return
        disk.rename(self.path, leaving)
        # Cut short under its old name, the next start would take it for a segment.
        disk.sync_directory(leaving.parent)
        for _ in disk.shrink(leaving, cut_bytes):
            if not pause():
                return
        disk.remove(leaving)


def _estimate(live_bytes: int, entries: int) -> int:
    return int((live_bytes + entries * chunk.ROW_BYTES) * _PAGE_OVERHEAD) + _FILE_OVERHEAD


def parse_name(path: Path) -> tuple[int, int, int]:
    """Return the first and last number and the generation of a segment's file. Raises :class:`ValueError`."""
    first, last, generation = path.stem.split("-")
    return int(first), int(last), int(generation)
