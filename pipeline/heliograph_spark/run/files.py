"""Directories of any file system that Hadoop knows (local, s3a), seen from the driver."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

from heliograph_spark.plan.bucket_errors import with_advice
from heliograph_spark.plan.errors import JobError, MissingFileError

from .driver import check_driver

#: Directory in which files are written before they have their places, on the same file system: no reader looks there.
STAGING = "_staging"
#: How files are compressed: the first level of ZSTD takes a third of the time of Spark's, the third, for files of about
#: the same size.
COMPRESSED = {"compression": "zstd", "parquet.compression.codec.zstd.level": "1"}
#: Characters that a path cannot have: it would be one of Hadoop's patterns, and files would not be found.
_PATTERN = frozenset("*?[]{}\\")
#: Hadoop's property of a store that creates a file only if there is none, as S3 does with a condition in the request.
_CONDITIONAL = "fs.option.create.conditional.overwrite"


class Directory:
    """One directory. What its file system refuses is raised as :class:`JobError`, with the path and its words."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self.path = path.rstrip("/") or "/"
        if found := _PATTERN & set(path):
            raise JobError(f"{path}: Hadoop and Spark would take {' and '.join(sorted(found))} in it for a pattern")
        check_driver(spark)
        self._jvm: Any = spark._jvm
        context: Any = spark.sparkContext
        try:
            self._configured = context._jsc.hadoopConfiguration()
            self._system = self._at("").getFileSystem(self._configured)
        except Py4JJavaError as error:
            raise self._refused("", error) from error

    def _at(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.path}/{name}" if name else self.path)

    def _refused(self, name: str, error: Py4JJavaError) -> JobError:
        message = str(error.java_exception.toString()).splitlines()[0]
        kind = MissingFileError if message.startswith("java.io.FileNotFoundException") else JobError
        return kind(f"{self.path}{'/' + name if name else ''}: {with_advice(message)}")

    def parts(self) -> tuple[str, str, str]:
        """Return the scheme of its URI, the host or bucket (empty if there is none), and the path."""
        uri = self._system.makeQualified(self._at("")).toUri()
        return str(uri.getScheme()), str(uri.getAuthority() or ""), str(uri.getPath())

    def settings(self, prefix: str) -> dict[str, str]:
        """Return the settings of its file system that are not Hadoop's defaults, by their names after ``prefix``."""
        defaults = self._jvm.org.apache.hadoop.conf.Configuration(False)
        defaults.addResource("core-default.xml")
        found = self._jvm.java.util.HashMap(self._system.getConf().getPropsWithPrefix(prefix))
        found.entrySet().removeAll(defaults.getPropsWithPrefix(prefix).entrySet())
        return {str(name): str(found[name]) for name in found}

    def parquet_settings(self) -> list[str]:
        """Return the names of the settings by which somebody has asked Hadoop to write Parquet, such as encrypted."""
        return sorted(map(str, self._configured.getPropsWithPrefix("parquet.").keySet()))

    def exists(self, name: str = "") -> bool:
        try:
            return bool(self._system.exists(self._at(name)))
        except Py4JJavaError as error:
            raise self._refused(name, error) from error

    def names(self, name: str = "") -> list[str]:
        """Return the content of the directory, or of the one of that name below; empty if it is not there."""
        try:
            return sorted(str(each.getPath().getName()) for each in self._system.listStatus(self._at(name)))
        except Py4JJavaError as error:
            refused = self._refused(name, error)
            if isinstance(refused, MissingFileError):
                return []
            raise refused from error

    def size(self, name: str) -> int:
        """Return the bytes of a file."""
        try:
            return int(self._system.getFileStatus(self._at(name)).getLen())
        except Py4JJavaError as error:
            raise self._refused(name, error) from error

    def read_text(self, name: str) -> str:
        """Return the file as UTF-8. Raises :class:`MissingFileError` if it is not there."""
        try:
            stream = self._system.open(self._at(name))
            try:
                return bytes(stream.readAllBytes()).decode()
            finally:
                stream.close()
        except Py4JJavaError as error:
            raise self._refused(name, error) from error

    def write_text(self, name: str, text: str) -> None:
        """Write a file, which is seen while it is written; one that is there is replaced."""
        try:
            self._write(self._system.create(self._at(name), True), text)
        except Py4JJavaError as error:
            raise self._refused(name, error) from error

    def write_whole(self, name: str, text: str) -> None:
        """Write a file that is seen under its name as a whole or not at all, also after a loss of power."""
        self.write_text(f"{name}.unfinished", text)
        self.sync(f"{name}.unfinished")
        self.rename(f"{name}.unfinished", name)
        self.sync(name)

    def write_new(self, name: str, text: str, aside: str) -> bool:
        """Write a whole file under a name that no file has; False if one has it, which stays as it is.

        No other run writes the same ``text``: the file's content decides who wrote it, also if the answer was lost.
        ``aside`` is a name of the caller's own, where the file is written first if it could be seen in part. One of
        two runs succeeds if the file system can do that at once: a local one by a hard link, HDFS by its rename, S3 by
        a condition in the request. Where it cannot, both may succeed, and the file is the last one's.
        """
        failure: Py4JJavaError | None = None
        try:
            if self._system.hasPathCapability(self._at(name), _CONDITIONAL):
                builder = self._system.createFile(self._at(name)).overwrite(False).must(_CONDITIONAL, True)
                self._write(builder.build(), text)
            else:
                if self.exists(name):
                    return False
                self.write_text(aside, text)
                if not self._link(aside, name):
                    self._system.rename(self._at(aside), self._at(name))
        except Py4JJavaError as error:
            failure = error
        try:
            written = self.read_text(name) == text
        except MissingFileError as error:
            if failure is not None:
                raise self._refused(name, failure) from failure
            raise JobError(f"{self.path}/{aside}: it cannot be renamed to {name}") from error
        self.delete(aside)
        return written

    def _write(self, stream: Any, text: str) -> None:
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()

    def _link(self, old: str, new: str) -> bool:
        """Give a file of a local file system another name unless a file has it; False if it knows no hard links."""
        if str(self._system.getUri().getScheme()) != "file":
            return False
        old_path, new_path = (
            self._jvm.java.io.File(self._system.makeQualified(self._at(each)).toUri().getPath()).toPath()
            for each in (old, new)
        )
        try:
            self._jvm.java.nio.file.Files.createLink(new_path, old_path)
        except Py4JJavaError as error:
            # Whatever else is wrong the rename, which is tried next, will say.
            return str(error.java_exception.getClass().getName()) == "java.nio.file.FileAlreadyExistsException"
        return True

    def make(self, name: str = "") -> None:
        """Make the directory, or the one of that name below, with those above it."""
        try:
            made = self._system.mkdirs(self._at(name))
        except Py4JJavaError as error:
            raise self._refused(name, error) from error
        if not made:
            raise JobError(f"{self.path}{'/' + name if name else ''}: this directory cannot be made")

    def matching(self, pattern: str) -> list[str]:
        """Return the names below this directory that a pattern of Hadoop's fits, such as ``date=*/a-*``, sorted."""
        try:
            found = self._system.globStatus(self._at(pattern)) or []
            depth = pattern.count("/") + 1
            return sorted("/".join(str(each.getPath()).split("/")[-depth:]) for each in found)
        except Py4JJavaError as error:
            raise self._refused(pattern, error) from error

    def files_before(self, ms: int) -> list[str]:
        """Return the files in this directory and below it that were changed before a time (ms since 1970), sorted."""
        try:
            found, listed = [], self._system.listFiles(self._at(""), True)
            root = str(self._system.makeQualified(self._at("")).toString()).rstrip("/") + "/"
            while listed.hasNext():
                each = listed.next()
                if int(each.getModificationTime()) < ms:
                    found.append(str(each.getPath().toString()).removeprefix(root))
            return sorted(found)
        except Py4JJavaError as error:
            raise self._refused("", error) from error

    def rename(self, old: str, new: str) -> None:
        """Give a file or directory another name below this directory."""
        try:
            done = self._system.rename(self._at(old), self._at(new))
        except Py4JJavaError as error:
            raise self._refused(old, error) from error
        if not done:
            raise JobError(f"{self.path}/{old}: it cannot be renamed to {new}")

    def sync(self, *names: str) -> None:
        """Have files and directories on the disk, with their names in the directories above them.

        Only a local file system needs it: elsewhere a file that is closed is stored. Raises :class:`JobError`.
        """
        if str(self._system.getUri().getScheme()) != "file":
            return
        above: set[str] = set()
        try:
            for name in names:
                path = str(self._system.makeQualified(self._at(name)).toUri().getPath())
                directory, _, last = path.rpartition("/")
                _sync(path)
                with suppress(FileNotFoundError):
                    # The checksums of a file that Hadoop has written.
                    _sync(f"{directory}/.{last}.crc")
                above.add(directory or "/")
            for each in sorted(above):
                _sync(each)
        except OSError as error:
            raise JobError(f"{self.path}: {error}") from error

    def delete(self, name: str = "") -> None:
        """Delete a file, or a directory with all in it; nothing happens if it is not there."""
        try:
            self._system.delete(self._at(name), True)
        except Py4JJavaError as error:
            raise self._refused(name, error) from error


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
    # Counted in the files: the rows themselves may not come again as they were.
    return int(frame.sparkSession.read.schema(frame.schema).parquet(path).count())
