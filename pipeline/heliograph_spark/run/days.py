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
from .files import Directory

MARK = "_SUCCESS"


def unmarked_days(directory: Directory) -> list[str]:
    """Return the days of a topic's directory that have no mark, sorted."""
    marked = {name.split("/")[0] for name in directory.matching(f"{DATE}=*/{MARK}")}
    return [name.partition("=")[2] for name in directory.matching(f"{DATE}=*") if name not in marked]


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
    directory = Directory(spark, topic_directory(path, topic))
    stored = datetime.fromtimestamp(stored_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    positions = {partition: str(position) for partition, position in sorted(up_to.items())}
    found = {row[DATE].isoformat(): int(row["count"]) for row in counts}
    for day, messages in sorted(found.items()):
        name = f"{DATE}={day}/{MARK}"
        text = json.dumps({"messages": messages, "storedBefore": stored, "upTo": positions})
        # Under its name it is seen as a whole or not at all.
        directory.write_text(f"{name}.unfinished", text)
        directory.rename(f"{name}.unfinished", name)
    return dict(sorted(found.items()))


def unmark_day(directory: Directory, day: str) -> bool:
    """Remove the mark of a day; False if it has none."""
    name = f"{DATE}={day}/{MARK}"
    if not directory.exists(name):
        return False
    directory.delete(name)
    return True
