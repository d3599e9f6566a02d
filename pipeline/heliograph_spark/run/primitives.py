"""Messages that are one value: the bytes of Pulsar's primitive schemas, as Java writes them, and Spark's types."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

from pyspark.sql import types as t

from heliograph_spark.plan.timestamps import since_1970

_MICROSECOND = timedelta(microseconds=1)
_DAY_US = 86_400_000_000
_DAY_MS = _DAY_US // 1000
#: The nanoseconds of a day.
_DAY_NS = _DAY_US * 1000
_EPOCH = datetime(1970, 1, 1)


@dataclass(frozen=True, slots=True)
class Primitive:
    """One value as a message.

    ``decode`` gives what Arrow takes for the column: a time is in microseconds, a day in days since 1970. It raises
    ``ValueError`` or ``struct.error`` for other bytes. A time of day is the number that Java writes: Spark's own type
    is not in all supported versions, and it has microseconds only.
    """

    column: t.DataType
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]


def _packed(column: t.DataType, form: str) -> Primitive:
    packing = struct.Struct(form)
    return Primitive(column, packing.pack, lambda data: packing.unpack(data)[0])


def _milliseconds() -> Primitive:
    packing = struct.Struct(">q")
    return Primitive(
        t.TimestampType(), lambda at: packing.pack(since_1970(at)), lambda data: packing.unpack(data)[0] * 1000
    )


_INSTANT = struct.Struct(">qi")
_NUMBER = struct.Struct(">q")
_DAY_AND_TIME = struct.Struct(">qq")


def _encode_instant(at: datetime) -> bytes:
    seconds, microseconds = divmod((at - _EPOCH.replace(tzinfo=UTC)) // _MICROSECOND, 1_000_000)
    return _INSTANT.pack(seconds, microseconds * 1000)


def _decode_instant(data: bytes) -> int:
    seconds, nanoseconds = _INSTANT.unpack(data)
    return int(seconds * 1_000_000 + nanoseconds // 1000)


def _encode_day(day: date) -> bytes:
    return _NUMBER.pack((day - _EPOCH.date()).days)


def _encode_date(day: date) -> bytes:
    return _NUMBER.pack((day - _EPOCH.date()).days * _DAY_MS)


def _encode_time_of_day(nanoseconds: int) -> bytes:
    return _NUMBER.pack(_checked_time_of_day(nanoseconds))


def _decode_time_of_day(data: bytes) -> int:
    return _checked_time_of_day(_NUMBER.unpack(data)[0])


def _checked_time_of_day(nanoseconds: int) -> int:
    if not 0 <= nanoseconds < _DAY_NS:
        raise ValueError(f"{nanoseconds} nanoseconds after midnight are no time of a day")
    return nanoseconds


def _encode_day_and_time(at: datetime) -> bytes:
    days, microseconds = divmod((at - _EPOCH) // _MICROSECOND, _DAY_US)
    return _DAY_AND_TIME.pack(days, microseconds * 1000)


def _decode_day_and_time(data: bytes) -> int:
    days, nanoseconds = _DAY_AND_TIME.unpack(data)
    return int(days * _DAY_US + nanoseconds // 1000)


#: By Pulsar's names.
PRIMITIVES: dict[str, Primitive] = {
    "NONE": Primitive(t.BinaryType(), bytes, bytes),
    "BYTES": Primitive(t.BinaryType(), bytes, bytes),
    "STRING": Primitive(t.StringType(), str.encode, bytes.decode),
    "BOOLEAN": _packed(t.BooleanType(), ">?"),
    "INT8": _packed(t.ByteType(), ">b"),
    "INT16": _packed(t.ShortType(), ">h"),
    "INT32": _packed(t.IntegerType(), ">i"),
    "INT64": _packed(t.LongType(), ">q"),
    "FLOAT": _packed(t.FloatType(), ">f"),
    "DOUBLE": _packed(t.DoubleType(), ">d"),
    "DATE": Primitive(t.DateType(), _encode_date, lambda data: _NUMBER.unpack(data)[0] // _DAY_MS),
    "TIME": _packed(t.LongType(), ">q"),
    "TIMESTAMP": _milliseconds(),
    "INSTANT": Primitive(t.TimestampType(), _encode_instant, _decode_instant),
    "LOCAL_DATE": Primitive(t.DateType(), _encode_day, lambda data: _NUMBER.unpack(data)[0]),
    "LOCAL_TIME": Primitive(t.LongType(), _encode_time_of_day, _decode_time_of_day),
    "LOCAL_DATE_TIME": Primitive(t.TimestampNTZType(), _encode_day_and_time, _decode_day_and_time),
}
#: Schemas that the official client has no name for, by their numbers in the protocol; it cannot register them.
UNNAMED = {5: "BOOLEAN", 12: "DATE", 13: "TIME", 14: "TIMESTAMP", 16: "INSTANT"} | {
    17: "LOCAL_DATE",
    18: "LOCAL_TIME",
    19: "LOCAL_DATE_TIME",
}
