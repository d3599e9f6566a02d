"""The data directory: its lock, its format version, and the paths in it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .disk import Disk, Locked
from .identity import FORMAT_VERSION, KNOWN_VERSIONS, Format, format_text, parse_format

#: Advice for a directory that no broker starts on.
RECOVERY_HINT = "restore a backup with 'heliograph restore', or rescue what is there with 'heliograph store salvage'"
#: The file whose lock a broker has while it runs.
LOCK = "LOCK"
#: In a directory while a backup is restored into it.
RESTORING = "RESTORING.json"


class DataDirError(Exception):
    """The data directory cannot be used; the message says why and what to do."""


@contextmanager
def held(path: Path, disk: Disk) -> Iterator[None]:
    """Keep brokers from starting on a directory.

    Raises :class:`DataDirError` if a process uses it, and :class:`OSError`.
    """
    lock = _locked(path, disk)
    try:
        yield
    finally:
        disk.unlock(lock)


class DataDir:
    """An open, locked data directory. The lock ends with :meth:`close` or with the process."""

    def __init__(self, path: Path, disk: Disk) -> None:
        """Raises :class:`DataDirError`: not a directory, no permission, in use, or an unknown format version."""
        self.path = path
        self.disk = disk
        #: The contents of FORMAT, None in a directory that is new.
        self.format: Format | None = None
        try:
            created = not disk.exists(path)
            disk.make_directory(path)
            if created:
                disk.sync_directory(path.parent)
            self._lock = _locked(path, disk)
        except FileExistsError:
            raise DataDirError(f"{path} is not a directory") from None
        except OSError as error:
            raise DataDirError(f"cannot use data directory {path}: {error.strerror}") from error
        try:
            self._check_format()
            disk.make_directory(self.segments)
            # Syncs FORMAT's name as well, which an earlier start may have left unsynced.
            disk.sync_directory(path)
        except DataDirError:
            self.close()
            raise
        except OSError as error:
            self.close()
            raise DataDirError(f"cannot use data directory {path}: {error.strerror}") from error

    def _check_format(self) -> None:
        disk = self.disk
        segments = disk.exists(self.segments) and any(path.suffix == ".lmdb" for path in disk.files(self.segments))
        if not disk.exists(self._marker):
            if disk.exists(self.path / RESTORING):
                raise DataDirError(
                    f"a restore into data directory {self.path} was interrupted; run it again or empty the directory"
                )
            # Metadata alone: a first start that was interrupted.
            if segments:
                raise DataDirError(f"data directory {self.path} has segments but no FORMAT file; {RECOVERY_HINT}")
            return
        content = disk.read(self._marker).decode(errors="replace")
        self.format = parse_format(content)
        if self.format is None:
            known = " and ".join(f"'heliograph {version}'" for version in KNOWN_VERSIONS)
            raise DataDirError(
                f"data directory {self.path} has format '{content.strip()[:80]}'; this version knows {known}"
            )
        if not disk.exists(self.metadata) and (segments or self.format.version >= FORMAT_VERSION):
            raise DataDirError(f"data directory {self.path} has lost its metadata.lmdb; {RECOVERY_HINT}")

    def become(self, store_id: str) -> None:
        """Write FORMAT, which assigns the whole directory to a store. Raises :class:`OSError`."""
        if self.format is not None and self.format.store_id == store_id:
            return
        temporary = self._marker.with_suffix(".tmp")
        self.disk.write(temporary, format_text(store_id).encode())
        self.disk.rename(temporary, self._marker)
        self.disk.sync_directory(self.path)
        self.format = Format(FORMAT_VERSION, store_id)

    @property
    def _marker(self) -> Path:
        return self.path / "FORMAT"

    @property
    def metadata(self) -> Path:
        return self.path / "metadata.lmdb"

    @property
    def segments(self) -> Path:
        return self.path / "segments"

    def free_bytes(self) -> int:
        """Return how much an ordinary user may still write on this file system."""
        return self.disk.free_bytes(self.path)

    def used_bytes(self) -> int:
        """Return the disk space all files here take, read from the directory."""
        return self.files_bytes(self.path)

    @staticmethod
    def files_bytes(path: Path) -> int:
        """As :meth:`used_bytes`, of a data directory that another process may have open."""
        total = 0
        for file in path.rglob("*"):
            try:
                total += file.stat().st_blocks * 512
            except FileNotFoundError:
                continue
        return total

    def close(self) -> None:
        self.disk.unlock(self._lock)


def _locked(path: Path, disk: Disk) -> int:
    try:
        return disk.lock(path / LOCK, f"{os.getpid()}\n")
    except Locked as holder:
        raise DataDirError(
            f"data directory {path} is in use by another process (pid {holder}); stop it or choose another --data-dir"
        ) from None
