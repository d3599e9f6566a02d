"""Fetches a backup and makes a data directory of it: an empty one, once, however often the process is killed."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
from pathlib import Path
from typing import Any, Final

import msgspec

from heliograph_broker.storage.base.json_errors import NOT_JSON
from heliograph_broker.storage.copies.backup import FORMAT_NAME, BackupError, Manifest
from heliograph_broker.storage.copies.restore import NOT_DATA, held, restore_into, restore_stream
from heliograph_broker.storage.disk.data_dir import RESTORING
from heliograph_broker.storage.disk.disk import RealDisk
from heliograph_broker.storage.disk.identity import parse_format

from .catalog import BackupRecord, part_path
from .object_store import ObjectStore, StoreError

#: In a directory into which a backup was restored: which one. Before it is complete, the file is RESTORING.
RESTORED: Final = "RESTORED.json"
_BUFFER_BYTES: Final = 1024 * 1024
_ANOTHER: Final = (
    "a backup is restored into an empty volume only; use another BrokerCluster name, or delete the"
    " PersistentVolumeClaim if its messages are not wanted"
)


class DamagedPartError(StoreError):
    """A part of a backup is missing or is not what was uploaded."""


class Origin(msgspec.Struct, rename="camel"):
    """The backup that a data directory was restored from."""

    url: str
    name: str
    point_in_time_ms: int
    completed_ms: int
    size: int
    version: str
    format: str = ""
    """FORMAT of the backup, with the id of its store."""


class PartReader(io.RawIOBase):
    """The parts of a backup as one stream, each compared with its checksum before the first byte of it is used."""

    def __init__(self, store: ObjectStore, record: BackupRecord) -> None:
        super().__init__()
        self._store = store
        self._record = record
        self._number = 0
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
        """Raises :class:`StoreError`, :class:`DamagedPartError` for a part that cannot be used."""
        if not self._rest and self._number < len(self._record.parts):
            self._rest = memoryview(self._next())
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size

    def _next(self) -> bytes:
        part = self._record.parts[self._number]
        self._number += 1
        path = part_path(self._record.name, self._number, self._record.upload)
        try:
            content = self._store.get(path)
        except KeyError:
            raise self._unusable(path, "is missing") from None
        if (len(content), hashlib.sha256(content).hexdigest()) != (part.size, part.sha256):
            raise self._unusable(path, "is damaged: it is not what was uploaded")
        return content

    def _unusable(self, path: str, problem: str) -> DamagedPartError:
        url = self._store.url
        return DamagedPartError(
            f"{url}/{path} {problem}; restore another backup: 'heliograph backup list {url}' shows them"
        )


def pull(store: ObjectStore, record: BackupRecord, data_dir: Path) -> Manifest:
    """Restore a backup into ``data_dir``, which is empty or does not exist.

    Raises :class:`StoreError` and :class:`BackupError`; nothing is left behind then.
    """
    with _stream(store, record) as file:
        return restore_stream(file, f"{store.url}/{record.name}", data_dir)


def bootstrap(store: ObjectStore, record: BackupRecord, data_dir: Path) -> Origin:
    """Restore a backup into the volume of a new broker, once; return which one it was restored from.

    Where it was done before, nothing is done. Where it was interrupted, it begins again. A directory with other data
    is never touched. Raises :class:`StoreError`, and :class:`BackupError`, also if a broker or another restore uses it.
    """
    if (done := restored_from(data_dir)) is not None:
        return done
    origin = Origin(
        store.url, record.name, record.point_in_time_ms, record.completed_ms, record.size, record.version, record.format
    )
    try:
        with held(data_dir):
            # Another restore may have ended since.
            if (done := _complete(data_dir)) is not None:
                return done
            present = {path.name for path in data_dir.iterdir()} - NOT_DATA
            if present and RESTORING not in present:
                raise BackupError(f"{data_dir} is not empty: {_ANOTHER}")
            # A broker never started on it: everything in it is of the restore that was interrupted.
            for name in present - {RESTORING}:
                _remove(data_dir / name)
            _write(data_dir / RESTORING, origin)
            with _stream(store, record) as file:
                restore_into(file, f"{store.url}/{record.name}", data_dir, beside={RESTORING})
            _mark(data_dir)
    except OSError as error:
        raise BackupError(f"cannot restore into {data_dir}: {error.strerror}") from error
    return origin


def restored_from(data_dir: Path) -> Origin | None:
    """Return the backup that :func:`bootstrap` has restored; None if there is none, or its restore was interrupted.

    A restore that was interrupted after FORMAT, the last file, is complete: its mark is made up for, whatever became
    of the backup. Raises :class:`BackupError`, also if a restore is under way or a broker started before a restore was
    complete.
    """
    try:
        if (data_dir / RESTORED).exists():
            return _origin(data_dir)
        if not (data_dir / RESTORING).exists():
            return None
        with held(data_dir):
            return _complete(data_dir)
    except OSError as error:
        raise BackupError(f"cannot read {data_dir}: {error.strerror}") from error


def _complete(data_dir: Path) -> Origin | None:
    """:func:`restored_from` for a directory that is held. Raises :class:`OSError`, too."""
    if not (data_dir / RESTORED).exists():
        if not (data_dir / RESTORING).exists() or not (data_dir / FORMAT_NAME).exists():
            return None
        _check_complete(data_dir)
        _mark(data_dir)
    return _origin(data_dir)


def _origin(data_dir: Path) -> Origin:
    try:
        return msgspec.json.decode((data_dir / RESTORED).read_bytes(), type=Origin)
    except NOT_JSON as error:
        raise BackupError(f"{data_dir / RESTORED} cannot be read: {error}") from error


def begun(data_dir: Path) -> str:
    """Return the name of the backup whose restore by :func:`bootstrap` was interrupted; empty if none was."""
    try:
        return msgspec.json.decode((data_dir / RESTORING).read_bytes(), type=Origin).name
    except (OSError, *NOT_JSON):
        return ""


def _check_complete(data_dir: Path) -> None:
    """Raise :class:`BackupError` unless the store in a directory is that of the backup whose restore was begun.

    A broker that starts on a volume before its restore is complete makes a store of its own, with another id.
    """
    found = parse_format((data_dir / FORMAT_NAME).read_text(errors="replace"))
    try:
        backed_up = parse_format(msgspec.json.decode((data_dir / RESTORING).read_bytes(), type=Origin).format)
    except NOT_JSON:
        backed_up = None
    if found is None or backed_up is None or found.store_id != backed_up.store_id:
        raise BackupError(f"a broker started on {data_dir} before the backup was restored: {_ANOTHER}")


def _mark(data_dir: Path) -> None:
    """Mark a restore as complete."""
    (data_dir / RESTORING).rename(data_dir / RESTORED)
    RealDisk().sync_directory(data_dir)


def _stream(store: ObjectStore, record: BackupRecord) -> io.BufferedReader[Any]:
    reader: Any = PartReader(store, record)
    return io.BufferedReader(reader, _BUFFER_BYTES)


def _write(path: Path, origin: Origin) -> None:
    with path.open("wb") as file:
        file.write(msgspec.json.encode(origin))
        file.flush()
        os.fsync(file.fileno())
    RealDisk().sync_directory(path.parent)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
