"""The ledger store: entries and metadata made durable in groups, read back in short transactions."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import lmdb
import structlog

from heliograph_broker.clock import Clock
from heliograph_broker.storage.base.completion import Completion
from heliograph_broker.storage.base.failure import StorageFull, StoreFailed, lacks_space
from heliograph_broker.storage.base.scheduler import InlineScheduler, LoopScheduler, Scheduler
from heliograph_broker.storage.commit.group_commit import GroupCommit
from heliograph_broker.storage.copies.backup import METADATA_NAME, SEGMENTS_PREFIX, Backup, BackupError, Source
from heliograph_broker.storage.disk.data_dir import RECOVERY_HINT, DataDir, DataDirError
from heliograph_broker.storage.disk.disk import Disk, RealDisk
from heliograph_broker.storage.disk.disk_space import DiskSpace
from heliograph_broker.storage.disk.identity import Identity, format_text, of_metadata, stamp
from heliograph_broker.storage.disk.metadata import Metadata, open_environment
from heliograph_broker.storage.ledgers.ledger_ids import MAX_EPOCH, RESERVED_KEY, LedgerIds
from heliograph_broker.storage.ledgers.ledger_reader import LedgerReader
from heliograph_broker.storage.ledgers.ledger_set import LedgerSet
from heliograph_broker.storage.segments import segment_records
from heliograph_broker.storage.segments.reclaim import Reclaimer
from heliograph_broker.storage.segments.scrub import Scrub
from heliograph_broker.storage.segments.segment import DAMAGE
from heliograph_broker.storage.segments.segment_files import SegmentFiles
from heliograph_broker.storage.segments.segment_set import SegmentSet

__all__ = ["DataDirError", "InlineScheduler", "LedgerStore", "LoopScheduler", "StorageFull", "StoreFailed"]

T = TypeVar("T")
log = structlog.get_logger(__name__)

_SCRUB = b"store/scrub"
#: After a computing job its thread rests for this multiple of the job's own duration, at most for this time (s).
_REST = 2.0
_MAX_REST_S = 0.05


class LedgerStore:
    """Owns the parts of the store; callers go to the part. All methods are called on the event loop's thread."""

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
        self._data_dir = data_dir
        self._scheduler = scheduler
        try:
            environment = open_environment(data_dir.disk, data_dir.metadata)
        except DAMAGE as error:
            raise DataDirError(f"{data_dir.metadata} is damaged: {error}; {RECOVERY_HINT}") from error
        try:
            self.identity = _identify(data_dir, environment, new_identity)
            #: Records, as last committed.
            self.metadata = Metadata(data_dir.disk, data_dir.metadata, environment)
            files = SegmentFiles(
                data_dir.disk,
                data_dir.segments,
                segment_bytes,
                self.identity.store_id,
                adopt=data_dir.format is None or not data_dir.format.store_id,
            )
            #: The segments with the entries.
            self.segments = SegmentSet(files, self.metadata.scan(segment_records.PREFIX), scheduler)
            # Last: a start that is interrupted before this repeats the upgrade.
            if files.all_adopted:
                data_dir.become(self.identity.store_id)
        except BaseException:
            environment.close()
            raise
        self.space = DiskSpace(data_dir, disk_reserve_bytes, clock)
        #: Writes entries and records, and reports when they are durable.
        self.writer = GroupCommit(self.metadata, self.segments, self.space, scheduler)
        self.segments.records.write_with(self.writer.write_record)
        self.reader = LedgerReader(self.segments, scheduler)
        self.ledger_ids = LedgerIds(self.writer, self.metadata.get(RESERVED_KEY), self.segments.ledgers(), new_epoch)
        self.ledgers = LedgerSet(self.metadata, self.segments, self.writer, self.ledger_ids, clock.now_ms())
        self._reclaimer = Reclaimer(self.segments, self.space, clock, scheduler)
        self._backup: Backup | None = None
        self._closed = False
        self.space.watch(metadata_waits=False)

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
        """Open or create the store in ``data_dir``; from now on it closes ``scheduler``.

        ``new_epoch`` (0 to :data:`MAX_EPOCH` - 1) is part of every ledger id of a store that has none yet: drawn by
        chance, ids of different stores differ. ``new_store_id`` (128 bits in hexadecimal) is the store's if it has none
        yet. For the scrub's rate and interval see :mod:`.scrub`. Raises :class:`DataDirError`.
        """
        if not 0 <= new_epoch < MAX_EPOCH:
            raise ValueError(f"an epoch of {new_epoch}; valid: 0 to {MAX_EPOCH - 1}")
        try:
            directory = DataDir(data_dir, disk or RealDisk())
        except DataDirError:
            # Its threads would keep the process alive.
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
                store.metadata.get(_SCRUB),
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
            # Receivers of these notifications may submit and read more.
            self._scheduler = InlineScheduler()
            self.reader.read_with(self._scheduler)
            self.writer.drain(self._scheduler)
        self._reclaimer.close()
        self.segments.close()
        self.metadata.close()
        self._data_dir.close()

    @property
    def format(self) -> str:
        """Format of the data directory, such as ``heliograph 3``; empty until it has one."""
        return str(self._data_dir.format or "")

    @property
    def closed(self) -> bool:
        return self._closed

    def _keep_scrubbed(self, place: bytes) -> None:
        # The store may have been closed since the step began.
        if not self._closed and self.writer.failure is None:
            self.writer.put(_SCRUB, place)

    def work(self, job: Callable[[], T], callback: Completion[T]) -> None:
        """Run a job that computes off the loop's thread; the callback gets its result or exception.

        Its thread then pauses: the threads share one interpreter, and a computing thread yields it only every few ms.
        """

        def considerate() -> T:
            started = time.perf_counter()
            result = job()
            self._scheduler.pause(min(_REST * (time.perf_counter() - started), _MAX_REST_S))
            return result

        self._scheduler.work(considerate, callback)

    def backup(self, version: str, begun_ms: int) -> Backup:
        """Begin a copy of everything durable now; see :mod:`.backup`. The caller closes it.

        ``version`` is the broker's, ``begun_ms`` the wall-clock time. No segment is unlinked until it is closed, so
        space is given back only then. Raises :class:`BackupError` while another one is under way.
        """
        if self._backup is not None:
            raise BackupError("another backup is under way; one at a time")
        # Before any segment's: a record may lack its entries (a crash does that), entries may lack their record.
        sources = [Source(METADATA_NAME, self.metadata.environment, self.metadata.environment.begin())]
        pinned = self.segments.pin()
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

    def maintain(self) -> None:
        """Begin to give back disk space where enough of it is dead. Call it now and then; cheap if nothing changed."""
        self.space.watch(metadata_waits=self.writer.carries_metadata)
        self.writer.retry()
        self.ledgers.maintain()
        self._reclaimer.maintain(self.metadata.disk_bytes)
        self.scrub.run(self.segments.closed(), traffic=not self._reclaimer.quiet)

    def disk_bytes(self) -> int:
        """Return the disk space of segments and metadata as of their last commits. Cheap: reads no directory."""
        return self.segments.disk_bytes() + self.metadata.disk_bytes


def _identify(data_dir: DataDir, metadata: lmdb.Environment, new: Identity) -> Identity:
    """Return the store's identity, written into the metadata if the directory is new or of a format without one.

    Raises :class:`DataDirError` if the metadata is not that of the directory.
    """
    found = of_metadata(metadata)
    expected_id = "" if data_dir.format is None else data_dir.format.store_id
    if expected_id and (found is None or found.store_id != expected_id):
        whose = "no store" if found is None else f"the store {found.store_id}"
        raise DataDirError(
            f"{data_dir.metadata} belongs to {whose}, the directory to the store {expected_id}; {RECOVERY_HINT}"
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
