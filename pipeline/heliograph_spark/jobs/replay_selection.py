"""The messages of an archive that a replay sends: those of its ranges, keys and properties.

A replay reads one snapshot of a table. Later commits, such as merged files, are no part of it, also in a run that goes
on where another one stopped.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from heliograph_spark.jobs.plan.begun_replay import Snapshot
from heliograph_spark.plan.errors import JobError
from heliograph_spark.plan.timestamps import write_moment
from heliograph_spark.run.archived import DATE, archived_topics, read_archive
from heliograph_spark.run.retention import removed_days
from heliograph_spark.run.session import progress

from .replay_options import ReplayOptions


class Selected(NamedTuple):
    """The messages, and the snapshot of the table that has them; None for files, and for a table without any."""

    rows: DataFrame
    snapshot: Snapshot | None = None


def selected(
    spark: SparkSession,
    options: ReplayOptions,
    source: str,
    begun: Snapshot | None = None,
    *,
    by_position: bool = False,
) -> Selected:
    """Return the archived messages of a topic, by its whole name, that the options select.

    ``begun`` is the snapshot to read them from, else it is the newest one. Where sequence ids go ``by_position`` they
    include what ``--until`` leaves out, because a later run may send that (:mod:`.replay_cut`). Reports days of the
    range that the archive's retention removed. Raises :class:`JobError` if the topic is not archived, if the snapshot
    is gone, or if ``--from`` names such a day.
    """
    read = replace(options, until_ms=None) if by_position else options
    if options.tables is None:
        found = Selected(_in_files(spark, read, source))
        _name_removed(removed_days(spark, options.archive, source), options, source)
    else:
        # It needs the packages of the extra `iceberg`, which other archives do without.
        from .replay_tables import in_tables

        table_rows, snapshot, removed = in_tables(spark, read, options.tables, source, begun)
        found = Selected(table_rows, snapshot)
        _name_removed(removed, options, source)
    rows = _within(found.rows, "__publishTime", read.from_ms, read.until_ms)
    rows = _within(rows, "__eventTime", options.event_from_ms, options.event_until_ms)
    if options.keys:
        rows = rows.where(f.col("__key").isin([f.lit(key.encode()) for key in options.keys]))
    for name, value in options.properties.items():
        rows = rows.where(f.try_element_at("__messageProperties", f.lit(name)) == value)
    return Selected(rows, found.snapshot)


def _in_files(spark: SparkSession, options: ReplayOptions, source: str) -> DataFrame:
    path = options.archive
    topics = archived_topics(spark, path)
    if source not in topics:
        raise JobError(f"{path}: {source} is not archived there; there are {', '.join(topics[:5])}")
    rows = read_archive(spark, path, source)
    # The directory's day first: Spark leaves the other days' files alone.
    if options.from_ms is not None:
        rows = rows.where(f.col(DATE) >= f.lit(write_moment(options.from_ms)[:10]).cast("date"))
    if options.until_ms is not None:
        rows = rows.where(f.col(DATE) <= f.lit(write_moment(options.until_ms)[:10]).cast("date"))
    return rows.drop(DATE)


def _within(rows: DataFrame, time: str, begin_ms: int | None, end_ms: int | None) -> DataFrame:
    """Keep the rows of a range of times, without its end; a row without the time is in no range.

    The column itself is compared, not its milliseconds: Spark does that by the statistics of the files, too.
    """
    if begin_ms is not None:
        rows = rows.where(f.col(time) >= f.timestamp_millis(f.lit(begin_ms)))
    if end_ms is not None:
        rows = rows.where(f.col(time) < f.timestamp_millis(f.lit(end_ms)))
    return rows


def _name_removed(days: list[str], options: ReplayOptions, source: str) -> None:
    """Report the days in the range that the archive's retention removed. Raises :class:`JobError` if a time names one.

    Days are compared as text, as the directories are.
    """
    first = "" if options.from_ms is None else write_moment(options.from_ms)[:10]
    last = "9999" if options.until_ms is None else write_moment(options.until_ms - 1)[:10]
    if not (found := [day for day in days if first <= day <= last]):
        return
    span = found[0] if len(found) == 1 else f"{found[0]} to {found[-1]}, {len(found)} days"
    text = f"{options.archive}: complete days of {source} were removed by the archive's --keep: {span}"
    if options.from_ms is not None:
        raise JobError(f"{text}; a later --from, or none, sends what is there")
    progress(f"{text}; what is there is sent")
