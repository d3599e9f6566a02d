"""Key-value schemas: a key and a value, each with a schema of its own, in one payload or apart.

Apart (``SEPARATED``) they are the message's key and payload. In one payload (``INLINE``) each is its length, four bytes
with the highest first, and its bytes; a length of -1 is null. The data of the schema itself are its two parts in the
same way.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from .kept_values import UnfitValue, Values

_LENGTH = struct.Struct(">i")
_NULL = _LENGTH.pack(-1)


def parts_of(data: bytes) -> tuple[bytes | None, bytes | None]:
    """Return the key and the value. Raises :class:`ValueError` for other bytes."""
    key, at = _part(data, 0, "key")
    value, end = _part(data, at, "value")
    if end != len(data):
        raise ValueError(f"{len(data) - end} bytes are after its value")
    return key, value


def _part(data: bytes, at: int, name: str) -> tuple[bytes | None, int]:
    if len(data) < at + 4:
        raise ValueError(f"it ends before the length of its {name}")
    (length,) = _LENGTH.unpack_from(data, at)
    start = at + 4
    if length == -1:
        return None, start
    if not 0 <= length <= len(data) - start:
        raise ValueError(f"its {name} has {length} bytes, and {len(data) - start} are there")
    return data[start : start + length], start + length


def joined(keys: pa.Array, values: pa.Array) -> pa.Array:
    """Return keys and values that are apart as they are in one payload; null where both are null."""
    found = [
        None if key is None and value is None else _with_length(key) + _with_length(value)
        for key, value in zip(keys.to_pylist(), values.to_pylist(), strict=True)
    ]
    return pa.array(found, pa.binary())


def _with_length(part: bytes | None) -> bytes:
    return _NULL if part is None else _LENGTH.pack(len(part)) + part


class KeyValues:
    """Decodes keys and values in one payload to a struct of both.

    ``kind`` is its type. A decoder is None for bytes, and gives a column for each field where that part is a struct.
    """

    def __init__(self, kind: pa.StructType, key: Values | None, value: Values | None) -> None:
        self._kind = kind
        self._decoders = {"key": key, "value": value}

    def columns(self, values: pa.Array, versions: pa.Array) -> Sequence[pa.Array]:
        """Return the one column. Raises :class:`UnfitValue`."""
        pairs: list[tuple[bytes | None, bytes | None]] = []
        for row, value in enumerate(values.to_pylist()):
            try:
                pairs.append((None, None) if value is None else parts_of(value))
            except ValueError as error:
                raise UnfitValue(row, f"it is not KEY_VALUE as the topic's schema says: {error}") from error
        found = [
            self._decoded(field, pa.array([pair[at] for pair in pairs], pa.binary()), versions)
            for at, field in enumerate(self._kind)
        ]
        return [pa.StructArray.from_arrays(found, fields=list(self._kind), mask=pc.is_null(values))]

    def _decoded(self, field: pa.Field, parts: pa.Array, versions: pa.Array) -> pa.Array:
        decoder = self._decoders[field.name]
        if decoder is None:
            return parts
        try:
            columns = decoder.columns(parts, versions)
        except UnfitValue as error:
            raise UnfitValue(error.row, f"its {field.name}: {error.reason}") from error
        if not pa.types.is_struct(field.type):
            return columns[0]
        return pa.StructArray.from_arrays(list(columns), fields=list(field.type), mask=pc.is_null(parts))
