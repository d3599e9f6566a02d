"""Messages in Protobuf become the same columns in the compiled module and one by one, whatever bytes they are."""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from heliograph_spark.decode.compiled import built
from heliograph_spark.decode.kept_values import UnfitValue
from heliograph_spark.decode.protobuf_buffers import COMPILED, ProtobufBuffers
from heliograph_spark.decode.protobuf_types import message_columns, message_type
from heliograph_spark.decode.protobuf_values import ProtobufValues
from hypothesis import given, settings
from hypothesis import strategies as st

from .test_protobuf_values import TIMES, data_of

pytestmark = pytest.mark.skipif(not COMPILED, reason="the pipeline's modules are not compiled")

Draw = st.DrawFn
F = FieldDescriptorProto
_NUMBERS: dict[int, st.SearchStrategy[Any]] = {
    **dict.fromkeys([F.TYPE_INT32, F.TYPE_SINT32, F.TYPE_SFIXED32], st.integers(-(1 << 31), (1 << 31) - 1)),
    **dict.fromkeys([F.TYPE_INT64, F.TYPE_SINT64, F.TYPE_SFIXED64], st.integers(-(1 << 63), (1 << 63) - 1)),
    **dict.fromkeys([F.TYPE_UINT32, F.TYPE_FIXED32], st.integers(0, (1 << 32) - 1)),
    **dict.fromkeys([F.TYPE_UINT64, F.TYPE_FIXED64], st.integers(0, (1 << 64) - 1)),
    F.TYPE_BOOL: st.booleans(),
}
_VALUES: dict[int, st.SearchStrategy[Any]] = {
    **_NUMBERS,
    F.TYPE_FLOAT: st.floats(width=32),
    F.TYPE_DOUBLE: st.floats(),
    F.TYPE_STRING: st.text(max_size=4),
    F.TYPE_BYTES: st.binary(max_size=4),
}
_ENUM = {0: "NONE", 1: "ONE", -7: "LESS"}
#: Fields that no message here has.
_UNKNOWN = (b"\xa0\x7d\x05", b"\xa2\x7d\x02\xff\x00", b"\xa5\x7d\x00\x00\x00\x00", b"\xa1\x7d" + bytes(8))


class Types:
    """Draws the types of messages in one file."""

    def __init__(self, draw: Draw) -> None:
        self._draw = draw
        self._proto3 = draw(st.booleans())
        self.file = FileDescriptorProto(name="row.proto", package="p", syntax="proto3" if self._proto3 else "proto2")
        self.file.dependency.extend(each.name for each in TIMES)
        enum = self.file.enum_type.add(name="E")
        for number, name in _ENUM.items():
            enum.value.add(name=name, number=number)

    def message(self, depth: int) -> str:
        message = self.file.message_type.add(name=f"M{len(self.file.message_type)}")
        numbers = self._draw(st.lists(st.integers(1, 2000), min_size=1, max_size=5, unique=True))
        in_oneof = [
            number for number in numbers if self._field(message, number, depth) and self._draw(st.integers(0, 3)) == 0
        ]
        if in_oneof:
            message.oneof_decl.add(name="either")
        for field in message.field:
            if field.number in in_oneof:
                field.oneof_index = 0
                field.ClearField("default_value")
                field.label = F.LABEL_OPTIONAL
            elif field.proto3_optional:
                field.oneof_index = len(message.oneof_decl)
                message.oneof_decl.add(name=f"_{field.name}")
        return f".p.{message.name}"

    def _field(self, message: Any, number: int, depth: int) -> bool:
        """Add a field, and return whether it may be in a ``oneof``."""
        field = message.field.add(name=f"f{number}", number=number, label=F.LABEL_OPTIONAL)
        kind = self._draw(st.sampled_from(["one", "one", "repeated", "map"] if depth else ["one", "one", "repeated"]))
        if kind == "map":
            entry = message.nested_type.add(name=f"F{number}Entry")
            entry.options.map_entry = True
            key = entry.field.add(name="key", number=1, label=F.LABEL_OPTIONAL)
            key.type = self._draw(st.sampled_from([F.TYPE_STRING, *_NUMBERS]))
            value = entry.field.add(name="value", number=2, label=F.LABEL_OPTIONAL)
            self._type(value, depth, in_map=True)
            field.type, field.label = F.TYPE_MESSAGE, F.LABEL_REPEATED
            field.type_name = f".p.{message.name}.{entry.name}"
            return False
        self._type(field, depth)
        if kind == "repeated":
            field.label = F.LABEL_REPEATED
            if field.type not in (F.TYPE_STRING, F.TYPE_BYTES, F.TYPE_MESSAGE):
                field.options.packed = self._draw(st.booleans())
            return False
        if self._proto3:
            field.proto3_optional = field.type != F.TYPE_MESSAGE and self._draw(st.booleans())
            return not field.proto3_optional
        if field.type in (F.TYPE_INT32, F.TYPE_SINT64, F.TYPE_FIXED64, F.TYPE_FLOAT, F.TYPE_STRING):
            field.default_value = self._draw(st.sampled_from(["", "7"]))
            if not field.default_value:
                field.ClearField("default_value")
        elif self._draw(st.integers(0, 5)) == 0:
            field.label = F.LABEL_REQUIRED
        return True

    def _type(self, field: Any, depth: int, *, in_map: bool = False) -> None:
        others = [F.TYPE_MESSAGE] if in_map and not self._proto3 else [F.TYPE_MESSAGE, F.TYPE_ENUM]
        field.type = self._draw(st.sampled_from([*_VALUES, *others * 3]))
        if field.type == F.TYPE_ENUM:
            field.type_name = ".p.E"
        elif field.type == F.TYPE_MESSAGE:
            times = [".google.protobuf.Timestamp", ".google.protobuf.Duration"]
            made = depth and self._draw(st.booleans())
            field.type_name = self.message(depth - 1) if made else self._draw(st.sampled_from(times))


