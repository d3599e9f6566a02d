"""Merges the small files of a day of a table: one commit replaces the day's files by fewer ones with the same rows."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from datetime import date, timedelta
from typing import Any

from pyiceberg.table import Table
from pyiceberg.transforms import DayTransform
from pyspark.sql import SparkSession

from heliograph_spark.plan.errors import JobError
from heliograph_spark.run.directories import open_directory
from heliograph_spark.run.files import COMPRESSED

from .adding import add_files
from .catalog import refusals
from .columns import check_names, in_spark
from .locations import of_hadoop
from .manifests import check_manifests
from .retention import rows_of_day

_EPOCH = date(1970, 1, 1)


def merge_day(
    spark: SparkSession, table: Table, column: str, day: date, files: list[Any], file_bytes: int
) -> int | None:
    """Replace the data files of a day of a column by as few as their bytes need, and return their number.

    Returns None, and changes nothing, if the day has other files when they are written. Raises :class:`JobError` if
    another commit was first, or if the rows would not be as many as before, and :class:`SchemaError` for a column that
    was renamed; the table is as it was then.
    """
    name = ".".join(table.name())
    check_names(table.schemas().values(), name)
    count = files_needed(files, file_bytes)
    data = open_directory(spark, f"{of_hadoop(table.location())}/data")
    place = f"merged-{uuid.uuid4().hex}"
    rows = spark.read.schema(in_spark(table.schema())).parquet(*(of_hadoop(file.file_path) for file in files))
    rows.coalesce(count).write.options(**COMPRESSED).parquet(f"{data.path}/{place}")
    data.check_written(place)
    written = data.matching(f"{place}/*.parquet")
    of_day = rows_of_day(column, day)
    with refusals(name):
        # Other commits do not matter while the files are written, unless they change the day.
        tasks = list(table.refresh().scan(of_day).plan_files())
    if any(task.delete_files for task in tasks) or _paths(task.file for task in tasks) != _paths(files):
        data.delete(place)
        return None
    before = _records(table.metadata)
    with refusals(name), table.transaction() as change:
        change.delete(of_day)
        add_files(change, table.io, [f"{table.location()}/data/{file}" for file in written], column, {})
        after = _records(change.table_metadata)
        if after != before:
            raise JobError(f"{name}: the merged files of {day} would change the number of its rows by {after - before}")
    return len(written)


def mergeable_days(table: Table, file_bytes: int) -> dict[date, list[Any]]:
    """Return the data files of each day that has more than its bytes need, the days in order.

    A table that is not partitioned by days has none. A day is left out if another engine has deleted rows of it by
    files of deletes: its data files still have these rows. Raises :class:`JobError` for a damaged manifest.
    """
    spec = table.spec()
    if not spec.fields or not isinstance(spec.fields[0].transform, DayTransform):
        return {}
    name = ".".join(table.name())
    if (snapshot := table.current_snapshot()) is not None:
        check_manifests(table.io, [snapshot], name)
    days: dict[date, list[Any]] = {}
    with_deletes: set[date] = set()
    with refusals(name):
        for task in table.scan().plan_files():
            if task.file.spec_id != spec.spec_id or task.file.partition[0] is None:
                # Another engine has partitioned the table in another way, or a message has no publish time that is
                # known.
                continue
            day = _EPOCH + timedelta(days=task.file.partition[0])
            days.setdefault(day, []).append(task.file)
            if task.delete_files:
                with_deletes.add(day)
    return {
        day: files
        for day, files in sorted(days.items())
        if day not in with_deletes and len(files) > files_needed(files, file_bytes)
    }


def files_needed(files: list[Any], file_bytes: int) -> int:
    """Return how many files of a size have the bytes of these."""
    return max(1, -(-sum(int(file.file_size_in_bytes) for file in files) // file_bytes))


def _paths(files: Iterable[Any]) -> set[str]:
    return {file.file_path for file in files}


def _records(metadata: Any) -> int:
    snapshot = metadata.current_snapshot()
    return 0 if snapshot is None else int(snapshot.summary["total-records"])
