"""Merges the small files of a complete day of an archived topic into larger ones, before the day is marked.

A reader that waits for a day's mark never sees its files change, unless a message comes later.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from heliograph_spark.plan.errors import JobError
from heliograph_spark.run.archived import DATE, archived_columns, archived_files, name_below, topic_directory
from heliograph_spark.run.directories import open_directory
from heliograph_spark.run.files import STAGING, Directory, stage
from heliograph_spark.run.merges import finish_merge, replace_files

from .partitioning import in_order


def in_groups(files: Iterable[tuple[str, int]], size: int) -> list[list[str]]:
    """Return files, given with their bytes, in groups of neighbours of about ``size`` bytes.

    Files of half of it and more are in none, and neither is one that would be alone.
    """
    groups: list[list[str]] = []
    filled = size
    for file, length in sorted(files):
        if length >= size / 2:
            continue
        if filled + length > size:
            groups.append([])
            filled = 0
        groups[-1].append(file)
        filled += length
    return [group for group in groups if len(group) > 1]


def merge_day(spark: SparkSession, path: str, topic: str, day: str, size: int, staging: str) -> tuple[int, int] | None:
    """Merge the files of a day (``YYYY-MM-DD``) that are smaller than half of ``size`` (bytes) into files of about it.

    Returns the number of files before and after; None if nothing was to be done. ``staging`` is a name of the caller's
    own, who holds the topic's subscription.
    """
    root, directory = open_directory(spark, path), open_directory(spark, topic_directory(path, topic))
    finish_merge(directory)
    files = archived_files(spark, path, topic, day)
    groups = in_groups(((file, directory.size(file)) for file in files), size)
    columns = archived_columns(spark, path, topic)
    if not groups or columns is None:
        return None
    old = [file for group in groups for file in group]
    rows = _rows(spark, directory, old, columns).count()
    each_in_one = [in_order(_rows(spark, directory, group, columns)) for group in groups]
    try:
        staged = stage(root, staging, reduce(DataFrame.unionAll, each_in_one))
        new = root.matching(f"{STAGING}/{staging}/*.parquet")
        if staged != rows or not new:
            raise JobError(f"{directory.path}: {rows} rows of {day} were to be merged, and {staged} were written")
        if set(old) - set(archived_files(spark, path, topic, day)):
            # The broker has given the subscription to another run, while this one was cut off from it.
            raise JobError(f"{directory.path}: another run has merged files of {day} meanwhile")
        replace_files(root, directory, name_below(topic), f"{DATE}={day}", old, new)
    finally:
        # On a disk that is full it would keep the next attempt from what that needs.
        root.delete(f"{STAGING}/{staging}")
    return len(files), len(files) - len(old) + len(new)


def _rows(spark: SparkSession, directory: Directory, files: list[str], columns: StructType) -> DataFrame:
    return spark.read.schema(columns).parquet(*(f"{directory.path}/{file}" for file in files))
