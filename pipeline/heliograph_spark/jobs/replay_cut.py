"""The end of a replay with sequence ids that follow from positions: it leaves out no message before one that it sends.

A later run under the same producer name would send such a message with a sequence id below one that it sent before, and
a broker drops it as stored if both go to one partition.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t

from heliograph_spark.plan.errors import JobError
from heliograph_spark.plan.positions import Position
from heliograph_spark.plan.timestamps import write_moment

from .order import number_of
from .replay_rows import partition_of
from .replay_task import epoch_of

#: What one producer sends has one order, and a series of sequence ids of its own.
_PRODUCER = ("topic", "epoch", "partition")
_PLACED = t.StructType(
    [
        t.StructField("topic", t.StringType()),
        t.StructField("epoch", t.LongType()),
        t.StructField("partition", t.IntegerType()),
        t.StructField("ledger", t.LongType()),
        t.StructField("entry", t.LongType()),
        t.StructField("batch", t.IntegerType()),
        t.StructField("left_out", t.BooleanType()),
    ]
)


def cut(rows: DataFrame, until_ms: int, partitions: int) -> DataFrame:
    """Return the messages before ``until_ms`` (ms since 1970), which go to so many partitions of the target.

    Raises :class:`JobError` if one from then on lies before one of them that goes to the same partition.
    """
    until = f.timestamp_millis(f.lit(until_ms))
    # A message without a publish time is in no range that has an end.
    left_out = f.coalesce(f.col("__publishTime") >= until, f.lit(True))
    _check(rows.withColumn("left_out", left_out), until_ms, partitions)
    return rows.where(f.col("__publishTime") < until)


def _check(rows: DataFrame, until_ms: int, partitions: int) -> None:
    def placed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            places = [Position.of_id(message_id) for message_id in batch.column("__messageId").to_pylist()]
            went = zip(batch.column("__key").to_pylist(), batch.column("number").to_pylist(), strict=True)
            yield pa.RecordBatch.from_arrays(
                [
                    batch.column("__topic"),
                    pa.array([epoch_of(at.ledger) for at in places], pa.int64()),
                    pa.array([partition_of(key, number, partitions) for key, number in went], pa.int32()),
                    pa.array([at.ledger for at in places], pa.int64()),
                    pa.array([at.entry for at in places], pa.int64()),
                    pa.array([at.batch for at in places], pa.int32()),
                    batch.column("left_out"),
                ],
                _PLACED.names,
            )

    number = number_of(f.col("__topic")).alias("number")
    all_placed = rows.select("__topic", "__messageId", "__key", number, "left_out").mapInArrow(placed, _PLACED)
    position = f.struct("ledger", "entry", "batch")
    ends = all_placed.groupBy(*_PRODUCER).agg(
        f.min(f.when(f.col("left_out"), position)).alias("first_left_out"),
        f.max(f.when(~f.col("left_out"), position)).alias("last_sent"),
    )
    found = ends.where("first_left_out < last_sent").orderBy(*_PRODUCER).first()
    if found is None:
        return
    raise JobError(
        f"message {Position(*found['first_left_out'])} of {found['topic']} was not published before --until"
        f" {write_moment(until_ms)}, but a later one, {Position(*found['last_sent'])}, was, by its producer's clock."
        " Once that one is sent, a later run with --producer-name would lose the first, as both go to one partition."
        " Give no --until or another one, or --checkpoint instead of --producer-name"
    )
