"""The job ``replay``: the messages of an archive are sent to a topic again, in the order they had.

Everything is read, encoded and put in order before the first message is sent, on the executors' disks: a file that
cannot be read or a row that does not fit the topic ends the job while the topic is as it was.

What goes to one partition of the target is sent by one task, in one order: the partitions of the original topic are
merged by their times. A key keeps its order, as :mod:`.order` says. The sequence ids of a run with a producer name go
up with the positions in each original partition, so there the merge keeps the order of all positions. Those of a run
with a checkpoint count the messages of each partition of the target, and a run after a killed one begins with the first
message there that is not stored.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t

from heliograph_spark.decode.kept_values import BAD_RECORD
from heliograph_spark.encode.framing import Messages
from heliograph_spark.encode.messages import MESSAGE_COLUMNS
from heliograph_spark.jobs.plan.begun_replay import Snapshot
from heliograph_spark.jobs.plan.pacing import Speed, shares
from heliograph_spark.plan.errors import JobError, OptionError, PulsarSourceError, SchemaError
from heliograph_spark.plan.numbering import UNUSED
from heliograph_spark.plan.options import Connection, WriteOptions, full_name, write_options
from heliograph_spark.plan.topics import deduplicates, is_there
from heliograph_spark.run.connect import cores, keep, release
from heliograph_spark.run.primitives import PRIMITIVES
from heliograph_spark.run.schemas import METADATA, VALUE, TopicSchema, columns_of, schema_of_topic
from heliograph_spark.run.session import Broker, progress
from heliograph_spark.wire.brokers import shared
from heliograph_spark.wire.failures import NotStored

from .replay_checkpoint import ReplayCheckpoint
from .replay_cut import cut
from .replay_options import ReplayOptions
from .replay_rows import Order, encoded, encoder_of, ordered, parts_of
from .replay_selection import selected
from .replay_task import Resender

__all__ = ["ReplayOptions", "ReplayResult", "replay"]

#: From when the tasks are started until the first message goes, if the gaps are kept (s): the tasks begin together.
_START_S = 2.0
#: Columns that are no part of a message's content.
_NO_CONTENT = frozenset({*METADATA.names, BAD_RECORD})


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """``rows`` were sent and received by the broker; ``schema`` is what they were written with, by Pulsar's name.

    ``before`` is the number of messages that the runs before this one have sent, by the checkpoint. ``snapshot`` is
    that of the table from which they were read, None for files.
    """

    rows: int
    topic: str
    to: str
    schema: str | None
    before: int = 0
    snapshot: int | None = None
    job: str = "replay"
    error: str | None = None


def replay(spark: SparkSession, options: ReplayOptions) -> ReplayResult:
    """Send the archived messages of a topic that the options select to another topic (or the same one).

    Key, event time and properties are kept; of messages of one key the order is, and of those without a key that of
    their partition. An empty range is no failure. Raises :class:`JobError` or :class:`PulsarSourceError`.
    """
    source, target = full_name(options.topic), full_name(options.to)
    options.check()
    checkpoint = _checkpoint(spark, options, source, target)
    name = options.producer_name if checkpoint is None else checkpoint.producer
    writing = write_options({"topic": target, **options.broker.source_options(pulsar_producer_producerName=name)})
    by_position = writing.producer_name is not None and checkpoint is None
    _check_order(options.order, by_position=by_position)
    rows, snapshot = selected(
        spark, options, source, None if checkpoint is None else checkpoint.snapshot, by_position=by_position
    )
    schema, columns = _written_as(writing.connection, source, target, rows.schema)
    rows = rows.to(t.StructType([*columns.fields, *(each for each in rows.schema if each.name in _NO_CONTENT)]))
    _check_target(writing, target, "--producer-name" if checkpoint is None else "--checkpoint")
    partitions = shared(writing.connection).partition_names(target)
    if checkpoint is not None:
        checkpoint.check_target(target, partitions)
    # A later run may send what an end leaves out here.
    rows = rows if options.until_ms is None or not by_position else cut(rows, options.until_ms, len(partitions))
    tasks = min(len(partitions), cores(spark))
    messages = encoded(
        rows,
        columns,
        schema,
        len(partitions),
        tasks,
        by_position=by_position,
        lasts=None if checkpoint is None else checkpoint.lasts,
    )
    in_order = ordered(messages, tasks, options.order, by_position=by_position, by_turn=checkpoint is not None)
    prepared = keep(in_order, StorageLevel.DISK_ONLY)
    encoder = encoder_of(columns, schema)
    read = None if snapshot is None else snapshot.id
    try:
        left, before = prepared, 0
        if checkpoint is not None:
            with Resender(encoder.schema(), writing, partitions) as resender:
                stored = _stored(
                    prepared, checkpoint, snapshot, options.broker, resender, writing.connection, partitions
                )
            left = prepared.where(f.col("sequence") > f.get(f.array(*map(f.lit, stored)), f.col("partition")))
            before = sum(last + 1 for last in stored)
        found = left.groupBy("task").agg(f.count("*"), f.min("at")).collect()
        counts = {task: count for task, count, _ in found}
        total = sum(counts.values())
        if total == 0:
            all_before = f"all {before} messages of {source} were sent to {target} before"
            progress(all_before if before else _nothing(options, source))
            return ReplayResult(0, source, target, None, before, read)
        if checkpoint is None:
            with Resender(encoder.schema(), writing, partitions) as resender:
                resender.check()
        more = f", after {before} that were sent before" if before else ""
        progress(f"sending {total} messages of {source} to {target} in {len(counts)} tasks{more}")
        rates = shares(options.rate, counts) if options.rate is not None else {}
        # With other partitions of the target a key goes to another one, which knows nothing of what was sent of it. A
        # message that another selection had left out would be below the last sequence id, and be dropped.
        series = f"{source}|{options.from_ms}|{len(partitions)}{options.selection}" if by_position else None
        speed = None
        if options.speed is not None:
            speed = Speed(options.speed, min(first for _, _, first in found), time.time() + _START_S)
        sent, lost = _sent(left, columns, schema, writing, partitions, series, rates, speed)
    finally:
        release(prepared)
    _check_sent(sent, total, lost, target, checkpoint)
    return ReplayResult(sent, source, target, encoder.kind, before, read)


def _nothing(options: ReplayOptions, source: str) -> str:
    which = "of this selection" if options.selection else "in this range"
    if options.has_event_range:
        which += " (those without an event time are in no range of event times)"
    return f"{options.archive} has no messages of {source} {which}: nothing was sent"


def _check_order(order: Order, *, by_position: bool) -> None:
    """Raise :class:`OptionError` for an order that is not that of sequence ids which follow from the positions."""
    if order == "event" and by_position:
        raise OptionError(
            "--order event and --producer-name exclude each other: sequence ids go up with the positions, which event"
            " times need not do; --checkpoint has sequence ids for both orders"
        )


def _checkpoint(spark: SparkSession, options: ReplayOptions, source: str, target: str) -> ReplayCheckpoint | None:
    """Return the checkpoint asked for. Raises :class:`OptionError` if it was begun with other options."""
    if options.checkpoint is None:
        return None
    return ReplayCheckpoint(spark, options.checkpoint, options.given(source, target))


def _stored(
    prepared: DataFrame,
    checkpoint: ReplayCheckpoint,
    snapshot: Snapshot | None,
    broker: Broker,
    resender: Resender,
    connection: Connection,
    partitions: list[str],
) -> list[int]:
    """Return the last sequence id that each partition of the target has stored, -1 for none.

    A first run that has something to send is recorded as begun.
    """
    parts = parts_of(prepared)
    if checkpoint.begun is None and not parts:
        return [UNUSED] * len(partitions)
    last_ids = dict(zip(partitions, resender.last_sequences(), strict=True))
    checkpoint.begin(parts, snapshot, connection, partitions)
    if checkpoint.begun is not None and UNUSED in last_ids.values():
        # A partition without a message of the replay is not read: what others have sent to it may be deleted.
        wanted = [partitions[number] for (number,) in prepared.select("partition").distinct().collect()]
        last_ids = {name: last_ids[name] for name in wanted}
    stored = checkpoint.stored(broker, connection, last_ids)
    return [stored.get(partition, UNUSED) for partition in partitions]


def _written_as(
    connection: Connection, source: str, target: str, rows: t.StructType
) -> tuple[TopicSchema | None, t.StructType]:
    """Return the schema to write with and the columns that it takes: the target's own, else the source's if it fits.

    None is the one that follows from the columns: the bytes, text or number in ``value``, or Avro. Numbers that tables
    have made wider are as narrow as in the topic.
    """
    found = t.StructType([field for field in rows.fields if field.name not in _NO_CONTENT])
    if connection.admin_url is not None and not is_there(connection, target):
        raise JobError(f"there is no topic {target} to send to")
    brokers = shared(connection)
    schema = schema_of_topic(brokers, target)
    if schema.kind not in ("NONE", "BYTES"):
        columns = _narrowed(found, schema)
        try:
            encoder_of(columns, schema)
        except SchemaError as error:
            raise SchemaError(f"{target}: the archive of {source} does not fit its schema: {error}") from error
        return schema, columns
    schema = schema_of_topic(brokers, source)
    columns = _narrowed(found, schema)
    if schema.in_avro:
        offered = {field.name: field.dataType for field in columns_of(schema, source).fields}
        if all(offered.get(field.name) == field.dataType for field in columns.fields):
            return schema, columns
    encoder_of(columns, None)
    return None, columns


def _narrowed(columns: t.StructType, schema: TopicSchema) -> t.StructType:
    """Return the columns, the value as narrow as a topic's schema has it: a table has bytes and shorts as integers."""
    if columns == t.StructType([t.StructField(VALUE, t.IntegerType())]) and schema.kind in ("INT8", "INT16"):
        return t.StructType([t.StructField(VALUE, PRIMITIVES[schema.kind].column)])
    return columns


