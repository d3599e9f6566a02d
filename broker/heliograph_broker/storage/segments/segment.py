"""A segment: one LMDB environment that holds chunks of many ledgers, written once and then only read.

Keys are ``ledger id · entry id`` (big-endian u64s), so a ledger's chunks lie together in order. The file is named
``<first>-<last>-<generation>.lmdb``: segments are numbered in the order of their writing, and a file rewritten from
several neighbours stands for all their numbers. A file replaces every other whose numbers it covers.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import lmdb

from heliograph_broker.storage.base.damage import DamagedEntries
from heliograph_broker.storage.base.entry import Entry
from heliograph_broker.storage.disk.disk import Disk
from heliograph_broker.storage.disk.environment import open_writable
from heliograph_broker.storage.disk.identity import SEGMENT_KEY, parse_segment_value, segment_value

from . import chunk
from .chunk import KEY
from .lookup import first_sound
from .segment_reader import Run, SegmentReader

_SUFFIX = ".lmdb"
#: Suffix of a file that is being removed.
_LEAVING_SUFFIX = ".leaving"
#: Suffix of a damaged file that is set aside.
DAMAGED_SUFFIX = ".damaged"
#: Errors of LMDB and the chunks for a file that is damaged permanently.
DAMAGE = (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.InvalidError, lmdb.VersionMismatchError, struct.error)
#: Overhead of LMDB beside the values, in its pages and for each file (share, bytes).
_PAGE_OVERHEAD = 1.03
_FILE_OVERHEAD = 16 * 1024


class Segment:
    """One environment. ``runs`` and the counts belong to the event loop, the rest to the thread that is named.

    The writer thread alone calls :meth:`write`; reader threads use :attr:`reader` between the loop's calls of
    :meth:`acquire` and :meth:`release`, which keep the environment open under them.
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
        "reader",
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
        #: Reads the entries, and verifies them.
        self.reader = SegmentReader(self.environment, self.runs)
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
        """Return a new environment to fill this segment under another name; the caller syncs it."""
        environment = self.disk.open_environment(path, self._map_size, lock=False, sync=False)
        if self.store_id:
            with environment.begin(write=True) as txn:
                txn.put(SEGMENT_KEY, segment_value(self.store_id))
        return environment

    def adopt(self) -> None:
        """Write this store's id into a file without one, which nobody uses yet. Raises :class:`lmdb.Error`."""
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

        Where those are damaged, the rest of the ledger gives an estimate. Raises :class:`lmdb.Error`.
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
        """Count the ledger's entries below ``below`` as dead; return whether any of them was live."""
        run = self.runs[ledger_id]
        below = min(below, run.last + 1)
        if below <= run.live_from:
            return False
        if below > run.last:
            dead_total = run.total
        else:
            header = self.reader.readable_header(ledger_id, below - 1)
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
        """Begin a write transaction and abort it, if the environment is open. Raises :class:`lmdb.Error`."""
        if self._env is not None:
            self._env.begin(write=True).abort()

    def release(self) -> None:
        self._readers -= 1
        if self._readers == 0 and self._retired is not None:
            self._retired()

    def retire(self, unused: Callable[[], None]) -> None:
        """Call ``unused`` as soon as there is no reader: now, or when the last one releases the segment."""
        self._retired = unused
        if self._readers == 0:
            unused()

    def close(self) -> None:
        """Close the environment, which nobody uses any more."""
        if self._env is not None:
            self._env.close()
            self._env = None

    def keep_aside(self) -> None:
        """Take the segment's file out of use under another name, for inspection. Raises :class:`OSError`."""
        self.disk.remove(self.path.with_name(self.path.name + "-lock"))
        self.disk.rename(self.path, self.path.with_name(self.path.name + DAMAGED_SUFFIX))
        self.disk.sync_directory(self.path.parent)

    def remove_files(self, cut_bytes: int, pause: Callable[[], bool]) -> None:
        """Remove the segment's files, ``cut_bytes`` at a time with a ``pause`` between; call it off the event loop.

        They are renamed first: a start removes files that have no segment's name, so it also finishes a removal that
        ended because ``pause`` returned False. Raises :class:`OSError`.
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
