"""The last value of each key of a topic in an Iceberg table, which each micro-batch brings up to date.

The table is partitioned by a number that is made of the key. A micro-batch reads the partitions of its keys, keeps the
last message of each key among theirs and its own, and one commit replaces the files of these partitions. The other
partitions stay as they are. A message without a value deletes its key, as in ``compact``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyiceberg.expressions import In
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import IntegerType, StructType

from heliograph_spark.jobs.last_messages import has_value, last_messages
from heliograph_spark.plan.errors import JobError
from heliograph_spark.run.connect import keep, release
from heliograph_spark.tables.catalog import refusals
from heliograph_spark.tables.columns import REWRITE, check_names, in_spark
from heliograph_spark.tables.locations import of_hadoop
from heliograph_spark.tables.manifests import check_manifests

from .topic_table import Merged, TopicTable

#: The column of the partitions, and their number. A file of a partition has one value of it.
BUCKET = "__bucket"
BUCKETS = 64


class LastValues(TopicTable):
    """The table of the last values of one topic."""

    place = f"`{BUCKET}`"
    partition = (BUCKET, IdentityTransform(), f"{BUCKET}_identity")
    own_columns = (*TopicTable.own_columns, BUCKET)

    def columns_of(self, columns: StructType) -> StructType:
        return StructType([*columns.fields]).add(BUCKET, IntegerType())

    def files(self, columns: StructType, file_bytes: int) -> None:
        """Return none: rows are merged with those of the table."""

    @contextmanager
    def merged(self, rows: DataFrame, table: Table) -> Iterator[Merged]:
        bucket = f.pmod(f.xxhash64("__key"), f.lit(BUCKETS)).cast("int")
        # They are read twice: for their partitions, and to be written.
        new = keep(last_messages(rows.withColumn(BUCKET, bucket)), StorageLevel.MEMORY_AND_DISK_DESER)
        try:
            there = self._files_of(table, {int(row[BUCKET]) for row in new.select(BUCKET).distinct().collect()})
            last = new
            if there:
                check_names(table.schemas().values(), self.path)
                read = rows.sparkSession.read.schema(in_spark(table.schema()))
                last = last_messages(read.parquet(*map(of_hadoop, there)).select(*new.columns).union(new))
            last = last.where(has_value(rows.drop(BUCKET))).repartition(BUCKET)
            yield Merged(last, In(BUCKET, sorted(set(there.values()))) if there else None)
        finally:
            release(new)

    def _files_of(self, table: Table, buckets: set[int]) -> dict[str, int]:
        """Return the files of these partitions, and of which one each is."""
        if (snapshot := table.current_snapshot()) is not None:
            check_manifests(table.io, [snapshot], self.path)
        with refusals(self.path):
            tasks = [task for task in table.scan().plan_files() if task.file.partition[0] in buckets]
        for task in tasks:
            if task.delete_files:
                raise JobError(
                    f"{self.path}: another engine has deleted rows of {task.file.file_path} by a file of deletes, with"
                    f" which it is not read here: {REWRITE}"
                )
        return {task.file.file_path: int(task.file.partition[0]) for task in tasks}

    def unmarked_days(self) -> list[str]:
        """Return none: the table has the messages of a day only as long as no later ones replace them."""
        return []
