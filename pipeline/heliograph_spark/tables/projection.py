"""Brings the columns of a data file into those of a table, by the ids of fields.

A column that was renamed, also inside others, has its name of the table, one that the file lacks is null, and numbers
become wider. Arrow changes names without a copy and casts the rest. pyiceberg's own projection makes an empty list of
a null list of records.
"""

from __future__ import annotations

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType


def names_of(in_file: Schema, wanted: Schema) -> list[str]:
    """Return the columns of a file that are to be read for the wanted ones, by their names there."""
    ids = {each.field_id for each in wanted.fields}
    return [each.name for each in in_file.fields if each.field_id in ids]


def projected(batch: pa.RecordBatch, in_file: Schema, wanted: Schema, columns: pa.Schema) -> pa.RecordBatch:
    """Return rows of a file as the wanted fields, whose Arrow types are those of ``columns``, in the same order.

    Raises :class:`pyarrow.ArrowException` for values that these types do not hold.
    """
    there = {each.field_id: each for each in in_file.fields}
    arrays = [
        pa.nulls(batch.num_rows, column.type)
        if (found := there.get(field.field_id)) is None
        else _fitted(batch.column(found.name), found, field, column.type)
        for field, column in zip(wanted.fields, columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=columns)


def _fitted(values: pa.Array, found: NestedField, wanted: NestedField, kind: pa.DataType) -> pa.Array:
    named = _named(values.type, found.field_type, wanted.field_type)
    # Arrow casts records by the names of their fields.
    return (values if named.equals(values.type) else values.view(named)).cast(kind)


def _named(kind: pa.DataType, found: IcebergType, wanted: IcebergType) -> pa.DataType:
    """Return the type of a file's column with the names that the table has for the same ids."""
    if isinstance(found, StructType) and isinstance(wanted, StructType):
        by_id = {each.field_id: each for each in wanted.fields}
        fields = []
        for number, each in enumerate(found.fields):
            own = kind.field(number)
            if (same := by_id.get(each.field_id)) is None:
                # The table has dropped it, and may have another one of its name.
                fields.append(own.with_name(f"\0{each.field_id}"))
            else:
                fields.append(pa.field(same.name, _named(own.type, each.field_type, same.field_type)))
        return pa.struct(fields)
    if isinstance(found, ListType) and isinstance(wanted, ListType):
        element = kind.value_field.with_type(_named(kind.value_type, found.element_type, wanted.element_type))
        return pa.large_list(element) if pa.types.is_large_list(kind) else pa.list_(element)
    if isinstance(found, MapType) and isinstance(wanted, MapType):
        return pa.map_(
            kind.key_field.with_type(_named(kind.key_type, found.key_type, wanted.key_type)),
            kind.item_field.with_type(_named(kind.item_type, found.value_type, wanted.value_type)),
        )
    return kind
