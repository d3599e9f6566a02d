"""``maintain``: removes old days of an archive's tables, merges small files, and deletes what no snapshot needs.

A run of ``archive`` may go on meanwhile. The catalog takes the first of two commits on the same snapshot; the other run
fails with that reason, and its next one repeats it. A day that gets messages while its files are merged is left to the
next run.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyspark.sql import SparkSession

from heliograph_spark.plan.errors import JobError
from heliograph_spark.plan.options import full_name
from heliograph_spark.run.connect import FAILURES
from heliograph_spark.run.session import first_of, progress, reason
from heliograph_spark.tables.catalog import open_catalog, refusals
from heliograph_spark.tables.expiry import delete_unused_files, expire_snapshots
from heliograph_spark.tables.merging import merge_day, mergeable_days
from heliograph_spark.tables.retention import remove_day

from .archived_tables import archive_tables
from .archiving.options import Tables
from .archiving.topic_table import COMPLETE_DAY, TIME
from .day_marks import older_days

__all__ = ["MaintainOptions", "MaintainResult", "Tables", "maintain"]


@dataclass(frozen=True, slots=True)
class MaintainOptions:
    """The tables, those of all topics without ``topics``, and what stays.

    ``file_bytes`` is a file's size. Complete days that ended more than ``keep_ms`` ago are removed, none for None.
    Snapshots stay ``keep_snapshots_ms``, and files that no snapshot has ``keep_unused_ms``, since a run writes its
    files before its commit.
    """

    tables: Tables
    topics: tuple[str, ...] = ()
    file_bytes: int = 128 << 20
    keep_snapshots_ms: int = 5 * 86_400_000
    keep_unused_ms: int = 3 * 86_400_000
    keep_ms: int | None = None

    def check(self) -> None:
        """Raise :class:`OptionError` for a name that is not a topic's."""
        for topic in self.topics:
            full_name(topic.strip())


@dataclass(frozen=True, slots=True)
class MaintainResult:
    """The output of one run: ``removed`` days, ``merged`` files, those ``written`` for them, what was deleted."""

    job: str = "maintain"
    tables: int = 0
    removed: int = 0
    merged: int = 0
    written: int = 0
    snapshots: int = 0
    deleted: int = 0
    seconds: float = 0.0
    error: str | None = None


def maintain(spark: SparkSession, options: MaintainOptions, now: Callable[[], float] = time.time) -> MaintainResult:
    """Maintain one table after the other. ``now`` (s since 1970) decides on the ages of snapshots and files.

    What one table fails with does not stop the others; it is the result's ``error``. Raises :class:`JobError` if the
    catalog does not answer, or if a topic has no table.
    """
    with closing(open_catalog(options.tables.catalog, options.tables.properties)) as catalog:
        return _maintain(spark, catalog, options, now)


def _maintain(
    spark: SparkSession, catalog: Catalog, options: MaintainOptions, now: Callable[[], float]
) -> MaintainResult:
    began = time.monotonic()
    tables, failed = _tables(catalog, options)
    spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    total = MaintainResult(tables=len(tables))
    at_ms = int(now() * 1000)
    for topic, identifier in sorted(tables):
        name = ".".join(identifier)
        try:
            with refusals(name):
                table = catalog.load_table(identifier)
            removed = _remove_days(table, name, None if options.keep_ms is None else at_ms - options.keep_ms)
            merged = written = 0
            for day, files in mergeable_days(table, options.file_bytes).items():
                into = merge_day(spark, table, TIME, day, files, options.file_bytes)
                if into is None:
                    progress(f"{name}: {day}: it has got other files meanwhile, and the next run merges them")
                    continue
                written += into
                merged += len(files)
                progress(f"{name}: {day}: {len(files)} files are merged")
            expired = expire_snapshots(table, at_ms - options.keep_snapshots_ms)
            deleted = delete_unused_files(spark, table, at_ms - options.keep_unused_ms)
        except FAILURES as error:
            failed.append(f"{topic}: {reason(error)}")
            progress(failed[-1])
            continue
        progress(f"{name}: {expired} snapshots have expired, {deleted} files are deleted")
        total = replace(
            total,
            removed=total.removed + removed,
            merged=total.merged + merged,
            written=total.written + written,
            snapshots=total.snapshots + expired,
            deleted=total.deleted + deleted,
        )
    seconds = round(time.monotonic() - began, 3)
    return replace(total, seconds=seconds, error=first_of(failed, f"{len(tables)} tables"))


def _remove_days(table: Table, name: str, before_ms: int | None) -> int:
    """Remove the complete days that had ended at a time (ms since 1970), none for None, and return their number."""
    if before_ms is None:
        return 0
    removed = 0
    marked = [each.removeprefix(COMPLETE_DAY) for each in table.properties if each.startswith(COMPLETE_DAY)]
    for day in older_days(marked, before_ms):
        if remove_day(table, TIME, day, f"{COMPLETE_DAY}{day}"):
            removed += 1
            progress(f"{name}: {day} is removed, it is older than --keep")
    return removed


def _tables(catalog: Catalog, options: MaintainOptions) -> tuple[list[tuple[str, tuple[str, ...]]], list[str]]:
    """Return the tables of the topics asked for, or of all, with these topics, and what could not be read."""
    found, failed = archive_tables(catalog, options.tables)
    if not options.topics:
        return found, failed
    wanted = {full_name(topic.strip()) for topic in options.topics}
    if missing := sorted(wanted - {topic for topic, _ in found}):
        there = ", ".join(sorted({topic for topic, _ in found})[:5])
        raise JobError(
            failed[0]
            if failed
            else f"{options.tables.name}: {missing[0]} has no table there; there are tables of {there}"
        )
    return [each for each in found if each[0] in wanted], []
