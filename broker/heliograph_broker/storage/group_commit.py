"""Group commit: one writer thread commits one group at a time, and while it does, the next group fills.

A group's metadata is committed and synced first, then its entries: a ledger's record is durable before the first
entry of that ledger is. Nothing is reported durable before its sync.
"""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path

import lmdb
import structlog

from .data_dir import DataDir
from .disk import Disk
from .entry import Entry
from .group import Committed, EntrySink, Group, RecordSource, StorageFull, StoreStats
from .scheduler import InlineScheduler, Scheduler
from .segment import Segment
from .segment_set import SegmentSet

log = structlog.get_logger(__name__)

#: A group is full with so many bytes of entries: its pages are memory until its transaction ends.
GROUP_BYTES = 16 * 1024 * 1024
#: A smaller metadata file is left as it is at start, however much of it is free.
_COMPACT_METADATA_BYTES = 4 * 1024 * 1024
_U32 = 1 << 32
_U64 = 1 << 64
_I64 = 1 << 63


class _Outcome:
    """What became of a group: its errors, the seconds it took, and the segment's disk space after it."""

    __slots__ = ("append_error", "disk_bytes", "metadata_error", "seconds")

    def __init__(self) -> None:
        self.metadata_error: Exception | None = None
        self.append_error: Exception | None = None
        self.seconds = 0.0
        self.disk_bytes = 0


