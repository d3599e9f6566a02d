"""Salvage: a fresh data directory with everything of a damaged one that is readable and verified.

Every file that may hold entries is searched page by page, so that damage to the tree of a segment costs nothing but
the damaged pages. Chunks that are what was written, by their checksums, are put in order and written into new segments.
The caller chooses the metadata. The source is only read.
"""

from __future__ import annotations

import os
import shutil
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from mmap import ACCESS_READ, mmap
from pathlib import Path

import lmdb
import msgspec

from heliograph_broker.storage.base.entry import EntryHeader
from heliograph_broker.storage.base.record_sum import with_sum
from heliograph_broker.storage.base.tombstones import HAS_TOMBSTONES
from heliograph_broker.storage.disk.disk import RealDisk
from heliograph_broker.storage.disk.environment import MAP_BYTES, open_writable
from heliograph_broker.storage.disk.identity import Identity, format_text, stamp
from heliograph_broker.storage.segments import chunk, pages, segment_records
from heliograph_broker.storage.segments.chunk import KEY, Repacker
from heliograph_broker.storage.segments.segment import Segment

from .inspection import SegmentFile

_DISK = RealDisk()
#: Written into one segment (bytes of chunks), and committed at once.
_SEGMENT_BYTES = 128 * 1024 * 1024
_SLICE_BYTES = 4 * 1024 * 1024
#: The index of a chunk: its first entry, its file and place there, its size, its number of entries.
_FIELDS = 4
_FILE_SHIFT = 44
_OPENING_BYTES = 64

#: Called with how many bytes more are done.
Progress = Callable[[int], None]


class SalvageError(Exception):
    """Nothing was salvaged; the message says why and what would be right."""


class LedgerFound(msgspec.Struct, frozen=True):
    """A ledger's readable entries: the first one's header, the last one's, and which there are."""

    ledger_id: int
    first: EntryHeader
    last: EntryHeader
    entries: int
    size: int
    #: First and last entry of each range without a gap.
    ranges: list[tuple[int, int]]
    #: The start of the first frame.
    opening: bytes


