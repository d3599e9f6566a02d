"""The archives that jobs read: files in a directory, which are here, or the tables of a catalog."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from heliograph_spark.run.archived import DATE, archived_files, archived_topics, read_archive, topic_directory
from heliograph_spark.run.directories import open_directory

from .archived import Archive, Archived, Topics, made_of
from .archiving.options import Tables


class FileArchive:
    """An archive in files, at a path."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        self.name = path

    def topics(self) -> Topics:
        return Topics(archived_topics(self._spark, self.name), [])

    def read(self, topic: str) -> Archived:
        # An archive changes no file: what it adds, merges or removes shows in their names.
        files = archived_files(self._spark, self.name, topic)
        return Archived(read_archive(self._spark, self.name, topic).drop(DATE), made_of(files))

    def size(self, topic: str) -> tuple[int, int]:
        directory = open_directory(self._spark, topic_directory(self.name, topic))
        sizes = [directory.size(name) for name in archived_files(self._spark, self.name, topic)]
        return read_archive(self._spark, self.name, topic).count(), sum(sizes)


@contextmanager
def open_archive(spark: SparkSession, path: str | None, tables: Tables | None) -> Iterator[Archive]:
    """Give the archive in files or in tables, whichever is named."""
    if tables is None:
        assert path is not None
        yield FileArchive(spark, path)
        return
    # It needs the packages of the extra `iceberg`, which other archives do without.
    from .archived_tables import open_tables

    with open_tables(spark, tables) as archive:
        yield archive
