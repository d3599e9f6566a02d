"""The messages of a snapshot of a table that a replay reads."""

from __future__ import annotations

from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, GreaterThanOrEqual, LessThan
from pyiceberg.table import Table
from pyspark.sql import DataFrame, SparkSession

from heliograph_spark.jobs.plan.begun_replay import Snapshot
from heliograph_spark.plan.errors import JobError
from heliograph_spark.run.session import progress
from heliograph_spark.tables.retention import removed_days

from .archived_tables import open_tables
from .archiving.options import Tables
from .replay_options import ReplayOptions

_AGAIN = "another --checkpoint begins again"


def in_tables(
    spark: SparkSession, options: ReplayOptions, tables: Tables, source: str, begun: Snapshot | None
) -> tuple[DataFrame, Snapshot | None, list[str]]:
    """Return the messages of a topic in the snapshot ``begun``, or in the newest one, this snapshot, and removed days.

    These are the days that are not in the newest one because of the archive's retention.

    Files and row groups without a time in the ranges of the options are left out. Raises :class:`JobError`, naming the
    table, if the topic is not archived in the catalog, or if it has the snapshot no more.
    """
    with open_tables(spark, tables) as archive:
        table = archive.table(source)
        snapshot = _newest(table) if begun is None else begun
        if begun is not None:
            _check_there(table, begun, archive.path(source))
        if snapshot is not None:
            progress(f"{archive.path(source)}: reading snapshot {snapshot.id}")
        rows = archive.rows(table, source, _ranges(options), None if snapshot is None else snapshot.id)
        return rows, snapshot, removed_days(table.properties) if begun is None else []


def _newest(table: Table) -> Snapshot | None:
    found = table.current_snapshot()
    return None if found is None else Snapshot(str(table.metadata.table_uuid), found.snapshot_id)


def _check_there(table: Table, begun: Snapshot, path: str) -> None:
    uuid = str(table.metadata.table_uuid)
    if uuid != begun.table:
        raise JobError(f"{path}: the replay was begun with the table {begun.table}, and this one is {uuid}; {_AGAIN}")
    if table.snapshot_by_id(begun.id) is None:
        raise JobError(
            f"{path}: the replay was begun with snapshot {begun.id}, which has expired since, as maintain"
            f" --keep-snapshots has it; {_AGAIN}"
        )


def _ranges(options: ReplayOptions) -> BooleanExpression:
    found: BooleanExpression = AlwaysTrue()
    for name, begin_ms, end_ms in (
        ("__publishTime", options.from_ms, options.until_ms),
        ("__eventTime", options.event_from_ms, options.event_until_ms),
    ):
        # Iceberg counts microseconds.
        if begin_ms is not None:
            found = And(found, GreaterThanOrEqual(name, begin_ms * 1000))
        if end_ms is not None:
            found = And(found, LessThan(name, end_ms * 1000))
    return found