def _check_target(writing: WriteOptions, target: str, option: str) -> None:
    """Check that the topic deduplicates: only then the broker drops messages that are sent twice."""
    if writing.producer_name is None or writing.connection.admin_url is None:
        return
    if not deduplicates(writing.connection, target):
        raise JobError(
            f"{target} does not deduplicate, which {option} rests on: switch deduplication on for the topic, or leave"
            f" {option} out"
        )


def _sent(
    prepared: DataFrame,
    columns: t.StructType,
    schema: TopicSchema | None,
    writing: WriteOptions,
    partitions: list[str],
    series: str | None,
    rates: dict[int, float],
    speed: Speed | None,
) -> tuple[int, str | None]:
    """Send all messages; return how many the broker has accepted, and which one it has lost if it has.

    A task does not fail for that, because Spark would repeat it, and the broker would say that it has the message.
    """
    numbered = writing.producer_name is not None
    names = [name for name in MESSAGE_COLUMNS if numbered or name != "sequence"]

    def send(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        sent, lost = 0, None
        try:
            with Resender(encoder_of(columns, schema).schema(), writing, partitions, series, rates) as resender:
                for batch in batches:
                    messages = Messages(
                        batch.select(names).cast(pa.schema([(name, MESSAGE_COLUMNS[name]) for name in names]))
                    )
                    for at, row in enumerate(
                        batch.select(["task", "partition", "source", "ledger", "key", "at"]).to_pylist()
                    ):
                        if speed is not None:
                            speed.wait(row["at"], sleep=resender.sleep)
                        resender.send(row, messages, at)
                sent = resender.finish()
        except NotStored as error:
            lost = str(error)
        yield pa.RecordBatch.from_pydict({"sent": pa.array([sent], pa.int64()), "lost": pa.array([lost], pa.string())})

    tasks = prepared.mapInArrow(send, "sent bigint, lost string")
    all_sent, first_lost = tasks.agg(f.sum("sent"), f.min("lost")).collect()[0]
    return int(all_sent), first_lost


def _check_sent(sent: int, total: int, lost: str | None, target: str, checkpoint: ReplayCheckpoint | None) -> None:
    """Raise :class:`NotStored` for a lost message, after which no run may go on, and if not ``total`` were ``sent``."""
    if lost is not None:
        if checkpoint is not None:
            checkpoint.give_up(lost)
        raise NotStored(lost)
    if sent != total:
        raise PulsarSourceError(f"{sent} of {total} messages were sent to {target}")
