"""The data directory: one process at a time, one format version, and where its files lie."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

#: What this version writes and the only one it reads.
FORMAT_VERSION = 2
#: What the file FORMAT says.
FORMAT_LINE = f"heliograph {FORMAT_VERSION}"


class DataDirError(Exception):
    """The data directory cannot be used; the message says why and what to do."""


class DataDir:
    """An open, locked data directory. The lock ends with :meth:`close` or with the process."""

    def __init__(self, path: Path) -> None:
        """Raises :class:`DataDirError`: not a directory, no permission, in use, or an unknown format version."""
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(path / "LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except FileExistsError:
            raise DataDirError(f"{path} is not a directory") from None
        except OSError as error:
            raise DataDirError(f"cannot use data directory {path}: {error.strerror}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._lock, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(self._lock)
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise DataDirError(f"cannot lock data directory {path}: {error.strerror}") from error
            raise DataDirError(
                f"data directory {path} is in use by another process (pid {holder}); "
                "stop it or choose another --data-dir"
            ) from None
        try:
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)
            self._check_format()
            self.segments.mkdir(exist_ok=True)
        except DataDirError:
            os.close(self._lock)
            raise
        except OSError as error:
            os.close(self._lock)
            raise DataDirError(f"cannot use data directory {path}: {error.strerror}") from error

    def _check_format(self) -> None:
        marker = self.path / "FORMAT"
        if not marker.exists():
            if self.metadata.exists():
                raise DataDirError(f"data directory {self.path} has data but no FORMAT file; it is damaged")
            temporary = marker.with_suffix(".tmp")
            temporary.write_text(f"{FORMAT_LINE}\n")
            temporary.rename(marker)
            sync_directory(self.path)
            return
        found = marker.read_text(errors="replace").strip()
        if found != FORMAT_LINE:
            raise DataDirError(f"data directory {self.path} has format '{found}'; this version knows '{FORMAT_LINE}'")

    @property
    def metadata(self) -> Path:
        return self.path / "metadata.lmdb"

    @property
    def segments(self) -> Path:
        return self.path / "segments"

    def free_bytes(self) -> int:
        """Return how much an ordinary user may still write on this file system."""
        stat = os.statvfs(self.path)
        return stat.f_bavail * stat.f_frsize

    def used_bytes(self) -> int:
        """Return the disk space all files here take, read from the directory."""
        return self.files_bytes(self.path)

    @staticmethod
    def files_bytes(path: Path) -> int:
        """As :meth:`used_bytes`, of a data directory that somebody else may have open."""
        total = 0
        for file in path.rglob("*"):
            try:
                total += file.stat().st_blocks * 512
            except FileNotFoundError:
                continue
        return total

    def close(self) -> None:
        os.close(self._lock)


def sync_directory(path: Path) -> None:
    """Make created, renamed and removed names in ``path`` durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