class Writer:
    """Writes messages field by field: Protobuf's own writer makes the bytes of each, which may be in any order."""

    def __init__(self, draw: Draw) -> None:
        self._draw = draw

    def message(self, message: Descriptor) -> bytes:
        if message.file.package == "google.protobuf":
            made: Any = GetMessageClass(message)()
            made.seconds = self._draw(st.integers(-(10**12), 10**12))
            made.nanos = self._draw(st.integers(-999_999_999, 999_999_999))
            return bytes(made.SerializeToString())
        parts: list[bytes] = [self._draw(st.sampled_from(_UNKNOWN)) for _ in range(self._draw(st.integers(0, 1)))]
        taken: set[str] = set()
        for field in message.fields:
            oneof = field.containing_oneof
            if oneof is not None and (oneof.name in taken or taken.add(oneof.name)):  # type: ignore[func-returns-value]
                continue
            parts += self._field(message, field)
        return b"".join(self._draw(st.permutations(parts)))

    def _field(self, message: Descriptor, field: FieldDescriptor) -> list[bytes]:
        kind = field.message_type
        if kind is not None and kind.GetOptions().map_entry:
            key, value = kind.fields
            keys = self._draw(st.lists(_VALUES[key.type], max_size=3, unique=True))
            return [
                self._sized(
                    field, b"".join(self._draw(st.permutations([self._one(kind, key, each), self._any(kind, value)])))
                )
                for each in keys
            ]
        once = not field.is_repeated and kind is not None
        return [self._any(message, field) for _ in range(self._draw(st.integers(0, 1 if once else 2)))]

    def _any(self, message: Descriptor, field: FieldDescriptor) -> bytes:
        if field.message_type is not None:
            return self._sized(field, self.message(field.message_type))
        if field.enum_type is not None:
            values: st.SearchStrategy[Any] = st.sampled_from([*_ENUM, *([] if field.enum_type.is_closed else [9])])
        else:
            values = _VALUES[field.type]
        if field.is_repeated:
            return self._one(message, field, self._draw(st.lists(values, max_size=3)))
        return self._one(message, field, self._draw(values))

    @staticmethod
    def _one(message: Descriptor, field: FieldDescriptor, value: Any) -> bytes:
        return bytes(GetMessageClass(message)(**{field.name: value}).SerializePartialToString())

    @staticmethod
    def _sized(field: FieldDescriptor, data: bytes) -> bytes:
        return _varint(field.number << 3 | 2) + _varint(len(data)) + data


def _varint(number: int) -> bytes:
    low = number & 0x7F
    return bytes([low | 0x80]) + _varint(number >> 7) if number > 0x7F else bytes([low])


Topic = tuple[str, pa.Schema, list[bytes | None]]


@st.composite
def topics(draw: Draw) -> Topic:
    """Return a definition, the columns that are asked for, and written values."""
    types = Types(draw)
    root = types.message(2).lstrip(".")
    definition = data_of(root, types.file, *TIMES)
    message = message_type(definition)
    columns = list(message_columns(message))
    asked = draw(st.lists(st.sampled_from(columns), unique_by=lambda each: each.name))
    writer = Writer(draw)
    values = [writer.message(message) if draw(st.integers(0, 4)) else None for _ in range(draw(st.integers(0, 4)))]
    return definition, pa.schema(asked), values


