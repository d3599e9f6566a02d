"""Directories of any file system that Hadoop knows (local, s3a), through the JVM of Spark's own driver."""

from __future__ import annotations

from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from heliograph_spark.plan.bucket_errors import with_advice
from heliograph_spark.plan.errors import JobError, MissingFileError

from .files import Directory, check_path, sync_files

#: Hadoop's property of a store that creates a file only if there is none, as S3 does with a condition in the request.
_CONDITIONAL = "fs.option.create.conditional.overwrite"


class HadoopDirectory(Directory):
    """One directory as Hadoop sees it."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        super().__init__(check_path(path))
        self._jvm: Any = spark._jvm
        # Each dot of a name in Java is a question to it.
        self._path: Any = self._jvm.org.apache.hadoop.fs.Path
        context: Any = spark.sparkContext
        try:
            self._configured = context._jsc.hadoopConfiguration()
            self._system = self._at("").getFileSystem(self._configured)
        except Py4JJavaError as error:
            raise self._refused("", error) from error

    def _at(self, name: str) -> Any:
        return self._path(f"{self.path}/{name}" if name else self.path)

    def _refused(self, name: str, error: Py4JJavaError) -> JobError:
        message = str(error.java_exception.toString()).splitlines()[0]
        kind = MissingFileError if message.startswith("java.io.FileNotFoundException") else JobError
        return kind(f"{self.path}{'/' + name if name else ''}: {with_advice(message)}")

    def parts(self) -> tuple[str, str, str]:
        uri = self._system.makeQualified(self._at("")).toUri()
        return str(uri.getScheme()), str(uri.getAuthority() or ""), str(uri.getPath())

    def settings(self, prefix: str) -> dict[str, str]:
        defaults = self._jvm.org.apache.hadoop.conf.Configuration(False)
        defaults.addResource("core-default.xml")
        found = self._jvm.java.util.HashMap(self._system.getConf().getPropsWithPrefix(prefix))
        found.entrySet().removeAll(defaults.getPropsWithPrefix(prefix).entrySet())
        return {str(name): str(found[name]) for name in found}

    def parquet_settings(self) -> list[str]:
        return sorted(map(str, self._configured.getPropsWithPrefix("parquet.").keySet()))

    def exists(self, name: str = "") -> bool:
        try:
            return bool(self._system.exists(self._at(name)))
        except Py4JJavaError as error:
            raise self._refused(name, error) from error

    def names(self, name: str = "") -> list[str]:
        try:
            return sorted(str(each.getPath().getName()) for each in self._system.listStatus(self._at(name)))
        except Py4JJavaError as error:
            refused = self._refused(name, error)
            if isinstance(refused, MissingFileError):
                return []
            raise refused from error

    def size(self, name: str) -> int:
        try:
            return int(self._system.getFileStatus(self._at(name)).getLen())
        except Py4JJavaError as error:
            raise self._refused(name, error) from error

    def read_text(self, name: str) -> str:
        try:
            stream = self._system.open(self._at(name))
            try:
                return bytes(stream.readAllBytes()).decode()
            finally:
                stream.close()
        except Py4JJavaError as error:
            raise self._refused(name, error) from error

    def write_text(self, name: str, text: str) -> None:
        try:
            self._write(self._system.create(self._at(name), True), text)
        except Py4JJavaError as error:
            raise self._refused(name, error) from error

    def write_new(self, name: str, text: str, aside: str) -> bool:
        failure: Py4JJavaError | None = None
        try:
            if self._system.hasPathCapability(self._at(name), _CONDITIONAL):
                builder = self._system.createFile(self._at(name)).overwrite(False).must(_CONDITIONAL, True)
                self._write(builder.build(), text)
            else:
                if self.exists(name):
                    return False
                self.write_text(aside, text)
                self._sync_unless_deleted(aside)
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
        try:
            made = self._system.mkdirs(self._at(name))
        except Py4JJavaError as error:
            raise self._refused(name, error) from error
        if not made:
            raise JobError(f"{self.path}{'/' + name if name else ''}: this directory cannot be made")

    def matching(self, pattern: str) -> list[str]:
        try:
            found = self._system.globStatus(self._at(pattern)) or []
            depth = pattern.count("/") + 1
            return sorted("/".join(str(each.getPath()).split("/")[-depth:]) for each in found)
        except Py4JJavaError as error:
            raise self._refused(pattern, error) from error

    def files_before(self, ms: int) -> list[str]:
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
        try:
            done = self._system.rename(self._at(old), self._at(new))
        except Py4JJavaError as error:
            raise self._refused(old, error) from error
        if not done:
            raise JobError(f"{self.path}/{old}: it cannot be renamed to {new}")

    def sync(self, *names: str) -> None:
        if str(self._system.getUri().getScheme()) == "file":
            sync_files(self.path, [str(self._system.makeQualified(self._at(name)).toUri().getPath()) for name in names])

    def check_written(self, name: str) -> None:
        """Nothing is checked: the driver, whose file systems these are, sees what Spark has written."""

    def delete(self, name: str = "") -> None:
        try:
            self._system.delete(self._at(name), True)
        except Py4JJavaError as error:
            raise self._refused(name, error) from error
