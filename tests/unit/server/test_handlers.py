"""Every command of the protocol has a handler, a refusal that says why, or an error that names it."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message
from heliograph_api.protocol import wire_pb2 as wire
from heliograph_broker.server.commands.connection_commands import refuse_transaction
from heliograph_broker.server.commands.handlers import HANDLERS

from tests.support.core import Core
from tests.support.virtual_connection import VirtualServer
from tests.support.wire_client import _FIELD_OF_TYPE, Type, encode
from tests.support.wire_specimens import SPECIMENS

#: Commands that only brokers send: to clients, or to each other for transactions.
OF_BROKERS = {
    Type.CONNECTED,
    Type.SEND_RECEIPT,
    Type.SEND_ERROR,
    Type.MESSAGE,
    Type.SUCCESS,
    Type.ERROR,
    Type.PRODUCER_SUCCESS,
    Type.REACHED_END_OF_TOPIC,
    Type.ACTIVE_CONSUMER_CHANGE,
    Type.AUTH_CHALLENGE,
    Type.WATCH_TOPIC_LIST_SUCCESS,
    Type.WATCH_TOPIC_UPDATE,
    Type.TOPIC_MIGRATED,
    Type.END_TXN_ON_PARTITION,
    Type.END_TXN_ON_SUBSCRIPTION,
    *(kind for name, kind in Type.Type.items() if name.endswith("_RESPONSE") and kind != Type.AUTH_RESPONSE),
}
#: The answer to an AUTH_CHALLENGE, which this broker does not send.
UNASKED = {Type.AUTH_RESPONSE}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[VirtualServer]:
    core = Core(tmp_path / "data")
    yield VirtualServer(core)
    core.close()


def fill_required(message: Any) -> None:
    message.SetInParent()
    for field in message.DESCRIPTOR.fields:
        if not field.is_required:
            continue
        if isinstance(getattr(message, field.name), Message):
            fill_required(getattr(message, field.name))
        else:
            setattr(message, field.name, "t" if field.type == field.TYPE_STRING else field.default_value)


def frame_of(kind: int) -> bytes:
    command = wire.BaseCommand()
    body = getattr(command, _FIELD_OF_TYPE[kind])
    fill_required(body)
    return encode(kind, **{field.name: value for field, value in body.ListFields()})


def test_every_command_of_a_client_has_a_handler() -> None:
    assert set(HANDLERS) | {Type.SEND} == set(Type.Type.values()) - OF_BROKERS - UNASKED


def test_every_handler_has_a_valid_command_that_other_tests_spoil() -> None:
    kinds = {
        wire.BaseCommand.FromString(frame[8 : 8 + int.from_bytes(frame[4:8], "big")]).type
        for frame in SPECIMENS.values()
    }
    assert set(HANDLERS) | {Type.SEND} <= kinds


@pytest.mark.parametrize("kind", sorted(OF_BROKERS | UNASKED), ids=Type.Type.Name)
def test_any_other_command_ends_the_connection_with_an_error_that_names_it(server: VirtualServer, kind: int) -> None:
    client = server.connect()
    client.send_raw(frame_of(kind))
    (answer,) = client.take()
    assert answer.command.type == Type.ERROR
    assert answer.body.message == f"malformed frame: a client may not send {Type.Type.Name(kind)}"  # type: ignore[arg-type]
    assert client.lost


@pytest.mark.parametrize(
    "kind", sorted(kind for kind, handler in HANDLERS.items() if handler is refuse_transaction), ids=Type.Type.Name
)
def test_a_transaction_is_refused_with_the_reason_and_the_connection_goes_on(server: VirtualServer, kind: int) -> None:
    client = server.connect()
    client.send_raw(frame_of(kind))
    (answer,) = client.take()
    assert answer.command.type == Type.ERROR
    assert (answer.body.error, answer.body.message) == (wire.NotAllowedError, "Transactions are not enabled.")
    assert not client.closing


def test_a_command_without_a_required_field_is_named(server: VirtualServer) -> None:
    client = server.connect()
    command = wire.BaseCommand(type=Type.LOOKUP)
    command.lookupTopic.topic = "t"
    body = command.SerializePartialToString()
    client.send_raw(struct.pack(">II", len(body) + 4, len(body)) + body)
    (answer,) = client.take()
    assert answer.body.message == "malformed frame: LOOKUP lacks a required field"
    assert client.lost