def _decoded(definition: str, fields: pa.Schema, values: list[bytes | None], *, compiled: bool) -> Any:
    """Decode the values as a part of more, as batches are cut."""
    more = pa.array([b"before", *values, b"after"], pa.binary()).slice(1, len(values))
    decoder = ProtobufValues(definition, fields, compiled=compiled)
    try:
        found = list(decoder.columns(more, pa.nulls(len(values), pa.binary())))
    except UnfitValue as error:
        return error.row, error.reason
    for each, field in zip(found, fields, strict=True):
        each.validate(full=True)
        assert (each.type, len(each)) == (field.type, len(values))
    return [_outcome(each) for each in found]


def _outcome(array: pa.Array) -> list[str | None]:
    """Return what each row is: NaN is itself, a moment may be in any year, and a map has no order."""
    kind = array.type
    rows: list[Any]
    if pa.types.is_struct(kind):
        rows = list(zip(*(_outcome(array.field(at)) for at in range(kind.num_fields)), strict=True))
    elif pa.types.is_map(kind):
        pairs = list(zip(_outcome(array.keys), _outcome(array.items), strict=True))
        rows = [sorted(pairs[a:b], key=repr) for a, b in _ranges(array)]
    elif pa.types.is_list(kind):
        items = _outcome(array.values)
        rows = [items[a:b] for a, b in _ranges(array)]
    else:
        rows = (array.cast(pa.int64()) if pa.types.is_temporal(kind) else array).to_pylist()
    return [repr(row) if valid else None for row, valid in zip(rows, array.is_valid().to_pylist(), strict=True)]


def _ranges(array: pa.Array) -> list[tuple[int, int]]:
    return list(pairwise(array.offsets.to_pylist()))


def _same_from_both(definition: str, fields: pa.Schema, values: list[bytes | None]) -> None:
    assert _decoded(definition, fields, values, compiled=True) == _decoded(definition, fields, values, compiled=False)


@given(topics())
@settings(max_examples=300)
def test_what_is_written_is_the_same_in_bulk_and_one_by_one(topic: Topic) -> None:
    definition, fields, values = topic
    buffers = ProtobufBuffers.for_fields(message_type(definition), fields)
    assert buffers is not None
    found = buffers.columns(pa.array(values, pa.binary()))
    assert found is not None or not any(values)
    _same_from_both(definition, fields, values)


@given(topics(), st.data())
@settings(max_examples=500)
def test_damaged_messages_are_the_same_in_bulk_and_one_by_one(topic: Topic, data: st.DataObject) -> None:
    definition, fields, values = topic
    spoiled: list[bytes | None] = []
    for each in values:
        if each:
            at = data.draw(st.integers(0, len(each) - 1))
            inserted = data.draw(st.binary(max_size=3) | st.sampled_from(_UNKNOWN))
            each = each[:at] + inserted + each[at + data.draw(st.integers(0, 2)) :]
        spoiled.append(each)
    _same_from_both(definition, fields, spoiled)


def _row(syntax: str, *kinds: int, change: Callable[[Any], None] = lambda message: None) -> str:
    """Return the data of a message with fields 1, 2, … of these types, and of the oneof ``either`` with -1."""
    file = FileDescriptorProto(name="row.proto", syntax=syntax)
    enum = file.enum_type.add(name="E")
    enum.value.add(name="NONE", number=0)
    file.message_type.add(name="Inner").field.add(name="n", number=1, type=F.TYPE_INT32, label=F.LABEL_OPTIONAL)
    row = file.message_type.add(name="Row")
    names: dict[int, str] = {F.TYPE_ENUM: ".E", F.TYPE_MESSAGE: ".Inner", F.TYPE_GROUP: ".Inner"}
    for number, kind in enumerate(kinds, start=1):
        field = row.field.add(name=f"f{number}", number=number, type=kind, label=F.LABEL_OPTIONAL)
        if kind in names:
            field.type_name = names[kind]
    change(row)
    return data_of("Row", file)


