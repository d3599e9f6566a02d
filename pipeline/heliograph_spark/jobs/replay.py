"""The job ``replay``: the messages of an archive are sent to a topic again, in the order they had.

Everything is read, encoded and put in order before the first message is sent, on the executors' disks: a file that
cannot be read or a row that does not fit the topic ends the job while the topic is as it was.

What goes to one partition of the target is sent by one task, in one order: the partitions of the original topic are
merged by their times. A key keeps its order, as :mod:`.order` says. The sequence ids of a run with a producer name go
up with the positions in each original partition, so there the merge keeps the order of all positions.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import pulsar
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as f
from pyspark.sql import types as t

from heliograph_spark.jobs.plan.pacing import Speed, shares
from heliograph_spark.plan.connection import connected
from heliograph_spark.plan.errors import JobError, OptionError, PulsarSourceError, SchemaError
from heliograph_spark.plan.options import Connection, WriteOptions, full_name, write_options
from heliograph_spark.plan.positions import Position
from heliograph_spark.plan.timestamps import write_moment
from heliograph_spark.plan.topics import deduplicates, is_there
from heliograph_spark.run.archived import DATE, archived_topics, read_archive
from heliograph_spark.run.encoding import Encoder
from heliograph_spark.run.producers import java_hash
from heliograph_spark.run.schemas import METADATA, TopicSchema, columns_of, schema_of_topic
from heliograph_spark.run.session import Broker, progress
from heliograph_spark.wire.brokers import shared

from .order import number_of
from .replay_task import Resender, sequence_of

if TYPE_CHECKING:
    import pyarrow as pa

#: Properties of a replayed message, beside its own, that identify the original.
PUBLISHED = "replay.publishTime"
MESSAGE_ID = "replay.messageId"
TOPIC = "replay.topic"

Order = Literal["publish", "event"]
#: A column of the rows that no archive has: the number of the original partition.
_NUMBER = "__number"
#: From when the tasks are started until the first message goes, if the gaps are kept (s): the tasks begin together.
_START_S = 2.0

_ENCODED = t.StructType(
    [
        t.StructField("task", t.IntegerType()),
        t.StructField("partition", t.IntegerType()),
        t.StructField("source", t.StringType()),
        t.StructField("number", t.IntegerType()),
        t.StructField("ledger", t.LongType()),
        t.StructField("entry", t.LongType()),
        t.StructField("batch", t.IntegerType()),
        t.StructField("published", t.LongType()),
        t.StructField("key", t.StringType()),
        t.StructField("event_ms", t.LongType()),
        t.StructField("properties", t.MapType(t.StringType(), t.StringType())),
        t.StructField("content", t.BinaryType()),
    ]
)


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """The messages to send, and the target.

    Publish times are from ``from_ms`` up to before ``until_ms``, in milliseconds since 1970. Only messages with
    one of the ``keys`` are sent, unless there are none, and only those with each of the ``properties``.

    ``order`` is the time by which the original partitions are merged. With ``speed`` messages go out with the gaps that
    these times have, divided by it. ``rate`` is in messages a second, over all tasks. With ``producer_name`` messages
    that a run before this one has sent from the same ``from_ms`` on, by the same keys and properties, are not sent
    twice, on a topic that deduplicates.
    """

    broker: Broker
    path: str
    topic: str
    to: str
    from_ms: int | None = None
    until_ms: int | None = None
    rate: float | None = None
    speed: float | None = None
    producer_name: str | None = None
    order: Order = "publish"
    keys: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """``rows`` were sent and received by the broker; ``schema`` is what they were written with, by Pulsar's name."""

    rows: int
    topic: str
    to: str
    schema: str | None
    job: str = "replay"
    error: str | None = None


