"""``archive``: topics into Parquet or into tables, every message once, and acknowledged when it is written.

Each topic is a query with its own checkpoint, which runs up to the head and ends
(:mod:`.archiving.topic_run`). The target of its micro-batches (:mod:`.archiving.target`) makes it exactly once.

At its end a run marks the days that are complete (:mod:`.day_marks`), also those that a killed run has left without a
mark.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from pyspark.sql import SparkSession

from heliograph_spark.plan.errors import JobError
from heliograph_spark.plan.options import ReadOptions, full_name
from heliograph_spark.plan.topics import find_topics
from heliograph_spark.run.archived import topic_directory
from heliograph_spark.run.connect import FAILURES
from heliograph_spark.run.directories import open_directory
from heliograph_spark.run.files import Directory
from heliograph_spark.run.session import first_of, progress, reason_of

from .archiving.options import ArchiveOptions, Tables
from .archiving.parquet import ParquetArchive
from .archiving.target import Target
from .archiving.topic_run import TopicRun

__all__ = ["ArchiveOptions", "ArchiveResult", "Tables", "archive"]


@dataclass(frozen=True, slots=True)
class ArchiveResult:
    """The output of one run; ``lag`` are the messages that were not archived when it ended, of all topics."""

    job: str = "archive"
    rows: int = 0
    files: int = 0
    bytes: int = 0
    topics: int = 0
    lag: int = 0
    seconds: float = 0.0
    error: str | None = None

    def with_run(self, run: TopicRun) -> ArchiveResult:
        """Return it with what a run has written."""
        return replace(self, rows=self.rows + run.rows, files=self.files + run.files, bytes=self.bytes + run.bytes)


def asked_of(options: ArchiveOptions) -> ReadOptions:
    """Return the options that name the topics. Raises :class:`OptionError` for options that are not valid."""
    options.check()
    asked = options.read_options(topic=options.topics[0] if options.topics else None, pattern=options.pattern)
    # The option `topics` is a list that commas divide, and a comma may be in a topic's name.
    if options.topics:
        asked = replace(asked, topics=tuple(dict.fromkeys(full_name(topic.strip()) for topic in options.topics)))
    return asked


def target_of(spark: SparkSession, options: ArchiveOptions) -> Target:
    """Return the archive, which can be written. Raises :class:`PulsarSourceError`."""
    target = _target(spark, options)
    target.prepare()
    return target


def checkpoint_of(spark: SparkSession, options: ArchiveOptions, target: Target, topic: str) -> Directory:
    """Return the directory of the state of a topic's query."""
    return open_directory(spark, topic_directory((options.checkpoint or target.checkpoint).rstrip("/"), topic))


def archive(spark: SparkSession, options: ArchiveOptions, now: Callable[[], float] = time.time) -> ArchiveResult:
    """Archive every topic up to where it ends now, one after the other. ``now`` (s since 1970) decides on the days.

    What one topic fails with does not stop the others; it is the result's ``error``. Raises :class:`OptionError` for
    options that cannot be understood, and :class:`PulsarSourceError` for what concerns all topics: a broker that
    cannot be reached, a topic that is not there, a directory that cannot be written.
    """
    began = time.monotonic()
    topics = find_topics(asked_of(options))
    if not topics:
        raise JobError(f"no topic fits the pattern {options.pattern!r}")
    target = target_of(spark, options)
    total = ArchiveResult(topics=len(topics))
    failed: list[str] = []
    for topic in topics:
        run = TopicRun(spark, options, topic, target.topic(topic), checkpoint_of(spark, options, target, topic), now)
        failures = []
        # The remaining backlog is measured after a failure, too, and cannot hide it.
        for step in (run.go, run.measure):
            try:
                step()
            except FAILURES as error:
                failures.append(reason_of(topic, error))
                progress(failures[-1])
        if not run.rows and not failures:
            progress(f"{topic}: nothing new")
        failed += failures[:1]
        total = replace(total.with_run(run), lag=total.lag + (run.lag or 0))
    seconds = round(time.monotonic() - began, 3)
    return replace(total, seconds=seconds, error=first_of(failed, f"{len(topics)} topics"))


def _target(spark: SparkSession, options: ArchiveOptions) -> Target:
    if options.tables is not None:
        assert options.checkpoint is not None
        # It needs the packages of the extra `iceberg`, which other archives do without.
        from .archiving.iceberg import IcebergArchive

        return IcebergArchive(spark, options.tables, options.checkpoint)
    assert options.path is not None
    return ParquetArchive(spark, options.path, options.merge_bytes)