@pytest.mark.parametrize("syntax", ["proto2", "proto3"])
@pytest.mark.parametrize(
    ("kind", "value", "in_bulk"),
    [
        (F.TYPE_INT32, b"\x08\xff\xff\xff\xff\x0f", False),
        (F.TYPE_INT32, b"\x08" + b"\xff" * 9 + b"\x01", True),
        (F.TYPE_INT32, b"\x08\x81\x00", True),
        (F.TYPE_INT32, b"\x88\x00\x05", True),
        (F.TYPE_INT32, b"\x88\x80\x80\x80\x80\x00\x05", False),
        (F.TYPE_INT32, b"\x88\x80\x80\x80\x10\x05", False),
        (F.TYPE_INT32, b"\x08" + b"\xff" * 9 + b"\x02", False),
        (F.TYPE_INT32, b"\x08" + b"\xff" * 10 + b"\x01", False),
        (F.TYPE_INT32, b"\x08", False),
        (F.TYPE_INT32, b"\x08\x80", False),
        (F.TYPE_INT32, b"\x0a\x01\x05", False),
        (F.TYPE_INT32, b"\x0d\x05\x00\x00\x00", False),
        (F.TYPE_INT32, b"\x08\x05\x08\x06", True),
        (F.TYPE_INT32, b"\x00\x05", False),
        (F.TYPE_INT32, b"\x0c", False),
        (F.TYPE_INT32, b"\x1b\x08\x01\x1c", False),
        (F.TYPE_INT32, b"\x1b\x08\x01", False),
        (F.TYPE_INT32, b"\x1f", False),
        (F.TYPE_INT32, b"\x19\x00\x00", False),
        (F.TYPE_INT32, b"\x1a\x05abc", False),
        (F.TYPE_INT32, b"\x1a\xff\xff\xff\xff\x0f", False),
        (F.TYPE_INT32, b"\x1a\x81\x80\x80\x80\x80\x00a", False),
        (F.TYPE_SINT32, b"\x08\xff\xff\xff\xff\xff\x01", False),
        (F.TYPE_UINT32, b"\x08\xff\xff\xff\xff\x1f", False),
        (F.TYPE_UINT64, b"\x08" + b"\xff" * 9 + b"\x01", True),
        (F.TYPE_BOOL, b"\x08\x02", False),
        (F.TYPE_FLOAT, b"\x0d\x00\x00\x00", False),
        (F.TYPE_FLOAT, b"\x0d" + struct.pack("<f", -0.0), True),
        (F.TYPE_DOUBLE, b"\x09" + b"\xff" * 8, True),
        (F.TYPE_DOUBLE, b"\x09" + b"\xff" * 7, False),
        (F.TYPE_STRING, b"\x0a\x01\xff", False),
        (F.TYPE_STRING, b"\x0a\x03\xed\xa0\x80", False),
        (F.TYPE_STRING, b"\x0a\x02a", False),
        (F.TYPE_STRING, b"\x0a\x01\xff\x0a\x01a", False),
        (F.TYPE_ENUM, b"\x08\x80\x80\x80\x80\x10", False),
        (F.TYPE_MESSAGE, b"\x0a\x02\x08\x01\x0a\x00", False),
        (F.TYPE_MESSAGE, b"\x0a\x03\x08\x01", False),
        (F.TYPE_MESSAGE, b"\x0a\x01\x08\x01", False),
        (F.TYPE_MESSAGE, b"\x0a\x00", True),
    ],
)
@pytest.mark.parametrize("asked", ["f1", "f2"])
def test_odd_values_are_the_same_from_both(syntax: str, kind: int, value: bytes, in_bulk: bool, asked: str) -> None:
    definition = _row(syntax, kind, F.TYPE_STRING)
    message = message_type(definition)
    fields = pa.schema([message_columns(message).field(asked)])
    buffers = ProtobufBuffers.for_fields(message, fields)
    assert buffers is not None
    values: list[bytes | None] = [b"", None, value]
    assert (buffers.columns(pa.array(values, pa.binary())) is not None) == in_bulk
    _same_from_both(definition, fields, values)