def replay(spark: SparkSession, options: ReplayOptions) -> ReplayResult:
    """Send the archived messages of a topic and a range of publish times to another topic (or the same one).

    Key, event time and properties are kept; of messages of one key the order is, and of those without a key that of
    their partition. An empty range is no failure. Raises :class:`JobError` or :class:`PulsarSourceError`.
    """
    source, target = full_name(options.topic), full_name(options.to)
    if options.rate is not None and not options.rate > 0:
        raise OptionError(f"--rate: {options.rate} messages a second is no rate above zero")
    if options.speed is not None and not 0 < options.speed < math.inf:
        raise OptionError(f"--speed: {options.speed} is no factor above zero")
    if None not in (options.from_ms, options.until_ms) and options.from_ms >= options.until_ms:  # type: ignore[operator]
        raise OptionError("--from and --until: the range ends before it begins")
    if options.order == "event" and options.producer_name is not None:
        raise OptionError(
            "--order event and --producer-name exclude each other: sequence ids go up with the positions, which event"
            " times need not do"
        )
    name = {"pulsar_producer_producerName": options.producer_name}
    writing = write_options({"topic": target, **options.broker.source_options(**name)})
    rows = _archived(spark, options, source)
    schema, columns = _written_as(writing.connection, source, target, rows.schema)
    _check_target(writing, target)
    partitions = shared(writing.connection).partition_names(target)
    tasks = min(len(partitions), spark.sparkContext.defaultParallelism)
    numbered = writing.producer_name is not None
    encoded = _encoded(rows, columns, schema, len(partitions), tasks, numbered=numbered)
    prepared = _ordered(encoded, tasks, options.order, numbered).persist(StorageLevel.DISK_ONLY)
    try:
        found = prepared.groupBy("task").agg(f.count("*"), f.min("at")).collect()
        counts = {task: count for task, count, _ in found}
        total = sum(counts.values())
        if total == 0:
            which = "of this selection" if _selection(options) else "in this range"
            progress(f"{options.path} has no messages of {source} {which}: nothing was sent")
            return ReplayResult(0, source, target, None)
        encoder = _encoder(columns, schema)
        with connected(writing.connection) as client:
            Resender(client, encoder, writing, partitions).check()
        progress(f"sending {total} messages of {source} to {target} in {len(counts)} tasks")
        rates = shares(options.rate, counts) if options.rate is not None else {}
        # With other partitions of the target a key goes to another one, which knows nothing of what was sent of it. A
        # message that another selection had left out would be below the last sequence id, and be dropped.
        series = f"{source}|{options.from_ms}|{len(partitions)}{_selection(options)}"
        speed = None
        if options.speed is not None:
            speed = Speed(options.speed, min(first for _, _, first in found), time.time() + _START_S)
        sent = _sent(prepared, columns, schema, writing, partitions, series, rates, speed)
    finally:
        prepared.unpersist()
    if sent != total:
        raise PulsarSourceError(f"{sent} of {total} messages were sent to {target}")
    return ReplayResult(sent, source, target, encoder.kind)


def _archived(spark: SparkSession, options: ReplayOptions, source: str) -> DataFrame:
    topics = archived_topics(spark, options.path)
    if source not in topics:
        raise JobError(f"{options.path}: {source} is not archived there; there are {', '.join(topics[:5])}")
    rows = read_archive(spark, options.path, source)
    at = f.unix_millis("__publishTime")
    # The directory's day first: Spark leaves the other days' files alone.
    if options.from_ms is not None:
        rows = rows.where(f.col(DATE) >= f.lit(write_moment(options.from_ms)[:10]).cast("date"))
        rows = rows.where(at >= options.from_ms)
    if options.until_ms is not None:
        rows = rows.where(f.col(DATE) <= f.lit(write_moment(options.until_ms)[:10]).cast("date"))
        rows = rows.where(at < options.until_ms)
    if options.keys:
        rows = rows.where(f.col("__key").isin([f.lit(key.encode()) for key in options.keys]))
    for name, value in options.properties.items():
        rows = rows.where(f.try_element_at("__messageProperties", f.lit(name)) == value)
    return rows.drop(DATE)


def _selection(options: ReplayOptions) -> str:
    """Return the keys and properties asked for, the same text for the same ones; empty if there are none."""
    if not options.keys and not options.properties:
        return ""
    return json.dumps([sorted(set(options.keys)), sorted(options.properties.items())])


def _written_as(
    connection: Connection, source: str, target: str, rows: t.StructType
) -> tuple[TopicSchema | None, t.StructType]:
    """Return the schema to write with and the columns that it takes: the target's own, else the source's if it fits.

    None is the one that follows from the columns: the bytes, text or number in ``value``, or Avro.
    """
    columns = t.StructType([field for field in rows.fields if field.name not in METADATA.names])
    if connection.admin_url is not None and not is_there(connection, target):
        raise JobError(f"there is no topic {target} to send to")
    brokers = shared(connection)
    schema = schema_of_topic(brokers, target)
    if schema.kind not in ("NONE", "BYTES"):
        try:
            _encoder(columns, schema)
        except SchemaError as error:
            raise SchemaError(f"{target}: the archive of {source} does not fit its schema: {error}") from error
        return schema, columns
    schema = schema_of_topic(brokers, source)
    if schema.in_avro:
        offered = {field.name: field.dataType for field in columns_of(schema, source).fields}
        if all(offered.get(field.name) == field.dataType for field in columns.fields):
            return schema, columns
    _encoder(columns, None)
    return None, columns


