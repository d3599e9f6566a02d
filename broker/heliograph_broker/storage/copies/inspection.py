"""Reads the contents of a data directory, without a store and without changing or creating anything in it.

No file is opened for writing, and no table of readers is kept. While this is done the directory's lock is held, if it
has one: a broker that runs would change what is read.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import lmdb
import msgspec

from heliograph_broker.storage.base.damage import DamagedEntries, LostRange
from heliograph_broker.storage.base.entry import EntryHeader
from heliograph_broker.storage.base.record_sum import content_of, with_sum
from heliograph_broker.storage.disk.disk import RealDisk
from heliograph_broker.storage.disk.environment import MAP_BYTES
from heliograph_broker.storage.disk.identity import Format, Identity, of_metadata, parse_format
from heliograph_broker.storage.segments import segment_records
from heliograph_broker.storage.segments.segment import DAMAGE, DAMAGED_SUFFIX, Segment, parse_name
from heliograph_broker.storage.segments.segment_reader import Run
from heliograph_broker.storage.segments.segment_records import MissingSegments

_UNREADABLE = (*DAMAGE, lmdb.Error, msgspec.DecodeError)


class InspectionError(Exception):
    """The directory cannot be inspected at all; the message says why and what would be right."""


class SegmentFile:
    """A segment's file: what it holds, or why that is unknown."""

    __slots__ = ("first_order", "generation", "last_order", "path", "problem", "runs", "size", "store_id")

    def __init__(self, path: Path) -> None:
        """Raises :class:`ValueError` for a file that bears no segment's name."""
        self.path = path
        self.first_order, self.last_order, self.generation = parse_name(
            path.with_suffix("") if path.suffix == DAMAGED_SUFFIX else path
        )
        self.size = path.stat().st_size
        #: By ledger, as of the file's tree.
        self.runs: Mapping[int, Run] = {}
        #: Id of the store it was written for, None if it has none.
        self.store_id: str | None = None
        #: Why it cannot be used as it is, empty if it can.
        self.problem = ""

    def open(self) -> Segment:
        """Open it as a segment to read from; the caller closes it. Raises what :attr:`problem` is made of."""
        segment = Segment(
            RealDisk(),
            self.path.parent,
            (self.first_order, self.last_order),
            self.generation,
            MAP_BYTES,
            "",
            writable=False,
        )
        try:
            segment.load_runs()
        except BaseException:
            segment.close()
            raise
        return segment

    def inspect_file(self) -> None:
        """Find its ledgers and whose it is."""
        if self.path.suffix == DAMAGED_SUFFIX:
            self.problem = "a broker set it aside as damaged"
            return
        try:
            segment = self.open()
        except _UNREADABLE as error:
            self.problem = str(error)
            return
        self.runs = segment.runs
        self.store_id = segment.found_store_id
        segment.close()

    def verify(self) -> Iterator[int | LostRange]:
        """Read all its chunks; yield the size of each one that is sound (bytes), and the entries that are lost."""
        segment = self.open()
        try:
            for ledger_id, run in segment.runs.items():
                first = run.first
                while first <= run.last:
                    try:
                        for value, _, _, _ in segment.reader.chunks(ledger_id, first, run.last):
                            yield len(value)
                    except DamagedEntries as error:
                        yield LostRange(ledger_id, error.first_entry, error.last_entry, error.reason)
                        first = error.last_entry + 1
                    else:
                        break
        finally:
            segment.close()


