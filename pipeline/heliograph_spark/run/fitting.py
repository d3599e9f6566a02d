"""Whether rows fit the schema that a topic has: columns by name, types without loss, nothing missing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from pyspark.sql import types as t

from heliograph_spark.plan.errors import SchemaError

from .schemas import TopicSchema, field_types

#: Each type's values are values of the next one, too.
_WIDER = (
    (t.ByteType, t.ShortType, t.IntegerType, t.LongType),
    (t.IntegerType, t.DoubleType),
    (t.FloatType, t.DoubleType),
)


def holds(wanted: t.DataType, given: t.DataType) -> bool:
    """Whether every value of a ``given`` column is one of the ``wanted`` type."""
    if isinstance(wanted, t.StructType) and isinstance(given, t.StructType):
        parts = {field.name: field.dataType for field in given.fields}
        return set(wanted.names) == set(given.names) and all(
            holds(field.dataType, parts[field.name]) for field in wanted.fields
        )
    if isinstance(wanted, t.ArrayType) and isinstance(given, t.ArrayType):
        return holds(wanted.elementType, given.elementType)
    if isinstance(wanted, t.MapType) and isinstance(given, t.MapType):
        return holds(wanted.keyType, given.keyType) and holds(wanted.valueType, given.valueType)
    if isinstance(wanted, t.DecimalType) and isinstance(given, t.DecimalType):
        return bool(given.scale == wanted.scale and given.precision <= wanted.precision)
    if wanted == given:
        return True
    return any(
        isinstance(given, narrow) and holds(wanted, wide()) for line in _WIDER for narrow, wide in pairwise(line)
    )


def record_for(columns: Sequence[t.StructField], schema: TopicSchema) -> Any:
    """Return the definition of the topic's records, which these columns fill.

    Raises :class:`SchemaError`, naming the column or the field, if one does not fit, or is missing.
    """
    names = [column.name for column in columns]
    definition = json.loads(schema.definition or "null")
    if not isinstance(definition, dict) or definition.get("type") != "record":
        raise SchemaError(f"the topic's schema is no record, and the columns {', '.join(names)} are one")
    fields = {field["name"]: field for field in definition["fields"]}
    if others := [name for name in names if name not in fields]:
        raise SchemaError(f"column {others[0]!r} is not a field of the topic's schema, which has {', '.join(fields)}")
    for name, field in fields.items():
        if name not in names and "default" not in field and "null" not in field["type"]:
            raise SchemaError(f"field {name!r} of the topic's schema has no column and no default")
    wanted = field_types(schema, names)
    for column in columns:
        if not holds(wanted[column.name], column.dataType):
            raise SchemaError(
                f"column {column.name!r} is {column.dataType.simpleString()}, and in the topic's schema it is"
                f" {wanted[column.name].simpleString()}"
            )
    return definition
