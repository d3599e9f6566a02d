"""The ledger store: entries and metadata made durable in groups, read back in short transactions."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import lmdb
import structlog

from heliograph_broker.clock import Clock
from heliograph_broker.storage.base.completion import Completion
from heliograph_broker.storage.base.damage import DamagedEntries, LostRange
from heliograph_broker.storage.base.data_dir import WAY_ON, DataDir, DataDirError
from heliograph_broker.storage.base.disk import Disk, RealDisk
from heliograph_broker.storage.base.entry import Entry, EntryHeader
from heliograph_broker.storage.base.failure import StorageFull, StoreFailed, lacks_space
from heliograph_broker.storage.base.identity import Identity, format_text, of_metadata, stamp
from heliograph_broker.storage.base.record_sum import content_of, number_in
from heliograph_broker.storage.base.scheduler import InlineScheduler, LoopScheduler, Scheduler
from heliograph_broker.storage.base.tombstones import DyingLedgers, Tombstone
from heliograph_broker.storage.commit.group_commit import GroupCommit, open_metadata
from heliograph_broker.storage.copies.backup import METADATA_NAME, SEGMENTS_PREFIX, Backup, BackupError, Source
from heliograph_broker.storage.segments.scrub import Scrub
from heliograph_broker.storage.segments.segment import DAMAGE, Segment
from heliograph_broker.storage.segments.segment_set import SegmentSet

from .base import quarantine
from .segments import segment_records

__all__ = ["DataDirError", "InlineScheduler", "LedgerStore", "LoopScheduler", "StorageFull", "StoreFailed"]

T = TypeVar("T")
log = structlog.get_logger(__name__)

_NEXT_LEDGER = b"next-ledger-id"
_HAS_TOMBSTONES = b"store/has-tombstones"
_SCRUB = b"store/scrub"
_LEDGER_BLOCK = 1000
#: A ledger's id is the store's epoch and a number: ids of two stores can meet without clashing.
_EPOCH_SHIFT = 40
#: Epochs are below this, so that ids stay below 2^53, where readers of JSON keep integers exact.
MAX_EPOCH = 1 << 13
#: After a computing job its thread rests for this multiple of the job's own duration, at most for this time (s).
_REST = 2.0
_LONGEST_REST_S = 0.05
_METADATA_MAP_BYTES = 32 * 1024 * 1024 * 1024


class LedgerStore(GroupCommit):
    """See the module and :mod:`.group_commit`. All methods are called on the event loop's thread.

    The entries of a ledger are appended in the order of their ids, and ``total_bytes`` grows from one to the next by
    exactly the size of its frame: live bytes are counted from it.
    """

    scrub: Scrub

    def __init__(
        self,
        data_dir: DataDir,
        clock: Clock,
        scheduler: Scheduler,
        segment_bytes: int,
        disk_reserve_bytes: int,
        new_epoch: int,
        new_identity: Identity,
    ) -> None:
        # Records written before the first group exists.
        self._early_records: dict[bytes, bytes | None] | None = {}
        try:
            metadata = open_metadata(data_dir.disk, data_dir.metadata, _METADATA_MAP_BYTES)
        except DAMAGE as error:
            raise DataDirError(f"{data_dir.metadata} is damaged: {error}; {WAY_ON}") from error
        try:
            self.identity = _identify(data_dir, metadata, new_identity)
            segments = SegmentSet(
                data_dir.disk,
                data_dir.segments,
                segment_bytes,
                scheduler,
                clock,
                self._room,
                self.identity.store_id,
                _records(metadata, segment_records.PREFIX),
                self._write_record,
                adopt=data_dir.format is None or not data_dir.format.store_id,
            )
            # Last: a start that did not come to this begins the upgrade again.
            if segments.all_adopted:
                data_dir.become(self.identity.store_id)
        except BaseException:
            metadata.close()
            raise
        super().__init__(data_dir, metadata, segments, clock, scheduler, disk_reserve_bytes)
        early, self._early_records = self._early_records, None
        for key, value in early.items():
            self._write_record(key, value)
        self._closed = False
        self._backup: Backup | None = None
        self._dying = DyingLedgers(_tombstones(key for key, _ in self.scan(Tombstone.PREFIX)))
        #: Ledgers that nothing refers to and no tombstone is for, and their bytes: kept until an administrator adopts
        #: or drops them.
        self.quarantined: Mapping[int, int] = {}
        #: When each was found first (wall-clock ms).
        self.quarantined_since: Mapping[int, int] = {}
        self._opened_ms = clock.now_ms()
        stored = self.get(_NEXT_LEDGER)
        number = number_in(stored)
        if stored is not None and number is None:
            log.error("the record of the ids given to ledgers is damaged; ledgers get ids of another epoch")
        reserved = new_epoch << _EPOCH_SHIFT if number is None else number
        # Metadata that is older than the segments, put there by hand, must not lead to ids that are taken.
        limit = reserved + (1 << _EPOCH_SHIFT) - (reserved & ((1 << _EPOCH_SHIFT) - 1))
        taken = max((ledger for ledger in segments.ledgers() if ledger < limit), default=0)
        self._next_ledger = self._ledger_limit = max(reserved, taken)
        self._watch_space()

    @classmethod
    def open(
        cls,
        data_dir: Path,
        clock: Clock,
        *,
        scheduler: Scheduler,
        segment_bytes: int = 128 * 1024 * 1024,
        disk_reserve_bytes: int = 64 * 1024 * 1024,
        disk: Disk | None = None,
        new_epoch: int = 0,
        new_store_id: str = "0" * 32,
        scrub_bytes_per_s: int = 0,
        scrub_interval_s: float = 7 * 86400.0,
    ) -> LedgerStore:
        """Open or create the store in ``data_dir``; the store ends ``scheduler`` from here on.

        ``new_epoch`` (0 to :data:`MAX_EPOCH` - 1) is part of every ledger id of a store that has none yet: drawn by
        chance, ids of different stores differ. ``new_store_id`` (128 bits in hexadecimal) is the store's if it has none
        yet. For the scrub's rate and interval see :mod:`.scrub`. Raises :class:`DataDirError`.
        """
        if not 0 <= new_epoch < MAX_EPOCH:
            raise ValueError(f"an epoch of {new_epoch}; valid: 0 to {MAX_EPOCH - 1}")
        try:
            directory = DataDir(data_dir, disk or RealDisk())
        except DataDirError:
            # Its threads would keep a process alive that has nothing to do.
            scheduler.close()
            raise
        try:
            new_identity = Identity(new_store_id, clock.now_ms())
            store = cls(directory, clock, scheduler, segment_bytes, disk_reserve_bytes, new_epoch, new_identity)
            store.scrub = Scrub(
                clock,
                scheduler,
                scrub_bytes_per_s,
                scrub_interval_s,
                store.get(_SCRUB),
                store._keep_scrubbed,
            )
            return store
        except DataDirError:
            directory.close()
            scheduler.close()
            raise
        except (lmdb.Error, OSError, ValueError) as error:
            directory.close()
            scheduler.close()
            raise DataDirError(f"cannot open the store in {data_dir}: {error}") from error

    def close(self, *, drain: bool = True) -> None:
        """Write and report everything submitted, end the threads, close the environments.

        Without ``drain``, entries that are not yet in a group are silently lost, as in a crash.
        """
        if self._closed:
            return
        self._closed = True
        if self._backup is not None:
            # It reads what is closed below.
            self._backup.close()
        self._scheduler.close()
        if drain:
            self._drain()
        self._segments.close()
        self._metadata.close()
        self._data_dir.close()

    @property
    def closed(self) -> bool:
        return self._closed

    def _keep_scrubbed(self, place: bytes) -> None:
        # The scrub's thread may end with the store.
        if not self._closed and self.failure is None:
            self.put(_SCRUB, place)

    def probe_segment(self, done: Completion[None]) -> None:
        """Have the writer begin to write to the open segment, and end there; ``done`` gets what prevents that."""
        segment = self._segments.open_segment
        self._scheduler.write(segment.probe, done)

    # -- reading ---------------------------------------------------------------------------------------------

    def read(
        self,
        ledger_id: int,
        first_entry: int,
        last_entry: int,
        max_bytes: int,
        callback: Completion[list[Entry]],
    ) -> None:
        """Read entries from ``first_entry`` on, at least one if there is one; a later call gets the rest.

        Lost entries are reported as :mod:`.damage` says; entries that were trimmed are left out.
        """
        self._read(
            ledger_id,
            first_entry,
            last_entry,
            lambda segment, first: segment.read_entries(ledger_id, first, last_entry, max_bytes),
            callback,
        )

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
            lambda segment, first: segment.read_headers(ledger_id, first, last_entry),
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

        Only the pages it looks at are read. The view it is given is void when it has returned. Raises
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
            mapped = segment.map_frames(ledger_id, at, last_entry, function)
            at = mapped[-1][0] + 1
            for _, value in mapped:
                yield value

    def work(self, job: Callable[[], T], callback: Completion[T]) -> None:
        """Run a job that computes off the loop's thread; the callback gets its result or exception.

        The processor is then left to the others for a while: the threads share one interpreter, and one that computes
        gives it away only every few ms.
        """

        def considerate() -> T:
            started = time.perf_counter()
            result = job()
            self._scheduler.pause(min(_REST * (time.perf_counter() - started), _LONGEST_REST_S))
            return result

        self._scheduler.work(considerate, callback)

    def header(self, ledger_id: int, entry_id: int) -> EntryHeader | None:
        """Return one header by a point read in the calling thread, None if it was trimmed or never stored.

        Raises :class:`DamagedEntries` if the entry is lost.
        """
        found = self._segments.holder(ledger_id, entry_id)
        if found is None or found[1] != entry_id:
            return None
        return found[0].header(ledger_id, entry_id)

    def first_entry_where(self, ledger_id: int, low: int, high: int, holds: Callable[[EntryHeader], bool]) -> int:
        """Return the first entry id of ``low..high-1`` whose header ``holds``, ``high`` if there is none.

        ``holds`` must stay true for all entries after one for which it is. An entry that was trimmed does not hold, a
        lost one is like the readable one before it. Runs in the calling thread: one short transaction a segment that
        has to be looked into.
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
                header = segment.readable_header(ledger_id, segment.runs[ledger_id].last)
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
        return segments[0].first_where(ledger_id, low, high, holds)

    def bounds(self, ledger_id: int) -> tuple[int, int] | None:
        """Return the first and last stored entry id of a ledger, None if it has none."""
        return self._segments.bounds(ledger_id)

    def get(self, key: bytes) -> bytes | None:
        """Return a metadata record as last committed."""
        with self._metadata.begin() as txn:
            value = txn.get(key)
            return None if value is None else content_of(key, bytes(value))

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the committed metadata records whose key begins with ``prefix``, in order. For start-up."""
        yield from _records(self._metadata, prefix)

    def lost(self, ledger_id: int) -> list[LostRange]:
        """Return what a ledger has lost with segments that are missing or cannot be opened."""
        return self._segments.missing.ranges(ledger_id)

    def lost_entries(self) -> int:
        """Return how many entries that are still wanted were in segments that are missing or cannot be opened."""
        missing = self._segments.missing
        return sum(lost.last - lost.first + 1 for ledger in missing.ledgers() for lost in missing.ranges(ledger))

    # -- copying ---------------------------------------------------------------------------------------------

    def backup(self, version: str, begun_ms: int) -> Backup:
        """Begin a copy of everything durable now; see :mod:`.backup`. The caller closes it.

        ``version`` is the broker's, ``begun_ms`` the wall-clock time. Until it is closed no segment is unlinked, so
        that space given back comes back later. Raises :class:`BackupError` while another one is under way.
        """
        if self._backup is not None:
            raise BackupError("another backup is under way; one at a time")
        # Before any segment's: a record may lack its entries (a crash does that), entries may lack their record.
        sources = [Source(METADATA_NAME, self._metadata, self._metadata.begin())]
        pinned = self._segments.pin()
        for segment in pinned:
            transaction = segment.begin()
            if transaction is not None:
                sources.append(Source(SEGMENTS_PREFIX + segment.path.name, segment.environment(), transaction))

        def closed() -> None:
            self._backup = None
            for segment in pinned:
                segment.release()

        self._backup = Backup(sources, format_text(self.identity.store_id).strip(), version, begun_ms, closed)
        return self._backup

    # -- ledgers and space -----------------------------------------------------------------------------------

    def next_ledger_id(self) -> int:
        """Return a ledger id never returned before, also not before a crash.

        The reservation it comes from joins the group that is filled now. Whatever names the id comes later, so it is
        not durable, nor confirmed, before the reservation is: a group that fails is written again with the next one.
        """
        if self._next_ledger >= self._ledger_limit:
            self._ledger_limit = self._next_ledger + _LEDGER_BLOCK
            self.put(_NEXT_LEDGER, str(self._ledger_limit).encode())
        self._next_ledger += 1
        return self._next_ledger

    @property
    def epoch(self) -> int:
        """The store's part of its ledger ids; 0 for a store of a version that had no epochs."""
        return self._next_ledger >> _EPOCH_SHIFT

    def begin_provisional_ledger(self) -> int:
        """Return the id of a ledger that a crash takes away again, until its :class:`Tombstone` is removed."""
        ledger_id = self.next_ledger_id()
        # In the same group as its first entries or before them, and metadata is written first.
        self.put(Tombstone(ledger_id).record_key, b"1")
        return ledger_id

    def retain_ledgers(self, kept: Mapping[int, int], *, keep_unknown: bool = False) -> None:
        """At start: keep of each ledger named the entries from its first one on, and delete those with a tombstone.

        Any other is kept in quarantine: somebody may know it. But versions without tombstones left ledgers like that
        behind as a matter of course: at the first start after one of them, those whose ids it gave out go,
        unless ``keep_unknown`` says that a record which named them may be lost.
        """
        unknown: dict[int, int] = {}
        stored = self.get(_NEXT_LEDGER)
        garbage_to = 0
        if self.get(_HAS_TOMBSTONES) is None and not keep_unknown:
            garbage_to = number_in(stored) or 0
        self.put(_HAS_TOMBSTONES, b"1")
        for ledger_id, stored_bytes in self._segments.bytes_by_ledger().items():
            first = kept.get(ledger_id)
            if first is not None:
                self._segments.trim(ledger_id, first)
            elif ledger_id in self._dying:
                self._segments.drop(ledger_id)
            elif ledger_id <= garbage_to:
                self.drop_ledger(ledger_id)
            else:
                unknown[ledger_id] = stored_bytes
        for ledger_id in kept:
            if ledger_id in self._dying:
                log.error("a ledger in use has a tombstone; the ledger is kept", ledger=ledger_id)
                self._dying.discard(ledger_id)
                self.delete(Tombstone(ledger_id).record_key)
        self.quarantined = unknown
        self._note_quarantine(unknown)
        missing = self._segments.missing
        if missing.open_segment:
            log.error("the segment that was written last is missing or damaged; what was only there is lost")
        for name in missing.keep(kept):
            self._write_record(segment_records.key(name), None)
        if missing:
            log.error(
                "segments are missing or damaged; entries that only they held are lost, the rest is served",
                segments=sorted(missing.runs)[:20],
                ledgers=len(list(missing.ledgers())),
                entries=self.lost_entries(),
            )
        if unknown:
            log.error(
                "ledgers that no topic refers to are kept in quarantine; see 'heliograph store --help'",
                ledgers=len(unknown),
                bytes=sum(unknown.values()),
                first=sorted(unknown)[:20],
            )

    def _note_quarantine(self, unknown: Iterable[int]) -> None:
        known = quarantine.since(self.scan(quarantine.PREFIX))
        self.quarantined_since = {ledger_id: known.get(ledger_id, self._opened_ms) for ledger_id in unknown}
        for ledger_id in self.quarantined_since.keys() - known.keys():
            self.put(quarantine.key(ledger_id), str(self._opened_ms).encode())
        for ledger_id in known.keys() - self.quarantined_since.keys():
            self.delete(quarantine.key(ledger_id))

    def _write_record(self, key: bytes, value: bytes | None) -> None:
        if self._early_records is not None:
            self._early_records[key] = value
        elif value is None:
            self.delete(key)
        else:
            self.put(key, value)

    def trim(self, ledger_id: int, below_entry: int) -> None:
        """Let entries below ``below_entry`` go; their space comes back in the background."""
        self._segments.trim(ledger_id, below_entry)

    def drop_ledger(self, ledger_id: int) -> None:
        """Delete a whole ledger once its tombstone, which joins the next group, is durable.

        Where a record stops naming the ledger, commit a :class:`Tombstone` with that record instead, and call
        :meth:`delete_ledger` when both are durable.
        """
        self.put(Tombstone(ledger_id).record_key, b"1")
        self.when_durable(lambda: self.delete_ledger(ledger_id))

    def delete_ledger(self, ledger_id: int) -> None:
        """Delete a ledger whose tombstone is durable."""
        self._dying.add(ledger_id)
        self._segments.drop(ledger_id)

    def _delete_tombstones(self) -> None:
        """Delete the tombstones of ledgers of which nothing is left."""
        gone = []
        for ledger_id in self._dying.some():
            if self._segments.holds(ledger_id):
                # Entries that were on their way when the ledger was deleted.
                self._segments.drop(ledger_id)
            else:
                gone.append(ledger_id)
        if not gone:
            return
        coming = self.ledgers_under_way()
        for ledger_id in gone:
            if ledger_id not in coming:
                self._dying.discard(ledger_id)
                self.delete(Tombstone(ledger_id).record_key)

    def maintain(self) -> None:
        """Begin to give back disk space where enough of it is dead. Call it now and then; cheap if nothing changed."""
        self._watch_space()
        self._retry()
        if self._dying and self.failure is None:
            self._delete_tombstones()
        self._segments.maintain(self._metadata_bytes, pressed=self.disk_full)
        self.scrub.run(self._segments.closed(), traffic=not self._segments.quiet)

    def _watch_space(self) -> None:
        """Find out whether the disk is full: without traffic no append would, neither that it is nor that it was."""
        if self._data_dir.free_bytes() <= self._reserve:
            self.disk_full = True
            self.shortage.begins()
        elif not self._carried:
            self._found_room()

    def _room(self) -> int:
        """Return the disk space a copy may take: what is above the reserve, of a fuller disk half of what is free."""
        free = self._data_dir.free_bytes()
        return max(free - self._reserve, free // 2)

    def live_bytes(self) -> int:
        """Return the exact bytes of frames that are still wanted. Cheap: kept as entries come and go."""
        return self._segments.live_bytes()

    def damaged_segments(self) -> int:
        """Return how many damaged files are kept aside."""
        return len(self._segments.damaged_files)

    def disk_bytes(self) -> int:
        """Return the disk space of segments and metadata as of their last commits. Cheap: reads no directory."""
        return self._segments.disk_bytes() + self._metadata_bytes

    def free_bytes(self) -> int:
        """Return the disk space an ordinary user may still write where the data directory is."""
        return self._data_dir.free_bytes()


def _identify(data_dir: DataDir, metadata: lmdb.Environment, new: Identity) -> Identity:
    """Return the store's identity, written into the metadata if the directory is new or of a format without one.

    Raises :class:`DataDirError` if the metadata is not that of the directory.
    """
    found = of_metadata(metadata)
    expected_id = "" if data_dir.format is None else data_dir.format.store_id
    if expected_id and (found is None or found.store_id != expected_id):
        whose = "no store" if found is None else f"the store {found.store_id}"
        raise DataDirError(
            f"{data_dir.metadata} belongs to {whose}, the directory to the store {expected_id}; {WAY_ON}"
        )
    if found is not None:
        return found
    try:
        stamp(metadata, new)
    except (lmdb.Error, OSError) as error:
        if data_dir.format is None or not lacks_space(error):
            raise
        log.warning("the disk is full: the data directory stays in its older format until a start finds room")
        return Identity("", 0)
    return new


def _tombstones(keys: Iterable[bytes]) -> Iterator[int]:
    """Yield the ledgers of tombstones' keys."""
    for key in keys:
        try:
            yield Tombstone.ledger_of(key)
        except struct.error as error:
            log.error("the record of a deleted ledger is damaged", key=str(key), error=str(error))


def _records(metadata: lmdb.Environment, prefix: bytes) -> list[tuple[bytes, bytes]]:
    records = []
    with metadata.begin() as txn, txn.cursor() as cursor:
        more = cursor.set_range(prefix)
        while more and cursor.key().startswith(prefix):
            key = bytes(cursor.key())
            records.append((key, content_of(key, bytes(cursor.value()))))
            more = cursor.next()
    return records
