"""A file system in memory that can crash at any step, lose what was not synced, fail calls, and damage what it keeps.

Every call counts as a step. A crash ends all later calls with :class:`Crashed`; :meth:`SimulatedDisk.reboot` returns
the disk as it is found afterwards. Names that no ``sync_directory`` made durable are there or not, each change of them
by itself; an environment is as of its last sync or of any later commit, unless it was written without syncs: then LMDB
may not recognise it at all.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import lmdb
from heliograph_broker.storage.disk.disk import Locked

from .environment import PAGE, Environment, EnvironmentFile

#: Names of the steps that write and may fail.
WRITES = frozenset({"open", "commit", "sync", "write", "rename", "remove", "sync_directory", "shrink", "mkdir", "copy"})


class Crashed(BaseException):
    """The machine lost its power; nothing may catch this but the simulation."""


class SmallFile:
    """A file that is written in one go."""

    __slots__ = ("content",)

    def __init__(self, content: bytes) -> None:
        self.content = content


File = SmallFile | EnvironmentFile


class Directory:
    """Names, those that are durable, and the changes of them since."""

    def __init__(self) -> None:
        self.names: dict[str, File | Directory] = {}
        self.durable: dict[str, File | Directory] = {}
        #: Each change is a set of names and what they are from then on, None for nothing.
        self.changes: list[dict[str, File | Directory | None]] = []

    def change(self, change: dict[str, File | Directory | None]) -> None:
        self.changes.append(change)
        _apply(self.names, change)

    def sync(self) -> None:
        self.durable = dict(self.names)
        self.changes.clear()


def _apply(names: dict[str, File | Directory], change: dict[str, File | Directory | None]) -> None:
    for name, node in change.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


class Failure:
    """Calls of these names under this part of a path fail with ``error`` so many times."""

    def __init__(self, steps: frozenset[str], within: str, error: int, times: int) -> None:
        self.steps = steps
        self.within = within
        self.error = error
        self.times = times


class SimulatedDisk:
    """A :class:`~heliograph_broker.storage.disk.disk.Disk`. ``capacity`` is what all files may take (bytes)."""

    def __init__(self, rng: random.Random, capacity: int = 1 << 40) -> None:
        self.rng = rng
        self.capacity = capacity
        self.root = Directory()
        #: Calls so far; the call that has this number in ``crash_at`` does not come to its end.
        self.steps = 0
        self.crash_at: int | None = None
        self.crashed = False
        self.failures: list[Failure] = []
        #: Failures that were met: of reads, after which a read may succeed, and of all other calls.
        self.reads_failed = 0
        self.failed = 0
        self._locks: dict[int, tuple[Path, str]] = {}
        self._next_lock = 1

    # -- what goes wrong -----------------------------------------------------------------------------------------

    def crash(self) -> None:
        """Lose power: every later call raises."""
        self.crashed = True

    def reboot(self, *, power_lost: bool) -> SimulatedDisk:
        """Return the disk as the next process finds it; with the power on, the file system has lost nothing."""
        disk = SimulatedDisk(self.rng, self.capacity)
        disk.root = self._survivor(self.root, {}) if power_lost else self.root
        if not power_lost:
            self._settle(disk.root)
        return disk

    def _settle(self, directory: Directory) -> None:
        directory.sync()
        for node in directory.names.values():
            if isinstance(node, Directory):
                self._settle(node)
            elif isinstance(node, EnvironmentFile):
                node.opened = 0
                if node.unsynced and not node.unordered:
                    # A commit that did not come to its end is there or not.
                    node.durable = self.rng.choice([node.durable, *node.unsynced])
                    node.unsynced.clear()
                node.sync()

    def _survivor(self, directory: Directory, found: dict[int, File | Directory]) -> Directory:
        rng = self.rng
        names = dict(directory.durable)
        # Some file systems keep the order of such changes, others do not.
        ordered = rng.random() < 0.5
        kept = rng.randint(0, len(directory.changes))
        for number, change in enumerate(directory.changes):
            if (number < kept) if ordered else rng.random() < 0.5:
                _apply(names, change)
        left = Directory()
        for name, node in sorted(names.items(), key=lambda item: item[0]):
            if id(node) not in found:
                if isinstance(node, Directory):
                    found[id(node)] = self._survivor(node, found)
                else:
                    found[id(node)] = self._survived(node)
            left.names[name] = found[id(node)]
        left.sync()
        return left

    def _survived(self, file: File) -> File:
        if isinstance(file, SmallFile):
            return file
        left = EnvironmentFile()
        left.bytes = file.bytes
        left.broken = file.broken or (file.unordered and self.rng.random() < 0.7)
        left.durable = self.rng.choice([file.durable, *file.unsynced])
        return left

    def fail(self, steps: frozenset[str], error: int, times: int, within: str = "") -> None:
        """Let the next ``times`` such calls fail with an errno: ENOSPC, EIO."""
        self.failures.append(Failure(steps, within, error, times))

    def heal(self) -> None:
        """Let every call succeed from now on, if there is room."""
        self.failures.clear()

    def flip_bit(self, within: str, prefix: bytes = b"") -> str | None:
        """Flip one bit of a value whose key begins with ``prefix``, in a file whose path has ``within`` in it.

        Return where, None if nowhere.
        """
        files = [
            (path, file)
            for path, file in self.walk()
            if within in str(path) and isinstance(file, EnvironmentFile) and file.current.values
        ]
        if not files:
            return None
        path, file = self.rng.choice(files)
        version = file.current
        keys = [key for key in version.keys if key.startswith(prefix)]
        if not keys:
            return None
        key = self.rng.choice(keys)
        value = bytearray(version.values[key])
        if not value:
            return None
        at = self.rng.randrange(len(value))
        value[at] ^= 1 << self.rng.randrange(8)
        version.values[key] = bytes(value)
        return f"{path.name} {key.hex()} byte {at}"

    def lose(self, path: Path) -> None:
        """Take a file away for good."""
        directory = self._directory(path.parent)
        directory.names.pop(path.name, None)
        directory.durable.pop(path.name, None)

    def walk(self) -> list[tuple[Path, File]]:
        """Return all files, in order."""
        found: list[tuple[Path, File]] = []

        def visit(at: Path, directory: Directory) -> None:
            for name, node in sorted(directory.names.items(), key=lambda item: item[0]):
                if isinstance(node, Directory):
                    visit(at / name, node)
                else:
                    found.append((at / name, node))

        visit(Path("/"), self.root)
        return found

    def used_bytes(self) -> int:
        return _used_bytes(self.root)

    def _step(self, step: str, path: Path) -> None:
        if self.crashed:
            raise Crashed
        self.steps += 1
        if self.crash_at is not None and self.steps >= self.crash_at:
            self.crashed = True
            raise Crashed
        self._meet_failure(step, path)

    def _meet_failure(self, step: str, path: Path) -> None:
        for failure in self.failures:
            if step in failure.steps and failure.within in str(path) and failure.times > 0:
                failure.times -= 1
                if step == "view":
                    self.reads_failed += 1
                else:
                    self.failed += 1
                raise OSError(failure.error, os.strerror(failure.error), str(path))

    def _check_room(self, growth: int) -> None:
        if self.used_bytes() + growth > self.capacity:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    # -- lookups -------------------------------------------------------------------------------------------------

    def _node(self, path: Path) -> File | Directory | None:
        node: File | Directory | None = self.root
        for part in path.parts[1:]:
            if not isinstance(node, Directory):
                return None
            node = node.names.get(part)
        return node

    def _directory(self, path: Path) -> Directory:
        node = self._node(path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        if not isinstance(node, Directory):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
        return node

    def _file(self, path: Path) -> File:
        node = self._node(path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        if isinstance(node, Directory):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        return node

    # -- Disk ----------------------------------------------------------------------------------------------------

    def open_environment(
        self, path: Path, map_bytes: int, *, readonly: bool = False, lock: bool = True, sync: bool = True
    ) -> lmdb.Environment:
        try:
            self._step("open", path)
        except OSError as error:
            raise _lmdb_error(error) from error
        directory = self._directory(path.parent)
        node = directory.names.get(path.name)
        if node is None:
            if readonly:
                raise lmdb.Error(f"{path}: No such file or directory")
            self._check_room(2 * PAGE)
            node = EnvironmentFile()
            node.bytes = 2 * PAGE
            directory.change({path.name: node})
        if not isinstance(node, EnvironmentFile) or node.broken:
            raise lmdb.InvalidError(f"{path}: MDB_INVALID: File is not an LMDB file")
        if lock and path.name + "-lock" not in directory.names:
            directory.change({path.name + "-lock": SmallFile(b"")})

        def step(name: str) -> None:
            try:
                if name == "view":
                    # No crash is like another one than before or after it.
                    self._meet_failure(name, path)
                else:
                    self._step(name, path)
            except OSError as error:
                if name == "commit" and error.errno == errno.EIO:
                    # The environment decides what that means.
                    raise
                raise _lmdb_error(error) from error

        def grow(growth: int) -> None:
            try:
                self._check_room(growth)
            except OSError as error:
                raise _lmdb_error(error) from error

        environment = Environment(node, map_bytes, step, grow, readonly=readonly, sync=sync)
        return cast(lmdb.Environment, environment)

    def copy_environment(self, environment: lmdb.Environment, path: Path) -> None:
        source = cast(Environment, environment)
        try:
            self._step("copy", path)
        except OSError as error:
            raise _lmdb_error(error) from error
        file = EnvironmentFile()
        file.durable = source.file.current
        file.bytes = (sum(file.durable.pages()) + 2) * PAGE
        self._check_room(file.bytes)
        self._directory(path.parent).change({path.name: file})

    def lock(self, path: Path, content: str) -> int:
        self._step("lock", path)
        for held, holder in self._locks.values():
            if held == path:
                raise Locked(holder.strip())
        directory = self._directory(path.parent)
        if path.name not in directory.names:
            directory.change({path.name: SmallFile(b"")})
        number = self._next_lock
        self._next_lock += 1
        self._locks[number] = (path, content)
        return number

    def unlock(self, lock: int) -> None:
        self._locks.pop(lock, None)

    def make_directory(self, path: Path) -> None:
        self._step("mkdir", path)
        at = self.root
        for part in path.parts[1:]:
            node = at.names.get(part)
            if node is None:
                made = Directory()
                at.change({part: made})
                node = made
            if not isinstance(node, Directory):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
            at = node

    def exists(self, path: Path) -> bool:
        return self._node(path) is not None

    def files(self, directory: Path) -> list[Path]:
        names = sorted(self._directory(directory).names)
        self.rng.shuffle(names)
        return [directory / name for name in names]

    def file_bytes(self, path: Path) -> int:
        node = self._node(path)
        return 0 if node is None or isinstance(node, Directory) else _bytes_of(node)

    def file_length(self, path: Path) -> int:
        return max(_bytes_of(self._file(path)), 2 * PAGE)

    def read(self, path: Path) -> bytes:
        self._step("read", path)
        file = self._file(path)
        if not isinstance(file, SmallFile):
            raise NotImplementedError(f"{path} is an environment")
        return file.content

    def write(self, path: Path, content: bytes) -> None:
        directory = self._directory(path.parent)
        self._check_room(len(content))
        try:
            self._step("write", path)
        except Crashed:
            directory.change({path.name: SmallFile(content[: self.rng.randint(0, len(content))])})
            raise
        directory.change({path.name: SmallFile(content)})

    def rename(self, path: Path, target: Path) -> None:
        self._step("rename", path)
        file = self._node(path)
        if file is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        source, into = self._directory(path.parent), self._directory(target.parent)
        if source is into:
            source.change({path.name: None, target.name: file})
        else:
            # After a crash it may be under either name, or under both.
            into.change({target.name: file})
            source.change({path.name: None})

    def remove(self, path: Path) -> None:
        self._step("remove", path)
        directory = self._node(path.parent)
        if isinstance(directory, Directory) and path.name in directory.names:
            directory.change({path.name: None})

    def shrink(self, path: Path, step_bytes: int) -> Iterator[None]:
        file = self._file(path)
        size = _bytes_of(file)
        while size > step_bytes:
            self._step("shrink", path)
            size -= step_bytes
            if isinstance(file, EnvironmentFile):
                file.bytes = size
                file.broken = True
            yield

    def sync_directory(self, path: Path) -> None:
        directory = self._directory(path)
        self._step("sync_directory", path)
        directory.sync()

    def free_bytes(self, path: Path) -> int:
        if self.crashed:
            raise Crashed
        return max(0, self.capacity - self.used_bytes())


def _bytes_of(file: File) -> int:
    return file.bytes if isinstance(file, EnvironmentFile) else -(-len(file.content) // PAGE) * PAGE


def _used_bytes(directory: Directory) -> int:
    return sum(
        _used_bytes(node) if isinstance(node, Directory) else _bytes_of(node) for node in directory.names.values()
    )


def _lmdb_error(error: OSError) -> lmdb.Error:
    if error.errno == errno.ENOSPC:
        return lmdb.DiskError(f"No space left on device: {error.filename}")
    return lmdb.Error(f"{error.strerror}: {error.filename}")
