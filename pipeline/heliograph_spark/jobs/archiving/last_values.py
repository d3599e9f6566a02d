"""The last value of each key of a topic in an Iceberg table, which each micro-batch brings up to date.

The table is partitioned by a number that is made of the key. A micro-batch reads the partitions of its keys, keeps the
last message of each key among theirs and its own, and one commit replaces the files of these partitions. The other
partitions stay as they are. A message without a value deletes its key, as in ``compact``.
"""

from __future__ import annotations

from pyiceberg.expressions import In
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import IntegerType, StructType

from heliograph_spark.jobs.compact import has_value, last_messages
from heliograph_spark.tables.catalog import refusals
from heliograph_spark.tables.columns import in_spark
from heliograph_spark.tables.locations import of_hadoop

from .topic_table import Merged, TopicTable

#: The column of the partitions, and their number. A file of a partition has one value of it.
BUCKET = "__bucket"
BUCKETS = 64


class LastValues(TopicTable):
    """The table of the last values of one topic."""

    place = f"`{BUCKET}`"
    partition = (BUCKET, IdentityTransform(), f"{BUCKET}_identity")

    def columns_of(self, columns: StructType) -> StructType:
        return StructType([*(each for each in columns.fields if each.name != BUCKET)]).add(BUCKET, IntegerType())

    def merge(self, rows: DataFrame, table: Table) -> Merged:
        bucket = f.pmod(f.xxhash64("__key"), f.lit(BUCKETS)).cast("int")
        # They are read twice: for their partitions, and to be written.
        new = last_messages(rows.withColumn(BUCKET, bucket)).persist()
        touched = {int(row[BUCKET]) for row in new.select(BUCKET).distinct().collect()}
        with refusals(self.path):
            there = {
                task.file.file_path: int(task.file.partition[0])
                for task in table.scan().plan_files()
                if task.file.partition[0] in touched
            }
        merged = new
        if there:
            read = rows.sparkSession.read.schema(in_spark(table.schema()))
            merged = last_messages(read.parquet(*map(of_hadoop, there)).select(*new.columns).union(new))
        merged = merged.where(has_value(rows.drop(BUCKET))).repartition(BUCKET)
        replaced = In(BUCKET, sorted(set(there.values()))) if there else None
        return Merged(merged, replaced, new)

    def unmarked_days(self) -> list[str]:
        """Return none: the table has the messages of a day only as long as no later ones replace them."""
        return []
