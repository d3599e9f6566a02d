"""The descriptors in the data of a Protobuf schema, and the columns of the messages that they describe."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable

import pyarrow as pa
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError

from .rows import TIMESTAMP

#: The moments and durations that are no structs.
TIMES = {"google.protobuf.Timestamp": TIMESTAMP, "google.protobuf.Duration": pa.duration("us")}
_TYPES: dict[int, pa.DataType] = {
    FieldDescriptor.CPPTYPE_INT32: pa.int32(),
    FieldDescriptor.CPPTYPE_INT64: pa.int64(),
    # Spark's numbers have a sign, so each is the next wider one.
    FieldDescriptor.CPPTYPE_UINT32: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT64: pa.decimal128(20, 0),
    FieldDescriptor.CPPTYPE_DOUBLE: pa.float64(),
    FieldDescriptor.CPPTYPE_FLOAT: pa.float32(),
    FieldDescriptor.CPPTYPE_BOOL: pa.bool_(),
    FieldDescriptor.CPPTYPE_ENUM: pa.string(),
    FieldDescriptor.CPPTYPE_STRING: pa.string(),
}


class ProtobufSchemaError(ValueError):
    """The data of a schema are no descriptors, or what they describe has no columns."""


def message_type(definition: str) -> Descriptor:
    """Return the type of the messages that a schema's data describe. Raises :class:`ProtobufSchemaError`."""
    try:
        found = json.loads(definition)
        files = FileDescriptorSet.FromString(base64.b64decode(found["fileDescriptorSet"], validate=True))
        pool = DescriptorPool()
        for file in _in_order({each.name: each for each in files.file}):
            pool.Add(file)
        return pool.FindMessageTypeByName(found["rootMessageTypeName"])
    except (ValueError, TypeError, KeyError, DecodeError) as error:
        raise ProtobufSchemaError(f"it has no descriptors of its messages: {error!r}") from error


def _in_order(files: dict[str, FileDescriptorProto]) -> Iterable[FileDescriptorProto]:
    """Yield each file after those that it imports; one that imports itself, over others, is refused by the pool."""
    while files:
        found = next((each for each in files.values() if not files.keys() & set(each.dependency)), None)
        yield files.pop(found.name if found is not None else next(iter(files)))


def message_columns(message: Descriptor) -> pa.Schema:
    """Return a column for each field. Raises :class:`ProtobufSchemaError`, naming the field that cannot have one."""
    return pa.schema(_fields(message, "", ()))


def _fields(message: Descriptor, where: str, outer: tuple[Descriptor, ...]) -> list[pa.Field]:
    if message in outer:
        raise ProtobufSchemaError(f"field {where}: {message.full_name} is within itself, which no column is")
    if not message.fields and outer:
        raise ProtobufSchemaError(f"field {where}: {message.full_name} has no fields, which no column has")
    inside = (*outer, message)
    return [pa.field(each.name, _type(each, f"{where}.{each.name}".lstrip("."), inside)) for each in message.fields]


def _type(field: FieldDescriptor, where: str, outer: tuple[Descriptor, ...]) -> pa.DataType:
    if (entry := map_entry(field)) is not None:
        key, value = entry.fields
        return pa.map_(_type(key, where, outer), _type(value, where, outer))
    kind = _single(field, where, outer)
    return pa.list_(kind) if field.is_repeated else kind


def _single(field: FieldDescriptor, where: str, outer: tuple[Descriptor, ...]) -> pa.DataType:
    if field.message_type is not None:
        return TIMES.get(field.message_type.full_name) or pa.struct(_fields(field.message_type, where, outer))
    return single_type(field)


def single_type(field: FieldDescriptor) -> pa.DataType:
    """Return the type of one value of a field that is no message."""
    return pa.binary() if field.type == FieldDescriptor.TYPE_BYTES else _TYPES[field.cpp_type]


def enum_names(enum: EnumDescriptor) -> dict[int, str]:
    """Return the name of each number: the first one, if it has several."""
    return {value.number: value.name for value in reversed(enum.values)}


def map_entry(field: FieldDescriptor) -> Descriptor | None:
    """Return the type of a map's keys and values, None for what is no map."""
    found = field.message_type
    return found if found is not None and found.GetOptions().map_entry else None
