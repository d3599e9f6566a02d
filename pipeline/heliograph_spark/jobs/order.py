"""The order of a topic's archived messages, which ``compact`` and ``replay`` share.

In one partition the position decides. Between partitions, where a key is in several since their number has changed,
the publish time decides, and within a millisecond the number of the partition. Publish times come from the producers'
clocks, which may go back: a message counts as published no earlier than any of its key before it in its partition.
"""

from __future__ import annotations

import struct

import pandas as pd
from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql.types import BinaryType

from heliograph_spark.plan.positions import Position
from heliograph_spark.plan.topics import PARTITION


def place(message_id: Column) -> Column:
    """Return message ids as bytes that are ordered as the messages of a partition are."""
    found: Column = f.pandas_udf(_places, BinaryType())(message_id)  # type: ignore[call-overload, unused-ignore]
    return found


def number_of(partition: Column) -> Column:
    """Return the number in the name of a partition; 0 for a topic without partitions."""
    digits = f.regexp_extract(f.regexp_extract(partition, PARTITION.pattern, 0), r"\d+", 0)
    return f.coalesce(digits.try_cast("int"), f.lit(0))


def _places(ids: pd.Series) -> pd.Series:
    return ids.map(_place)


def _place(message_id: bytes) -> bytes:
    at = Position.of_id(bytes(message_id))
    return struct.pack(">QQI", at.ledger, at.entry, at.batch + 1)
