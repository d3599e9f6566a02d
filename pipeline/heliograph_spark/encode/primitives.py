"""Values that are one number, text or day, encoded a whole array at a time as Java's clients write them."""

from __future__ import annotations

import sys
from array import array

import pyarrow as pa
import pyarrow.compute as pc

#: The codes of what is stored, highest byte first, of each of Pulsar's primitive types that is a number; days and times
#: are days and milliseconds since 1970, and times of day milliseconds (TIME) and nanoseconds (LOCAL_TIME).
_CODES = {
    "BOOLEAN": "b",
    "INT8": "b",
    "INT16": "h",
    "INT32": "i",
    "INT64": "q",
    "FLOAT": "f",
    "DOUBLE": "d",
    "DATE": "q",
    "LOCAL_DATE": "q",
    "TIME": "q",
    "LOCAL_TIME": "q",
    "TIMESTAMP": "q",
}
_NUMBERS = {
    "b": pa.int8(),
    "h": pa.int16(),
    "i": pa.int32(),
    "q": pa.int64(),
    "f": pa.float32(),
    "d": pa.float64(),
}
_DAY_MS = 24 * 60 * 60 * 1000
_DAY_NS = _DAY_MS * 1_000_000


def encoded(kind: str, values: pa.Array) -> pa.Array | None:
    """Return values of a primitive type as bytes, null for null; None for a type that is not encoded here.

    Raises :class:`ValueError` for a text that is not UTF-8, and for nanoseconds that are no time of a day.
    """
    if kind in ("NONE", "BYTES"):
        return values.cast(pa.binary())
    if kind == "STRING":
        values = values.cast(pa.string())
        values.validate(full=True)
        return values.cast(pa.binary())
    if kind not in _CODES:
        return None
    if kind in ("DATE", "LOCAL_DATE"):
        values = values.cast(pa.date32()).cast(pa.int32()).cast(pa.int64())
        values = pc.multiply(values, _DAY_MS) if kind == "DATE" else values
    elif kind == "TIMESTAMP":
        values = milliseconds(values)
    elif kind == "LOCAL_TIME":
        _check_times_of_day(values)
    return _bytes(values.cast(_NUMBERS[_CODES[kind]]), _CODES[kind])


def milliseconds(times: pa.Array) -> pa.Array:
    """Return whole milliseconds since 1970 of times in microseconds, rounded down."""
    numbers = times.cast(pa.int64())
    # Division rounds towards zero.
    return pc.divide(pc.subtract(numbers, pc.if_else(pc.less(numbers, 0), 999, 0)), 1000)


def _check_times_of_day(nanoseconds: pa.Array) -> None:
    row = pc.index(pc.or_(pc.less(nanoseconds, 0), pc.greater_equal(nanoseconds, _DAY_NS)), True).as_py()
    if row >= 0:
        raise ValueError(f"{nanoseconds[row]} nanoseconds after midnight are no time of a day")


def _bytes(numbers: pa.Array, code: str) -> pa.Array:
    swapped = array(code)
    width = swapped.itemsize
    data = numbers.buffers()[1]
    if data is not None:
        swapped.frombytes(memoryview(data)[numbers.offset * width : (numbers.offset + len(numbers)) * width])
    if sys.byteorder == "little":
        swapped.byteswap()
    fixed = pa.Array.from_buffers(pa.binary(width), len(numbers), [None, pa.py_buffer(swapped)]).cast(pa.binary())
    return pc.if_else(pc.is_valid(numbers), fixed, pa.scalar(None, pa.binary())) if numbers.null_count else fixed
