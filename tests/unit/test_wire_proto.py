"""The generated protocol code against facts of Pulsar's protocol that must never change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from heliograph_api.protocol import wire_pb2 as wire

#: Names of the types in Pulsar's own notation.
SCALARS = {
    getattr(FieldDescriptor, f"TYPE_{name.upper()}"): name
    for name in ("bool", "bytes", "double", "int32", "int64", "string", "uint32", "uint64")
}
TEXT = {FieldDescriptor.TYPE_STRING: "text-\u00fc", FieldDescriptor.TYPE_BYTES: b"\x00\xff"}


#: One row for each field and enum value of Pulsar 4.2.4, and for each message without fields.
TABLE = Path(__file__).parent / "data" / "pulsar_4_2_4_wire.tsv"


class Row(NamedTuple):
    """A field or an enum value; ``type`` is a scalar type, or the name of a message or enum."""

    kind: str
    of: str
    name: str = ""
    number: str = ""
    label: str = ""
    type: str = ""
    default: str = ""


def fields_of(message: Descriptor, path: str) -> Iterator[Row]:
    if not message.fields:
        yield Row("message", path)
    for field in message.fields:
        named = field.message_type or field.enum_type
        label = "required" if field.is_required else "repeated" if field.is_repeated else "optional"
        default = ""
        if field.has_default_value:
            value = field.default_value
            enum = field.enum_type
            default = enum.values_by_number[value].name if enum is not None else str(value).lower()
        kind = named.full_name.removeprefix(f"{wire.DESCRIPTOR.package}.") if named else SCALARS[field.type]
        yield Row("field", path, field.name, str(field.number), label, kind, default)
    for nested in message.nested_types:
        yield from fields_of(nested, f"{path}.{nested.name}")
    for enum in message.enum_types:
        yield from values_of(enum, f"{path}.{enum.name}")


def values_of(enum: EnumDescriptor, path: str) -> Iterator[Row]:
    for value in enum.values:
        yield Row("enum", path, value.name, str(value.number))


def generated() -> set[Row]:
    """The rows of the generated code."""
    return {
        *(row for name, message in wire.DESCRIPTOR.message_types_by_name.items() for row in fields_of(message, name)),
        *(row for name, enum in wire.DESCRIPTOR.enum_types_by_name.items() for row in values_of(enum, name)),
    }


def of_pulsar() -> set[Row]:
    """The rows of the table."""
    _, *lines = TABLE.read_text().splitlines()
    rows = [Row(*line.split("\t")) for line in lines]
    assert len(rows) == len(set(rows))
    return set(rows)


def test_the_generated_code_is_the_protocol_of_pulsar_4_2_4() -> None:
    ours, pulsars = generated(), of_pulsar()
    assert sorted(pulsars - ours) == []
    assert sorted(ours - pulsars) == []
    assert len(pulsars) > 500


def test_a_send_command_byte_for_byte() -> None:
    # type = SEND (6); send { producer_id = 1, sequence_id = 2, num_messages = 3 }
    command = wire.BaseCommand(type=wire.BaseCommand.SEND)
    command.send.producer_id = 1
    command.send.sequence_id = 2
    command.send.num_messages = 3
    assert command.SerializeToString().hex() == "0806" + "3206" + "080110021803"


def sample(field: FieldDescriptor, depth: int) -> Any:
    """A value the field does not have by default."""
    if field.message_type is not None:
        return filled(field.message_type, depth - 1)
    if field.enum_type is not None:
        return field.enum_type.values[-1].number
    if field.type == FieldDescriptor.TYPE_BOOL:
        return not field.default_value
    return TEXT.get(field.type, field.number + 1)


def filled(descriptor: Descriptor, depth: int) -> Message:
    """The message with every field set; messages inside messages down to `depth`, then only what is required."""
    values: dict[str, Any] = {}
    for field in descriptor.fields:
        if depth > 0 or field.is_required:
            value = sample(field, depth)
            values[field.name] = [value, value] if field.is_repeated else value
    return GetMessageClass(descriptor)(**values)


@pytest.mark.parametrize("name", sorted(wire.DESCRIPTOR.message_types_by_name))
def test_every_field_of_every_message_survives_a_round_trip(name: str) -> None:
    message = filled(wire.DESCRIPTOR.message_types_by_name[name], depth=3)
    assert len(message.ListFields()) == len(message.DESCRIPTOR.fields)
    decoded = type(message)()
    decoded.MergeFromString(message.SerializeToString())
    assert decoded == message
    assert decoded.ListFields() == message.ListFields()
