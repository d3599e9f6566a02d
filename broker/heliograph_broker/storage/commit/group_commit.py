"""Group commit: one writer thread commits one group at a time, and while it does, the next group fills.

A group's metadata is committed and synced first, then its entries: a ledger's record is durable before the first
entry of that ledger is. Nothing is reported durable before its sync.

Metadata that could not be written is *carried over*: the next group writes it too, newer values of a key winning, so
that nothing is reported durable while something before it is not. An error after which LMDB cannot be trusted fails
the store: it accepts no more writes, and :attr:`GroupCommit.failure` says why.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Mapping

import structlog

from heliograph_broker.storage.base.completion import Completion
from heliograph_broker.storage.base.entry import Entry
from heliograph_broker.storage.base.failure import StorageFull, StoreFailed, breaks_store, lacks_space
from heliograph_broker.storage.base.scheduler import Scheduler
from heliograph_broker.storage.disk.disk_space import DiskSpace
from heliograph_broker.storage.disk.metadata import Metadata
from heliograph_broker.storage.segments.segment import Segment
from heliograph_broker.storage.segments.segment_set import SegmentSet

from .group import Durable, EntrySink, Group, RecordSource, StoreStats, check_record

log = structlog.get_logger(__name__)

#: Maximum size of a group's entries (bytes): its pages stay in memory until its transaction ends.
GROUP_BYTES = 16 * 1024 * 1024
_U32 = 1 << 32
_U64 = 1 << 64
_I64 = 1 << 63


class _Outcome:
    """The outcome of a group: its errors, the seconds it took, and the segment's disk space after it."""

    __slots__ = ("append_error", "broken", "disk_bytes", "metadata_error", "seconds", "written")

    def __init__(self) -> None:
        self.metadata_error: Exception | None = None
        self.append_error: Exception | None = None
        #: Whether the group was given to the writer.
        self.written = True
        #: Why an environment is unusable, None if it is not.
        self.broken: str | None = None
        self.seconds = 0.0
        self.disk_bytes = 0

    @classmethod
    def failed(cls, error: Exception) -> _Outcome:
        """Return the outcome of a group that is not even written."""
        outcome = cls()
        outcome.metadata_error = outcome.append_error = error
        outcome.written = False
        return outcome

    @classmethod
    def unknown(cls, error: Exception) -> _Outcome:
        """Return the outcome of a group of which the writer cannot tell what is stored: only a restart finds out."""
        outcome = cls()
        outcome.broken = str(error)
        outcome.metadata_error = outcome.append_error = StoreFailed(f"the store has failed: {outcome.broken}")
        return outcome

    def note(self, error: Exception) -> None:
        """Record a disk error by its class (:mod:`.failure`)."""
        if breaks_store(error):
            self.broken = f"{type(error).__name__}: {error}"
            self.append_error = StoreFailed(f"the store has failed: {self.broken}")
        else:
            self.append_error = StorageFull(str(error)) if lacks_space(error) else error


