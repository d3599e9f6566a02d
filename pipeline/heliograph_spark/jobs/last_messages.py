"""The last message of each key of a topic, for ``compact`` and for tables of last values.

The last message is the one with the highest position in the topic, as the broker's own compaction sees it; a message
with a null or an empty value deletes its key, and messages without a key are left out. Where a key is in several
partitions, since their number has changed, :mod:`.order` says which message is the last.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import BinaryType, StringType, StructType

from heliograph_spark.run.schemas import METADATA, VALUE

from .order import number_of, place


def last_values(rows: DataFrame) -> DataFrame:
    """Return the last row of each key, from rows with the columns of messages, without the keys that it deletes."""
    return last_messages(rows).where(has_value(rows))


def last_messages(rows: DataFrame) -> DataFrame:
    """Return the last row of each key, from rows with the columns of messages, also where it deletes its key."""
    message = f.struct(*[f.col(f"`{name}`") for name in rows.columns])
    keyed = rows.where("__key IS NOT NULL").select(
        "__key", "__topic", "__publishTime", message.alias("message"), place(f.col("__messageId")).alias("place")
    )
    each = keyed.groupBy("__key", "__topic").agg(
        f.max_by("message", "place").alias("message"), f.max("__publishTime").alias("published")
    )
    latest = f.struct("published", number_of(f.col("__topic")))
    return each.groupBy("__key").agg(f.max_by("message", latest).alias("message")).select("message.*")


def has_value(rows: DataFrame) -> Column:
    """Whether a message is more than its key: a value that is not empty, or a record with a field that is not null.

    With a key-value schema the value counts.
    """
    condition = f.lit(False)
    for column in rows.schema.fields:
        if column.name not in METADATA.names:
            there, kind = f.col(f"`{column.name}`"), column.dataType
            if column.name == VALUE and isinstance(kind, StructType) and kind.names == ["key", VALUE]:
                there = there[VALUE]
            plain = column.name == VALUE and isinstance(kind, BinaryType | StringType)
            condition = condition | (f.coalesce(f.length(there), f.lit(0)) > 0 if plain else there.isNotNull())
    return condition
