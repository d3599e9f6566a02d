"""Directories of this machine's file system, or of one that is mounted on it, without a JVM.

What Hadoop writes beside a file, its checksums, goes where the file goes: with those of another content it would not
read the file.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from heliograph_spark.plan.errors import JobError, MissingFileError

from .files import Directory, check_path, checksums_of, parquet_settings_of, sync_files

_URI = re.compile(r"^file:(//[^/]*(?=/))?")


class LocalDirectory(Directory):
    """One directory, by its path or its URI (``file:…``); ``conf`` are the settings of the session."""

    def __init__(self, path: str, conf: Mapping[str, str] | None = None) -> None:
        checked = check_path(path)
        # As Hadoop reads it, without an encoding: a percent sign is one.
        self._root = Path(_URI.sub("", checked)).absolute()
        # Spark's server may have another working directory.
        super().__init__(checked if _URI.match(checked) else str(self._root))
        self._parquet = parquet_settings_of(conf or {})

    def _at(self, name: str) -> Path:
        return self._root / name if name else self._root

    @contextmanager
    def _refusals(self, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            kind = MissingFileError if isinstance(error, FileNotFoundError) else JobError
            raise kind(f"{self.path}{'/' + name if name else ''}: {error.strerror or error}") from error

    def parts(self) -> tuple[str, str, str]:
        return "file", "", str(self._root)

    def settings(self, prefix: str) -> dict[str, str]:
        return {}

    def parquet_settings(self) -> list[str]:
        return self._parquet

    def exists(self, name: str = "") -> bool:
        with self._refusals(name):
            return self._at(name).exists()

    def names(self, name: str = "") -> list[str]:
        at = self._at(name)
        with self._refusals(name):
            try:
                return sorted(each for each in os.listdir(at) if not _is_checksums(each))
            except FileNotFoundError:
                return []
            except NotADirectoryError:
                # As Hadoop lists a file.
                return [at.name]

    def size(self, name: str) -> int:
        with self._refusals(name):
            return self._at(name).stat().st_size

    def read_text(self, name: str) -> str:
        with self._refusals(name):
            return self._at(name).read_bytes().decode()

    def write_text(self, name: str, text: str) -> None:
        at = self._at(name)
        with self._refusals(name):
            at.parent.mkdir(parents=True, exist_ok=True)
            Path(checksums_of(str(at))).unlink(missing_ok=True)
            at.write_bytes(text.encode())

    def write_new(self, name: str, text: str, aside: str) -> bool:
        at, beside = self._at(name), self._at(aside)
        self.write_text(aside, text)
        self._sync_unless_deleted(aside)
        try:
            with self._refusals(name):
                at.parent.mkdir(parents=True, exist_ok=True)
                try:
                    os.link(beside, at)
                except FileExistsError:
                    return False
                except OSError:
                    # A file system without hard links, where two may succeed.
                    if at.exists():
                        return False
                    os.rename(beside, at)
            return self.read_text(name) == text
        finally:
            self.delete(aside)

    def make(self, name: str = "") -> None:
        with self._refusals(name):
            self._at(name).mkdir(parents=True, exist_ok=True)

    def matching(self, pattern: str) -> list[str]:
        with self._refusals(pattern):
            found = (each for each in self._root.glob(pattern) if not _is_checksums(each.name))
            return sorted(each.relative_to(self._root).as_posix() for each in found)

    def files_before(self, ms: int) -> list[str]:
        found = []

        def refused(error: OSError) -> None:
            raise error

        with self._refusals(""):
            for above, _, names in os.walk(self._root, onerror=refused):
                for name in names:
                    at = Path(above, name)
                    # A file may be deleted meanwhile.
                    with suppress(FileNotFoundError):
                        if not _is_checksums(name) and at.stat().st_mtime_ns // 1_000_000 < ms:
                            found.append(at.relative_to(self._root).as_posix())
        return sorted(found)

    def rename(self, old: str, new: str) -> None:
        source, target = self._at(old), self._at(new)
        with self._refusals(old):
            if target.exists() and source.exists():
                raise JobError(f"{self.path}/{old}: it cannot be renamed to {new}, which is there")
            os.rename(source, target)
            for_target = checksums_of(str(target))
            try:
                os.rename(checksums_of(str(source)), for_target)
            except FileNotFoundError:
                Path(for_target).unlink(missing_ok=True)

    def sync(self, *names: str) -> None:
        sync_files(self.path, [str(self._at(name)) for name in names])

    def delete(self, name: str = "") -> None:
        at = self._at(name)
        with self._refusals(name), suppress(FileNotFoundError):
            if at.is_dir() and not at.is_symlink():
                _delete_tree(at)
            else:
                Path(checksums_of(str(at))).unlink(missing_ok=True)
                at.unlink()


def _delete_tree(directory: Path) -> None:
    """Delete a directory with all in it, also if another process deletes it as well or writes there."""
    for above, directories, files in os.walk(directory, topdown=False):
        for name in (*files, *directories):
            at = Path(above, name)
            with suppress(FileNotFoundError):
                if at.is_dir() and not at.is_symlink():
                    _delete_empty(at)
                else:
                    at.unlink()
    _delete_empty(directory)


def _delete_empty(directory: Path) -> None:
    """Delete a directory; one that is not empty, as another process has just written there, stays."""
    try:
        directory.rmdir()
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:
            raise


def _is_checksums(name: str) -> bool:
    return name.startswith(".") and name.endswith(".crc")