class Contents:
    """See the module. The attributes that end in ``problem`` say what cannot be read, and why."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata_path = path / "metadata.lmdb"
        #: The text of FORMAT and its meaning; None if there is none or this version does not understand it.
        self.format_text: str | None = None
        self.format: Format | None = None
        self.identity: Identity | None = None
        self.records: dict[bytes, bytes] = {}
        self.metadata_problem = ""
        self.metadata_bytes = 0
        #: Those that a broker would use, in order; and all others that may hold entries.
        self.segments: list[SegmentFile] = []
        self.spare: list[SegmentFile] = []
        self.unknown_files: list[Path] = []
        self._read_format()
        self._read_metadata()
        self._read_segments()

    @property
    def store_id(self) -> str:
        """Return the id of the store that the directory belongs to, empty if no file states it."""
        if self.format is not None and self.format.store_id:
            return self.format.store_id
        return "" if self.identity is None else self.identity.store_id

    @property
    def has_metadata(self) -> bool:
        return bool(self.metadata_bytes) and not self.metadata_problem

    def is_foreign(self, segment: SegmentFile) -> bool:
        """Return whether a segment says that it belongs to another store."""
        return bool(segment.store_id and self.store_id and segment.store_id != self.store_id)

    def stored(self) -> dict[int, list[Run]]:
        """Return the runs of each ledger in the segments that a broker would use, in the order of their entries."""
        found: dict[int, list[Run]] = {}
        for segment in self.segments:
            if not self.is_foreign(segment):
                for ledger_id, run in segment.runs.items():
                    found.setdefault(ledger_id, []).append(run)
        for runs in found.values():
            runs.sort(key=lambda run: run.first)
        return found

    def listed(self) -> MissingSegments:
        """Return what the metadata says was in segments that are not there or cannot be used."""
        present = [file.path for file in self.segments if file.runs and not self.is_foreign(file)]
        records = [(key, value) for key, value in self.records.items() if key.startswith(segment_records.PREFIX)]
        return MissingSegments(segment_records.sound(records).items(), present)

    def expected(self) -> dict[int, list[tuple[int, int]]]:
        """Return the first and last entry of each range that was stored, damaged or not, by ledger."""
        missing = self.listed()
        found = {ledger_id: [(run.first, run.last) for run in runs] for ledger_id, runs in self.stored().items()}
        for ledger_id in missing.ledgers():
            found.setdefault(ledger_id, []).extend((lost.first, lost.last) for lost in missing.ranges(ledger_id))
        return {ledger_id: sorted(ranges) for ledger_id, ranges in found.items()}

    def beginning(self, ledger_id: int) -> tuple[EntryHeader, bytes]:
        """Return the header of a stored ledger's first readable entry, and its frame.

        Raises :class:`DamagedEntries` if none can be read, :class:`KeyError` if no segment has the ledger.
        """
        holders = [file for file in self.segments if ledger_id in file.runs and not self.is_foreign(file)]
        holder = min(holders, key=lambda file: file.runs[ledger_id].first, default=None)
        if holder is None:
            raise KeyError(ledger_id)
        run = holder.runs[ledger_id]
        segment = holder.open()
        try:
            (entry,) = segment.reader.read_entries(ledger_id, run.first, run.first, 1)
            return segment.reader.header(ledger_id, run.first), entry.frame
        finally:
            segment.close()

    def _read_format(self) -> None:
        marker = self.path / "FORMAT"
        if marker.is_file():
            self.format_text = marker.read_bytes()[:4096].decode(errors="replace").strip()
            self.format = parse_format(self.format_text)

    def _read_metadata(self) -> None:
        if not self.metadata_path.is_file():
            self.metadata_problem = "it is not there"
            return
        self.metadata_bytes = self.metadata_path.stat().st_size
        try:
            with _readonly(self.metadata_path) as environment:
                self._read_records(environment)
                self.identity = of_metadata(environment)
        except _UNREADABLE as error:
            self.metadata_problem = self.metadata_problem or str(error)

    def _read_records(self, environment: lmdb.Environment) -> None:
        """Read from both ends, so that a damaged page costs only the records that it hides from both."""
        with environment.begin() as txn:
            for reverse in (False, True):
                try:
                    with txn.cursor() as cursor:
                        for key, value in cursor.iterprev() if reverse else cursor.iternext():
                            self.records[bytes(key)] = content_of(bytes(key), bytes(value))
                    return
                except DAMAGE as error:
                    self.metadata_problem = str(error)

    def _read_segments(self) -> None:
        directory = self.path / "segments"
        files: list[SegmentFile] = []
        for path in sorted(directory.iterdir()) if directory.is_dir() else ():
            if path.name.endswith("-lock") or path.suffix in (".tmp", ".new", ".leaving"):
                continue
            try:
                files.append(SegmentFile(path))
            except ValueError:
                self.unknown_files.append(path)
        covered = 0
        for file in sorted(files, key=lambda each: (each.first_order, -each.last_order, -each.generation)):
            file.inspect_file()
            if file.path.suffix == DAMAGED_SUFFIX or file.last_order <= covered:
                self.spare.append(file)
            else:
                covered = file.last_order
                self.segments.append(file)


@contextmanager
def _readonly(path: Path) -> Iterator[lmdb.Environment]:
    environment = RealDisk().open_environment(path, MAP_BYTES, readonly=True, lock=False)
    try:
        pages = environment.info()["last_pgno"] + 1
        if path.stat().st_size < pages * environment.stat()["psize"]:
            # To read a page that is not there would end the process.
            raise lmdb.CorruptedError(f"the file is shorter than its {pages} pages")
        yield environment
    finally:
        environment.close()


@contextmanager
def unused(path: Path) -> Iterator[None]:
    """Keep brokers from starting on a data directory. Raises :class:`InspectionError` if one runs, or there is none."""
    if not path.is_dir():
        raise InspectionError(f"{path} is not a directory; name the one that a broker has as its --data-dir")
    if not any((path / name).exists() for name in ("FORMAT", "metadata.lmdb", "segments")):
        raise InspectionError(
            f"{path} is no data directory: it has no FORMAT, no metadata.lmdb and no segments; "
            "name the one that a broker has as its --data-dir"
        )
    try:
        descriptor = os.open(path / "LOCK", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        # A copy that was made without it. What has no lock no broker has open.
        yield
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
            raise InspectionError(
                f"data directory {path} is in use by another process (pid {holder}); stop that broker first, "
                "or take a backup of it with 'heliograph backup' and restore and inspect that"
            ) from None
        yield
    finally:
        os.close(descriptor)


def inspect(path: Path) -> Contents:
    """Return what a data directory holds; :func:`unused` holds meanwhile. Raises :class:`InspectionError`."""
    try:
        return Contents(path)
    except OSError as error:
        raise InspectionError(f"cannot read {error.filename or path}: {error.strerror}") from error


def put_records(contents: Contents, records: Mapping[bytes, bytes]) -> None:
    """Write records into the metadata of a directory that :func:`unused` holds; they are durable on return.

    Raises :class:`lmdb.Error` or :class:`OSError`.
    """
    environment = RealDisk().open_environment(contents.metadata_path, MAP_BYTES, lock=False)
    try:
        with environment.begin(write=True) as txn:
            for key, value in records.items():
                txn.put(key, with_sum(key, value))
    finally:
        environment.close()
