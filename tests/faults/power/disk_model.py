"""A directory as a disk keeps it: what was synced is there, of the rest any part may be, torn at sectors of 512 bytes.

A file's pages and a directory's names are kept in two states, the durable one and what was done since. A crash takes of
each page that was not synced one of its states, or a mix of them by sectors; of a file's growth all, some or
nothing; and of a directory's names the first few changes, or any of them, as file systems may.
"""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

from .recording import MadeDirectory, Opened, Operation, RecordingError, Removed, Renamed, Synced, Truncated, Written

PAGE = 4096
SECTOR = 512


class File:
    """One file's content; its names are the directories'."""

    __slots__ = ("content", "durable", "pages", "truncated_to")

    def __init__(self) -> None:
        #: As a reader sees it now, and as it certainly is after a crash.
        self.content = bytearray()
        self.durable = bytearray()
        #: By page, what was written since it was last synced: after which operation, and the page then.
        self.pages: dict[int, list[tuple[int, bytes]]] = {}
        #: A size it was cut to since it was last synced.
        self.truncated_to: int | None = None

    def write(self, at: int, data: bytes, number: int, *, durable: bool) -> None:
        end = at + len(data)
        if len(self.content) < end:
            self.content.extend(bytes(end - len(self.content)))
        self.content[at:end] = data
        if durable:
            # Its sectors go to the disk as they are now, with what was written to them before.
            first, last = at // SECTOR * SECTOR, -(-end // SECTOR) * SECTOR
            self._keep(first, self.content[first:last])
        for page in range(at // PAGE, -(-end // PAGE)):
            whole = bytes(self.content[page * PAGE : (page + 1) * PAGE])
            if not durable:
                self.pages.setdefault(page, []).append((number, whole))
            elif page in self.pages:
                # Unsynced states of the page that are older must not bring the durable sectors back as they were.
                low, high = max(0, first - page * PAGE), min(PAGE, last - page * PAGE)
                self.pages[page] = [
                    (written, _patched(state, low, whole[low:high])) for written, state in self.pages[page]
                ]

    def _keep(self, at: int, data: bytes | bytearray) -> None:
        end = at + len(data)
        if len(self.durable) < end:
            self.durable.extend(bytes(end - len(self.durable)))
        self.durable[at:end] = data

    def sync(self, began: int) -> None:
        """Writes before operation ``began`` are durable."""
        if self.truncated_to is not None:
            # Earlier content above it is no longer among the pages.
            del self.durable[self.truncated_to :]
            self.truncated_to = None
        for page, states in list(self.pages.items()):
            kept = [state for number, state in states if number < began]
            if kept:
                self._keep(page * PAGE, kept[-1])
            later = [(number, state) for number, state in states if number >= began]
            if later:
                self.pages[page] = later
            else:
                del self.pages[page]
        if not self.pages:
            # A file that grew by a hole has its size, too.
            self.durable.extend(bytes(max(0, len(self.content) - len(self.durable))))

    def truncate(self, size: int) -> None:
        if size >= len(self.content):
            self.content.extend(bytes(size - len(self.content)))
            return
        del self.content[size:]
        self.pages = {page: states for page, states in self.pages.items() if page * PAGE < size}
        self.truncated_to = size if self.truncated_to is None else min(size, self.truncated_to)

    def after_crash(self, rng: Random) -> bytearray:
        """Return a content the disk may have."""
        found = bytearray(self.durable)
        if self.truncated_to is not None and rng.random() < 0.5:
            del found[self.truncated_to :]
        for page, states in self.pages.items():
            dice = rng.random()
            if dice < 0.35:
                continue
            at = page * PAGE
            if dice < 0.7:
                taken = rng.choice(states)[1]
            else:
                before = bytes(found[at : at + PAGE]).ljust(PAGE, b"\0")
                versions = [before, *(state.ljust(PAGE, b"\0") for _, state in states)]
                taken = b"".join(rng.choice(versions)[sector : sector + SECTOR] for sector in range(0, PAGE, SECTOR))
                taken = taken[: max(len(before.rstrip(b"\0")), *(len(state) for _, state in states))]
            if len(found) < at + len(taken):
                found.extend(bytes(at + len(taken) - len(found)))
            found[at : at + len(taken)] = taken
        if len(found) < len(self.content) and rng.random() < 0.3:
            # The size was written, the pages were not.
            found.extend(bytes(rng.choice((len(self.content), (len(found) + len(self.content)) // 2)) - len(found)))
        return found


def _patched(state: bytes, low: int, data: bytes) -> bytes:
    return state[:low].ljust(low, b"\0") + data + state[low + len(data) :]


class Directory:
    """Names of files and directories; changes are (operation, name, what it stands for or None)."""

    __slots__ = ("changes", "durable", "names")

    def __init__(self) -> None:
        self.names: dict[str, File | Directory] = {}
        self.durable: dict[str, File | Directory] = {}
        #: Each change as a whole: a rename takes one name and gives another.
        self.changes: list[tuple[int, dict[str, File | Directory | None]]] = []

    def change(self, number: int, changed: dict[str, File | Directory | None]) -> None:
        self.changes.append((number, changed))
        _apply(self.names, changed)

    def sync(self, began: int) -> None:
        for number, changed in self.changes:
            if number < began:
                _apply(self.durable, changed)
        self.changes = [change for change in self.changes if change[0] >= began]

    def after_crash(self, rng: Random) -> dict[str, File | Directory]:
        found = dict(self.durable)
        if rng.random() < 0.5:
            # As a journal keeps them: in their order, up to some moment.
            chosen = self.changes[: rng.randint(0, len(self.changes))]
        else:
            chosen = [change for change in self.changes if rng.random() < 0.5]
        for _, changed in chosen:
            _apply(found, changed)
        return found


def _apply(names: dict[str, File | Directory], changed: dict[str, File | Directory | None]) -> None:
    for name, what in changed.items():
        if what is None:
            names.pop(name, None)
        else:
            names[name] = what


class DiskModel:
    """Everything below ``root``, whose own directory is there and durable from the beginning."""

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        self._top = Directory()
        self._files: dict[int, File] = {}
        self._done = 0

    def do(self, operation: Operation) -> None:
        """Apply the next operation. Raises :class:`RecordingError` if it does not fit what is there."""
        number = self._done
        self._done += 1
        match operation:
            case Opened(handle, path, truncated):
                directory, name = self._parent(path)
                file = directory.names.get(name)
                if file is None:
                    file = File()
                    directory.change(number, {name: file})
                if not isinstance(file, File):
                    raise RecordingError(f"{path} is opened as a file")
                if truncated:
                    file.truncate(0)
                self._files[handle] = file
            case Written(handle, offset, data, durable):
                self._files[handle].write(offset, data, number, durable=durable)
            case Synced(handle, path, began):
                if handle in self._files:
                    self._files[handle].sync(began)
                else:
                    self._directory(path).sync(began)
            case Truncated(path, handle, size):
                file = self._files[handle] if handle else self._file(path)
                file.truncate(size)
            case Renamed(path, target):
                directory, name = self._parent(path)
                other, new = self._parent(target)
                if other is not directory:
                    raise RecordingError(f"{path} is renamed into another directory")
                directory.change(number, {name: None, new: directory.names[name]})
            case Removed(path):
                directory, name = self._parent(path)
                directory.change(number, {name: None})
            case MadeDirectory(path):
                if path != self._root:
                    directory, name = self._parent(path)
                    directory.change(number, {name: Directory()})

    def _parent(self, path: str) -> tuple[Directory, str]:
        return self._directory(os.path.dirname(path)), os.path.basename(path)

    def _directory(self, path: str) -> Directory:
        found: File | Directory = self._top
        for name in os.path.relpath(path, self._root).split("/"):
            if name != ".":
                assert isinstance(found, Directory)
                found = found.names[name]
        assert isinstance(found, Directory)
        return found

    def _file(self, path: str) -> File:
        directory, name = self._parent(path)
        found = directory.names[name]
        assert isinstance(found, File)
        return found

    def crash(self, target: Path, rng: Random) -> None:
        """Make the directory ``target`` as a power cut now may leave it."""
        self._write(self._top, target, rng)

    def _write(self, directory: Directory, target: Path, rng: Random) -> None:
        target.mkdir()
        for name, what in directory.after_crash(rng).items():
            if isinstance(what, Directory):
                self._write(what, target / name, rng)
            else:
                (target / name).write_bytes(what.after_crash(rng))
