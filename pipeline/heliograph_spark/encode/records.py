"""Records in Avro and JSON, encoded a whole column at a time by the compiled module, where it knows all their types.

For anything else, and for a record that does not fit its schema, it returns nothing: the caller then uses the encoder
of single records, which makes the same bytes and says what does not fit.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any, NamedTuple

import fastavro
import pyarrow as pa

from .compiled import native

#: Types of Avro that are one number, text or string of bytes: the kind of the compiled module's and Arrow's type.
_SIMPLE: dict[str, tuple[str, pa.DataType]] = {
    "boolean": ("boolean", pa.bool_()),
    "int": ("int64", pa.int64()),
    "long": ("int64", pa.int64()),
    "float": ("float", pa.float32()),
    "double": ("double", pa.float64()),
    "bytes": ("bytes", pa.binary()),
    "string": ("text", pa.string()),
}
_LOGICAL: dict[str, tuple[str, pa.DataType]] = {
    "date": ("int32", pa.int32()),
    "timestamp-micros": ("int64", pa.int64()),
}


class _Unknown(Exception):
    """The compiled module does not know a type."""


class _Part(NamedTuple):
    """The encoder of a part of a record, and the type that its column is cast to."""

    field: Any
    column: pa.DataType | None


class RecordEncoder:
    """Encodes records of one Avro ``definition``, as AVRO or ``in_json``, from columns of these types."""

    def __init__(self, root: Any, columns: Mapping[str, pa.DataType], *, in_json: bool) -> None:
        self._root = root
        self._columns = columns
        self._in_json = in_json

    def values(self, rows: pa.RecordBatch) -> pa.Array | None:
        """Return a message for each row; None if one of them does not fit, or cannot be encoded here."""
        try:
            columns = [rows.column(name).cast(kind) for name, kind in self._columns.items()]
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return None
        found = native.encode_records(self._root, columns, rows.num_rows, self._in_json)
        if found is None:
            return None
        data, ends = found
        return pa.Array.from_buffers(pa.binary(), rows.num_rows, [None, pa.py_buffer(ends), pa.py_buffer(data)])


def record_encoder(definition: Any, columns: pa.Schema, *, in_json: bool) -> RecordEncoder | None:
    """Return what encodes such records from such columns; None where the compiled module cannot.

    In Avro a field without a column has its default, or is null. In JSON it is left out.
    """
    if native is None:
        return None
    types = _Types(in_json=in_json)
    given = {field.name: field.type for field in columns}
    try:
        parts = types.fields(definition, given)
    except (_Unknown, KeyError, TypeError):
        return None
    names = list(given) if in_json else [field["name"] for field in definition["fields"]]
    root = native.Field("record", -2, [parts[name].field for name in names], names, None)
    # As the module takes them: in the order of the record.
    kinds = {name: kind for name in names if (kind := parts[name].column) is not None}
    return RecordEncoder(root, kinds, in_json=in_json)


class _Types:
    """Matches the types of one definition with Arrow's. Methods raise :class:`_Unknown`."""

    def __init__(self, *, in_json: bool) -> None:
        self._in_json = in_json

    def fields(self, record: Any, given: Mapping[str, pa.DataType]) -> dict[str, _Part]:
        """Return the parts of a record by their names."""
        found = {}
        for field in record["fields"]:
            name = field["name"]
            if name in given:
                found[name] = self._of(field["type"], given[name])
            elif not self._in_json:
                found[name] = _Part(native.Field("constant", -2, [], [], _left_out(field)), None)
        return found

    def _of(self, avro: Any, given: pa.DataType) -> _Part:
        null = -1
        if isinstance(avro, list):
            if len(avro) != 2 or "null" not in avro:
                raise _Unknown
            null = avro.index("null")
            avro = avro[1 - null]
        if isinstance(avro, dict) and isinstance(avro["type"], (dict, list)):
            avro = avro["type"]
        if isinstance(avro, str):
            avro = {"type": avro}
        return self._typed(avro, given, null)

    def _typed(self, avro: dict[str, Any], given: pa.DataType, null: int) -> _Part:
        kind = avro["type"]
        logical = None if self._in_json else avro.get("logicalType")
        if kind == "record" and pa.types.is_struct(given):
            types = {field.name: field.type for field in given}
            parts = self.fields(avro, types)
            if set(parts) != set(types):
                raise _Unknown
            names = list(types) if self._in_json else [field["name"] for field in avro["fields"]]
            column = pa.struct([pa.field(name, parts[name].column) for name in types])
            return _Part(native.Field(kind, null, [parts[name].field for name in names], names, None), column)
        if kind == "array" and pa.types.is_list(given):
            item = self._of(avro["items"], given.value_type)
            return _Part(native.Field("list", null, [item.field], [], None), pa.list_(item.column))
        if kind == "map" and pa.types.is_map(given):
            item = self._of(avro["values"], given.item_type)
            return _Part(native.Field(kind, null, [item.field], [], None), pa.map_(pa.string(), item.column))
        found = _LOGICAL.get(logical) if logical is not None else _SIMPLE.get(kind)
        if found is None:
            raise _Unknown
        own, column = found
        if self._in_json and own in ("float", "double"):
            # JSON has one type of numbers, and they stay as they are.
            own, column = _SIMPLE["long" if pa.types.is_integer(given) else "double"]
        if not _becomes(given, column, logical):
            raise _Unknown
        return _Part(native.Field(own, null, [], [], None), column)


def _becomes(given: pa.DataType, column: pa.DataType, logical: str | None) -> bool:
    """Whether every value of a type is one of the other one."""
    if logical is not None:
        return bool(pa.types.is_date32(given) if logical == "date" else pa.types.is_timestamp(given))
    if pa.types.is_integer(given):
        return bool(pa.types.is_integer(column) or pa.types.is_floating(column))
    if pa.types.is_floating(given):
        return bool(pa.types.is_floating(column))
    return bool(given == column)


def _left_out(field: dict[str, Any]) -> bytes:
    """Return what Avro writes for a field of which a record says nothing."""
    buffer = io.BytesIO()
    try:
        fastavro.schemaless_writer(buffer, {"type": "record", "name": "LeftOut", "fields": [field]}, {})
    except Exception as error:  # fastavro raises many kinds, and whatever is wrong the other encoder says it.
        raise _Unknown from error
    return buffer.getvalue()
