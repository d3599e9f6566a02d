"""Classifies errors of the disk or of LMDB: no room for now, a shortage that passes, or a store that is broken."""

from __future__ import annotations

import errno
import os

import lmdb

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN)
#: LMDB reports a system error that it has no class for by its text alone.
_NO_SPACE_TEXTS = tuple(os.strerror(number) for number in _NO_SPACE)
_SHORTAGE_TEXTS = tuple(os.strerror(number) for number in _SHORTAGES)
_IO_ERROR_TEXT = os.strerror(errno.EIO)


class StorageFull(Exception):
    """The disk is full: new entries are refused, metadata is kept and written again later."""


class StoreFailed(Exception):
    """The store is broken and accepts no more writes; only a restart opens it again."""


def lacks_space(error: BaseException) -> bool:
    """Return whether the disk, or an environment's map, is full: it may have space again later."""
    if isinstance(error, OSError):
        return error.errno in _NO_SPACE
    if isinstance(error, lmdb.Error):
        return isinstance(error, lmdb.MapFullError | lmdb.DiskError) or str(error).endswith(_NO_SPACE_TEXTS)
    return isinstance(error, StorageFull)


def may_be_cut_short(error: BaseException) -> bool:
    """Return whether this may be the error of a write of which the disk had room for a part only.

    LMDB reports such a write as an I/O error, as it does what the device itself reports.
    """
    return isinstance(error, lmdb.Error) and str(error).endswith(_IO_ERROR_TEXT)


def breaks_store(error: BaseException) -> bool:
    """Return whether an environment is unusable from now on: a panic, read-only, an I/O error, corruption.

    An error that is neither the system's nor LMDB's is a mistake of the code: it fails one group and no more.
    """
    if lacks_space(error):
        return False
    if isinstance(error, OSError):
        return error.errno not in _SHORTAGES
    if isinstance(error, lmdb.Error):
        return not isinstance(error, lmdb.MemoryError) and not str(error).endswith(_SHORTAGE_TEXTS)
    return False
