"""An archive in a directory of Parquet files, whose layout is that of :mod:`heliograph_spark.run.archived`.

A micro-batch is written below ``_staging`` and its files are then renamed into their places, under names that carry
the batch's number. What a killed run had already put in its places is deleted by the number of the batch first, and no
reader ever sees a message twice, whatever it reads with. (Spark's own file sink leaves the files of killed tasks among
the others, and keeps a list that only Spark reads.) What reads through :mod:`heliograph_spark.run.archived` sees a
batch whole or not at all.

A message that comes after its day was complete removes the day's mark before its file is in its place. With
``merge_bytes`` the small files of a day are merged before the day is marked.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr
from pyspark.sql.types import StructType

from heliograph_spark.plan.errors import JobError
from heliograph_spark.plan.positions import Position
from heliograph_spark.run.archived import (
    DATE,
    batch_name,
    complete_batches,
    complete_up_to,
    has_batches,
    keep_columns,
    mark_complete,
    name_below,
    topic_directory,
)
from heliograph_spark.run.days import UTC_DAY, mark_days, marked_days, unmark_day, unmarked_days
from heliograph_spark.run.directories import open_directory
from heliograph_spark.run.files import STAGING, stage
from heliograph_spark.run.files_source import WantedFiles, written_files
from heliograph_spark.run.merges import finish_merge
from heliograph_spark.run.places import place_of
from heliograph_spark.run.retention import remove_days
from heliograph_spark.run.session import progress

from .merging import merge_day
from .target import Batch, Complete, Written


class ParquetArchive:
    """The archive in a directory."""

    def __init__(self, spark: SparkSession, path: str, merge_bytes: int | None = None) -> None:
        self._spark = spark
        self._path = path
        self._merge_bytes = merge_bytes
        self.checkpoint = f"{path.rstrip('/')}/_checkpoint"

    def prepare(self) -> None:
        """Make the directory."""
        open_directory(self._spark, self._path).make(STAGING)

    def topic(self, name: str) -> ParquetTopic:
        """Return the directory of a topic."""
        return ParquetTopic(self._spark, self._path, name, self._merge_bytes)


class _Staged(NamedTuple):
    """The rows of a micro-batch, and its files: the path below the archive, the day, and the bytes of each."""

    rows: int
    files: list[tuple[str, str, int]]


class ParquetTopic:
    """The files of one topic."""

    def __init__(self, spark: SparkSession, path: str, topic: str, merge_bytes: int | None = None) -> None:
        self._spark = spark
        self._merge_bytes = merge_bytes
        self._archive_path = path
        self._topic = topic
        self._archive = open_directory(spark, path)
        self._files = open_directory(spark, topic_directory(path, topic))
        self._directory = name_below(topic)
        # A name of the run's own: what one writes that was cut off from the broker is never taken for another's.
        self._own = f"{self._directory}+{uuid.uuid4().hex}"
        self._staging = f"{STAGING}/{self._own}"
        self._staged_files = open_directory(spark, f"{self._archive.path}/{self._staging}")
        #: Whether the last write went to its end, so that nothing of the next batch can be there.
        self._whole = False
        self.path = self._files.path

    def is_empty(self) -> bool:
        # What earlier releases have archived may have no record of it.
        return not has_batches(self._files) and not self._files.matching(f"{DATE}=*/*.parquet")

    def keep_columns(self, columns: StructType) -> StructType:
        return keep_columns(self._spark, self._archive_path, self._topic, columns)

    def complete(self, query: str) -> Complete | None:
        batches = complete_batches(self._files, query)
        return Complete(batches, complete_up_to(self._files, query, batches)) if batches else None

    def sync(self) -> None:
        # The files are there before the record of them is written, which is whole before it has its name.
        self._files.sync("")

    def files(self, columns: StructType, file_bytes: int) -> WantedFiles | None:
        place = place_of(self._staged_files)
        return None if place is None else WantedFiles(place, DATE, columns, file_bytes)

    def write_files(self, files: DataFrame, batch: Batch) -> Written:
        return self._write(lambda: self._stage_files(files), batch)

    def write(self, rows: DataFrame, batch: Batch) -> Written:
        return self._write(lambda: self._stage_rows(rows), batch)

    def _stage_files(self, files: DataFrame) -> _Staged:
        found = written_files(files, self._staged_files)
        named = [(f"{self._staging}/{each.path}", each.day, each.bytes) for each in found]
        return _Staged(sum(each.rows for each in found), named)

    def _stage_rows(self, rows: DataFrame) -> _Staged:
        # Without it a task sorts its rows by their days, of which there are two at most in nearly all micro-batches.
        # It is the session of the streaming query alone or, with Spark Connect, that of the job.
        rows.sparkSession.conf.set("spark.sql.maxConcurrentOutputFileWriters", "2")
        count = stage(self._archive, self._own, rows.withColumn(DATE, expr(UTC_DAY)), DATE)
        found = self._archive.matching(f"{self._staging}/{DATE}=*/*.parquet")
        if count and not found:
            raise JobError(f"{self._archive.path}/{self._staging}: {count} rows were written there, and no file is")
        named = [(each, each.split("/")[-2].partition("=")[2], self._archive.size(each)) for each in found]
        return _Staged(count, named)

    def _write(self, stage_batch: Callable[[], _Staged], batch: Batch) -> Written:
        """Write the files of a micro-batch where nobody reads, and give them their places."""
        name = batch_name(batch.query, batch.number)
        clean, self._whole = self._whole, False
        if not clean:
            self._clear_staging()
        staged = stage_batch()
        if complete_batches(self._files, batch.query) > batch.number:
            # The broker has given the subscription to another run, while this one was cut off from it.
            raise JobError(f"{self.path}: another run has written batch {batch.number} meanwhile")
        # From here on it takes a moment, and a killed run's part of it is undone first.
        if not clean:
            mark_complete(self._files, batch.query, batch.number, batch.starts)
            for left in self._files.matching(f"{DATE}=*/{name}-*"):
                self._files.delete(left)
        days = sorted({day for _, day, _ in staged.files})
        reopened = [day for day in days if unmark_day(self._files, day)]
        for day in days:
            self._files.make(f"{DATE}={day}")
        for place, (file, day, _) in enumerate(staged.files):
            self._archive.rename(file, f"{self._directory}/{DATE}={day}/{name}-{place:05}.parquet")
        # When they are acknowledged, nobody else keeps the messages.
        files = [f"{DATE}={day}/{name}-{place:05}.parquet" for place, (_, day, _) in enumerate(staged.files)]
        self._files.sync(*files, *(f"{DATE}={day}" for day in days), "")
        mark_complete(self._files, batch.query, batch.number + 1, batch.ends)
        self._archive.delete(self._staging)
        self._whole = True
        return Written(staged.rows, len(staged.files), sum(size for _, _, size in staged.files), reopened)

    def unmarked_days(self) -> list[str]:
        return unmarked_days(self._files)

    def mark_days(self, days: Iterable[str], up_to: Mapping[str, Position], stored_ms: int) -> dict[str, int]:
        complete = []
        for day in days:
            self._merge(day)
            complete.append(day)
        return mark_days(self._spark, self._archive_path, self._topic, complete, up_to, stored_ms)

    def marked_days(self) -> list[str]:
        return marked_days(self._files)

    def remove_days(self, days: Iterable[str]) -> None:
        remove_days(self._spark, self._archive_path, self._topic, days)

    def _merge(self, day: str) -> None:
        if self._merge_bytes is None:
            # A run before this one may have merged, and was killed.
            finish_merge(self._files)
            return
        self._clear_staging()
        merged = merge_day(self._spark, self._archive_path, self._topic, day, self._merge_bytes, self._own)
        if merged is not None:
            progress(f"{self._topic}: {day}: {merged[0]} files are {merged[1]} now")

    def _clear_staging(self) -> None:
        """Delete what runs that were killed have left there: this one has the subscription."""
        for left in self._archive.names(STAGING):
            if left.partition("+")[0] == self._directory:
                self._archive.delete(f"{STAGING}/{left}")