def test_what_a_value_cannot_say_in_bulk_is_read_one_by_one() -> None:
    """Two members of a oneof, an enum's number without a name, a key twice or with another field, and many keys."""

    def change(row: Any) -> None:
        row.oneof_decl.add(name="either")
        row.field[0].oneof_index = row.field[1].oneof_index = 0
        entry = row.nested_type.add(name="ByNameEntry")
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, type=F.TYPE_STRING, label=F.LABEL_OPTIONAL)
        entry.field.add(name="value", number=2, type=F.TYPE_MESSAGE, type_name=".Inner", label=F.LABEL_OPTIONAL)
        row.field.add(name="by_name", number=9, type=F.TYPE_MESSAGE, type_name=".Row.ByNameEntry", label=3)

    definition = _row("proto2", F.TYPE_INT32, F.TYPE_STRING, F.TYPE_ENUM, change=change)
    message = message_type(definition)
    fields = message_columns(message)
    buffers = ProtobufBuffers.for_fields(message, fields)
    assert buffers is not None
    many = [b"\x4a\x05\x0a\x01%c\x12\x00" % each for each in range(97, 97 + 17)]
    for value, in_bulk in [
        (b"\x08\x01\x08\x02", True),
        (b"\x08\x01\x12\x01a", False),
        (b"\x18\x00", True),
        (b"\x18\x07", False),
        (b"\x4a\x00", True),
        (b"\x4a\x03\x0a\x01a", True),
        (b"\x4a\x02\x12\x00", True),
        (b"\x4a\x00\x4a\x00", False),
        (b"\x4a\x07\x0a\x01a\x0a\x02ab", True),
        (b"".join(many[:16]), True),
        (b"".join(many), False),
        (many[0] * 2, False),
        (b"\x4a\x07\x0a\x01a\x12\x00\x18\x00", False),
    ]:
        values: list[bytes | None] = [value]
        assert (buffers.columns(pa.array(values, pa.binary())) is not None) == in_bulk
        _same_from_both(definition, fields, [*values, None, b"", *values])


def test_a_number_with_two_names_has_the_first_one() -> None:
    file = FileDescriptorProto(name="row.proto", syntax="proto3")
    kind = file.enum_type.add(name="Kind")
    kind.options.allow_alias = True
    for name, number in (("NONE", 0), ("FIRST", 1), ("SECOND", 1)):
        kind.value.add(name=name, number=number)
    row = file.message_type.add(name="Row")
    row.field.add(name="kind", number=1, type=F.TYPE_ENUM, type_name=".Kind", label=1)
    row.field.add(name="kinds", number=2, type=F.TYPE_ENUM, type_name=".Kind", label=3)
    definition = data_of("Row", file)
    message = message_type(definition)
    fields = message_columns(message)
    value = b"\x08\x01\x12\x02\x01\x00"
    assert json_format.MessageToDict(GetMessageClass(message).FromString(value)) == {
        "kind": "FIRST",
        "kinds": ["FIRST", "NONE"],
    }
    found = ProtobufValues(definition, fields).columns(pa.array([value], pa.binary()), pa.nulls(1, pa.binary()))
    assert [each.to_pylist() for each in found] == [["FIRST"], [["FIRST", "NONE"]]]
    _same_from_both(definition, fields, [value])


def test_types_that_the_module_does_not_read_are_left_to_the_reference() -> None:
    def extend(row: Any) -> None:
        row.extension_range.add(start=100, end=200)

    for definition in (_row("proto2", F.TYPE_GROUP), _row("proto2", F.TYPE_INT32, change=extend)):
        message = message_type(definition)
        assert ProtobufBuffers.for_fields(message, message_columns(message)) is None
        _same_from_both(definition, message_columns(message), [b"\x0b\x08\x01\x0c", b""])
    message = message_type(_row("proto2", F.TYPE_INT32))
    assert ProtobufBuffers.for_fields(message, pa.schema([("f1", pa.int64())])) is None


@pytest.mark.parametrize("seconds", [9223372030000, 9223372030001, -9223372030000, 9223372036854, 1 << 60])
def test_moments_are_the_same_from_both(seconds: int) -> None:
    file = FileDescriptorProto(name="row.proto", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    row = file.message_type.add(name="Row")
    row.field.add(name="at", number=1, type=F.TYPE_MESSAGE, type_name=".google.protobuf.Timestamp", label=1)
    pool = DescriptorPool()
    for each in (*TIMES, file):
        pool.Add(each)
    written: Any = GetMessageClass(pool.FindMessageTypeByName("Row"))()
    definition = data_of("Row", file, *TIMES)
    for nanos in (-(1 << 31), -1000, -999, -1, 0, 1, 999, 1000, (1 << 31) - 1):
        written.at.seconds, written.at.nanos = seconds, nanos
        fields = message_columns(message_type(definition))
        _same_from_both(definition, fields, [written.SerializeToString()])


@pytest.mark.parametrize("offsets", [(0, 9), (4, 0), (-1, 2)])
def test_values_outside_of_their_buffer_are_refused(offsets: tuple[int, int]) -> None:
    module, borders = built("_protobuf"), struct.pack("<2i", *offsets)
    with pytest.raises(ValueError, match="outside of the buffer"):
        module.decode(([], 0), 0, 1, None, borders, b"\x08\x01")
    for first, count, validity in ((0, 2, None), (1, 1, None), (-1, 1, None), (0, 1, b"")):
        with pytest.raises(ValueError, match="not so many values"):
            module.decode(([], 0), first, count, validity, borders, b"\x08\x01")
