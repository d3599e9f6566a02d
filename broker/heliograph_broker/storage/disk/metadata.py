"""The store's metadata: records by key in an LMDB environment of their own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import lmdb
import structlog

from heliograph_broker.storage.base.record_sum import content_of, with_sum

from .disk import Disk
from .environment import MAP_BYTES, open_writable

log = structlog.get_logger(__name__)

#: A smaller file is left as it is at start, however much of it is free.
_COMPACT_BYTES = 4 * 1024 * 1024


class Metadata:
    """The records. Only :meth:`write` changes them: the writer thread calls it, any thread may read."""

    def __init__(self, disk: Disk, path: Path, environment: lmdb.Environment) -> None:
        self._disk = disk
        self._path = path
        self.environment = environment
        #: Disk space of the file, as of the last commit.
        self.disk_bytes = disk.file_bytes(path)

    def get(self, key: bytes) -> bytes | None:
        """Return a record as last committed."""
        with self.environment.begin() as txn:
            value = txn.get(key)
            return None if value is None else content_of(key, bytes(value))

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the committed records whose key begins with ``prefix``, in order. For start-up."""
        records = []
        with self.environment.begin() as txn, txn.cursor() as cursor:
            more = cursor.set_range(prefix)
            while more and cursor.key().startswith(prefix):
                key = bytes(cursor.key())
                records.append((key, content_of(key, bytes(cursor.value()))))
                more = cursor.next()
        yield from records

    def write(self, records: Mapping[bytes, bytes | None]) -> None:
        """Commit and sync records (None deletes) as one transaction. Raises :class:`lmdb.Error` or :class:`OSError`."""
        with self.environment.begin(write=True) as txn:
            for key, value in records.items():
                if value is None:
                    txn.delete(key)
                else:
                    txn.put(key, with_sum(key, value))
        self.disk_bytes = self._disk.file_bytes(self._path)

    def close(self) -> None:
        self.environment.close()


def open_environment(disk: Disk, path: Path) -> lmdb.Environment:
    """Open or create the metadata's environment, without most of its free pages if it is largely free.

    LMDB uses free pages again but never returns them, so the file keeps the size of its worst moment: large cursors.
    A copy takes its place by a rename, so a crash leaves the one or the other. Raises :class:`lmdb.Error`.
    """
    temporary = path.with_suffix(".tmp")
    disk.remove(temporary)
    environment = open_writable(disk, path, MAP_BYTES)
    pages = environment.info()["last_pgno"] + 1
    stat = environment.stat()
    used = stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
    if pages * stat["psize"] < _COMPACT_BYTES or used * 4 > pages:
        return environment
    try:
        disk.copy_environment(environment, temporary)
    except (lmdb.Error, OSError) as error:
        log.warning("could not compact the metadata file; its free pages stay", path=str(path), error=str(error))
        disk.remove(temporary)
        return environment
    environment.close()
    disk.rename(temporary, path)
    disk.sync_directory(path.parent)
    return disk.open_environment(path, MAP_BYTES)
