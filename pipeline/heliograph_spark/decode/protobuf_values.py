"""Protobuf values: decoded with the messages of the schema's own descriptors, a column at a time.

A field that a message may have or not have is null where it has none. Any other is what Protobuf means by its absence:
zero, no text, an empty list.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import pyarrow as pa
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from .kept_values import UnfitValue
from .protobuf_buffers import COMPILED, ProtobufBuffers
from .protobuf_types import TIMES, enum_names, map_entry, message_type

#: What reading and converting values raises where they do not fit.
_UNFIT = (ValueError, OverflowError, pa.ArrowException)


class ProtobufValues:
    """Decodes messages of the type that a schema's data describe, in the columns ``fields``.

    ``compiled`` is whether the compiled module reads what it can. Raises :class:`ProtobufSchemaError`.
    """

    def __init__(self, definition: str, fields: pa.Schema, *, compiled: bool = COMPILED) -> None:
        message = message_type(definition)
        self._fields = fields
        self._message = GetMessageClass(message)
        self._readers = [_reader(message.fields_by_name[field.name], field.type) for field in fields]
        self._buffers = ProtobufBuffers.for_fields(message, fields) if compiled else None

    def columns(self, values: pa.Array, versions: pa.Array) -> Sequence[pa.Array]:
        """Return a column for each field. Raises :class:`UnfitValue`."""
        found = self._buffers.columns(values) if self._buffers is not None else None
        return found if found is not None else self._one_by_one(values)

    def _one_by_one(self, values: pa.Array) -> Sequence[pa.Array]:
        messages = []
        for row, value in enumerate(values.to_pylist()):
            try:
                messages.append(None if value is None else self._message.FromString(value))
            except DecodeError as error:
                raise _unfit(row, error) from error
        return [self._column(at, messages) for at in range(len(self._readers))]

    def _column(self, at: int, messages: list[Message | None]) -> pa.Array:
        read = self._readers[at]
        try:
            return read(messages)
        except _UNFIT:
            for row, message in enumerate(messages):
                try:
                    read([message])
                except _UNFIT as error:
                    raise _unfit(row, f"field {self._fields[at].name!r}: {error}") from error
            raise


def _unfit(row: int, why: object) -> UnfitValue:
    return UnfitValue(row, f"it is not PROTOBUF_NATIVE as the topic's schema says: {why}")


#: Returns the column of a field for messages, null where there is none.
_Reader = Callable[[Sequence[Any]], pa.Array]
#: Returns the column of what a field has, null for None.
_Builder = Callable[[Sequence[Any]], pa.Array]


def _reader(field: FieldDescriptor, kind: pa.DataType) -> _Reader:
    name = field.name
    if (entry := map_entry(field)) is not None:
        build = _map_builder(entry, kind)
    elif field.is_repeated:
        build = _list_builder(_builder(field, kind.value_type), kind)
    else:
        build = _builder(field, kind)
    if field.has_presence and not field.has_default_value:
        return lambda messages: build(
            [getattr(each, name) if each is not None and each.HasField(name) else None for each in messages]
        )
    return lambda messages: build([None if each is None else getattr(each, name) for each in messages])


def _builder(field: FieldDescriptor, kind: pa.DataType) -> _Builder:
    if field.enum_type is not None:
        return _enum_builder(field.enum_type)
    if field.message_type is None:
        return lambda values: pa.array(values, kind)
    if kind in TIMES.values():
        return lambda values: pa.array(
            [None if each is None else each.seconds * 1_000_000 + each.nanos // 1000 for each in values], pa.int64()
        ).cast(kind)
    readers = [_reader(field.message_type.fields_by_name[each.name], each.type) for each in kind]

    def build(values: Sequence[Any]) -> pa.Array:
        missing = pa.array([each is None for each in values], pa.bool_())
        return pa.StructArray.from_arrays([read(values) for read in readers], fields=list(kind), mask=missing)

    return build


def _enum_builder(enum: EnumDescriptor) -> _Builder:
    names = enum_names(enum)

    def build(values: Sequence[Any]) -> pa.Array:
        # A number that is new where the message was written has no name here.
        return pa.array([None if each is None else names.get(each) or str(each) for each in values], pa.string())

    return build


def _offsets(values: Sequence[Any]) -> pa.Array:
    """Return where each list begins, and where the last one ends; null for none."""
    starts = list(accumulate((len(each or ()) for each in values), initial=0))
    known = [None if each is None else at for at, each in zip(starts, values, strict=False)]
    return pa.array([*known, starts[-1]], pa.int32())


def _list_builder(build: _Builder, kind: pa.DataType) -> _Builder:
    return lambda values: pa.ListArray.from_arrays(
        _offsets(values), build([item for each in values for item in each or ()]), type=kind
    )


def _map_builder(entry: Descriptor, kind: pa.DataType) -> _Builder:
    key, value = entry.fields
    build_keys, build_values = _builder(key, kind.key_type), _builder(value, kind.item_type)

    def build(values: Sequence[Any]) -> pa.Array:
        pairs = [pair for each in values for pair in (each or {}).items()]
        keys = build_keys([pair[0] for pair in pairs])
        return pa.MapArray.from_arrays(_offsets(values), keys, build_values([pair[1] for pair in pairs]), type=kind)

    return build
