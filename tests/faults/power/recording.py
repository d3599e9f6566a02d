"""Reads a recorded run: the lines of ``strace`` as operations on one directory, and the promises."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

#: Everything that changes a file or a directory, or makes it durable. ``mmap`` is here to be refused.
SYSTEM_CALLS = (
    "open,openat,creat,close,dup,dup2,dup3,fcntl,lseek,write,writev,pwrite64,pwritev,pwritev2,fsync,fdatasync,"
    "sync,syncfs,sync_file_range,msync,mmap,ftruncate,truncate,fallocate,rename,renameat,renameat2,link,linkat,"
    "symlink,symlinkat,unlink,unlinkat,mkdir,mkdirat,rmdir,copy_file_range,sendfile"
)
_LINE = re.compile(r"(\d+) +(.*)")
_CALL = re.compile(r"(\w+)\((.*)\) += (-?\d+|0x[0-9a-f]+|\?)(?:$| .*)", re.DOTALL)
_RESUMED = re.compile(r"<\.\.\. (\w+) resumed>(.*)", re.DOTALL)
_UNFINISHED = "<unfinished ...>"
_TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"(\.\.\.)?')
_IOVEC = re.compile(r"\{iov_base=([^}]*), iov_len=\d+\}")


class RecordingError(Exception):
    """The recording holds what the replay does not know."""


class Opened(NamedTuple):
    """A file exists from here on under this name; emptied if ``truncated``."""

    handle: int
    path: str
    truncated: bool


class Written(NamedTuple):
    """``durable``: the call returned with these bytes synced."""

    path_handle: int
    offset: int
    data: bytes
    durable: bool


class Synced(NamedTuple):
    """Operations before ``began`` are durable: of the file, or the names in the directory."""

    handle: int
    path: str
    began: int


class Truncated(NamedTuple):
    path: str
    handle: int
    size: int


class Renamed(NamedTuple):
    path: str
    target: str


class Removed(NamedTuple):
    path: str


class MadeDirectory(NamedTuple):
    path: str


class Promised(NamedTuple):
    what: list[Any]


Operation = Opened | Written | Synced | Truncated | Renamed | Removed | MadeDirectory | Promised


class _Descriptor:
    """An open file: ``handle`` tells two that were open under the same number apart."""

    __slots__ = ("append", "at", "handle", "path", "synchronous")

    def __init__(self, handle: int, path: str, flags: str) -> None:
        self.handle = handle
        self.path = path
        self.at = 0
        self.append = "O_APPEND" in flags
        self.synchronous = "O_DSYNC" in flags or "O_SYNC" in flags


class Recording:
    """Reads ``strace -f -xx`` output. Raises :class:`RecordingError` for a call whose effect it cannot follow."""

    def __init__(self, trace: Path, data_dir: Path, promises: Path) -> None:
        self._data_dir = str(data_dir)
        self._promises = str(promises)
        self._open: dict[int, _Descriptor] = {}
        self._handles = 0
        self.operations: list[Operation] = []
        with trace.open(encoding="ascii") as lines:
            for name, arguments, result, began in _calls(lines, lambda: len(self.operations)):
                self._call(name, arguments, result, began)

    def _inside(self, path: str) -> bool:
        inside = path == self._data_dir or path.startswith(self._data_dir + "/")
        # The table of readers is mapped memory that means nothing after the process; nor does who held the lock.
        return inside and not path.endswith(("-lock", "/LOCK"))

    def _call(self, name: str, arguments: str, result: int, began: int) -> None:
        if name in ("open", "openat", "creat"):
            self._opened(arguments, result)
        elif name == "close":
            self._open.pop(int(arguments), None)
        elif name in ("dup", "dup2", "dup3") or (name == "fcntl" and "F_DUPFD" in arguments):
            copied = self._open.get(int(arguments.split(",")[0]))
            if copied is not None:
                self._open[result] = copied
        elif name in ("write", "writev", "pwrite64", "pwritev", "pwritev2"):
            self._written(name, arguments, result)
        elif name in ("fsync", "fdatasync"):
            file = self._open.get(int(arguments))
            if file is not None and self._inside(file.path):
                self.operations.append(Synced(file.handle, file.path, began))
        elif name == "lseek":
            file = self._open.get(int(arguments.split(",")[0]))
            if file is not None:
                file.at = result
        elif name == "ftruncate":
            number, size = arguments.split(",")
            file = self._open.get(int(number))
            if file is not None and self._inside(file.path):
                self.operations.append(Truncated(file.path, file.handle, int(size)))
        elif name == "mmap":
            number = arguments.split(",")[4].strip()
            file = self._open.get(int(number)) if number.isdigit() else None
            if file is not None and self._inside(file.path) and "PROT_WRITE" in arguments and "MAP_SHARED" in arguments:
                raise RecordingError(f"{file.path} is written through a mapping, which no trace shows")
        elif name in ("fcntl", "sync_file_range"):
            pass  # nothing is promised by the second
        else:
            self._named(name, arguments)

    def _named(self, name: str, arguments: str) -> None:
        paths = [_text(match) for match in _TEXT.finditer(arguments)]
        texts = [os.path.normpath(path.decode()) for path in paths]
        if not any(self._inside(path) for path in texts):
            return
        if name == "truncate":
            self.operations.append(Truncated(texts[0], 0, int(arguments.rsplit(",", 1)[1])))
        elif name in ("rename", "renameat", "renameat2"):
            self.operations.append(Renamed(texts[0], texts[1]))
        elif name in ("unlink", "unlinkat"):
            self.operations.append(Removed(texts[0]))
        elif name in ("mkdir", "mkdirat"):
            self.operations.append(MadeDirectory(texts[0]))
        else:
            raise RecordingError(f"{name}({arguments[:200]}) is not known to the replay")

    def _opened(self, arguments: str, result: int) -> None:
        match = _TEXT.search(arguments)
        if match is None:
            raise RecordingError(f"an open without a path: {arguments[:200]}")
        path = os.path.normpath(_text(match).decode())
        flags = arguments[match.end() :]
        self._handles += 1
        self._open[result] = _Descriptor(self._handles, path, flags)
        if self._inside(path) and "O_DIRECTORY" not in flags:
            self.operations.append(Opened(self._handles, path, "O_TRUNC" in flags))

    def _written(self, name: str, arguments: str, result: int) -> None:
        number, rest = arguments.split(",", 1)
        file = self._open.get(int(number))
        if file is None:
            return
        promises = file.path == self._promises
        if not promises and not self._inside(file.path):
            return
        if name in ("pwritev", "writev", "pwritev2"):
            texts = [_TEXT.fullmatch(match[1]) for match in _IOVEC.finditer(rest)]
        else:
            texts = [_TEXT.search(rest)]
        data = b"".join(_text(text) for text in texts if text is not None)
        if len(data) < result or None in texts:
            raise RecordingError(f"a write of {result} bytes to {file.path} was recorded with {len(data)} of them")
        data = data[:result]
        if promises:
            self.operations += [Promised(json.loads(line)) for line in data.splitlines()]
            return
        if name.startswith("p"):
            tail = rest.rsplit("]", 1)[1] if name != "pwrite64" else rest
            at = int(tail.split(",")[-1 if name != "pwritev2" else -2])
        else:
            if file.append:
                raise RecordingError(f"{file.path} is written by appending, whose place no trace shows")
            at = file.at
            file.at += result
        self.operations.append(Written(file.handle, at, data, file.synchronous))


def _text(match: re.Match[str]) -> bytes:
    if match[2]:
        raise RecordingError("the recording was cut short: strace needs a larger -s")
    return bytes.fromhex(match[1].replace("\\x", ""))


def _calls(lines: Iterator[str], operations: Any) -> Iterator[tuple[str, str, int, int]]:
    """Yield the name, arguments and result of calls that succeeded, as they returned; and how many came before it."""
    unfinished: dict[str, tuple[str, int]] = {}
    for line in lines:
        found = _LINE.match(line)
        if found is None:
            raise RecordingError(f"not a line of strace: {line[:200]}")
        thread, text = found[1], found[2]
        began = operations()
        if text.endswith(_UNFINISHED):
            unfinished[thread] = (text[: -len(_UNFINISHED)], began)
            continue
        resumed = _RESUMED.match(text)
        if resumed is not None:
            opening, began = unfinished.pop(thread)
            text = (
                opening.rstrip() + resumed[2].lstrip() if resumed[2].startswith(")") else opening + resumed[2].lstrip()
            )
        if text.startswith(("---", "+++")):
            continue
        call = _CALL.match(text)
        if call is None:
            raise RecordingError(f"not a call: {text[:200]}")
        if call[3] == "?" or call[3].startswith("-"):
            continue
        yield call[1], call[2], int(call[3], 0), began
