"""The messages of a replay as they will be sent, in the order in which they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from heliograph_spark.decode.kept_values import BAD_RECORD
from heliograph_spark.encode.entries import java_hash, text_of
from heliograph_spark.encode.messages import MESSAGE_COLUMNS
from heliograph_spark.plan.errors import SchemaError
from heliograph_spark.plan.positions import Position
from heliograph_spark.run.encoding import Encoder, UnfitRow
from heliograph_spark.run.schemas import METADATA, TopicSchema
from heliograph_spark.run.spark_versions import by_number

from .order import number_of
from .plan.begun_replay import Part
from .replay_task import sequence_of

#: Properties of a replayed message, beside its own, that identify the original.
PUBLISHED = "replay.publishTime"
MESSAGE_ID = "replay.messageId"
TOPIC = "replay.topic"
#: Those of an earlier replay are replaced.
_IDENTIFYING = frozenset({PUBLISHED, MESSAGE_ID, TOPIC})

Order = Literal["publish", "event"]
#: A column of the rows with the number of the original partition: no field of a schema has a name with a blank.
_NUMBER = "original number"
#: What a message keeps, if the archive has it.
_KEPT = ("__key", "__orderingKey", "__eventTime", "__messageProperties")
#: Columns that order the messages of an original partition.
_POSITIONS = ("ledger", "entry", "batch")

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
        t.StructField("key", t.BinaryType()),
        t.StructField("ordering_key", t.BinaryType()),
        t.StructField("event_ms", t.LongType()),
        t.StructField("properties", t.MapType(t.StringType(), t.StringType())),
        t.StructField("value", t.BinaryType()),
        # Null for messages that need none.
        t.StructField("sequence", t.LongType()),
    ]
)


def encoder_of(columns: t.StructType, schema: TopicSchema | None) -> Encoder:
    """Return what encodes rows of these columns for a topic that the caller names."""
    return Encoder(columns, topic_given=True, schema=schema)


def partition_of(key: bytes | None, number: int, partitions: int) -> int:
    """Return to which partition of the target a message goes, ``number`` being that of its original partition."""
    return int(java_hash(text_of(key)[0]) if key is not None else number) % partitions


def encoded(
    rows: DataFrame,
    columns: t.StructType,
    schema: TopicSchema | None,
    partitions: int,
    tasks: int,
    *,
    by_position: bool,
    lasts: Mapping[str, Position] | None = None,
) -> DataFrame:
    """Return the messages as they will be sent, each with the partition of the target and the task that sends it.

    If they are numbered ``by_position``, each one has to have a sequence id. With ``lasts`` there are only those up to
    the last one of each original partition.
    """
    kept = t.StructType([METADATA[name] for name in _KEPT if name in rows.columns])

    def encode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        encoder = encoder_of(t.StructType([*columns.fields, *kept.fields]), schema)
        for batch in batches:
            wanted = batch if lasts is None else _up_to(batch, lasts)
            yield encoded_rows(wanted, encoder, partitions, tasks, numbered=by_position)

    published = rows.withColumn(_NUMBER, number_of(f.col("__topic")))
    published = published.withColumn("__publishTime", f.unix_millis("__publishTime"))
    found: DataFrame = published.mapInArrow(encode, _ENCODED)
    return found


def _up_to(rows: pa.RecordBatch, lasts: Mapping[str, Position]) -> pa.RecordBatch:
    found = zip(rows.column("__topic").to_pylist(), rows.column("__messageId").to_pylist(), strict=True)
    wanted = [source in lasts and Position.of_id(message_id) <= lasts[source] for source, message_id in found]
    return rows.filter(pa.array(wanted, pa.bool_()))


def parts_of(prepared: DataFrame) -> dict[str, Part]:
    """Return the messages by original partition."""
    last = f.max(f.struct(*_POSITIONS))
    checksum = f.bit_xor(f.xxhash64(*_POSITIONS))
    found = prepared.groupBy("source").agg(last, f.count("*"), checksum).collect()
    return {source: Part(Position(*last), messages, checksum) for source, last, messages, checksum in found}


def ordered(messages: DataFrame, tasks: int, order: Order, *, by_position: bool, by_turn: bool) -> DataFrame:
    """Return the messages of each task in the order in which it sends them, each with the time that orders it, ``at``.

    It never goes back in a task. Sequence ids that go up with the positions keep the order of all positions of an
    original partition. With ``by_turn`` they are set here: they count the messages of each partition of the target,
    from 0, in the order in which it gets them.
    """
    no_key = f.when(f.col("key").isNull(), f.col("source"))
    before = Window.unboundedPreceding, Window.currentRow

    def never_back(time: Column, within: tuple[Column | str, ...], along: tuple[str, ...]) -> Column:
        return f.max(time).over(Window.partitionBy("task", *within).orderBy(*along).rowsBetween(*before))

    in_tasks = by_number(messages, tasks, f.col("task"))
    within = ("source", "partition") if by_position else ("source", "key")
    in_tasks = in_tasks.withColumn("published", never_back(f.col("published"), within, _POSITIONS))
    along = "published", "number", *_POSITIONS
    at = f.col("published")
    if order == "event":
        at = never_back(f.coalesce("event_ms", "published"), ("key", no_key), along)
    in_tasks = in_tasks.withColumn("at", at)
    if by_turn:
        turns = Window.partitionBy("task", "partition").orderBy("at", *along)
        in_tasks = in_tasks.withColumn("sequence", f.row_number().over(turns).cast("long") - 1)
    return in_tasks.sortWithinPartitions("at", *along)


def encoded_rows(
    rows: pa.RecordBatch, encoder: Encoder, partitions: int, tasks: int, *, numbered: bool
) -> pa.RecordBatch:
    """Return archived rows as they will be sent, while nothing is sent yet.

    Raises :class:`PulsarSourceError` if one does not fit the schema, or is to be ``numbered`` and its id has no number,
    or if it could not be read when it was archived.
    """
    places = [Position.of_id(message_id) for message_id in rows.column("__messageId").to_pylist()]
    if BAD_RECORD in rows.schema.names:
        _check_readable(rows, places)
    sources, numbers, published = (rows.column(name).to_pylist() for name in ("__topic", _NUMBER, "__publishTime"))
    sequences = [sequence_of(at.ledger, at.entry, at.batch) if numbered else None for at in places]
    try:
        # A message without a value was read as columns without one.
        messages = encoder.messages(rows, null_records=True)
    except UnfitRow as error:
        message = f"message {places[error.row]} of {sources[error.row]}"
        raise SchemaError(f"{message} does not fit the schema it is to be written with: {error}") from error
    found = {name: messages.column(name) for name in messages.schema.names}
    keys = found["key"].to_pylist() if "key" in found else [None] * rows.num_rows
    went = [partition_of(key, number, partitions) for key, number in zip(keys, numbers, strict=True)]
    properties = found["properties"].to_pylist() if "properties" in found else [None] * rows.num_rows
    own = [
        [
            *(pair for pair in given or () if pair[0] not in _IDENTIFYING),
            (PUBLISHED, str(time)),
            (MESSAGE_ID, str(at)),
            (TOPIC, source),
        ]
        for given, time, at, source in zip(properties, published, places, sources, strict=True)
    ]
    found |= {
        "task": pa.array([partition % tasks for partition in went], pa.int32()),
        "partition": pa.array(went, pa.int32()),
        "source": pa.array(sources, pa.string()),
        "number": pa.array(numbers, pa.int32()),
        "ledger": pa.array([at.ledger for at in places], pa.int64()),
        "entry": pa.array([at.entry for at in places], pa.int64()),
        "batch": pa.array([at.batch for at in places], pa.int32()),
        "published": pa.array(published, pa.int64()),
        "properties": pa.array(own, MESSAGE_COLUMNS["properties"]),
        "sequence": pa.array(sequences, pa.int64()),
    }
    schema = to_arrow_schema(_ENCODED)
    missing = {each.name: pa.nulls(rows.num_rows, each.type) for each in schema if each.name not in found}
    return pa.RecordBatch.from_pydict(
        {name: (found | missing)[name].cast(schema.field(name).type) for name in schema.names}, schema
    )


def _check_readable(rows: pa.RecordBatch, places: list[Position]) -> None:
    """Raise :class:`SchemaError` for a message that is not known as it was: its value, or of which batch it is."""
    bad = rows.column(BAD_RECORD)
    if bad.null_count < len(bad):
        at = pc.index(bad.is_valid(), True).as_py()
        raise SchemaError(
            f"message {places[at]} of {rows.column('__topic')[at]} could not be read when it was archived, with"
            f" badRecords=column, so it cannot be sent as it was: {bad[at]['reason']}"
        )
