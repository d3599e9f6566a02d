"""From a backup to a data directory: all of it and unharmed, or nothing."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import shutil
import tarfile
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO

import msgspec

from heliograph_broker.storage.base.json_errors import NOT_JSON
from heliograph_broker.storage.disk import data_dir as data_directory
from heliograph_broker.storage.disk.disk import RealDisk
from heliograph_broker.storage.disk.identity import KNOWN_VERSIONS, parse_format

from .backup import (
    FORMAT_NAME,
    MANIFEST_NAME,
    METADATA_NAME,
    SEGMENTS_PREFIX,
    BackedUpFile,
    BackupError,
    DamagedBackupError,
    Manifest,
)

_DISK = RealDisk()
_COPY_BYTES = 1024 * 1024
#: A manifest names every segment in some 150 bytes.
_MANIFEST_BYTES = 64 * 1024 * 1024
#: Entries of an empty volume: of its file system, and of a restore or a broker that did nothing there yet.
NOT_DATA = frozenset({"lost+found", data_directory.LOCK})


def check(archive: Path) -> Manifest:
    """Read a backup (tar, or tar in gzip) from end to end and return its manifest.

    Raises :class:`BackupError` naming what is wrong with it, :class:`DamagedBackupError` if that is its content.
    """
    with _opened(archive) as file:
        return check_stream(file, str(archive))


def check_stream(file: IO[bytes], label: str) -> Manifest:
    """:func:`check` for a backup that is read from anywhere; ``label`` names it in errors."""
    return _read(file, label, None)


def restore(archive: Path, data_dir: Path) -> Manifest:
    """Make ``data_dir``, which is empty or not there, what the backup has; return the backup's manifest.

    Everything is written and synced under another name first and then renamed. Raises :class:`BackupError`; nothing is
    left behind then.
    """
    with _opened(archive) as file:
        return restore_stream(file, str(archive), data_dir)


@contextmanager
def held(data_dir: Path) -> Iterator[None]:
    """Keep brokers and other restores off a directory that exists.

    Raises :class:`BackupError` if a process uses it, and :class:`OSError`.
    """
    try:
        with data_directory.held(data_dir, _DISK):
            yield
    except data_directory.DataDirError as error:
        raise BackupError(str(error)) from error


def restore_stream(file: IO[bytes], label: str, data_dir: Path) -> Manifest:
    """:func:`restore` for a backup that is read from anywhere; ``label`` names it in errors."""
    # A volume cannot be renamed, nor be renamed into from another.
    if not data_dir.is_mount():
        return _restore(file, label, data_dir, data_dir.parent)
    try:
        with held(data_dir):
            return restore_into(file, label, data_dir)
    except OSError as error:
        raise BackupError(f"cannot restore into {data_dir}: {error.strerror}") from error


def restore_into(file: IO[bytes], label: str, data_dir: Path, *, beside: Collection[str] = ()) -> Manifest:
    """:func:`restore_stream` into a directory that is there and stays, and that :func:`held` holds.

    Files named ``beside`` may be in the directory, and stay.
    """
    return _restore(file, label, data_dir, data_dir, {*NOT_DATA, *beside})


def _restore(file: IO[bytes], label: str, data_dir: Path, above: Path, allowed: Collection[str] = ()) -> Manifest:
    """Write everything below another name in ``above``, which is ``data_dir`` itself if it cannot be renamed."""
    try:
        if data_dir.exists() and {path.name for path in data_dir.iterdir()}.difference(allowed):
            raise BackupError(f"{data_dir} is not empty; restore into a directory that is empty or not there")
        data_dir.parent.mkdir(parents=True, exist_ok=True)
        temporary = above / f".{data_dir.name}.restoring-{os.getpid()}"
        (temporary / SEGMENTS_PREFIX).mkdir(parents=True)
    except NotADirectoryError:
        raise BackupError(f"{data_dir} is not a directory") from None
    except OSError as error:
        raise BackupError(f"cannot restore into {data_dir}: {error.strerror}") from error
    try:
        manifest = _read(file, label, temporary)
        _DISK.sync_directory(temporary / SEGMENTS_PREFIX)
        _DISK.sync_directory(temporary)
        if above == data_dir:
            _move_into(temporary, data_dir)
        else:
            temporary.rename(data_dir)
            _DISK.sync_directory(data_dir.parent)
    except OSError as error:
        raise BackupError(f"cannot restore into {data_dir}: {error.strerror}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return manifest


def _move_into(temporary: Path, data_dir: Path) -> None:
    """Move the files; whatever ends this early leaves segments without FORMAT, which no broker starts on."""
    for name in (SEGMENTS_PREFIX, METADATA_NAME, FORMAT_NAME):
        (temporary / name).rename(data_dir / name)
        _DISK.sync_directory(data_dir)


@contextmanager
def _opened(archive: Path) -> Iterator[IO[bytes]]:
    try:
        file = archive.open("rb")
    except OSError as error:
        raise BackupError(f"cannot read {archive}: {error.strerror}") from error
    with file:
        yield file


def _read(file: IO[bytes], archive: str, target: Path | None) -> Manifest:
    found: dict[str, BackedUpFile] = {}
    manifest: Manifest | None = None
    try:
        with tarfile.open(fileobj=file, mode="r|*") as tar:
            for member in tar:
                name = member.name
                content = tar.extractfile(member) if member.isreg() else None
                if content is None or name in found or manifest is not None or not _known(name):
                    raise DamagedBackupError(f"{archive} is not a backup: it holds '{name}'")
                if (name == FORMAT_NAME) != (not found):
                    raise DamagedBackupError(f"{archive} is not a backup: it does not begin with {FORMAT_NAME}")
                if name == FORMAT_NAME:
                    found[name] = _format(content, target, archive)
                    continue
                if name == MANIFEST_NAME:
                    manifest = msgspec.json.decode(content.read(_MANIFEST_BYTES), type=Manifest)
                    continue
                found[name] = _file(content, None if target is None else target / name)
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DamagedBackupError(f"{archive} is damaged or cut short: {error}") from error
    except NOT_JSON as error:
        raise DamagedBackupError(f"{archive} is damaged: its {MANIFEST_NAME} cannot be read: {error}") from error
    if manifest is None:
        raise DamagedBackupError(f"{archive} is cut short: it has no {MANIFEST_NAME}, which is written last")
    for name in sorted(manifest.files.keys() | found.keys()):
        if manifest.files.get(name) != found.get(name):
            raise DamagedBackupError(f"{archive} is damaged: {name} is not what {MANIFEST_NAME} says")
    if METADATA_NAME not in found:
        raise DamagedBackupError(f"{archive} is not a backup: it has no {METADATA_NAME}")
    return manifest


def _known(name: str) -> bool:
    """Whether a backup has a file of this name; no other is ever written."""
    if name.startswith(SEGMENTS_PREFIX):
        rest = name.removeprefix(SEGMENTS_PREFIX)
        return "/" not in rest and rest.endswith(".lmdb") and not rest.startswith(".")
    return name in (FORMAT_NAME, METADATA_NAME, MANIFEST_NAME)


def _format(content: IO[bytes], target: Path | None, archive: str) -> BackedUpFile:
    """Read FORMAT, the first file: it decides whether the others can be read."""
    line = content.read(_COPY_BYTES)
    found = line.decode(errors="replace").strip()
    if parse_format(found) is None:
        known = " and ".join(f"'heliograph {version}'" for version in KNOWN_VERSIONS)
        raise BackupError(f"{archive} has format '{found[:80]}'; this version knows {known}")
    return _file(io.BytesIO(line), None if target is None else target / FORMAT_NAME)


def _file(content: IO[bytes], path: Path | None) -> BackedUpFile:
    """Read one file and write it to ``path``, unless that is None."""
    digest = hashlib.sha256()
    size = 0
    with path.open("xb") if path is not None else nullcontext() as file:
        while part := content.read(_COPY_BYTES):
            size += len(part)
            digest.update(part)
            if file is not None:
                file.write(part)
        if file is not None:
            file.flush()
            os.fsync(file.fileno())
    return BackedUpFile(size, digest.hexdigest())
