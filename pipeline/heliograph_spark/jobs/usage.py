"""The job ``usage``: who stores how much, how fast it grows, who lags, and when a backlog quota is reached.

Messages are counted in Spark, by key and by interval, and read through the data source once: between the two counts the
executors' disks keep key, size and time of each. The driver gets one row for each partition, and at most 400 intervals
of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import reduce
from typing import Any, Literal, get_args, get_type_hints

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t

from heliograph_spark.jobs.plan.broker_stats import Lag, PartitionStats, find_partitions, stats_of
from heliograph_spark.jobs.plan.forecast import interval_for
from heliograph_spark.jobs.plan.usage_statistics import (
    BiggestKey,
    Counted,
    GroupUsage,
    PartitionUsage,
    TopicUsage,
    group_usage,
    partition_usage,
    topic_usage,
)
from heliograph_spark.plan.connection import check_admin
from heliograph_spark.plan.options import Connection, names_of, read_options
from heliograph_spark.plan.topics import PARTITION, is_there, topic_of
from heliograph_spark.run.connect import FAILURES, keep, release
from heliograph_spark.run.directories import open_directory
from heliograph_spark.run.files import Directory
from heliograph_spark.run.session import Broker, first_of, progress, reason

from .archives import open_archive
from .archiving.options import Tables, check_archive
from .publishing import aside, put_in_place
from .usage_report import Report, html

Clock = Literal["publish", "event"]
REPORT = "usage.html"
_KEYS_SHOWN = 10


@dataclass(frozen=True, slots=True)
class UsageOptions:
    """The tenants (all without any), the report's directory, and the time of a message that counts for growth.

    The messages of an archive, in files at ``archive`` or in ``tables``, are counted as well; neither need be given.
    With the clock ``event`` the report's moment is the last event time: how it would have looked then.
    """

    broker: Broker
    to: str
    tenants: tuple[str, ...] = ()
    archive: str | None = None
    clock: Clock = "publish"
    tables: Tables | None = None

    def check(self) -> None:
        """Raise :class:`OptionError` for values that are not valid, by themselves or together."""
        check_admin(self.connection())
        if self.archive is not None and self.tables is not None:
            check_archive(self.archive, self.tables, "--archive")

    def connection(self) -> Connection:
        """Return how the broker is reached. Raises :class:`OptionError`."""
        return read_options(self.broker.source_options(topic="any"), streaming=False).connection


@dataclass(frozen=True, slots=True)
class UsageResult:
    """The result of the count; ``report`` is the page, and ``gone`` are topics that were deleted meanwhile."""

    tenants: int
    namespaces: int
    topics: int
    messages: int
    bytes: int
    report: str
    gone: tuple[str, ...] = ()
    job: str = "usage"
    error: str | None = None


def usage(spark: SparkSession, options: UsageOptions, now: Callable[[], float] = time.time) -> UsageResult:
    """Count, forecast and write the report: ``parquet/``, ``csv/`` and ``usage.html`` below ``to``.

    Messages published after the millisecond of ``now`` (seconds since 1970) are not counted. An earlier report there is
    replaced: the page is deleted first and written last, so it is there only with the tables that it is made of. A
    topic that is deleted while it is counted is left out, and what was counted is counted again. What an archive has
    of a topic that cannot be read is left out, and is the result's ``error``. Raises :class:`PulsarSourceError`, naming
    what was wrong, and if another run has put its report there.
    """
    # Exclusive, as all ends in time are: what was published in this millisecond before now counts.
    now_ms = int(now() * 1000) + 1
    options.check()
    connection = options.connection()
    wanted = find_partitions(connection, options.tenants)
    archived, failed = _archived(spark, options)
    directory = open_directory(spark, options.to)
    directory.make()
    while True:
        stats = [each for each in (stats_of(connection, name) for name in wanted) if each is not None]
        there = {each.topic for each in stats}
        # A partition that was never used has no statistics either, but its topic is there.
        gone = tuple(sorted(each for each in set(map(topic_of, wanted)) - there if not is_there(connection, each)))
        progress(f"counting {len(there)} topics in {len(stats)} partitions")
        try:
            found = _reported(spark, options, directory, stats, archived, gone, now_ms)
            return replace(found, error=first_of(failed, "what is archived"))
        except FAILURES as error:
            if all(stats_of(connection, each.partition) is not None for each in stats):
                raise
            progress(f"{reason(error)}; a topic has been deleted meanwhile, and the others are counted again")


def _reported(
    spark: SparkSession,
    options: UsageOptions,
    directory: Directory,
    stats: Sequence[PartitionStats],
    archived: Mapping[str, tuple[int, int]],
    gone: tuple[str, ...],
    now_ms: int,
) -> UsageResult:
    """Count these partitions and put the report of them into its place."""
    rows = keep(_messages(spark, options, stats, now_ms), StorageLevel.DISK_ONLY)
    by_key = rows.groupBy("topic", "partition", "key").agg(
        f.count("*").alias("messages"),
        f.sum("bytes").alias("bytes"),
        f.min("at").alias("first"),
        f.max("at").alias("last"),
    )
    by_key = keep(by_key, StorageLevel.MEMORY_AND_DISK)
    try:
        counted, moment = _counted(rows, by_key, now_ms, options.clock)
        release(rows)
        keys = by_key.where("key IS NOT NULL").groupBy("topic", "key")
        keys = keys.agg(f.sum("messages").alias("messages"), f.sum("bytes").alias("bytes"))
        both = [partition_usage(each, counted.get(each.partition, Counted()), moment) for each in stats]
        partitions = [each for each, _ in both]
        topics = topic_usage(partitions, _biggest(keys), archived)
        report = Report(
            moment_ms=moment,
            clock=options.clock,
            tenants=group_usage(topics, "tenant"),
            namespaces=group_usage(topics, "namespace"),
            topics=topics,
            partitions=partitions,
            lags=[lag for each in stats for lag in each.lags],
            keys=_most(keys, topics),
            forecasts={usage.partition: found for usage, found in both if found is not None},
            counted=counted,
            gone=gone,
        )
        with aside(directory, now_ms) as own:
            _write(spark, directory, own, report, keys)
    finally:
        release(rows)
        release(by_key)
    return UsageResult(
        len(report.tenants),
        len(report.namespaces),
        len(topics),
        sum(each.messages for each in topics),
        sum(each.bytes for each in topics),
        f"{options.to.rstrip('/')}/{REPORT}",
        gone,
    )


def _messages(spark: SparkSession, options: UsageOptions, stats: Sequence[PartitionStats], now_ms: int) -> DataFrame:
    """Return each message's topic, partition, key, size and time; nothing that came after the report was begun."""
    if not stats:
        return spark.createDataFrame([], "topic string, partition string, key string, bytes bigint, at bigint")
    wanted = {
        "allowDifferentTopicSchemas": "true",
        # Messages that a retention deletes meanwhile are not usage any more.
        "failOnDataLoss": "false",
        "endingTime": str(now_ms),
    }
    wanted |= options.broker.source_options()
    names = names_of(sorted({each.topic for each in stats}))
    reads = [spark.read.format("pulsar").options(**wanted, **each).load() for each in names]
    source = reduce(DataFrame.union, reads)
    at = f.unix_millis("__publishTime")
    if options.clock == "event":
        at = f.coalesce(f.unix_millis("__eventTime"), at)
    return source.select(
        f.regexp_replace("__topic", PARTITION.pattern, "").alias("topic"),
        f.col("__topic").alias("partition"),
        # A key that is no text is base64, as for clients that know only texts.
        f.coalesce(f.try_validate_utf8(f.col("__key").cast("string")), f.base64("__key")).alias("key"),
        f.coalesce(f.length("value"), f.lit(0)).cast("bigint").alias("bytes"),
        at.alias("at"),
    )


