"""Records in JSON become columns all at once: Arrow's parser reads them as lines.

It is asked only for what it reads as Python's does, and whatever it refuses is left to that, which decides and names
the message. So what becomes of a message does not depend on those beside it.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

_SPACE = " \t\r\n"
#: With so many lists and objects in one value they may lie deeper within each other than Python's parser goes.
_MOST_INNER = 500


class JsonLines:
    """Reads records of these fields; others are left out."""

    def __init__(self, fields: pa.Schema, read: pa.Schema) -> None:
        self._fields = fields
        # Arrow imports pandas for the first scalar, which takes half a second. At the top of the module that would
        # happen in every process of Spark, whatever it reads.
        self._no_fields = pa.scalar(b"{}", pa.binary())
        self._parse = pj.ParseOptions(explicit_schema=read, unexpected_field_behavior="ignore")

    @classmethod
    def for_fields(cls, fields: pa.Schema) -> JsonLines | None:
        """Return a reader, or None if a field has bytes or a map within, which this parser does not read."""
        kinds = [_as_read(field.type) for field in fields]
        if None in kinds:
            return None
        names = fields.names
        return cls(fields, pa.schema([pa.field(name, kind) for name, kind in zip(names, kinds, strict=True)]))

    def columns(self, values: pa.Array) -> list[pa.Array] | None:
        """Return a column for each field, null for a value that is null; None where any value is not read here."""
        if not len(values):
            return None
        try:
            texts = pc.ascii_trim(pc.fill_null(values, self._no_fields).cast(pa.string()), _SPACE)
            # Each begins and ends as an object, so no line ends within one, and as many rows as lines are one for each.
            if not (pc.all(pc.starts_with(texts, "{")).as_py() and pc.all(pc.ends_with(texts, "}")).as_py()):
                return None
            if sum(pc.max(pc.count_substring(texts, opening)).as_py() for opening in "{[") > _MOST_INNER:
                return None
            lines = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts), "\n")
            text = lines[0].as_py().encode() + b"\n"
            if b"\0" in text:
                # To this parser it is the end.
                return None
            found = pj.read_json(
                pa.BufferReader(text),
                read_options=pj.ReadOptions(use_threads=False, block_size=len(text) + 1),
                parse_options=self._parse,
            )
            if len(found) != len(values):
                return None
            columns = [_whole(found[field.name]).cast(field.type) for field in self._fields]
            for each in columns:
                # A half of a character that is two in JSON is no UTF-8.
                each.validate(full=True)
        except pa.ArrowException:
            return None
        return columns


def _as_read(kind: pa.DataType) -> pa.DataType | None:
    """Return the type in which a field is parsed; None if it is not."""
    if pa.types.is_floating(kind):
        # As Python does, which rounds to 32 bits what has 64.
        return pa.float64()
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_string(kind):
        return kind
    if pa.types.is_struct(kind):
        inner = [_as_read(field.type) for field in kind]
        if None in inner:
            return None
        return pa.struct([pa.field(field.name, each) for field, each in zip(kind, inner, strict=True)])
    if pa.types.is_list(kind):
        item = _as_read(kind.value_type)
        return None if item is None else pa.list_(item)
    return None


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
