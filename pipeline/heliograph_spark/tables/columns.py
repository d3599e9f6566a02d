"""The columns of a table in Spark's types.

Arrow's types are between both: Spark and pyiceberg convert theirs to and from them. Iceberg has no integers below 32
bits. It lets ``int`` become ``long`` and ``float`` become ``double``, and no other type change.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema, index_name_by_id
from pyspark.sql import types as t
from pyspark.sql.pandas.types import from_arrow_schema

from heliograph_spark.plan.errors import SchemaError

#: What helps where another engine has changed a table in a way that is not read here.
REWRITE = "have that engine rewrite the table's files"


def storable(columns: t.StructType) -> t.StructType:
    """Return the columns with types that Iceberg has: bytes and shorts become integers, also inside others."""
    return t.StructType([t.StructField(each.name, _storable(each.dataType)) for each in columns.fields])


def _storable(kind: t.DataType) -> t.DataType:
    if isinstance(kind, t.ByteType | t.ShortType):
        return t.IntegerType()
    if isinstance(kind, t.StructType):
        return storable(kind)
    if isinstance(kind, t.ArrayType):
        return t.ArrayType(_storable(kind.elementType))
    if isinstance(kind, t.MapType):
        return t.MapType(_storable(kind.keyType), _storable(kind.valueType))
    return kind


def in_spark(schema: Schema) -> t.StructType:
    """Return the columns of a table."""
    return storable(from_arrow_schema(_with_short_lists(schema_to_pyarrow(schema, include_field_ids=False))))


def check_names(schemas: Iterable[Schema], what: str) -> None:
    """Raise :class:`SchemaError` unless each column had one name in all schemas of a table, and each name one column.

    Otherwise files that were written with an older schema cannot be read by the names of the newest one.
    """
    names: dict[int, str] = {}
    ids: dict[str, int] = {}
    for schema in schemas:
        for column, name in index_name_by_id(schema).items():
            if names.setdefault(column, name) != name or ids.setdefault(name, column) != column:
                raise SchemaError(
                    f"{what}: another engine has renamed or replaced column {name!r}, and files are merged by names"
                    f" here: {REWRITE}"
                )


def _with_short_lists(schema: pa.Schema) -> pa.Schema:
    return pa.schema([each.with_type(_short(each.type)) for each in schema])


def _short(kind: pa.DataType) -> pa.DataType:
    """Replace lists of 64-bit offsets, which Spark has no type for, by those of 32 bits."""
    if pa.types.is_large_list(kind) or pa.types.is_list(kind):
        return pa.list_(_short(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(_short(kind.key_type), _short(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([each.with_type(_short(each.type)) for each in kind])
    return kind