class Salvage:
    """See the module. First :meth:`search`, then :meth:`write`; :meth:`close` in any case."""

    def __init__(self, files: Sequence[SegmentFile], others: Sequence[SegmentFile] = ()) -> None:
        """``others`` belong to another store: of them only ledgers that ``files`` do not have are taken.

        Raises :class:`OSError`.
        """
        self._own = len(files)
        self._files = files = [*files, *others]
        self._maps: list[memoryview] = []
        self._index: dict[int, array[int]] = {}
        #: Pieces that look like a chunk and fail its checksum, by file.
        self.unsound: dict[Path, int] = {}
        #: Ledgers of another store that bear the id of one of this store, and were left out.
        self.clashing: set[int] = set()
        self.total_bytes = sum(file.size for file in files)
        for file in files:
            descriptor = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                mapped = mmap(descriptor, 0, access=ACCESS_READ) if file.size else None
            finally:
                os.close(descriptor)
            self._maps.append(memoryview(mapped if mapped is not None else b""))

    def close(self) -> None:
        self._maps.clear()

    def search(self, progress: Progress) -> dict[int, LedgerFound]:
        """Find and verify everything; return the ledgers by id."""
        own: frozenset[int] = frozenset()
        for number, (file, data) in enumerate(zip(self._files, self._maps, strict=True)):
            if number == self._own:
                own = frozenset(self._index)
            done = 0
            for found in pages.chunks(data):
                if isinstance(found, int):
                    progress(found - done)
                    done = found
                    continue
                if found.ledger_id == 0:
                    # The id of the store.
                    continue
                if found.ledger_id in own:
                    self.clashing.add(found.ledger_id)
                    continue
                value = data[found.at : found.at + found.size]
                key = memoryview(KEY.pack(found.ledger_id, found.first))
                if not chunk.is_sound(key, value):
                    self.unsound[file.path] = self.unsound.get(file.path, 0) + 1
                    continue
                index = self._index.setdefault(found.ledger_id, array("Q"))
                index.extend((found.first, number << _FILE_SHIFT | found.at, found.size, chunk.count(value)))
        return {ledger_id: self._describe(ledger_id) for ledger_id in sorted(self._index)}

    def _describe(self, ledger_id: int) -> LedgerFound:
        opening = b""
        size = 0
        ranges: list[tuple[int, int]] = []
        headers: list[EntryHeader] = []
        for value, begin, low, high in self._ordered(ledger_id):
            first, last = chunk.header_at(value, begin, low), chunk.header_at(value, begin, high)
            if not headers:
                start, end = chunk.frame_bounds(value, low)
                opening = bytes(value[start : min(end, start + _OPENING_BYTES)])
                headers = [first, last]
            headers[1] = last
            size += last.total_bytes - first.total_bytes + first.size
            if ranges and ranges[-1][1] + 1 == first.entry_id:
                ranges[-1] = (ranges[-1][0], last.entry_id)
            else:
                ranges.append((first.entry_id, last.entry_id))
        entries = sum(last - first + 1 for first, last in ranges)
        return LedgerFound(ledger_id, headers[0], headers[1], entries, size, ranges, opening)

    def _ordered(self, ledger_id: int) -> Iterator[tuple[memoryview, int, int, int]]:
        """Yield a ledger's chunks in order, each entry once: value, first entry id, indexes from and to."""
        flat = self._index[ledger_id]
        rows = sorted(zip(*(flat[field::_FIELDS] for field in range(_FIELDS)), strict=True))
        upcoming = 0
        for first, place, size, count in rows:
            low = max(0, upcoming - first)
            if low >= count:
                continue
            upcoming = first + count
            at = place & ((1 << _FILE_SHIFT) - 1)
            yield self._maps[place >> _FILE_SHIFT][at : at + size], first, low, count - 1

    def write(
        self,
        target: Path,
        ledgers: Sequence[int],
        records: Mapping[bytes, bytes],
        lost: Sequence[tuple[int, int, int]],
        identity: Identity,
        progress: Progress,
    ) -> None:
        """Make ``target``, which is empty or not there, a data directory with these ledgers and records of metadata.

        ``lost`` are ledgers with the first and last entry of what they have no more: a broker reports that, and gives
        their places to no others. The directory is there under its name when it is complete and synced. Raises
        :class:`SalvageError`; nothing is left then.
        """
        try:
            if target.exists() and any(target.iterdir()):
                raise SalvageError(f"{target} is not empty; name a directory that is empty or not there")
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary = target.parent / f".{target.name}.salvaging-{os.getpid()}"
            (temporary / "segments").mkdir(parents=True)
        except NotADirectoryError:
            raise SalvageError(f"{target} is not a directory") from None
        except OSError as error:
            raise SalvageError(f"cannot write to {target}: {error.strerror}") from error
        try:
            written = self._write_segments(temporary / "segments", ledgers, identity.store_id, progress)
            kept = {key: value for key, value in records.items() if not key.startswith(segment_records.PREFIX)}
            if lost:
                # Like a segment that is missing.
                name = f"{written + 1:08d}-{written + 1:08d}-0001.lmdb"
                kept[segment_records.key(name)] = msgspec.msgpack.encode(lost)
            _write_metadata(temporary / "metadata.lmdb", kept, identity)
            _DISK.write(temporary / "FORMAT", format_text(identity.store_id).encode())
            _DISK.sync_directory(temporary / "segments")
            _DISK.sync_directory(temporary)
            temporary.rename(target)
            _DISK.sync_directory(target.parent)
        except OSError as error:
            raise SalvageError(f"cannot write to {target}: {error.strerror}") from error
        except lmdb.Error as error:
            raise SalvageError(f"cannot write to {target}: {error}") from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def _write_segments(self, directory: Path, ledgers: Sequence[int], store_id: str, progress: Progress) -> int:
        """Write the ledgers; return how many segments they took."""
        writer = _SegmentWriter(directory, store_id)
        try:
            for ledger_id in sorted(ledgers):
                for value, first, low, high in self._ordered(ledger_id):
                    writer.add(ledger_id, first, value, low, high)
                    progress(len(value))
        finally:
            writer.close()
        return writer.segments


class _SegmentWriter:
    """Writes chunks, which come in the order of their keys, into one segment after the other."""

    def __init__(self, directory: Path, store_id: str) -> None:
        self._directory = directory
        self._store_id = store_id
        #: Their number, and the number of the last one.
        self.segments = 0
        self._written = self._pending = 0
        self._packer = Repacker()
        self._environment: lmdb.Environment | None = None

    def add(self, ledger_id: int, first: int, value: memoryview, low: int, high: int) -> None:
        self._pending += self._packer.add(ledger_id, first, value, low, high)
        if self._pending >= _SLICE_BYTES:
            self._put()
            if self._written >= _SEGMENT_BYTES:
                self.close()

    def _put(self) -> None:
        self._packer.flush()
        if self._environment is None:
            self.segments += 1
            # The second generation: a broker begins another one and writes nothing into this.
            segment = Segment(
                _DISK, self._directory, (self.segments, self.segments), 2, MAP_BYTES, self._store_id, writable=False
            )
            self._environment = segment.create(segment.path)
        with self._environment.begin(write=True) as txn, txn.cursor() as cursor:
            cursor.putmulti(self._packer.items, append=True)
        self._packer.items.clear()
        self._written += self._pending
        self._pending = 0

    def close(self) -> None:
        """End the segment that is being written, synced."""
        if self._pending:
            self._put()
        if self._environment is not None:
            self._environment.sync(True)
            self._environment.close()
            self._environment = None
        self._written = 0


def _write_metadata(path: Path, records: Mapping[bytes, bytes], identity: Identity) -> None:
    environment = open_writable(_DISK, path, MAP_BYTES)
    try:
        with environment.begin(write=True) as txn:
            for key, value in sorted(records.items()):
                txn.put(key, with_sum(key, value))
            # Unknown data is kept, whatever version the records are of.
            txn.put(HAS_TOMBSTONES, with_sum(HAS_TOMBSTONES, b"1"))
        stamp(environment, identity)
    finally:
        environment.close()
    _DISK.remove(path.with_name(path.name + "-lock"))
