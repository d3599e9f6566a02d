"""Removes old days from an archived topic: only days that are complete, and each whole.

``_removed/<day>.json``, which is written first, has the mark of a day that was removed. Then the day's files go out of
sight of all that read through :mod:`.archived`, at one moment, and its mark, its files and its directory are deleted.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import SparkSession

from .archived import DATE, archived_files, name_below, topic_directory
from .days import MARK
from .directories import open_directory
from .merges import finish_merge, replace_files

_REMOVED = "_removed"


def removed_days(spark: SparkSession, path: str, topic: str) -> list[str]:
    """Return the days of a topic that were removed from an archive, sorted."""
    names = open_directory(spark, topic_directory(path, topic)).names(_REMOVED)
    return [name.removesuffix(".json") for name in names if name.endswith(".json") and not name.startswith(".")]


def remove_days(spark: SparkSession, path: str, topic: str, days: Iterable[str]) -> None:
    """Remove complete days of a topic, one after the other. The caller holds the topic's subscription."""
    root, directory = open_directory(spark, path), open_directory(spark, topic_directory(path, topic))
    for day in days:
        finish_merge(directory)
        place = f"{DATE}={day}"
        mark = f"{place}/{MARK}"
        # A killed run may have left the mark, which has just been deleted, and the directory.
        if directory.exists(mark):
            directory.make(_REMOVED)
            directory.write_text(f"{_REMOVED}/{day}.json", directory.read_text(mark))
            # They are deleted in this order: a reader that waits for marks finds none on a part of a day.
            files = [mark, *archived_files(spark, path, topic, day)]
            replace_files(root, directory, name_below(topic), place, files, [])
        directory.delete(place)
