"""The ledger store: entries and metadata made durable in groups, read back in short transactions.

One writer thread commits one group at a time, with one sync of the metadata environment (if the group has any) and
one of the open segment; while it does, the next group fills. Metadata goes first: a ledger's record is durable
before the first entry of that ledger is. Nothing is reported durable before its sync.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import lmdb
import structlog

from heliograph_broker.clock import Clock

from .data_dir import DataDir, DataDirError
from .entry import Entry, EntryHeader
from .group import Committed, EntrySink, Group, RecordSource, StorageFull, StoreStats
from .scheduler import InlineScheduler, LoopScheduler, Scheduler
from .segment import Segment
from .segment_set import SegmentSet

__all__ = ["DataDirError", "InlineScheduler", "LedgerStore", "LoopScheduler", "StorageFull"]

log = structlog.get_logger(__name__)

T = TypeVar("T")

_NEXT_LEDGER = b"next-ledger-id"
_LEDGER_BLOCK = 1000
_METADATA_MAP_BYTES = 32 * 1024 * 1024 * 1024


class LedgerStore:
    """See the module and :mod:`.group`. All methods are called on the event loop's thread."""

    def __init__(
        self, data_dir: DataDir, clock: Clock, scheduler: Scheduler, segment_bytes: int, disk_reserve_bytes: int
    ) -> None:
        self._data_dir = data_dir
        self._clock = clock
        self._scheduler = scheduler
        self._reserve = disk_reserve_bytes
        self._metadata = lmdb.open(
            str(data_dir.metadata), map_size=_METADATA_MAP_BYTES, subdir=False, lock=True, max_readers=64
        )
        self._segments = SegmentSet(data_dir.segments, segment_bytes, scheduler)
        self._filling = Group()
        self._writing: Group | None = None
        self._seal_scheduled = False
        self._closed = False
        self.pending_bytes = 0
        self.disk_full = False
        self.stats = StoreStats()
        stored = self.get(_NEXT_LEDGER)
        self._next_ledger = self._ledger_limit = int(stored) if stored else 0

    @classmethod
    def open(
        cls,
        data_dir: Path,
        clock: Clock,
        *,
        scheduler: Scheduler,
        segment_bytes: int = 128 * 1024 * 1024,
        disk_reserve_bytes: int = 64 * 1024 * 1024,
    ) -> LedgerStore:
        """Open or create the store in ``data_dir``; the store ends ``scheduler`` from here on.

        Raises :class:`DataDirError`.
        """
        try:
            directory = DataDir(data_dir)
        except DataDirError:
            # Its threads would keep a process alive that has nothing to do.
            scheduler.close()
            raise
        try:
            return cls(directory, clock, scheduler, segment_bytes, disk_reserve_bytes)
        except (lmdb.Error, OSError, ValueError) as error:
            directory.close()
            scheduler.close()
            raise DataDirError(f"cannot open the store in {data_dir}: {error}") from error

    def close(self) -> None:
        """Finish the group under way, end the threads, close the environments. Nothing may be pending."""
        if self._closed:
            return
        self._closed = True
        self._scheduler.close()
        self._segments.close()
        self._metadata.close()
        self._data_dir.close()

    # -- writing ---------------------------------------------------------------------------------------------

    def append(self, sink: EntrySink, entry: Entry) -> None:
        """Add ``entry`` to the next group; ``sink`` is told when it is durable or that it failed."""
        group = self._filling
        size = len(entry.frame)
        group.entries.append(entry)
        group.entry_bytes += size
        self.pending_bytes += size
        appended = group.appends.get(sink)
        if appended is None:
            group.appends[sink] = [entry]
        else:
            appended.append(entry)
        if not self._seal_scheduled:
            self._schedule_seal()

    def put(self, key: bytes, value: bytes) -> None:
        """Write a metadata record with the next group."""
        self._filling.metadata[key] = value
        self._schedule_seal()

    def delete(self, key: bytes) -> None:
        """Delete a metadata record with the next group."""
        self._filling.metadata[key] = None
        self._schedule_seal()

    def put_at_commit(self, source: RecordSource) -> None:
        """Write the record ``source`` has when the next group is sealed."""
        self._filling.sources[source] = None
        self._schedule_seal()

    def after_commit(self, callback: Committed) -> None:
        """Call back when everything submitted so far is durable, with the error if its metadata is not."""
        self._filling.callbacks.append(callback)
        self._schedule_seal()

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def idle(self) -> bool:
        """Whether no group is being written, so that a small one costs nobody a wait."""
        return self._writing is None

    def _schedule_seal(self) -> None:
        if not self._seal_scheduled and self._writing is None:
            self._seal_scheduled = True
            self._scheduler.soon(self._seal)

    def commit(self) -> None:
        """Write everything submitted, now, and everything that is submitted by the callbacks (inline scheduler)."""
        while self._filling:
            self._seal()

    def _seal(self) -> None:
        self._seal_scheduled = False
        if self._writing is not None or not self._filling:
            return
        group = self._filling
        self._filling = Group()
        group.seal()
        self._writing = group
        if not group.entries and not group.metadata:
            self._finish(group, self._segments.open_segment, (None, None, 0.0))
            return
        segment = self._segments.open_segment
        self._scheduler.write(
            lambda: self._write(group, segment), lambda outcome: self._finish(group, segment, outcome)
        )

    def _write(self, group: Group, segment: Segment) -> tuple[Exception | None, Exception | None, float]:
        """Writer thread: return what went wrong with the metadata, with the entries, and the seconds it took."""
        started = time.perf_counter()
        metadata_error: Exception | None = None
        append_error: Exception | None = None
        if group.metadata:
            try:
                with self._metadata.begin(write=True) as txn:
                    for key, value in group.metadata.items():
                        if value is None:
                            txn.delete(key)
                        else:
                            txn.put(key, value)
            except (lmdb.Error, OSError) as error:
                metadata_error = error
        if group.entries:
            if metadata_error is not None:
                append_error = metadata_error
            elif self._data_dir.free_bytes() < self._reserve + group.entry_bytes:
                append_error = StorageFull(
                    f"less than {self._reserve} bytes would be free in {self._data_dir.path}: new messages are refused"
                )
            else:
                try:
                    segment.write(group.entries)
                except (lmdb.MapFullError, lmdb.DiskError) as error:
                    append_error = StorageFull(str(error))
                except (lmdb.Error, OSError) as error:
                    append_error = error
        return metadata_error, append_error, time.perf_counter() - started

    def _finish(self, group: Group, segment: Segment, outcome: Any) -> None:
        """Tell everybody; then the next group may be written."""
        if isinstance(outcome, Exception):
            outcome = (outcome, outcome if group.entries else None, 0.0)
        metadata_error, append_error, seconds = outcome
        self.pending_bytes -= group.entry_bytes
        if group.entries or group.metadata:
            self.stats.groups += 1
            self.stats.commit_s = seconds
            self.stats.sync_seconds.observe(seconds)
            self.stats.group_entries.observe(len(group.entries))
            self.stats.group_bytes.observe(group.entry_bytes)
        self._writing = None
        if append_error is None and group.entries:
            self.disk_full = False
            segment.added(group.entries)
            self._segments.written(segment, {entry.ledger_id for entry in group.entries})
            if self._filling:
                # The disk is faster asked than the receipts are encoded: let the writer go on meanwhile.
                self._seal()
            for sink, entries in group.appends.items():
                sink.entries_durable(entries)
        elif append_error is not None:
            log.error("entries were not stored", entries=len(group.entries), error=str(append_error))
            self.disk_full = isinstance(append_error, StorageFull)
            self._fail(group, append_error)
        if metadata_error is not None:
            log.error("metadata was not stored", records=len(group.metadata), error=str(metadata_error))
        for callback in group.callbacks:
            try:
                callback(metadata_error)
            except Exception:
                # One callback's mistake must not keep the others, which belong to other clients, from being told.
                log.exception("unhandled error in a commit callback")
        if self._filling:
            self._schedule_seal()

    def _fail(self, group: Group, error: Exception) -> None:
        """Fail the group's entries and, with them, what their sinks appended since: it would leave a gap."""
        filling = self._filling
        for sink, entries in group.appends.items():
            later = filling.appends.pop(sink, [])
            if later:
                gone = set(map(id, later))
                filling.entries = [entry for entry in filling.entries if id(entry) not in gone]
                lost = sum(len(entry.frame) for entry in later)
                filling.entry_bytes -= lost
                self.pending_bytes -= lost
            sink.entries_failed(entries + later, error)

    # -- reading ---------------------------------------------------------------------------------------------

    def read(
        self,
        ledger_id: int,
        first_entry: int,
        last_entry: int,
        max_bytes: int,
        callback: Callable[[list[Entry] | Exception], None],
    ) -> None:
        """Read entries from ``first_entry`` on, at least one if there is one; a later call gets the rest."""
        self._read(
            ledger_id,
            first_entry,
            lambda segment: segment.read_entries(ledger_id, first_entry, last_entry, max_bytes),
            callback,
        )

    def read_headers(
        self,
        ledger_id: int,
        first_entry: int,
        last_entry: int,
        callback: Callable[[list[EntryHeader] | Exception], None],
    ) -> None:
        """As :meth:`read`, without the frames."""
        self._read(
            ledger_id,
            first_entry,
            lambda segment: segment.read_headers(ledger_id, first_entry, last_entry),
            callback,
        )

    def _read(
        self, ledger_id: int, first_entry: int, job: Callable[[Segment], Any], callback: Callable[[Any], None]
    ) -> None:
        segment = self._segments.holder(ledger_id, first_entry)
        if segment is None:
            callback([])
            return
        segment.acquire()

        def done(result: Any) -> None:
            segment.release()
            callback(result)

        self._scheduler.read(lambda: job(segment), done)

    def map_frames(
        self, ledger_id: int, first_entry: int, last_entry: int, function: Callable[[memoryview], T]
    ) -> Iterator[T]:
        """Yield ``function`` of the frame of each entry, read in the calling thread: for a bounded number of them.

        Only the pages it looks at are read. The view it is given is void when it has returned.
        """
        at = first_entry
        while at <= last_entry:
            segment = self._segments.holder(ledger_id, at)
            if segment is None:
                return
            mapped = segment.map_frames(ledger_id, at, last_entry, function)
            if not mapped:
                return
            at = mapped[-1][0] + 1
            for _, value in mapped:
                yield value

    def work(self, job: Callable[[], Any], callback: Callable[[Any], None]) -> None:
        """Run a job that takes its time off the loop's thread; the callback gets its result or exception."""
        self._scheduler.background(job, callback)

    def header(self, ledger_id: int, entry_id: int) -> EntryHeader | None:
        """Return one header by a point read in the calling thread."""
        segment = self._segments.holder(ledger_id, entry_id)
        return None if segment is None else segment.header(ledger_id, entry_id)

    def bounds(self, ledger_id: int) -> tuple[int, int] | None:
        """Return the first and last stored entry id of a ledger, None if it has none."""
        return self._segments.bounds(ledger_id)

    def get(self, key: bytes) -> bytes | None:
        """Return a metadata record as last committed."""
        with self._metadata.begin() as txn:
            value = txn.get(key)
            return None if value is None else bytes(value)

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the committed metadata records whose key begins with ``prefix``, in order. For start-up."""
        with self._metadata.begin() as txn, txn.cursor() as cursor:
            more = cursor.set_range(prefix)
            records = []
            while more and cursor.key().startswith(prefix):
                records.append((bytes(cursor.key()), bytes(cursor.value())))
                more = cursor.next()
        yield from records

    # -- ledgers and space -----------------------------------------------------------------------------------

    def next_ledger_id(self) -> int:
        """Return a ledger id never returned before, also not before a crash."""
        if self._next_ledger >= self._ledger_limit:
            self._ledger_limit = self._next_ledger + _LEDGER_BLOCK
            # Durable with this group's metadata, hence before any entry of the new ledger.
            self.put(_NEXT_LEDGER, str(self._ledger_limit).encode())
        self._next_ledger += 1
        return self._next_ledger

    def retain_ledgers(self, kept: Mapping[int, int]) -> None:
        """At start: keep of each ledger named the entries from its first one on, and nothing of any other."""
        self._segments.retain(kept)

    def trim(self, ledger_id: int, below_entry: int) -> None:
        """Let entries below ``below_entry`` go; their space comes back in the background."""
        self._segments.trim(ledger_id, below_entry)

    def drop_ledger(self, ledger_id: int) -> None:
        """Let a whole ledger go."""
        self._segments.drop(ledger_id)

    def maintain(self) -> None:
        """Begin to give back disk space where enough of it is dead. Call it now and then; cheap if nothing changed."""
        self._segments.reclaim(writing=self._writing is not None and bool(self._writing.entries))
        if self.disk_full and self._data_dir.free_bytes() > self._reserve:
            # Without traffic no append would find out, and the broker would stay not ready.
            self.disk_full = False

    def live_bytes(self) -> int:
        """Return the bytes of frames that are still wanted."""
        return self._segments.live_bytes()

    def disk_bytes(self) -> int:
        """Return the disk space the data directory takes (reads the directory)."""
        return self._data_dir.used_bytes()

    def free_bytes(self) -> int:
        """Return the disk space an ordinary user may still write where the data directory is."""
        return self._data_dir.free_bytes()
