"""Marks of complete days in an archive: ``_SUCCESS`` in the directory of a day of a topic.

Schedulers and Hadoop's jobs wait for a file of this name. Spark and pyarrow do not read it as data.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime

from pyspark.sql import SparkSession

from heliograph_spark.plan.positions import Position

from .archived import DATE, read_archive, topic_directory
from .directories import open_directory
from .files import Directory

MARK = "_SUCCESS"
#: The UTC day of the publish time, whatever time zone the session has.
UTC_DAY = "date_from_unix_date(CAST(unix_micros(__publishTime) div 86400000000 AS INT))"


def mark_text(messages: int, up_to: Mapping[str, Position], stored_ms: int) -> str:
    """Return the content of a mark: the day's messages, and the arguments of :func:`mark_days`."""
    stored = datetime.fromtimestamp(stored_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    positions = {partition: str(position) for partition, position in sorted(up_to.items())}
    return json.dumps({"messages": messages, "storedBefore": stored, "upTo": positions})


def marked_days(directory: Directory) -> list[str]:
    """Return the days of a topic's directory that are marked as complete, sorted."""
    return [name.split("/")[0].partition("=")[2] for name in directory.matching(f"{DATE}=*/{MARK}")]


def unmarked_days(directory: Directory) -> list[str]:
    """Return the days of a topic's directory that have no mark, sorted."""
    marked = set(marked_days(directory))
    days = (name.partition("=")[2] for name in directory.matching(f"{DATE}=*"))
    return [day for day in days if day not in marked]


def mark_days(
    spark: SparkSession, path: str, topic: str, days: Iterable[str], up_to: Mapping[str, Position], stored_ms: int
) -> dict[str, int]:
    """Mark days of a topic as complete and return the number of messages of each; a day without any gets no mark.

    ``up_to`` is the last archived message of each partition; ``stored_ms`` (ms since 1970) is the time up to which all
    that was stored is archived. The caller holds the topic's subscription.
    """
    wanted = [date.fromisoformat(day) for day in days]
    if not wanted:
        return {}
    rows = read_archive(spark, path, topic)
    counts = rows.where(rows[DATE].isin(wanted)).groupBy(DATE).count().collect()
    directory = open_directory(spark, topic_directory(path, topic))
    found = {row[DATE].isoformat(): int(row["count"]) for row in counts}
    for day, messages in sorted(found.items()):
        directory.write_whole(f"{DATE}={day}/{MARK}", mark_text(messages, up_to, stored_ms))
    for empty in sorted({day.isoformat() for day in wanted} - found.keys()):
        # A run was killed while it removed the day. The directory would be counted again by every run.
        if not directory.matching(f"{DATE}={empty}/*.parquet"):
            directory.delete(f"{DATE}={empty}")
    return dict(sorted(found.items()))


def unmark_day(directory: Directory, day: str) -> bool:
    """Remove the mark of a day; False if it has none."""
    name = f"{DATE}={day}/{MARK}"
    if not directory.exists(name):
        return False
    directory.delete(name)
    return True