class GroupCommit:
    """The writing half of the store. All methods are called on the event loop's thread, but :meth:`_write`."""

    def __init__(
        self, data_dir: DataDir, metadata: lmdb.Environment, segments: SegmentSet, scheduler: Scheduler, reserve: int
    ) -> None:
        self._data_dir = data_dir
        self._metadata = metadata
        self._metadata_bytes = data_dir.disk.file_bytes(data_dir.metadata)
        self._segments = segments
        self._scheduler = scheduler
        self._reserve = reserve
        self._filling = Group()
        #: Full groups that wait for the writer, before the one that fills.
        self._full: deque[Group] = deque()
        self._writing: Group | None = None
        self._seal_scheduled = False
        self.pending_bytes = 0
        self.disk_full = False
        self.stats = StoreStats()

    def append(self, sink: EntrySink, entry: Entry) -> None:
        """Add ``entry`` to the next group; ``sink`` is told when it is durable or that it failed.

        Raises :class:`ValueError`, and takes nothing, if a field is out of its stored range.
        """
        if not (
            0 <= entry.messages < _U32
            and 0 <= entry.publish_ms < _U64
            and 0 <= entry.receive_ms < _U64
            and -_I64 <= entry.deliver_at_ms < _I64
            and -_I64 <= entry.ttl_ms < _I64
            and 0 <= entry.key_hash < 65536
            and 0 <= entry.total_messages < _U64
            and 0 <= entry.total_bytes < _U64
        ):
            raise ValueError(f"entry {entry.ledger_id}:{entry.entry_id} has a field out of its stored range")
        group = self._filling
        size = len(entry.frame)
        if group.entry_bytes + size > GROUP_BYTES and group.entries:
            self._full.append(group)
            group = self._filling = Group()
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
        """Call back when everything submitted so far has been written or has failed.

        The callback gets None if the metadata submitted so far is durable, but for what had failed before it was
        submitted itself; or else the error. What became of entries only their sinks are told: a full disk fails them
        and stores the metadata. (The reverse does not happen: a group whose metadata fails stores no entries.)
        """
        self._filling.callbacks.append(callback)
        self._schedule_seal()

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
        while self._full or self._filling:
            self._seal()

    def _drain(self) -> None:
        """Write what is submitted in the calling thread; the scheduler is closed."""
        self._scheduler = InlineScheduler()
        self.commit()

    def _seal(self) -> None:
        self._seal_scheduled = False
        if self._writing is not None:
            return
        if self._full:
            group = self._full.popleft()
        elif self._filling:
            group = self._filling
            self._filling = Group()
        else:
            return
        group.seal()
        self._writing = group
        if not group.entries and not group.metadata:
            self._finish(group, _Outcome())
            return
        segment = self._segments.begin_write() if group.entries else None
        self._scheduler.write(
            lambda: self._write(group, segment),
            lambda outcome: self._finish(group, outcome),
        )

    def _write(self, group: Group, segment: Segment | None) -> _Outcome:
        """Writer thread: store the group's metadata, then its entries. Raises nothing."""
        started = time.perf_counter()
        outcome = _Outcome()
        try:
            if group.metadata:
                self._write_metadata(group)
        except Exception as error:  # whatever it is, somebody waits to be told
            outcome.metadata_error = outcome.append_error = error
        if segment is not None and outcome.append_error is None:
            try:
                outcome.disk_bytes = self._write_entries(group, segment)
            except (lmdb.MapFullError, lmdb.DiskError) as error:
                outcome.append_error = StorageFull(str(error))
            except Exception as error:  # as above; the metadata is stored
                outcome.append_error = error
        outcome.seconds = time.perf_counter() - started
        return outcome

    def _write_metadata(self, group: Group) -> None:
        with self._metadata.begin(write=True) as txn:
            for key, value in group.metadata.items():
                if value is None:
                    txn.delete(key)
                else:
                    txn.put(key, value)
        self._metadata_bytes = self._data_dir.disk.file_bytes(self._data_dir.metadata)

    def _write_entries(self, group: Group, segment: Segment) -> int:
        if self._data_dir.free_bytes() < self._reserve + group.entry_bytes:
            raise StorageFull(
                f"less than {self._reserve} bytes would be free in {self._data_dir.path}: new messages are refused"
            )
        group.sort()
        return segment.write(group.by_ledger)

    def _finish(self, group: Group, outcome: _Outcome) -> None:
        """Tell everybody; then the next group may be written."""
        self.pending_bytes -= group.entry_bytes
        if group.entries or group.metadata:
            self.stats.groups += 1
            self.stats.sync_seconds.observe(outcome.seconds)
            self.stats.group_entries.observe(len(group.entries))
            self.stats.group_bytes.observe(group.entry_bytes)
        self._writing = None
        error = outcome.append_error
        if group.entries:
            self._segments.end_write(group.by_ledger if error is None else None, outcome.disk_bytes)
        if group.entries and error is None:
            self.disk_full = False
            if self._scheduler.concurrent and (self._full or self._filling):
                # The disk is faster asked than the receipts are encoded: let the writer go on meanwhile.
                self._seal()
            self.stats.commit_s = outcome.seconds
            for sink, entries in group.appends.items():
                try:
                    sink.entries_durable(entries)
                except Exception:
                    # One topic's mistake must not keep the others from their receipts.
                    log.exception("unhandled error in a receiver of durable entries")
        elif group.entries and error is not None:
            log.error("entries were not stored", entries=len(group.entries), error=str(error))
            self.disk_full = isinstance(error, StorageFull)
            self._fail(group, error)
        if outcome.metadata_error is not None:
            log.error("metadata was not stored", records=len(group.metadata), error=str(outcome.metadata_error))
            for other in (*self._full, self._filling):
                other.doubtful = len(other.callbacks)
                other.doubt = outcome.metadata_error
        for number, callback in enumerate(group.callbacks):
            doubt = group.doubt if number < group.doubtful else None
            try:
                callback(outcome.metadata_error or doubt)
            except Exception:
                # One callback's mistake must not keep the others, which belong to other clients, from being told.
                log.exception("unhandled error in a commit callback")
        if self._full or self._filling:
            self._schedule_seal()

    def _fail(self, group: Group, error: Exception) -> None:
        """Fail the group's entries and, with them, what their sinks appended since: it would leave a gap."""
        waiting = [*self._full, self._filling]
        for sink, entries in group.appends.items():
            later: list[Entry] = []
            for other in waiting:
                later += other.appends.pop(sink, [])
            if later:
                gone = set(map(id, later))
                for other in waiting:
                    other.entries = [entry for entry in other.entries if id(entry) not in gone]
                    other.entry_bytes = sum(len(entry.frame) for entry in other.entries)
                self.pending_bytes -= sum(len(entry.frame) for entry in later)
            try:
                sink.entries_failed(entries + later, error)
            except Exception:
                log.exception("unhandled error in a receiver of failed entries")


def open_metadata(disk: Disk, path: Path, map_bytes: int) -> lmdb.Environment:
    """Open or create the metadata's environment, without most of its free pages if it is largely free.

    LMDB uses free pages again but never returns them, so the file keeps the size of its worst moment: large cursors.
    A copy takes its place by a rename, so a crash leaves the one or the other. Raises :class:`lmdb.Error`.
    """
    temporary = path.with_suffix(".tmp")
    disk.remove(temporary)
    environment = disk.open_environment(path, map_bytes)
    pages = environment.info()["last_pgno"] + 1
    stat = environment.stat()
    used = stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
    if pages * stat["psize"] < _COMPACT_METADATA_BYTES or used * 4 > pages:
        return environment
    try:
        disk.copy_environment(environment, temporary)
    except (lmdb.Error, OSError) as error:
        log.warning("the metadata's free pages stay", path=str(path), error=str(error))
        disk.remove(temporary)
        return environment
    environment.close()
    disk.rename(temporary, path)
    disk.sync_directory(path.parent)
    return disk.open_environment(path, map_bytes)
