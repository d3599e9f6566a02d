"""The partitions in which Spark writes rows: a file each, with its rows in their order."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql.functions import col, expr, struct

from heliograph_spark.run.spark_versions import by_number


def divided(rows: DataFrame, splits: int, files: int, cores: int) -> DataFrame:
    """Return the rows, which are in ``splits`` partitions, in at most ``files``, each of neighbouring ones.

    Where there are more of these, a task reads several one after the other, unless there would be fewer tasks than
    cores: then each is read by a task of its own, and the rows pass once through the executors' disks.
    """
    if splits <= files:
        return rows
    if files >= cores:
        return rows.coalesce(files)
    file = _unused_name(rows)
    number = expr(f"CAST(spark_partition_id() * {files}L div {splits} AS INT)")
    return by_number(rows.withColumn(file, number), files, col(f"`{file}`")).drop(file)


def in_order(rows: DataFrame) -> DataFrame:
    """Return the rows of files in one partition, in the order of the files' names, which is that of a query's batches.

    Spark itself reads the largest file first.
    """
    read = rows.metadataColumn("_metadata")
    place = _unused_name(rows)
    placed = rows.withColumn(place, struct(read["file_name"], read["row_index"])).coalesce(1)
    return placed.sortWithinPartitions(f"`{place}`").drop(place)


def _unused_name(rows: DataFrame) -> str:
    """Return a name for a column that is in no file: no column of the rows has it."""
    return f"{max(rows.columns, key=len)}_"
