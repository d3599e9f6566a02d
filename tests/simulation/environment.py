"""An LMDB environment in memory: the part of ``lmdb`` that the store uses, with commits that a crash can take back.

A commit makes a new version of the content. A version is durable when it was synced; of those that were not, a crash
leaves any. What this does as LMDB does it is compared with LMDB in ``test_disk.py``.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType

import lmdb

PAGE = 4096
_PAGE_HEADER = 16
_NODE_HEADER = 8
#: A larger node has pages of its own.
_LARGEST_NODE = 2038
MAX_KEY = 511
_META_PAGES = 2


class Version:
    """The content as of one commit. Never changed once it is committed."""

    __slots__ = ("_keys", "number", "values")

    def __init__(self, values: dict[bytes, bytes], number: int) -> None:
        self.values = values
        self.number = number
        self._keys: list[bytes] | None = None

    @property
    def keys(self) -> list[bytes]:
        """All keys in order."""
        if self._keys is None:
            self._keys = sorted(self.values)
        return self._keys

    def changed(self) -> None:
        """A key came or went: only in the version that a write transaction makes."""
        self._keys = None

    def pages(self) -> tuple[int, int, int]:
        """Return about how many branch, leaf and overflow pages LMDB needs for it."""
        nodes = overflow = 0
        for key, value in self.values.items():
            node = _NODE_HEADER + len(key) + len(value) + (len(value) & 1)
            if node > _LARGEST_NODE:
                overflow += -(-(len(value) + _PAGE_HEADER) // PAGE)
                node = _NODE_HEADER + len(key) + 8
            nodes += node + 2
        leaf = -(-nodes // (PAGE - _PAGE_HEADER))
        return (-(-leaf // 100) if leaf > 1 else 0), leaf, overflow


class EnvironmentFile:
    """The file of an environment: what is durable, what was committed since, and how long the file has become."""

    def __init__(self) -> None:
        self.durable = Version({}, 0)
        #: Commits since the last sync, oldest first.
        self.unsynced: list[Version] = []
        self.bytes = 0
        #: Whether LMDB would not recognise the file any more.
        self.broken = False
        #: Whether the file was written without syncs: a crash may leave anything.
        self.unordered = False
        self.opened = 0

    @property
    def current(self) -> Version:
        return self.unsynced[-1] if self.unsynced else self.durable

    def sync(self) -> None:
        self.durable = self.current
        self.unsynced.clear()
        self.unordered = False


#: Called before a step that may fail or end in a crash: its name and, of a commit, what it will have become durable.
Step = Callable[[str], None]
Grow = Callable[[int], None]


class Environment:
    """The result of ``lmdb.open``. ``step`` is asked before each commit, sync and reading, ``grow`` before it grows."""

    def __init__(
        self, file: EnvironmentFile, map_bytes: int, step: Step, grow: Grow, *, readonly: bool, sync: bool
    ) -> None:
        self.file = file
        self._map_bytes = map_bytes
        self._step = step
        self._grow = grow
        self.readonly = readonly
        self._sync = sync
        self._closed = False
        self._writing = False
        self._panic = False
        file.opened += 1

    def __enter__(self) -> Environment:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def begin(
        self, db: object = None, parent: object = None, write: bool = False, buffers: bool = False
    ) -> Transaction:
        self._check()
        if parent is not None:
            raise NotImplementedError("nested transactions")
        if write:
            if self.readonly:
                raise lmdb.ReadonlyError("mdb_txn_begin: Permission denied")
            if self._writing:
                raise AssertionError("a second write transaction at the same time would wait for the first forever")
            self._writing = True
        else:
            self._step("view")
        return Transaction(self, write, buffers)

    def _check(self) -> None:
        if self._closed:
            raise lmdb.Error("Attempt to operate on closed/deleted/dropped object.")
        if self._panic:
            raise lmdb.PanicError("mdb_txn_begin: MDB_PANIC: Update of meta page failed or environment had fatal error")

    def ended(self, values: dict[bytes, bytes] | None) -> None:
        """A write transaction ends: with its content to commit, or None."""
        self._writing = False
        if values is None:
            return
        file = self.file
        version = Version(values, file.current.number + 1)
        needed = (sum(version.pages()) + _META_PAGES + 2) * PAGE
        if needed > self._map_bytes:
            raise lmdb.MapFullError("mdb_put: MDB_MAP_FULL: Environment mapsize limit reached")
        if needed > file.bytes:
            self._grow(needed - file.bytes)
        try:
            self._step("commit")
        except lmdb.Error:
            raise
        except OSError as error:
            # The pages were written and the meta page, perhaps: LMDB refuses everything until it is opened again.
            self._panic = True
            file.unsynced.append(version)
            raise lmdb.Error(f"mdb_txn_commit: {error.strerror}") from error
        except BaseException:
            # A crash: it is there afterwards, or it is not.
            file.unsynced.append(version)
            raise
        file.bytes = max(file.bytes, needed)
        file.unsynced.append(version)
        if self._sync:
            file.sync()
        else:
            file.unordered = True

    def sync(self, force: bool = False) -> None:
        self._check()
        try:
            self._step("sync")
        except OSError as error:
            raise lmdb.Error(f"mdb_env_sync: {error.strerror}") from error
        self.file.sync()

    def stat(self) -> dict[str, int]:
        self._check()
        return _stat(self.file.current)

    def info(self) -> dict[str, int]:
        self._check()
        return {
            "map_addr": 0,
            "map_size": self._map_bytes,
            "last_pgno": max(self.file.bytes // PAGE, _META_PAGES) - 1,
            "last_txnid": self.file.current.number,
            "max_readers": 64,
            "num_readers": 0,
        }

    def open_db(self, key: bytes | None = None, txn: object = None) -> object:
        if key is not None:
            raise NotImplementedError("named databases")
        return object()

    def max_key_size(self) -> int:
        return MAX_KEY

    def reader_check(self) -> int:
        return 0

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.file.opened -= 1


def _stat(version: Version) -> dict[str, int]:
    branch, leaf, overflow = version.pages()
    return {
        "psize": PAGE,
        "depth": 0 if not leaf else 1 if not branch else 2,
        "branch_pages": branch,
        "leaf_pages": leaf,
        "overflow_pages": overflow,
        "entries": len(version.values),
    }


class Transaction:
    """The content of a write transaction is a copy, which :meth:`commit` puts in place."""

    def __init__(self, environment: Environment, write: bool, buffers: bool) -> None:
        self.environment = environment
        self.write = write
        self.buffers = buffers
        seen = environment.file.current
        self.version = Version(dict(seen.values), seen.number) if write else seen
        self._ended = False
        self._failed = False

    def __enter__(self) -> Transaction:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.commit()
        else:
            self.abort()

    def check(self) -> None:
        if self._ended or self.environment._closed:
            raise lmdb.Error("Attempt to operate on closed/deleted/dropped object.")

    def commit(self) -> None:
        self.check()
        self._ended = True
        if self.write:
            if self._failed:
                self.environment.ended(None)
                raise lmdb.BadTxnError("mdb_txn_commit: MDB_BAD_TXN: Transaction must abort")
            self.environment.ended(self.version.values)

    def abort(self) -> None:
        if not self._ended:
            self._ended = True
            if self.write:
                self.environment.ended(None)

    def shown(self, value: bytes) -> bytes | memoryview:
        return memoryview(value) if self.buffers else value

    def get(self, key: bytes, default: bytes | None = None, db: object = None) -> bytes | memoryview | None:
        self.check()
        if not key:
            raise lmdb.BadValsizeError("mdb_get: MDB_BAD_VALSIZE")
        value = self.version.values.get(bytes(key))
        return default if value is None else self.shown(value)

    def put(
        self,
        key: bytes,
        value: bytes,
        dupdata: bool = True,
        overwrite: bool = True,
        append: bool = False,
        db: object = None,
    ) -> bool:
        self._check_write("mdb_put", key)
        key, value = bytes(key), bytes(value)
        version = self.version
        known = key in version.values
        if known and not overwrite:
            return False
        if append and version.values and key <= version.keys[-1]:
            return False
        version.values[key] = value
        if not known:
            if version._keys is not None and (not version._keys or key > version._keys[-1]):
                version._keys.append(key)
            else:
                version.changed()
        return True

    def delete(self, key: bytes, value: bytes = b"", db: object = None) -> bool:
        self._check_write("mdb_del", key[:1])
        if self.version.values.pop(bytes(key), None) is None:
            return False
        self.version.changed()
        return True

    def _check_write(self, call: str, key: bytes) -> None:
        self.check()
        if not self.write:
            raise lmdb.ReadonlyError(f"{call}: Permission denied")
        if not 0 < len(key) <= MAX_KEY:
            raise lmdb.BadValsizeError(f"{call}: MDB_BAD_VALSIZE: Unsupported size of key/DB name/data")

    def cursor(self, db: object = None) -> Cursor:
        self.check()
        return Cursor(self)

    def stat(self, db: object = None) -> dict[str, int]:
        self.check()
        return _stat(self.version)

    def id(self) -> int:
        return self.version.number + (1 if self.write else 0)


class Cursor:
    """A place among the keys; at none, key and value are empty."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction
        self._key: bytes | None = None

    def __enter__(self) -> Cursor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """It holds nothing."""

    @property
    def _version(self) -> Version:
        self._transaction.check()
        return self._transaction.version

    def _go(self, index: int) -> bool:
        keys = self._version.keys
        self._key = keys[index] if 0 <= index < len(keys) else None
        return self._key is not None

    def first(self) -> bool:
        return self._go(0)

    def last(self) -> bool:
        return self._go(len(self._version.keys) - 1)

    def next(self) -> bool:
        return self.first() if self._key is None else self._go(bisect_right(self._version.keys, self._key))

    def prev(self) -> bool:
        return self.last() if self._key is None else self._go(bisect_left(self._version.keys, self._key) - 1)

    def set_range(self, key: bytes) -> bool:
        return self._go(bisect_left(self._version.keys, bytes(key)))

    def set_key(self, key: bytes) -> bool:
        if not key:
            raise lmdb.BadValsizeError("mdb_cursor_get: MDB_BAD_VALSIZE")
        self._key = bytes(key) if bytes(key) in self._version.values else None
        return self._key is not None

    def key(self) -> bytes | memoryview:
        return self._transaction.shown(self._key or b"")

    def value(self) -> bytes | memoryview:
        return self._transaction.shown(b"" if self._key is None else self._version.values[self._key])

    def item(self) -> tuple[bytes | memoryview, bytes | memoryview]:
        return self.key(), self.value()

    def put(self, key: bytes, value: bytes, overwrite: bool = True, append: bool = False) -> bool:
        put = self._transaction.put(key, value, overwrite=overwrite, append=append)
        self._key = bytes(key)
        return put

    def putmulti(
        self, items: Iterable[tuple[bytes, bytes]], dupdata: bool = True, overwrite: bool = True, append: bool = False
    ) -> tuple[int, int]:
        consumed = added = 0
        for key, value in items:
            consumed += 1
            added += self.put(key, value, overwrite=overwrite, append=append)
        return consumed, added

    def delete(self) -> bool:
        if self._key is None:
            return False
        at = bisect_left(self._version.keys, self._key)
        self._transaction.delete(self._key)
        self._go(at)
        return True

    def iternext(self, keys: bool = True, values: bool = True) -> Iterator[object]:
        more = self._key is not None or self.first()
        while more:
            yield self.item() if keys and values else self.key() if keys else self.value()
            more = self.next()

    __iter__ = iternext
