"""The columns of a query, and what fills them from the entries of a topic."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from heliograph_spark.decode.columns import METADATA_COLUMNS, EntryColumns
from heliograph_spark.decode.kept_values import BAD_RECORD, UnfitValue, Values
from heliograph_spark.decode.key_values import KeyValues
from heliograph_spark.decode.primitives import PRIMITIVE_TYPES
from heliograph_spark.decode.values import values_of
from heliograph_spark.plan.errors import SchemaError
from heliograph_spark.plan.options import ReadOptions
from heliograph_spark.wire.brokers import Brokers

from .primitives import PRIMITIVES
from .schemas import METADATA, VALUE, TopicSchema, columns_of, read_schema
from .spark_versions import arrow_schema

_PARTITION = re.compile(r"-partition-(\d+)$")


def check_columns(wanted: StructType, schema: TopicSchema, topic: str, options: ReadOptions) -> None:
    """Raise :class:`SchemaError`, naming the column, if a query's own schema has one that the topic has not.

    If the options keep what cannot be read, it must have the column for that.
    """
    keeps_bad = options.keeps_bad
    found = columns_of(schema, topic, METADATA.names, keeps_bad=keeps_bad, headers=options.headers)
    offered = {field.name: field.dataType for field in found.fields}
    if keeps_bad and BAD_RECORD not in wanted.names:
        raise SchemaError(f"badRecords=column: the query's own schema has no column {BAD_RECORD!r}")
    for field in wanted.fields:
        if field.name not in offered:
            raise SchemaError(f"{topic} has no column {field.name!r}; it has {', '.join(offered)}")
        if offered[field.name] != field.dataType:
            kind = offered[field.name].simpleString()
            raise SchemaError(f"column {field.name!r} of {topic} is {kind}, not {field.dataType.simpleString()}")


def entry_columns(brokers: Brokers, topic: str, columns: StructType, schema: TopicSchema) -> EntryColumns:
    """Return the columns of a partition's messages; ``schema`` is the one that the query was planned with.

    A message written with another version is read as Avro resolves the two: what is new is left out, what is missing is
    null or has its default.
    """
    arrow = arrow_schema(columns)
    fields = pa.schema([field for field in arrow if field.name not in (*METADATA_COLUMNS, BAD_RECORD)])

    def written(version: bytes) -> TopicSchema:
        found = brokers.schema(topic, version)
        if found is None:
            raise ValueError(f"the topic has no schema of version {version.hex()}")
        return read_schema(found.schema, topic)

    found = _PARTITION.search(topic)
    partition = int(found[1]) if found else -1
    values = _values(schema, fields, written) if len(fields) else None
    return EntryColumns(topic, arrow, partition=partition, values=values, separated=schema.separated)


def _values(schema: TopicSchema, fields: pa.Schema, written: Callable[[bytes], TopicSchema]) -> Values | None:
    """Return what decodes the values to these columns, None for bytes; ``written`` is the schema of a version."""
    if schema.parts is not None:
        (both,) = fields
        key, value = (_part(schema, at, both.type, written) for at in (0, 1))
        return KeyValues(both.type, key, value)
    if schema.kind in PRIMITIVES and schema.kind not in ("NONE", "BYTES", *PRIMITIVE_TYPES):
        return _EachValue(schema.kind, fields)

    def definition_of(version: bytes) -> str:
        definition = written(version).definition
        if definition is None:
            raise ValueError(f"the topic's schema of version {version.hex()} is not {schema.kind}")
        return definition

    return values_of(schema.kind, schema.definition, fields, definition_of)


def _part(schema: TopicSchema, at: int, both: pa.StructType, written: Callable[[bytes], TopicSchema]) -> Values | None:
    """Return what decodes the key, or the value, of a key-value schema."""

    def part_of(whole: TopicSchema) -> TopicSchema:
        if whole.parts is None:
            raise ValueError(f"a schema of type {whole.kind} has no key and value")
        return whole.parts[at]

    kind = both[at].type
    fields = pa.schema(list(kind) if pa.types.is_struct(kind) else [pa.field(VALUE, kind)])
    return _values(part_of(schema), fields, lambda version: part_of(written(version)))


class _EachValue:
    """Decodes the values of a primitive schema one by one."""

    def __init__(self, kind: str, fields: pa.Schema) -> None:
        self._kind = kind
        self._decode = PRIMITIVES[kind].decode
        self._beyond = 1 << (31 if kind == "LOCAL_DATE" else 63)
        self._types = [field.type for field in fields]

    def columns(self, values: pa.Array, versions: pa.Array) -> Sequence[pa.Array]:
        """Return the one column. Raises :class:`UnfitValue`."""
        decoded: list[Any] = []
        for row, value in enumerate(values.to_pylist()):
            try:
                decoded.append(None if value is None else self._of(value))
            except (ValueError, struct.error) as error:
                raise UnfitValue(row, f"it is not {self._kind} as the topic's schema says: {error}") from error
        return [
            pa.array(decoded, pa.int64()).cast(kind)
            if pa.types.is_timestamp(kind)
            else pa.array(decoded, pa.int32()).cast(kind)
            for kind in self._types
        ]

    def _of(self, value: bytes) -> int:
        """Return the days or microseconds that a value is. Raises :class:`ValueError` or :class:`struct.error`."""
        found: int = self._decode(value)
        if not -self._beyond <= found < self._beyond:
            unit = "days" if self._kind == "LOCAL_DATE" else "microseconds"
            raise ValueError(f"{found} {unit} since 1970 are beyond what a column holds")
        return found