def _counted(rows: DataFrame, by_key: DataFrame, now_ms: int, clock: Clock) -> tuple[dict[str, Counted], int]:
    """Return the counts of each partition, and the moment of counting."""
    sums = by_key.groupBy("partition").agg(
        f.sum("messages").alias("messages"),
        f.sum("bytes").alias("bytes"),
        f.min("first").alias("first"),
        f.max("last").alias("last"),
    )
    found = {row.partition: row for row in sums.collect()}
    if not found:
        return {}, now_ms
    moment = now_ms if clock == "publish" else max(row["last"] for row in found.values()) + 1
    spans = {name: interval_for((moment - row["first"]) / 1000) for name, row in found.items()}
    cuts = [(name, row["first"], spans[name] * 1000) for name, row in found.items()]
    cut = by_key.sparkSession.createDataFrame(cuts, "partition string, first bigint, each_ms bigint")
    placed = rows.join(f.broadcast(cut), "partition").withColumn("interval", f.expr("(at - first) DIV each_ms"))
    series: dict[str, dict[int, int]] = {name: {} for name in found}
    for row in placed.groupBy("partition", "interval").agg(f.sum("bytes").alias("bytes")).collect():
        series[row.partition][row.interval] = row.bytes
    counted = {}
    for name, row in found.items():
        # The interval that is not over yet would look like a fall.
        whole = int((moment - row["first"]) // (spans[name] * 1000))
        values = tuple(series[name].get(number, 0) for number in range(whole))
        counted[name] = Counted(row.messages, row.bytes, row["first"], row["last"], spans[name], values)
    return counted, moment


def _biggest(keys: DataFrame) -> dict[str, BiggestKey]:
    each = keys.groupBy("topic").agg(
        f.count("*").alias("keys"), f.max_by("key", "messages").alias("key"), f.max("messages").alias("messages")
    )
    return {row.topic: BiggestKey(row["keys"], row.key, row.messages) for row in each.collect()}


def _most(keys: DataFrame, topics: Sequence[TopicUsage]) -> dict[str, list[tuple[str, int, int]]]:
    """Return the keys with most messages of the biggest topics, for the page: each with messages and bytes."""
    biggest = sorted(topics, key=lambda each: -each.bytes)[:_KEYS_SHOWN]
    found: dict[str, list[tuple[str, int, int]]] = {}
    for topic in biggest:
        if topic.keys:
            most = keys.where(f.col("topic") == topic.topic).orderBy(f.desc("messages"), "key").limit(_KEYS_SHOWN)
            found[topic.topic] = [(row.key, row.messages, row.bytes) for row in most.collect()]
    return found


def _archived(spark: SparkSession, options: UsageOptions) -> tuple[dict[str, tuple[int, int]], list[str]]:
    """Return messages and bytes of files of each archived topic, and what cannot be read; none without an archive."""
    if options.archive is None and options.tables is None:
        return {}, []
    found: dict[str, tuple[int, int]] = {}
    with open_archive(spark, options.archive, options.tables) as archive:
        topics, failed = archive.topics()
        for topic in topics:
            try:
                found[topic] = archive.size(topic)
            except FAILURES as error:
                failed.append(f"{topic}: {reason(error)}")
    for each in failed:
        progress(each)
    return found, failed


_TYPES: Mapping[Any, t.DataType] = {int: t.LongType(), float: t.DoubleType(), str: t.StringType()}


def _columns(kind: type) -> t.StructType:
    hints = get_type_hints(kind)
    found = []
    for field in fields(kind):
        hint = hints[field.name]
        found.append(t.StructField(field.name, _TYPES[next((a for a in get_args(hint) if a in _TYPES), hint)]))
    return t.StructType(found)


def _write(spark: SparkSession, directory: Directory, own: str, report: Report, keys: DataFrame) -> None:
    tables: dict[str, tuple[type, Sequence[Any]]] = {
        "tenants": (GroupUsage, report.tenants),
        "namespaces": (GroupUsage, report.namespaces),
        "topics": (TopicUsage, report.topics),
        "partitions": (PartitionUsage, report.partitions),
        "subscriptions": (Lag, report.lags),
    }
    frames = {
        name: spark.createDataFrame([tuple(asdict(row).values()) for row in rows], _columns(kind)).coalesce(1)
        for name, (kind, rows) in tables.items()
    }
    series = [
        (partition, each.first_ms + number * each.interval_s * 1000, each.interval_s, size)
        for partition, each in report.counted.items()
        if each.first_ms is not None
        for number, size in enumerate(each.series)
    ]
    columns = "partition string, from_ms bigint, interval_s bigint, bytes bigint"
    frames["series"] = spark.createDataFrame(series, columns).coalesce(1)
    frames["keys"] = keys
    page = html(report)
    for name, frame in frames.items():
        frame.write.parquet(f"{directory.path}/{own}/parquet/{name}")
        directory.check_written(f"{own}/parquet/{name}")
        frame.write.option("header", "true").csv(f"{directory.path}/{own}/csv/{name}")
    written = [f"{kind}/{name}" for kind in ("parquet", "csv") for name in frames]
    put_in_place(directory, own, written, REPORT, page)
