"""The generated protocol code against facts of Pulsar's protocol that must never change."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from heliograph_api.protocol import wire_pb2 as wire

TEXT = {FieldDescriptor.TYPE_STRING: "text-\u00fc", FieldDescriptor.TYPE_BYTES: b"\x00\xff"}


@pytest.mark.parametrize(
    ("message", "field", "number"),
    [
        ("BaseCommand", "send", 6),
        ("BaseCommand", "message", 9),
        ("BaseCommand", "watchTopicListClose", 67),
        ("CommandSend", "highest_sequence_id", 6),
        ("CommandMessage", "ack_set", 4),
        ("CommandSubscribe", "keySharedMeta", 17),
        ("CommandProducer", "initial_subscription_name", 13),
        ("CommandAck", "request_id", 8),
        ("MessageMetadata", "num_messages_in_batch", 11),
        ("MessageMetadata", "null_partition_key", 30),
        ("MessageIdData", "first_chunk_message_id", 7),
        ("KeySharedMeta", "allowOutOfOrderDelivery", 4),
    ],
)
def test_field_numbers(message: str, field: str, number: int) -> None:
    assert wire.DESCRIPTOR.message_types_by_name[message].fields_by_name[field].number == number


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (wire.ProducerFenced, 25),
        (wire.NotAllowedError, 22),
        (wire.SNAPPY, 4),
        (wire.BaseCommand.TOPIC_MIGRATED, 68),
        (wire.CommandSubscribe.Key_Shared, 3),
        (wire.Schema.ProtobufNative, 20),
    ],
)
def test_enum_numbers(value: int, number: int) -> None:
    assert value == number


def test_defaults() -> None:
    assert wire.MessageIdData(ledgerId=1, entryId=1).partition == -1
    assert wire.CommandSubscribe().durable is True
    assert wire.CommandProducerSuccess().last_sequence_id == -1
    assert wire.MessageMetadata().num_messages_in_batch == 1


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
