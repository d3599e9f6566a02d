"""Values that are one number, text or time: decoded a whole array at a time, without Python's objects."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from .kept_values import UnfitValue
from .rows import TIMESTAMP

#: Arrow's type of each of Pulsar's primitive types that is not bytes.
PRIMITIVE_TYPES: dict[str, pa.DataType] = {
    "STRING": pa.string(),
    "BOOLEAN": pa.bool_(),
    "INT8": pa.int8(),
    "INT16": pa.int16(),
    "INT32": pa.int32(),
    "INT64": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "DATE": pa.date32(),
    "TIME": pa.int64(),
    "TIMESTAMP": TIMESTAMP,
    "LOCAL_TIME": pa.int64(),
}
#: The codes and types of what is stored: numbers, the highest byte first. Times are milliseconds since 1970, or of
#: the day in nanoseconds for LOCAL_TIME, and in milliseconds for TIME.
_STORED: dict[str, tuple[str, pa.DataType]] = {
    "BOOLEAN": ("b", pa.int8()),
    "INT8": ("b", pa.int8()),
    "INT16": ("h", pa.int16()),
    "INT32": ("i", pa.int32()),
    "INT64": ("q", pa.int64()),
    "FLOAT": ("f", pa.float32()),
    "DOUBLE": ("d", pa.float64()),
    "DATE": ("q", pa.int64()),
    "TIME": ("q", pa.int64()),
    "TIMESTAMP": ("q", pa.int64()),
    "LOCAL_TIME": ("q", pa.int64()),
}
_DAY_MS = 24 * 60 * 60 * 1000
_SINCE_1970 = "milliseconds since 1970 are beyond what a column holds"
#: The first and last number that is a value, and what others are: 32 bits of days, 64 bits of microseconds, one day.
_LIMITS = {
    "DATE": (-(1 << 31) * _DAY_MS, (1 << 31) * _DAY_MS - 1, _SINCE_1970),
    "TIMESTAMP": (-((1 << 63) // 1000), ((1 << 63) - 1) // 1000, _SINCE_1970),
    "LOCAL_TIME": (0, _DAY_MS * 1_000_000 - 1, "nanoseconds after midnight are no time of a day"),
}


class PrimitiveValues:
    """Decodes values of one of the :data:`PRIMITIVE_TYPES`."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def columns(self, values: pa.Array, versions: pa.Array) -> Sequence[pa.Array]:
        """Return the one column. Raises :class:`UnfitValue`."""
        if self._kind == "STRING":
            return [self._texts(values)]
        numbers = self._numbers(values)
        if self._kind == "BOOLEAN":
            return [pc.not_equal(numbers, pa.scalar(0, pa.int8()))]
        if self._kind not in _LIMITS:
            return [numbers]
        first, last, otherwise = _LIMITS[self._kind]
        beyond = pc.or_(pc.less(numbers, first), pc.greater(numbers, last))
        self._check(beyond, numbers, otherwise)
        if self._kind == "LOCAL_TIME":
            return [numbers]
        if self._kind == "DATE":
            # Divided towards the past, also before 1970.
            days = pc.divide(pc.subtract(numbers, pc.if_else(pc.less(numbers, 0), _DAY_MS - 1, 0)), _DAY_MS)
            return [days.cast(pa.int32()).cast(pa.date32())]
        return [pc.multiply(numbers, 1000).cast(TIMESTAMP)]

    def _texts(self, values: pa.Array) -> pa.Array:
        try:
            return values.cast(pa.string())
        except pa.ArrowInvalid:
            for row, value in enumerate(values.to_pylist()):
                try:
                    (value or b"").decode()
                except UnicodeDecodeError as error:
                    raise UnfitValue(row, self._unfit(str(error))) from error
            raise

    def _numbers(self, values: pa.Array) -> pa.Array:
        code, kind = _STORED[self._kind]
        numbers = array(code)
        width = numbers.itemsize
        lengths = pc.binary_length(values)
        self._check(pc.not_equal(lengths, width), lengths, f"bytes are not the {width} that it has")
        validity = None
        if values.null_count:
            validity = pc.is_valid(values).buffers()[1]
            values = pc.fill_null(values, bytes(width))
        _, ends, data = values.buffers()
        if data is not None:
            start = memoryview(ends).cast("i")[values.offset]
            numbers.frombytes(memoryview(data)[start : start + width * len(values)])
        if sys.byteorder == "little":
            numbers.byteswap()
        return pa.Array.from_buffers(kind, len(values), [validity, pa.py_buffer(numbers)])

    def _check(self, wrong: pa.Array, found: pa.Array, what: str) -> None:
        row = pc.index(wrong, True).as_py()
        if row >= 0:
            raise UnfitValue(row, self._unfit(f"{found[row]} {what}"))

    def _unfit(self, why: str) -> str:
        return f"it is not {self._kind} as the topic's schema says: {why}"
