"""Atomic creation of LMDB environments: after a power cut, an environment is complete or does not exist."""

from __future__ import annotations

from pathlib import Path

import lmdb

from .disk import Disk

#: Address space of an environment whose file may grow: more than it ever takes.
MAP_BYTES = 32 * 1024 * 1024 * 1024
#: Suffix of an environment that is being created; a start takes it away.
_NEW_SUFFIX = ".new"


def open_writable(disk: Disk, path: Path, map_bytes: int) -> lmdb.Environment:
    """Open or create the environment in the file ``path``; its name and first pages are durable when this returns.

    LMDB itself syncs the first pages of a new file with the first commit only: a power cut before that would leave
    a file it refuses to open. Raises :class:`lmdb.Error` or :class:`OSError`.
    """
    if not disk.exists(path):
        new = path.with_suffix(_NEW_SUFFIX)
        disk.remove(new)
        environment = disk.open_environment(new, map_bytes, lock=False)
        try:
            environment.sync(True)
        finally:
            environment.close()
        disk.rename(new, path)
    # An existing file, too: the process that created it may have failed or died at this point.
    disk.sync_directory(path.parent)
    return disk.open_environment(path, map_bytes)
