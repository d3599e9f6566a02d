"""Directories of a file system, seen from where a job runs: what each kind of file system has to do.

:mod:`.directories` opens one for a session: through Hadoop beside Spark's own driver (:mod:`.hadoop_files`), and with
Spark Connect by a client of this process's own (:mod:`.local_files`, :mod:`.bucket_files`).
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import suppress

from pyspark.sql import DataFrame

from heliograph_spark.plan.errors import JobError, MissingFileError

#: Directory in which files are written before they have their places, on the same file system: no reader looks there.
STAGING = "_staging"
#: How files are compressed: the first level of ZSTD takes a third of the time of Spark's, the third, for files of about
#: the same size.
COMPRESSED = {"compression": "zstd", "parquet.compression.codec.zstd.level": "1"}
#: Characters that a path cannot have: it would be one of Hadoop's patterns, and files would not be found.
_PATTERN = frozenset("*?[]{}\\")


class Directory(ABC):
    """One directory. What its file system refuses is raised as :class:`JobError`, with the path and its words.

    ``path`` is also how Spark's session names it. The names of files are below it.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    @abstractmethod
    def parts(self) -> tuple[str, str, str]:
        """Return the scheme of its URI, the host or bucket (empty if there is none), and the path."""

    @abstractmethod
    def settings(self, prefix: str) -> dict[str, str]:
        """Return the settings of its file system that are not Hadoop's defaults, by their names after ``prefix``."""

    @abstractmethod
    def parquet_settings(self) -> list[str]:
        """Return the names of the settings by which somebody has asked Hadoop to write Parquet, such as encrypted."""

    @abstractmethod
    def exists(self, name: str = "") -> bool:
        """Whether a file or directory is there."""

    @abstractmethod
    def names(self, name: str = "") -> list[str]:
        """Return the content of the directory, or of the one of that name below; empty if it is not there."""

    @abstractmethod
    def size(self, name: str) -> int:
        """Return the bytes of a file."""

    @abstractmethod
    def read_text(self, name: str) -> str:
        """Return the file as UTF-8. Raises :class:`MissingFileError` if it is not there."""

    @abstractmethod
    def write_text(self, name: str, text: str) -> None:
        """Write a file, which is seen while it is written; one that is there is replaced."""

    def write_whole(self, name: str, text: str) -> None:
        """Write a file that is seen under its name as a whole or not at all, also after a loss of power."""
        self.write_text(f"{name}.unfinished", text)
        self.sync(f"{name}.unfinished")
        self.rename(f"{name}.unfinished", name)
        self.sync(name)

    @abstractmethod
    def write_new(self, name: str, text: str, aside: str) -> bool:
        """Write a whole file under a name that no file has; False if one has it, which stays as it is.

        No other run writes the same ``text``: the file's content decides who wrote it, also if the answer was lost.
        ``aside`` is a name of the caller's own, where the file is written first if it could be seen in part. One of
        two runs succeeds if the file system can do that at once: a local one by a hard link, HDFS by its rename, S3 by
        a condition in the request. Where it cannot, both may succeed, and the file is the last one's.
        """

    @abstractmethod
    def make(self, name: str = "") -> None:
        """Make the directory, or the one of that name below, with those above it."""

    @abstractmethod
    def matching(self, pattern: str) -> list[str]:
        """Return the names below this directory that a pattern of Hadoop's fits, such as ``date=*/a-*``, sorted."""

    @abstractmethod
    def files_before(self, ms: int) -> list[str]:
        """Return the files in this directory and below it that were changed before a time (ms since 1970), sorted."""

    @abstractmethod
    def rename(self, old: str, new: str) -> None:
        """Give a file or directory another name below this directory, which nothing may have."""

    @abstractmethod
    def sync(self, *names: str) -> None:
        """Have files and directories on the disk, with their names in the directories above them.

        Only a local file system needs it: elsewhere a file that is closed is stored. Raises :class:`JobError`, and
        :class:`MissingFileError` if one is not there.
        """

    def _sync_unless_deleted(self, aside: str) -> None:
        """Have a file on the disk before it gets its name: a loss of power may keep the name and lose the rest of it.

        One that another run has deleted meanwhile gets no name either.
        """
        with suppress(MissingFileError):
            self.sync(aside)

    @abstractmethod
    def delete(self, name: str = "") -> None:
        """Delete a file, or a directory with all in it; nothing happens if it is not there.

        What another process writes into the directory meanwhile may stay.
        """

    def check_written(self, name: str) -> None:
        """Raise :class:`JobError` if there is nothing under a name where Spark has written files.

        A server of Spark Connect may have another file system than this process.
        """
        if not self.names(name):
            raise JobError(
                f"{self.path}/{name}: Spark has written files there, and they are not seen here; valid: a path that is"
                " the same for Spark's server and for this process, on a file system that both share or in a bucket"
            )


def parquet_settings_of(conf: Mapping[str, str]) -> list[str]:
    """Return the names of a session's settings by which somebody has asked Hadoop to write Parquet."""
    return sorted(name for name in conf if name.startswith("spark.hadoop.parquet."))


def check_path(path: str) -> str:
    """Return the path without a slash at its end. Raises :class:`JobError` for one that would be a pattern."""
    if found := _PATTERN & set(path):
        raise JobError(f"{path}: Hadoop and Spark would take {' and '.join(sorted(found))} in it for a pattern")
    return path.rstrip("/") or "/"


def checksums_of(path: str) -> str:
    """Return the file in which Hadoop has the checksums of a local file that it has written."""
    directory, _, name = path.rpartition("/")
    return f"{directory}/.{name}.crc"


def sync_files(root: str, paths: Iterable[str]) -> None:
    """Have local files and directories on the disk, with their names in the directories above them.

    Raises :class:`JobError`, naming the ``root`` of all, and :class:`MissingFileError` if one is not there.
    """
    above: set[str] = set()
    try:
        for path in paths:
            _sync(path)
            with suppress(FileNotFoundError):
                _sync(checksums_of(path))
            above.add(path.rpartition("/")[0] or "/")
        for each in sorted(above):
            _sync(each)
    except OSError as error:
        kind = MissingFileError if isinstance(error, FileNotFoundError) else JobError
        raise kind(f"{root}: {error}") from error


def _sync(path: str) -> None:
    there = os.open(path, os.O_RDONLY)
    try:
        os.fsync(there)
    finally:
        os.close(there)


def stage(root: Directory, name: str, frame: DataFrame, *partitions: str) -> int:
    """Replace ``root/_staging/name`` by these rows as Parquet, in directories by these columns.

    Returns the number of rows. Raises :class:`JobError` and what Spark raises; what is written in part stays there,
    where nobody reads.
    """
    root.delete(f"{STAGING}/{name}")
    path = f"{root.path}/{STAGING}/{name}"
    frame.write.partitionBy(*partitions).options(**COMPRESSED).parquet(path)
    root.check_written(f"{STAGING}/{name}")
    # Counted in the files: the rows themselves may not come again as they were.
    return int(frame.sparkSession.read.schema(frame.schema).parquet(path).count())
