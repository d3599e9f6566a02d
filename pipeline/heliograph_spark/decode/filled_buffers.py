"""Arrow's arrays and the buffers that the compiled modules ``_avro`` and ``_protobuf`` take and fill."""

from __future__ import annotations

from typing import Any

import pyarrow as pa


def buffers_of(values: pa.Array) -> tuple[Any, ...] | None:
    """Return what a compiled module is given for an array of bytes, None if there are no bytes at all.

    They are the first row, the number of rows, and the buffers: validity (None where no value is null), offsets, data.
    """
    validity, offsets, data = values.buffers()
    if data is None or offsets is None:
        return None
    return values.offset, len(values), validity if values.null_count else None, offsets, data


def array_of(kind: pa.DataType, parts: tuple[Any, ...]) -> pa.Array:
    """Return the array of what a compiled module has filled: rows, those that are null, validity, and the type's."""
    count, nulls, validity, *rest = parts
    present = None if validity is None else pa.py_buffer(validity)
    if pa.types.is_struct(kind):
        inner = [array_of(field.type, each) for field, each in zip(kind, rest[0], strict=True)]
        return pa.Array.from_buffers(kind, count, [present], nulls, children=inner)
    if pa.types.is_map(kind):
        ends, keys, items = rest
        pairs = pa.StructArray.from_arrays(
            [array_of(kind.key_type, keys), array_of(kind.item_type, items)], fields=[kind.key_field, kind.item_field]
        )
        return pa.Array.from_buffers(kind, count, [present, pa.py_buffer(ends)], nulls, children=[pairs])
    if pa.types.is_list(kind):
        ends, items = rest
        return pa.Array.from_buffers(
            kind, count, [present, pa.py_buffer(ends)], nulls, children=[array_of(kind.value_type, items)]
        )
    return pa.Array.from_buffers(kind, count, [present, *map(pa.py_buffer, rest)], nulls)
