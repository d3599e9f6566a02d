"""One type for a column of an archive whose topic has had two: one that has every value of both."""

from __future__ import annotations

from pyspark.sql import types as t

from heliograph_spark.plan.errors import SchemaError

#: The types that a number may become, the narrowest first, each with those whose values it has, to the last digit.
_HOLDS: tuple[tuple[t.DataType, frozenset[type[t.DataType]]], ...] = (
    (t.ByteType(), frozenset({t.ByteType})),
    (t.ShortType(), frozenset({t.ByteType, t.ShortType})),
    (t.IntegerType(), frozenset({t.ByteType, t.ShortType, t.IntegerType})),
    (t.LongType(), frozenset({t.ByteType, t.ShortType, t.IntegerType, t.LongType})),
    (t.FloatType(), frozenset({t.FloatType})),
    (t.DoubleType(), frozenset({t.ByteType, t.ShortType, t.IntegerType, t.FloatType, t.DoubleType})),
)


def widened(old: t.DataType, new: t.DataType, where: str, topic: str) -> t.DataType:
    """Return the type for what was ``old`` in the archive and is ``new`` in the topic; a record has the fields of both.

    Raises :class:`SchemaError`, naming the field, if there is none.
    """
    if old == new:
        return old
    if isinstance(old, t.StructType) and isinstance(new, t.StructType):
        return widened_record(old, new, where, topic)
    if isinstance(old, t.ArrayType) and isinstance(new, t.ArrayType):
        return t.ArrayType(widened(old.elementType, new.elementType, f"{where}[]", topic))
    if isinstance(old, t.MapType) and isinstance(new, t.MapType) and old.keyType == new.keyType:
        return t.MapType(old.keyType, widened(old.valueType, new.valueType, f"{where}{{}}", topic))
    for wide, kinds in _HOLDS:
        if type(old) in kinds and type(new) in kinds:
            return wide
    raise SchemaError(
        f"field {where!r} of {topic} is {old.simpleString()} in the archive and {new.simpleString()} in the topic now:"
        " archive it from here on under another path"
    )


def widened_record(old: t.StructType, new: t.StructType, where: str, topic: str) -> t.StructType:
    """Return the fields of both records, those of ``old`` first. Raises :class:`SchemaError` as :func:`widened`."""
    kinds = {field.name: field.dataType for field in new.fields}
    fields = []
    for field in old.fields:
        inside = f"{where}.{field.name}".lstrip(".")
        kind = widened(field.dataType, kinds.pop(field.name, field.dataType), inside, topic)
        fields.append(t.StructField(field.name, kind))
    return t.StructType([*fields, *(t.StructField(name, kind) for name, kind in kinds.items())])
