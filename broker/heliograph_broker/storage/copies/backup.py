"""A copy of a store that is being written to: metadata and segments as a crash at one moment would have left them.

The moment is when the backup begins, on the event loop: it opens a read transaction on the metadata first and then one
on every segment, and holds the segments' files until it ends. Everything with a receipt is durable by then, so it is
in them; entries that were committed in between are ahead of the metadata, as after a crash. The copy, made while
traffic goes on, is what these transactions see.

The copy is a tar: ``FORMAT``, ``metadata.lmdb``, ``segments/*.lmdb``, and last ``MANIFEST.json`` with the size and the
SHA-256 of each. Every chunk is verified on the way; what is damaged is named there. LMDB writes an environment into a
pipe page by page, so neither disk nor memory is needed for it; how long it will be, which a tar says before each file,
follows from the pages in use.
"""

from __future__ import annotations

import hashlib
import os
import tarfile
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import NamedTuple

import lmdb
import msgspec
import structlog

from heliograph_broker.storage.disk.identity import SEGMENT_KEY
from heliograph_broker.storage.segments import chunk

log = structlog.get_logger(__name__)

FORMAT_NAME = "FORMAT"
METADATA_NAME = "metadata.lmdb"
SEGMENTS_PREFIX = "segments/"
MANIFEST_NAME = "MANIFEST.json"
#: Most bytes that one call of :meth:`Backup.read` returns.
CHUNK_BYTES = 256 * 1024
_BLOCK = tarfile.BLOCKSIZE
#: LMDB's two meta pages, which its statistics do not count.
_META_PAGES = 2


class BackupError(Exception):
    """A backup cannot be made, or cannot be used; the message says why."""


class DamagedBackupError(BackupError):
    """The content of a backup is not what it should be, wherever and by whom it is restored."""


class BackedUpFile(msgspec.Struct):
    """A file of a backup: its bytes, and their SHA-256 in hexadecimal."""

    size: int
    sha256: str


class Manifest(msgspec.Struct):
    """The last file of a backup. Without it the backup did not end, and is not one."""

    format: str
    """That of the data directory."""
    version: str
    """Version of the broker that made it."""
    begun_ms: int
    """Wall-clock time (ms since 1970): everything with a receipt from before is in it."""
    files: dict[str, BackedUpFile]
    damaged: list[str] = []
    """Damage that was already in the store, a line each: the backup contains it unchanged."""


class Source(NamedTuple):
    """An environment as a transaction sees it, and the file it becomes."""

    name: str
    environment: lmdb.Environment
    transaction: lmdb.Transaction


class Backup:
    """One backup under way. :meth:`read` is called in a thread, everything else on the event loop."""

    def __init__(
        self, sources: Sequence[Source], data_format: str, version: str, begun_ms: int, closed: Callable[[], None]
    ) -> None:
        self._sources = sources
        self._manifest = Manifest(data_format, version, begun_ms, {})
        self._on_closed = closed
        self._closed = False
        # close() waits for the current step, which is short.
        self._step = threading.Lock()
        self._parts = self._tar()

    def read(self) -> bytes:
        """Return the next part of the tar, empty at its end.

        Raises :class:`BackupError` if it was closed or a copy failed.
        """
        with self._step:
            if self._closed:
                raise BackupError("the backup was ended before it was complete")
            parts: list[bytes] = []
            size = 0
            while size < CHUNK_BYTES and (part := next(self._parts, None)) is not None:
                parts.append(part)
                size += len(part)
            return b"".join(parts)

    def close(self) -> None:
        """End it, complete or not, and release what it held."""
        with self._step:
            if self._closed:
                return
            self._closed = True
            self._parts.close()
            for source in self._sources:
                source.transaction.abort()
        self._on_closed()

    def _tar(self) -> Generator[bytes, None, None]:
        yield from self._small(FORMAT_NAME, f"{self._manifest.format}\n".encode())
        for source in self._sources:
            yield from self._environment(source)
            # Pages that were freed since are used again only when nobody sees their old content.
            source.transaction.abort()
        yield from self._small(MANIFEST_NAME, msgspec.json.format(msgspec.json.encode(self._manifest)))
        yield bytes(2 * _BLOCK)

    def _small(self, name: str, content: bytes) -> Iterator[bytes]:
        yield self._header(name, len(content))
        yield content
        yield _padding(len(content))
        self._manifest.files[name] = BackedUpFile(len(content), hashlib.sha256(content).hexdigest())

    def _verify(self, source: Source) -> None:
        """Note what of a segment is damaged."""
        with source.transaction.cursor() as cursor:
            for key, value in cursor.iternext():
                if key == SEGMENT_KEY or chunk.is_sound(memoryview(key), memoryview(value)):
                    continue
                ledger_id, first = chunk.KEY.unpack(key)
                line = f"{source.name}: entries of ledger {ledger_id} from {first} on do not have their checksum"
                log.error("a backup has damaged entries", segment=source.name, ledger=ledger_id, first=first)
                self._manifest.damaged.append(line)

    def _environment(self, source: Source) -> Iterator[bytes]:
        if source.name.startswith(SEGMENTS_PREFIX):
            self._verify(source)
        stat = source.transaction.stat(source.environment.open_db())
        pages = _META_PAGES + stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
        expected = pages * stat["psize"]
        yield self._header(source.name, expected)
        digest = hashlib.sha256()
        size = 0
        for part in _copied(source):
            size += len(part)
            digest.update(part)
            yield part
        if size != expected:
            raise BackupError(f"{source.name} was copied with {size} bytes instead of {expected}")
        yield _padding(size)
        self._manifest.files[source.name] = BackedUpFile(size, digest.hexdigest())

    def _header(self, name: str, size: int) -> bytes:
        entry = tarfile.TarInfo(name)
        entry.size = size
        entry.mtime = self._manifest.begun_ms // 1000
        return entry.tobuf(tarfile.GNU_FORMAT)


def _padding(size: int) -> bytes:
    return bytes(-size % _BLOCK)


def _copied(source: Source) -> Iterator[bytes]:
    """Yield an environment's compact copy. Raises :class:`BackupError` if LMDB cannot make it."""
    reading, writing = os.pipe()
    failures: list[Exception] = []

    def copy() -> None:
        try:
            source.environment.copyfd(writing, compact=True, txn=source.transaction)
        except lmdb.Error as error:
            failures.append(error)
        finally:
            os.close(writing)

    copier = threading.Thread(target=copy, name="store-backup")
    copier.start()
    try:
        while part := os.read(reading, CHUNK_BYTES):
            yield part
    finally:
        # Without a reader the copy ends at its next write; it must end before its environment is closed.
        os.close(reading)
        copier.join()
    if failures:
        raise BackupError(f"{source.name} was not copied: {failures[0]}")
