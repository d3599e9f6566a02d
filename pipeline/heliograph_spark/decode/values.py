"""Decodes the values of messages by their topic's schema."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.compute as pc

from .avro_buffers import COMPILED, AvroBuffers
from .avro_lengths import boundless_array
from .avro_unions import UnionsAsRecords
from .json_lines import JsonLines
from .kept_values import UnfitValue, Values
from .primitives import PRIMITIVE_TYPES, PrimitiveValues
from .protobuf_values import ProtobufValues
from .records import from_json_record, integer, record_columns, without_uuids

#: Returns the definition of the Avro schema with that version; raises :class:`ValueError` if there is none.
Writer = Callable[[bytes], str]

#: What a value is read with raises these where it does not fit; that of arithmetic for a time that is no ``datetime``.
_UNREADABLE = (
    *(ValueError, EOFError, IndexError, KeyError, TypeError, ArithmeticError),
    fastavro.read.SchemaResolutionError,
)
#: How fastavro calls the bytes that end too early.
_STREAM = re.compile(r"<_io\.BytesIO object at 0x[0-9a-f]+>")


def values_of(kind: str, definition: str | None, fields: pa.Schema, writer: Writer) -> Values | None:
    """Return what decodes values of a schema of type ``kind``, None for bytes, which stay as they are.

    ``kind`` has Pulsar's name, and ``fields`` are the columns of the values that are wanted. Raises
    :class:`ValueError` for a type that has none.
    """
    if kind in ("NONE", "BYTES"):
        return None
    if kind in PRIMITIVE_TYPES:
        return PrimitiveValues(kind)
    if kind == "JSON":
        return JsonValues(fields)
    if kind == "PROTOBUF_NATIVE" and definition is not None:
        return ProtobufValues(definition, fields)
    if kind == "AVRO" and definition is not None:
        return AvroValues(definition, fields, writer)
    raise ValueError(f"a schema of type {kind} has no columns")


class JsonValues:
    """Decodes records in JSON; a field that is missing is null, and one that is not asked for is left out.

    ``in_bulk`` is whether Arrow's parser reads what it can.
    """

    def __init__(self, fields: pa.Schema, *, in_bulk: bool = True) -> None:
        self._fields = fields
        self._convert = from_json_record(fields)
        self._lines = JsonLines.for_fields(fields) if in_bulk else None

    def columns(self, values: pa.Array, versions: pa.Array) -> Sequence[pa.Array]:
        """Return a column for each field. Raises :class:`UnfitValue`."""
        found = self._lines.columns(values) if self._lines is not None else None
        return found if found is not None else self._one_by_one(values)

    def _one_by_one(self, values: pa.Array) -> Sequence[pa.Array]:
        rows = []
        for row, value in enumerate(values.to_pylist()):
            try:
                rows.append({} if value is None else self._record(value))
            except (ValueError, RecursionError) as error:
                raise UnfitValue(row, f"it is not JSON as the topic's schema says: {error}") from error
        return record_columns(rows, self._fields)

    def _record(self, value: bytes) -> dict[str, Any]:
        record = json.loads(value, parse_int=integer)
        if not isinstance(record, dict):
            raise ValueError("the JSON is no object")
        if self._convert is not None:
            self._convert(record)
        return record


class AvroValues:
    """Decodes records in Avro that may be written with other versions of the schema.

    A field that is new there is left out, one that is missing is null or has its default. A union of several types has
    a member for each type, null where the value is of another one. ``compiled`` is whether the compiled module reads
    what it can.
    """

    def __init__(self, definition: str, fields: pa.Schema, writer: Writer, *, compiled: bool = COMPILED) -> None:
        self._fields = fields
        self._definition = json.loads(definition)
        self._unions = UnionsAsRecords(self._definition)
        self._reader = fastavro.parse_schema(self._unions.definition)
        self._uuids = _has_uuids(self._definition)
        self._writer = writer
        #: By version, the parsed schemas of writer and reader; the latter is None where they are the same.
        self._schemas: dict[bytes | None, tuple[Any, Any]] = {None: (self._reader, None)}
        self._buffers = AvroBuffers.for_fields(self._definition, fields) if compiled else None

    def columns(self, values: pa.Array, versions: pa.Array) -> Sequence[pa.Array]:
        """Return a column for each field. Raises :class:`UnfitValue`."""
        if self._buffers is not None and self._are_of_the_reader(values, versions):
            found = self._buffers.columns(values)
            if found is not None:
                return found
        return self._one_by_one(values, versions)

    def _are_of_the_reader(self, values: pa.Array, versions: pa.Array) -> bool:
        """Whether all values are written with the topic's own schema."""
        try:
            return all(
                (self._schemas.get(version) or self._written(version))[1] is None
                for version in pc.unique(versions.filter(pc.is_valid(values))).to_pylist()
            )
        except _UNREADABLE:
            return False

    def _one_by_one(self, values: pa.Array, versions: pa.Array) -> Sequence[pa.Array]:
        rows: list[dict[str, Any]] = []
        for row, (value, version) in enumerate(zip(values.to_pylist(), versions.to_pylist(), strict=True)):
            if value is None:
                rows.append({})
                continue
            try:
                writer, reader = self._schemas.get(version) or self._written(version)
                record: Any = fastavro.schemaless_reader(io.BytesIO(value), writer, reader)
            except _UNREADABLE as error:
                reason = _STREAM.sub("the value", str(error))
                raise UnfitValue(row, f"it is not AVRO as the topic's schema says: {reason}") from error
            rows.append(without_uuids(record) if self._uuids else record)
        return record_columns(rows, self._fields)

    def _written(self, version: bytes) -> tuple[Any, Any]:
        definition = json.loads(self._writer(version))
        # Avro resolves records of one name only; what the class is called where it is written does not matter here.
        definition["name"] = self._definition["name"]
        if (field := boundless_array(definition)) is not None:
            raise ValueError(f"field {field} of version {version.hex()} is an array of items without bytes")
        found: tuple[Any, Any] = self._reader, None
        if definition != self._definition:
            found = fastavro.parse_schema(self._unions.as_written(definition)), self._reader
        self._schemas[version] = found
        return found


def _has_uuids(definition: Any) -> bool:
    return '"uuid"' in json.dumps(definition)
