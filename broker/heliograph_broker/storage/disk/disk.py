"""The file system as the store uses it: every file, directory and LMDB environment is reached through a :class:`Disk`.

Tests replace it by a simulated disk, which can crash between any two calls, lose what was not synced, and fail any
call with any error. So each method here defines what is durable when it returns, and a running store
opens, renames and removes files in no other way.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import lmdb

#: A lock file has this size at least: room for LMDB's header and more than 64 readers.
_LOCK_BYTES = 8192


class Locked(Exception):
    """Another process holds the lock; the message is what it wrote into the file."""


class Disk(Protocol):
    """Each method raises :class:`OSError`; those of environments raise :class:`lmdb.Error` as well."""

    def open_environment(
        self, path: Path, map_bytes: int, *, readonly: bool = False, lock: bool = True, sync: bool = True
    ) -> lmdb.Environment:
        """Open or create the environment in the one file ``path``. Its name is not durable before the directory is.

        ``lock`` keeps a table of readers beside it, ``sync`` makes every commit durable before it returns.
        """

    def copy_environment(self, environment: lmdb.Environment, path: Path) -> None:
        """Write a compact copy of an environment to ``path`` and sync the file."""

    def lock(self, path: Path, content: str) -> int:
        """Take the lock ``path`` until :meth:`unlock` or the end of the process. Raises :class:`Locked`."""

    def unlock(self, lock: int) -> None:
        """Release a lock."""

    def make_directory(self, path: Path) -> None:
        """Create a directory and its parents, unless it exists."""

    def exists(self, path: Path) -> bool:
        """Return whether there is a file or directory of that name."""

    def files(self, directory: Path) -> list[Path]:
        """Return the paths in a directory, in no particular order."""

    def file_bytes(self, path: Path) -> int:
        """Return the disk space of a file, 0 if there is no such file."""

    def file_length(self, path: Path) -> int:
        """Return the length of a file, holes included (bytes)."""

    def read(self, path: Path) -> bytes:
        """Return a small file's content."""

    def write(self, path: Path, content: bytes) -> None:
        """Create or replace a small file; its content is synced when this returns, its name is not."""

    def rename(self, path: Path, target: Path) -> None:
        """Rename a file, in place of another one. Durable with the directory."""

    def remove(self, path: Path) -> None:
        """Unlink a file, if it exists. Durable with the directory."""

    def shrink(self, path: Path, step_bytes: int) -> Iterator[None]:
        """Truncate a file step by step, down to one step's size, and yield after each."""

    def sync_directory(self, path: Path) -> None:
        """Make created, renamed and removed names in ``path`` durable."""

    def free_bytes(self, path: Path) -> int:
        """Return how much an ordinary user may still write where ``path`` is."""


class RealDisk:
    """The machine's file system."""

    __slots__ = ()

    def open_environment(
        self, path: Path, map_bytes: int, *, readonly: bool = False, lock: bool = True, sync: bool = True
    ) -> lmdb.Environment:
        if lock:
            # LMDB maps it, and a page touched for which the disk has no room ends the process by SIGBUS.
            descriptor = os.open(f"{path}-lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                os.posix_fallocate(descriptor, 0, _LOCK_BYTES)
            finally:
                os.close(descriptor)
        return lmdb.open(
            str(path), map_size=map_bytes, subdir=False, readonly=readonly, lock=lock, sync=sync, max_readers=64
        )

    def copy_environment(self, environment: lmdb.Environment, path: Path) -> None:
        environment.copy(str(path), compact=True)
        with path.open("rb") as copied:
            os.fsync(copied.fileno())

    def lock(self, path: Path, content: str) -> int:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, content.encode(), 0)
        except OSError as error:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(descriptor)
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise Locked(holder) from None
            raise
        return descriptor

    def unlock(self, lock: int) -> None:
        os.close(lock)

    def make_directory(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)

    def exists(self, path: Path) -> bool:
        return path.exists()

    def files(self, directory: Path) -> list[Path]:
        return list(directory.iterdir())

    def file_bytes(self, path: Path) -> int:
        try:
            return path.stat().st_blocks * 512
        except FileNotFoundError:
            return 0

    def file_length(self, path: Path) -> int:
        return path.stat().st_size

    def read(self, path: Path) -> bytes:
        return path.read_bytes()

    def write(self, path: Path, content: bytes) -> None:
        with path.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())

    def rename(self, path: Path, target: Path) -> None:
        path.rename(target)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def shrink(self, path: Path, step_bytes: int) -> Iterator[None]:
        size = path.stat().st_size
        while size > step_bytes:
            size -= step_bytes
            os.truncate(path, size)
            yield

    def sync_directory(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def free_bytes(self, path: Path) -> int:
        stat = os.statvfs(path)
        return stat.f_bavail * stat.f_frsize
