"""The data directory: one process at a time, one format version, and where its files lie."""

from __future__ import annotations

import os
from pathlib import Path

from .disk import Disk, Locked

#: What this version writes and the only one it reads.
FORMAT_VERSION = 2
#: What the file FORMAT says.
FORMAT_LINE = f"heliograph {FORMAT_VERSION}"


class DataDirError(Exception):
    """The data directory cannot be used; the message says why and what to do."""


class DataDir:
    """An open, locked data directory. The lock ends with :meth:`close` or with the process."""

    def __init__(self, path: Path, disk: Disk) -> None:
        """Raises :class:`DataDirError`: not a directory, no permission, in use, or an unknown format version."""
        self.path = path
        self.disk = disk
        try:
            created = not disk.exists(path)
            disk.make_directory(path)
            if created:
                disk.sync_directory(path.parent)
            self._lock = disk.lock(path / "LOCK", f"{os.getpid()}\n")
        except FileExistsError:
            raise DataDirError(f"{path} is not a directory") from None
        except Locked as holder:
            raise DataDirError(
                f"data directory {path} is in use by another process (pid {holder}); "
                "stop it or choose another --data-dir"
            ) from None
        except OSError as error:
            raise DataDirError(f"cannot use data directory {path}: {error.strerror}") from error
        try:
            self._check_format()
            disk.make_directory(self.segments)
            # FORMAT's name as well, which an earlier start may have left unsynced.
            disk.sync_directory(path)
        except DataDirError:
            self.close()
            raise
        except OSError as error:
            self.close()
            raise DataDirError(f"cannot use data directory {path}: {error.strerror}") from error

    def _check_format(self) -> None:
        marker = self.path / "FORMAT"
        disk = self.disk
        if not disk.exists(marker):
            if disk.exists(self.metadata):
                raise DataDirError(f"data directory {self.path} has data but no FORMAT file; it is damaged")
            temporary = marker.with_suffix(".tmp")
            disk.write(temporary, f"{FORMAT_LINE}\n".encode())
            disk.rename(temporary, marker)
            return
        found = disk.read(marker).decode(errors="replace").strip()
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
        return self.disk.free_bytes(self.path)

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
        self.disk.unlock(self._lock)
