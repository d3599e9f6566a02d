"""Messages in Protobuf become columns all at once, by the compiled module.

It reads what most messages are made of. Everything else, and all that is wrong, is left to the reference in
:mod:`.protobuf_values`, so what becomes of a message does not depend on those beside it.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

from .compiled import built
from .filled_buffers import array_of, buffers_of
from .protobuf_types import TIMES, enum_names, map_entry, single_type

#: What a message or a field is to the compiled module.
Plan = tuple[Any, ...]

_compiled = built("_protobuf")
#: Whether the compiled module is there.
COMPILED = _compiled is not None

_F = FieldDescriptor
#: By type, the compiled module's name of it and the bytes of a number in its column, 0 for what is no number.
_KINDS = {
    _F.TYPE_BOOL: ("bool", 1),
    _F.TYPE_INT32: ("int32", 4),
    _F.TYPE_SINT32: ("sint32", 4),
    _F.TYPE_SFIXED32: ("bits32", 4),
    _F.TYPE_FLOAT: ("bits32", 4),
    _F.TYPE_UINT32: ("uint32", 8),
    _F.TYPE_FIXED32: ("bits32", 8),
    _F.TYPE_INT64: ("int64", 8),
    _F.TYPE_SINT64: ("sint64", 8),
    _F.TYPE_SFIXED64: ("bits64", 8),
    _F.TYPE_DOUBLE: ("bits64", 8),
    _F.TYPE_UINT64: ("uint64", 16),
    _F.TYPE_FIXED64: ("bits64", 16),
    _F.TYPE_STRING: ("string", 0),
    _F.TYPE_BYTES: ("bytes", 0),
    _F.TYPE_ENUM: ("enum", 0),
}
#: The fields of a moment or duration.
_TIME_FIELDS = [("seconds", 1, _F.TYPE_INT64, False), ("nanos", 2, _F.TYPE_INT32, False)]
#: Messages in messages: protobuf refuses values with more than 100 levels, where an item of a map is one, too.
_MOST_LEVELS = 32


class ProtobufBuffers:
    """Reads messages by a plan; of their fields those that are asked for become columns."""

    def __init__(self, plan: Plan, fields: pa.Schema) -> None:
        self._plan = plan
        self._fields = fields

    @classmethod
    def for_fields(cls, message: Descriptor, fields: pa.Schema) -> ProtobufBuffers | None:
        """Return a reader, or None if the module is not there, or a field is of a type that it does not read."""
        if not COMPILED:
            return None
        try:
            return cls(_message_plan(message, {field.name: field.type for field in fields}, 0), fields)
        except _NotReadError:
            return None

    def columns(self, values: pa.Array) -> list[pa.Array] | None:
        """Return a column for each field, null for a value that is null; None where any value is not read here."""
        buffers = buffers_of(values)
        try:
            taken = None if buffers is None else _compiled.decode(self._plan, *buffers)
        except OverflowError:
            # An enum's names may be longer than Arrow allows: the reference refuses the value.
            return None
        if taken is None:
            return None
        return [array_of(field.type, parts) for field, parts in zip(self._fields, taken, strict=True)]


class _NotReadError(Exception):
    """The compiled module does not read a type."""


def _message_plan(message: Descriptor, wanted: Mapping[str, pa.DataType], level: int) -> Plan:
    """Return the plan of a message: its fields, those that are wanted first and in their order, and its ``oneof``."""
    # Extensions are read, and may be refused, by what the pool knows of them.
    if level > _MOST_LEVELS or message.is_extendable or wanted.keys() - set(message.fields_by_name):
        raise _NotReadError
    names = [*wanted, *(field.name for field in message.fields if field.name not in wanted)]
    fields = [_field_plan(message.fields_by_name[name], wanted.get(name), level) for name in names]
    return fields, len(message.oneofs)


def _field_plan(field: FieldDescriptor, kind: pa.DataType | None, level: int) -> Plan:
    """Return the plan of a field that becomes a column of type ``kind``, or None."""
    oneof = field.containing_oneof.index if field.containing_oneof is not None else -1
    if (entry := map_entry(field)) is not None:
        if kind is not None and not pa.types.is_map(kind):
            raise _NotReadError
        return field.number, "map", 0, kind is not None, None, oneof, _entry_plan(entry, kind, level)
    if field.is_repeated:
        if kind is not None and not pa.types.is_list(kind):
            raise _NotReadError
        items = _one_plan(field, None if kind is None else kind.value_type, None, level)
        return field.number, "list", 0, kind is not None, None, oneof, items
    unset = None if field.has_presence and not field.has_default_value else _unset(field)
    return _one_plan(field, kind, unset, level, oneof)


def _entry_plan(entry: Descriptor, kind: pa.DataType | None, level: int) -> Plan:
    key, value = entry.fields
    if value.enum_type is not None and value.enum_type.is_closed:
        raise _NotReadError
    key_type, item_type = (None, None) if kind is None else (kind.key_type, kind.item_type)
    unset = True if value.message_type is not None else _unset(value)
    return [_one_plan(key, key_type, _unset(key), level), _one_plan(value, item_type, unset, level + 1)], 0


def _one_plan(field: FieldDescriptor, kind: pa.DataType | None, unset: Any, level: int, oneof: int = -1) -> Plan:
    """Return the plan of a field, or of one item of it; ``unset`` is what it is without a value, None for null."""
    message = field.message_type
    kept = kind is not None
    if message is None:
        if kept and kind != single_type(field):
            raise _NotReadError
        name, width = _KINDS[field.type]
        of = (_names(field.enum_type), field.enum_type.is_closed) if field.enum_type is not None else None
        return field.number, name, width, kept, unset, oneof, of
    if field.type != _F.TYPE_MESSAGE:
        raise _NotReadError
    if (time := TIMES.get(message.full_name)) is not None:
        found = [(each.name, each.number, each.type, each.is_repeated) for each in message.fields]
        if found != _TIME_FIELDS or (kept and kind != time):
            raise _NotReadError
        of = _message_plan(message, {}, level + 1)
        return field.number, "moment", 8, kept, 0 if unset else None, oneof, of
    if kept and not pa.types.is_struct(kind):
        raise _NotReadError
    inner = {} if kind is None else {each.name: each.type for each in kind}
    return field.number, "message", 0, kept, unset, oneof, _message_plan(message, inner, level + 1)


def _names(enum: EnumDescriptor) -> dict[int, bytes]:
    return {number: name.encode() for number, name in enum_names(enum).items()}


def _unset(field: FieldDescriptor) -> int | bytes:
    """Return what a field without a value is, as the compiled module puts it into a column."""
    value = field.default_value
    if field.enum_type is not None:
        return _names(field.enum_type).get(value, b"%d" % value)
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value
    if isinstance(value, float):
        return int.from_bytes(struct.pack("<f" if field.type == _F.TYPE_FLOAT else "<d", value), "little")
    return int(value) & (1 << 64) - 1