def _check_target(writing: WriteOptions, target: str) -> None:
    """Check that the topic deduplicates: only then the broker drops messages that are sent twice."""
    if writing.producer_name is None or writing.connection.admin_url is None:
        return
    if not deduplicates(writing.connection, target):
        raise JobError(
            f"{target} does not deduplicate, which --producer-name rests on: set it on the topic or leave it out"
        )


def _encoder(columns: t.StructType, schema: TopicSchema | None) -> Encoder:
    return Encoder(columns, topic_given=True, schema=schema)


def _encoded(
    rows: DataFrame, columns: t.StructType, schema: TopicSchema | None, partitions: int, tasks: int, *, numbered: bool
) -> DataFrame:
    """Return the messages as they will be sent, each with the partition of the target and the task that sends it.

    If they are ``numbered``, each one has to have a sequence id.
    """

    def encode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_schema

        encoder = _encoder(columns, schema)
        names = columns.names
        arrow = to_arrow_schema(_ENCODED)
        for batch in batches:
            rows = batch.to_pylist(maps_as_pydicts="lossy")
            found = [message_of(row, encoder, names, partitions, tasks, numbered=numbered) for row in rows]
            yield pa.RecordBatch.from_pylist(found, schema=arrow)

    published = rows.withColumn(_NUMBER, number_of(f.col("__topic")))
    published = published.withColumn("__publishTime", f.unix_millis("__publishTime"))
    encoded: DataFrame = published.mapInArrow(encode, _ENCODED)
    return encoded


def _ordered(encoded: DataFrame, tasks: int, order: Order, by_position: bool) -> DataFrame:
    """Return the messages of each task in the order in which it sends them, each with the time that orders it, ``at``.

    It never goes back in a task.
    """
    positions = "ledger", "entry", "batch"
    no_key = f.when(f.col("key").isNull(), f.col("source"))
    before = Window.unboundedPreceding, Window.currentRow

    def never_back(time: Column, within: tuple[Column | str, ...], along: tuple[str, ...]) -> Column:
        return f.max(time).over(Window.partitionBy("task", *within).orderBy(*along).rowsBetween(*before))

    in_tasks: DataFrame = encoded.repartitionById(tasks, f.col("task"))
    within = ("source", "partition") if by_position else ("source", "key")
    in_tasks = in_tasks.withColumn("published", never_back(f.col("published"), within, positions))
    along = "published", "number", *positions
    at = f.col("published")
    if order == "event":
        at = never_back(f.coalesce("event_ms", "published"), ("key", no_key), along)
    return in_tasks.withColumn("at", at).sortWithinPartitions("at", *along)


def message_of(
    row: dict[str, Any], encoder: Encoder, names: list[str], partitions: int, tasks: int, *, numbered: bool
) -> dict[str, Any]:
    """Return an archived row as it will be sent, while nothing is sent yet.

    Raises :class:`PulsarSourceError` if it does not fit the schema, or is to be ``numbered`` and its id has no number.
    """
    at = Position.of(pulsar.MessageId.deserialize(bytes(row["__messageId"])))
    source = row["__topic"]
    if numbered:
        sequence_of(at.ledger, at.entry, at.batch)
    sent = encoder.metadata(row)
    key = sent.get("partition_key")
    partition = (java_hash(key) if key else row[_NUMBER]) % partitions
    own = {PUBLISHED: str(row["__publishTime"]), MESSAGE_ID: str(at), TOPIC: source}
    try:
        # A message without a value was read as columns without one.
        content = None if all(row[name] is None for name in names) else encoder.content(row)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise SchemaError(
            f"message {at} of {source} does not fit the schema it is to be written with: {error}"
        ) from error
    return {
        "task": partition % tasks,
        "partition": partition,
        "source": source,
        "number": row[_NUMBER],
        "ledger": at.ledger,
        "entry": at.entry,
        "batch": at.batch,
        "published": row["__publishTime"],
        "key": key,
        "event_ms": sent.get("event_timestamp"),
        "properties": sent.get("properties", {}) | own,
        "content": content,
    }


def _sent(
    prepared: DataFrame,
    columns: t.StructType,
    schema: TopicSchema | None,
    writing: WriteOptions,
    partitions: list[str],
    series: str,
    rates: dict[int, float],
    speed: Speed | None,
) -> int:
    """Send all messages and return how many the broker has accepted."""

    def send(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        with connected(writing.connection) as client:
            resender = Resender(client, _encoder(columns, schema), writing, partitions, series, rates)
            for batch in batches:
                for row in batch.to_pylist(maps_as_pydicts="lossy"):
                    if speed is not None:
                        speed.wait(row["at"])
                    resender.send(row)
            yield pa.RecordBatch.from_pydict({"sent": pa.array([resender.finish()], pa.int64())})

    return int(prepared.mapInArrow(send, "sent bigint").groupBy().sum("sent").collect()[0][0])