class GroupCommit:
    """Writes entries and records. All methods are called on the event loop's thread, except :meth:`_write`.

    The entries of a ledger are appended in the order of their ids, and ``total_bytes`` grows from one to the next by
    exactly the size of its frame: live bytes are counted from it.
    """

    def __init__(self, metadata: Metadata, segments: SegmentSet, space: DiskSpace, scheduler: Scheduler) -> None:
        self._metadata = metadata
        self._segments = segments
        self._space = space
        self._scheduler = scheduler
        self._filling = Group()
        #: Full groups that wait for the writer, older than the one that is being filled.
        self._full: deque[Group] = deque()
        self._writing: Group | None = None
        self._seal_scheduled = False
        #: Metadata of earlier groups that is not durable yet, and the callbacks that wait for it.
        self._carried: dict[bytes, bytes | None] = {}
        self._carried_durable: list[Durable] = []
        self._write_carried = False
        #: Sources whose records could not be taken when they were last tried, and why.
        self._refused: dict[RecordSource, Exception] = {}
        self.pending_bytes = 0
        #: Why the store has failed, None if it has not.
        self.failure: str | None = None
        self._on_failure: list[Callable[[str], None]] = []
        self.stats = StoreStats()

    def append(self, sink: EntrySink, entry: Entry) -> None:
        """Add ``entry`` to the next group; ``sink`` is notified when it is durable or has failed.

        Raises :class:`ValueError`, and takes nothing, if a field is out of its stored range.
        """
        if not (
            0 <= entry.messages < _U32
            and 0 <= entry.publish_ms < _U64
            and 0 <= entry.receive_ms < _U64
            and -_I64 <= entry.deliver_at_ms < _I64
            and -_I64 <= entry.ttl_ms < _I64
            and entry.key_hash >= 0
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
        """Write a record of the store itself with the next group; the core uses :meth:`submit`.

        Raises :class:`ValueError`, and takes nothing, if key or value is too large.
        """
        check_record(key, value)
        self._filling.metadata[key] = value
        self._schedule_seal()

    def delete(self, key: bytes) -> None:
        """Delete a record of the store itself with the next group. Raises :class:`ValueError` as :meth:`put` does."""
        check_record(key, None)
        self._filling.metadata[key] = None
        self._schedule_seal()

    def write_record(self, key: bytes, value: bytes | None) -> None:
        """:meth:`put` a record or, if its value is None, :meth:`delete` it."""
        if value is None:
            self.delete(key)
        else:
            self.put(key, value)

    def submit(self, source: RecordSource) -> None:
        """Write the records that ``source`` has when the next group is sealed.

        They override a :meth:`put` or :meth:`delete` of the same key in that group.
        """
        self._filling.sources[source] = None
        self._schedule_seal()

    def after_commit(self, callback: Completion[None], rests_on: Collection[RecordSource] | None = None) -> None:
        """Call back when everything submitted so far has been written or has failed.

        The callback gets None once all metadata submitted so far, in this group or earlier, is durable; or the error. A
        source whose records cannot be taken concerns only those whose answer rests on it: ``rests_on`` names the
        sources, whenever they were submitted. Without it they are those submitted to the group that is filled now.
        Failed metadata is written again with later groups, so that it may become durable after all. Only the sinks
        of entries are notified of their outcome: a full disk fails them and stores the metadata. (The reverse does not
        happen: a group whose metadata fails stores no entries.)
        """
        self._filling.callbacks.append((callback, rests_on))
        self._schedule_seal()

    def when_durable(self, callback: Durable) -> None:
        """Call back once all records :meth:`put` so far are durable, however many attempts that takes."""
        self._filling.durable.append(callback)
        self._schedule_seal()

    def on_failure(self, callback: Callable[[str], None]) -> None:
        """Call back with the reason when the store fails; at once if it has."""
        if self.failure is not None:
            callback(self.failure)
        else:
            self._on_failure.append(callback)

    @property
    def idle(self) -> bool:
        """Whether no group is being written, so that a small one delays no other."""
        return self._writing is None

    def ledgers_under_way(self) -> set[int]:
        """Return the ledgers with entries that were submitted and are not finished."""
        groups = [*self._full, self._filling]
        if self._writing is not None:
            groups.append(self._writing)
        return {entry.ledger_id for group in groups for entry in group.entries}

    def _schedule_seal(self) -> None:
        if not self._seal_scheduled and self._writing is None:
            self._seal_scheduled = True
            self._scheduler.soon(self._seal)

    def commit(self) -> None:
        """Write everything submitted, now, and everything that is submitted by the callbacks (inline scheduler)."""
        while self._full or self._filling or self._write_carried:
            self._seal()

    @property
    def carries_metadata(self) -> bool:
        """Whether metadata that could not be written waits for another attempt."""
        return bool(self._carried)

    def retry(self) -> None:
        """Write what was carried over, though nothing new is submitted."""
        if self._carried and self.failure is None:
            self._write_carried = True
            self._schedule_seal()

    def drain(self, scheduler: Scheduler) -> None:
        """Write what is submitted with another scheduler, which runs jobs inline: the store's own is closed."""
        self._scheduler = scheduler
        self.retry()
        self.commit()

    def probe_segment(self, done: Completion[None]) -> None:
        """Have the writer begin a write to the open segment and abort it; ``done`` gets the error, if any."""
        segment = self._segments.open_segment
        self._scheduler.write(segment.probe, done)

    def _seal(self) -> None:
        self._seal_scheduled = False
        if self._writing is None:
            ended = self._begin_next()
            if ended is not None:
                self._finish(*ended)

    def _begin_next(self) -> tuple[Group, _Outcome] | None:
        """Seal the next group and hand it to the writer; return it if nothing of it is written, to be finished."""
        if self._full:
            group = self._full.popleft()
        elif self._filling or self._write_carried:
            group = self._filling
            self._filling = Group()
        else:
            return None
        self._write_carried = False
        group.seal(self._refused)
        self._carry(group)
        self._writing = group
        if self.failure is not None:
            return group, _Outcome.failed(StoreFailed(f"the store has failed: {self.failure}"))
        if not group.entries and not group.metadata:
            return group, _Outcome()
        segment = self._segments.begin_write() if group.entries else None
        self._scheduler.write(
            lambda: self._write(group, segment),
            lambda outcome: self._finish(
                group, _Outcome.unknown(outcome) if isinstance(outcome, Exception) else outcome
            ),
        )
        return None

    def _carry(self, group: Group) -> None:
        """Add to a sealed group what groups before it could not write."""
        if self._carried:
            self._carried.update(group.metadata)
            group.metadata = self._carried
            self._carried = {}
        if self._carried_durable:
            group.durable = self._carried_durable + group.durable
            self._carried_durable = []

    def _write(self, group: Group, segment: Segment | None) -> _Outcome:
        """Writer thread: store the group's metadata, then its entries. Raises nothing."""
        started = time.perf_counter()
        outcome = _Outcome()
        try:
            if group.metadata:
                self._metadata.write(group.metadata)
        except Exception as error:  # whatever it is, somebody waits for the outcome
            size = sum(len(key) + len(value or b"") for key, value in group.metadata.items())
            outcome.note(self._space.cause(error, size))
            outcome.metadata_error = outcome.append_error
        if segment is not None and outcome.append_error is None:
            try:
                outcome.disk_bytes = self._write_entries(group, segment)
            except Exception as error:  # as above; the metadata is stored
                outcome.note(self._space.cause(error, group.entry_bytes))
        outcome.seconds = time.perf_counter() - started
        return outcome

    def _write_entries(self, group: Group, segment: Segment) -> int:
        self._space.check_entries(group.entry_bytes)
        group.sort()
        return segment.write(group.by_ledger)

    def _finish(self, group: Group, outcome: _Outcome) -> None:
        """Notify everybody; then the next group may be written."""
        self.pending_bytes -= group.entry_bytes
        if outcome.written and (group.entries or group.metadata):
            self.stats.groups += 1
            self.stats.sync_seconds.observe(outcome.seconds)
            self.stats.group_entries.observe(len(group.entries))
            self.stats.group_bytes.observe(group.entry_bytes)
        self._writing = None
        error = outcome.append_error
        ended: tuple[Group, _Outcome] | None = None
        if group.entries and outcome.written:
            self._segments.end_write(group.by_ledger if error is None else None, outcome.disk_bytes)
        if outcome.metadata_error is not None:
            self._carried = group.metadata
            self._carried_durable = group.durable
        if error is not None:
            self._note_error(group, outcome, error)
        for sink, (entries, reason) in group.withheld.items():
            self.pending_bytes -= sum(len(entry.frame) for entry in entries)
            self._fail({sink: entries}, reason)
        if group.entries and error is None:
            self._space.available()
            if self._scheduler.concurrent:
                # Start the next write before encoding receipts, which takes longer.
                ended = self._begin_next()
            self.stats.commit_s = outcome.seconds
            self._deliver(group)
        elif group.entries and error is not None:
            self._fail(group.appends, error)
        self._complete(group, outcome)
        if ended is not None:
            # Not before: those waiting for the next group are notified after those waiting for this one.
            self._finish(*ended)
        elif self._full or self._filling:
            self._schedule_seal()

    def _deliver(self, group: Group) -> None:
        """Give every sink its durable entries."""
        for sink, entries in group.appends.items():
            try:
                sink.entries_durable(entries)
            except Exception:
                # An error in one topic must not keep the others from their receipts.
                log.exception("unhandled error in a receiver of durable entries")

    def _complete(self, group: Group, outcome: _Outcome) -> None:
        """Call the callbacks that wait for a group's metadata."""
        if outcome.metadata_error is None:
            for durable in group.durable:
                try:
                    durable()
                except Exception:
                    log.exception("unhandled error in a callback of durable records")
        for callback, rests_on in group.callbacks:
            try:
                callback(outcome.metadata_error or group.refusal(rests_on))
            except Exception:
                # An error in one callback must not keep the others, of other clients, from being notified.
                log.exception("unhandled error in a commit callback")

    def _note_error(self, group: Group, outcome: _Outcome, error: Exception) -> None:
        """Log the error, and fail the store if it is broken."""
        if isinstance(error, StorageFull):
            self._space.refused(len(group.entries), error)
            return
        self._space.available()
        if outcome.metadata_error is not None:
            log.error(
                "metadata was not stored; it is retried with the next group",
                records=len(group.metadata),
                error=str(error),
            )
        if group.entries:
            log.error("entries were not stored", entries=len(group.entries), error=str(error))
        if outcome.broken is None or self.failure is not None:
            return
        self.failure = outcome.broken
        log.critical("the store has failed and accepts nothing; restart the broker", error=outcome.broken)
        for callback in self._on_failure:
            callback(outcome.broken)

    def _fail(self, appends: Mapping[EntrySink, list[Entry]], error: Exception) -> None:
        """Fail a group's entries and, with them, what their sinks appended since: it would leave a gap."""
        waiting = [*self._full, self._filling]
        for sink, entries in appends.items():
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
