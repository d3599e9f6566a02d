"""Every command with a hostile value in every field, sent to the real core: refused without a trace, or valid.

Where the answer is an error, or the connection ends, nothing durable has changed and no total has moved. An accepted
value survives a restart. Other connections notice nothing, and nothing ends in an internal error.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from heliograph_api.protocol import wire_pb2 as wire
from heliograph_api.protocol.frames import parse_entry
from heliograph_api.protocol.varints import varint
from heliograph_api.values.names import TopicName
from heliograph_broker.messaging.base.records import SchemaRecord
from heliograph_broker.messaging.topic.topic import Topic

from tests.support.core import Core
from tests.support.entries import make_entry, seal
from tests.support.virtual_connection import FarSide, VirtualServer
from tests.support.wire_client import Type, encode, payload_of
from tests.support.wire_specimens import CONNECT, CONSUMER_ID, OPENING, SPECIMENS, TOPIC

#: Messages within messages are spoiled down to this depth; an id names others without end.
DEPTH = 3
#: The innocent pair exchanges a message once in so many cases: each takes a sync.
BEAT_EVERY = 25
_NUMBERS = (0, 1, 255, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
_TEXTS = {
    "empty": b"",
    "blank": b" ",
    "NUL": b"a\0b",
    "not UTF-8": b"\xff\xfe",
    "half a pair": b"\xed\xa0\x80",
    "line": b"a\nb",
    "path": b"../../../../etc",
    "open": b"persistent://public/default/",
    "partition": TOPIC.encode() + b"-partition-7",
    "long": b"x" * 70_000,
    "deep": b"(" * 300,
}
_VARINTS = {
    FieldDescriptor.TYPE_INT32,
    FieldDescriptor.TYPE_INT64,
    FieldDescriptor.TYPE_UINT32,
    FieldDescriptor.TYPE_UINT64,
    FieldDescriptor.TYPE_BOOL,
    FieldDescriptor.TYPE_ENUM,
    FieldDescriptor.TYPE_SINT32,
    FieldDescriptor.TYPE_SINT64,
}


#: A consumer that may acknowledge cumulatively.
_IN_ORDER = CONNECT + encode(
    Type.SUBSCRIBE,
    topic=TOPIC,
    subscription="spoiled",
    subType=wire.CommandSubscribe.Failover,
    consumer_id=CONSUMER_ID,
    request_id=2,
)
#: Command -> what its connection begins with, where that is another thing than usual.
OPENINGS = {"connect": b"", "ack_cumulative": _IN_ORDER}

#: Commands that a client may not send, and transactions, which there are not.
NEVER_TAKEN = {"send_receipt", "message", "auth_challenge"} | {
    "add_partition_to_txn",
    "add_subscription_to_txn",
    "end_txn",
    "new_txn",
    "tc_client_connect",
}


def delimited(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def hostile_values(field: Any) -> Iterator[tuple[str, bytes]]:
    """Yield what may come in a field as it is on the wire; of a single field the last value counts."""
    if field.type in _VARINTS:
        for number in _NUMBERS:
            yield str(number), varint(field.number << 3) + varint(number)
        if field.is_repeated:
            yield "10,000 of them", (varint(field.number << 3) + varint((1 << 64) - 1)) * 10_000
    elif field.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES):
        for name, text in _TEXTS.items():
            yield name, delimited(field.number, text)
    elif field.message_type is not None:
        yield "empty", delimited(field.number, b"")
        yield "no message", delimited(field.number, b"\xff\xff\xff")
        if field.is_repeated:
            yield "3,000 empty ones", delimited(field.number, b"") * 3000
    yield "of another type", varint(field.number << 3 | 1) + bytes(8)


def complete(message: Message) -> Message:
    """Give the required fields that are not set a value."""
    for field in message.DESCRIPTOR.fields:
        if field.is_required and not message.HasField(field.name):
            if field.message_type is not None:
                complete(getattr(message, field.name)).SetInParent()
            else:
                setattr(message, field.name, "x" if field.type == FieldDescriptor.TYPE_STRING else field.default_value)
    return message


def spoiled(message: Message, depth: int = DEPTH) -> Iterator[tuple[str, bytes]]:
    """Yield the message with one field spoiled, left out, or said twice, for each field and way."""
    whole = message.SerializePartialToString()
    for field in message.DESCRIPTOR.fields:
        for label, raw in hostile_values(field):
            yield f"{field.name}: {label}", whole + raw
        without = type(message)()
        without.CopyFrom(message)
        without.ClearField(field.name)
        rest = without.SerializePartialToString()
        yield f"{field.name}: missing", rest
        if field.message_type is None or depth == 0:
            continue
        value = getattr(message, field.name)
        inner = type(message)()
        part = getattr(inner, field.name).add() if field.is_repeated else getattr(inner, field.name)
        if field.is_repeated and len(value):
            part.CopyFrom(value[0])
            yield f"{field.name}: twice", whole + delimited(field.number, value[0].SerializePartialToString())
            yield f"{field.name}: 1,000 times", whole + delimited(field.number, value[0].SerializeToString()) * 1000
        elif not field.is_repeated and message.HasField(field.name):
            part.CopyFrom(value)
        for label, data in spoiled(complete(part), depth - 1):
            yield f"{field.name}.{label}", rest + delimited(field.number, data)


def frame_of(command: bytes, entry: bytes) -> bytes:
    return struct.pack(">II", 4 + len(command) + len(entry), len(command)) + command + entry


def commands(name: str, position: tuple[int, int]) -> Iterator[tuple[str, bytes]]:
    """Yield every spoiled form of one command; the ids in it name entries that exist."""
    frame = SPECIMENS[name]
    end = 8 + int.from_bytes(frame[4:8], "big")
    command = wire.BaseCommand.FromString(frame[8:end])
    entry = frame[end:]
    locate(command, position)
    if command.HasField("producer"):
        # Such a one is admitted beside others.
        command.producer.producer_access_mode = wire.Shared
        command.producer.initial_subscription_name = "initial"
        command.producer.schema.type = wire.Schema.String
    yield "as it should be", frame_of(command.SerializeToString(), entry)
    for number in _NUMBERS:
        yield f"type: {number}", frame_of(command.SerializeToString() + varint(8) + varint(number), entry)
    (present,) = [field for field, _ in command.ListFields() if field.message_type is not None]
    head = wire.BaseCommand(type=command.type).SerializeToString()
    for label, body in spoiled(getattr(command, present.name)):
        yield label, frame_of(head + delimited(present.number, body), entry)
    if not entry or command.type != Type.SEND:
        return
    metadata, at = parse_entry(entry)
    for label, data in spoiled(metadata, 1):
        yield f"metadata.{label}", frame_of(command.SerializeToString(), seal(data, entry[at:]))
    if metadata.HasField("num_messages_in_batch"):
        size = int.from_bytes(entry[at : at + 4], "big")
        single = wire.SingleMessageMetadata.FromString(entry[at + 4 : at + 4 + size])
        for label, data in spoiled(single, 1):
            payload = struct.pack(">I", len(data)) + data + entry[at + 4 + size :]
            spoiled_entry = seal(metadata.SerializeToString(), payload)
            yield f"single metadata.{label}", frame_of(command.SerializeToString(), spoiled_entry)


def locate(message: Message, position: tuple[int, int]) -> None:
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        for part in value if field.is_repeated else [value]:
            if isinstance(part, wire.MessageIdData):
                part.ledgerId, part.entryId = position[0], position[1] + part.entryId
            else:
                locate(part, position)


def state(core: Core, *, durable: bool = False) -> dict[str, Any]:
    """Return all that is kept, and all totals."""
    broker = core.broker
    found: dict[str, Any] = {
        "tenants": sorted(broker.directory.tenants),
        "namespaces": sorted(broker.directory.namespaces),
        "partitioned": {name: record.partitions for name, record in broker.directory.partitioned.items()},
        "schemas": {
            key: [(version.type, version.data) for version in broker.schemas.versions(key)]
            for key in broker.schemas.topics()
        },
    }
    for name, topic in broker.directory.topics.items():
        if not isinstance(topic, Topic):
            continue
        found[name] = (
            topic.log.first_offset,
            topic.log.end_offset,
            topic.log.total_messages,
            topic.log.total_bytes,
            topic.policies,
        )
        for sub, subscription in topic.subscriptions.items():
            cursor = subscription.acks.cursor
            if durable <= subscription.durable:
                found[f"{name} {sub}"] = (
                    cursor.mark_delete,
                    cursor.acked_messages,
                    cursor.acked_bytes,
                    list(cursor.acked),
                    dict(cursor.partial),
                    subscription.properties,
                )
    return found


def refusal(client: FarSide) -> str | None:
    """Return why the last command was refused, None if it was not; it is never by a mistake of the broker's."""
    reason = None
    for frame in client.take():
        body = frame.body
        failed = any(field.name in ("error", "error_code") for field, _ in body.ListFields())
        if failed or isinstance(body, wire.CommandError):
            reason = str(body)
            assert "internal error" not in reason
    return reason or ("closed" if client.closing or client.lost else None)


class Innocent:
    """A producer and a consumer of another client, on the topic that is attacked."""

    def __init__(self, server: VirtualServer) -> None:
        self.server = server
        self.client = server.connect()
        answer = self.client.request(Type.PRODUCER, topic=TOPIC, producer_id=1, producer_name="innocent")
        assert isinstance(answer, wire.CommandProducerSuccess)
        answer = self.client.request(
            Type.SUBSCRIBE, topic=TOPIC, subscription="innocent", subType=wire.CommandSubscribe.Exclusive, consumer_id=1
        )
        assert isinstance(answer, wire.CommandSuccess)
        self.client.send(Type.FLOW, consumer_id=1, messagePermits=1_000_000)
        self.sent = 0

    def check(self) -> None:
        """A message comes through, and nothing unexpected does."""
        self.sent += 1
        payload = b"%d of the innocent" % self.sent
        self.client.take()
        self.client.send(Type.SEND, make_entry(payload), producer_id=1, sequence_id=self.sent, num_messages=1)
        self.server.core.commit()
        frames = self.client.take()
        kinds = sorted(frame.command.type for frame in frames)
        assert kinds == sorted((Type.SEND_RECEIPT, Type.MESSAGE))
        assert any(payload_of(frame) == payload for frame in frames if frame.command.type == Type.MESSAGE)
        assert not self.client.lost


@pytest.fixture
def server(tmp_path: Path) -> Iterator[VirtualServer]:
    core = Core(tmp_path / "data")
    yield VirtualServer(core)
    core.close()


def prepare(core: Core, name: str) -> Topic:
    """Put the topic and its subscription in the same state for each case."""
    topic = core.topic(TOPIC)
    if "initial" in topic.subscriptions:
        topic.delete_subscription("initial")
    spoiled = topic.subscriptions.get("spoiled")
    if spoiled is None or spoiled.acks.backlog_messages != topic.log.total_messages:
        if spoiled is not None:
            topic.delete_subscription("spoiled")
        topic.create_subscription("spoiled", "earliest")
    core.broker.schemas.delete(TOPIC)
    if name == "get_schema":
        core.broker.schemas.add(TOPIC, SchemaRecord(name="s", type=wire.Schema.String, data=b""))
    core.commit()
    return topic


@pytest.mark.parametrize("name", SPECIMENS)
def test_a_command_with_a_hostile_field_is_refused_without_a_trace_or_is_valid(
    server: VirtualServer, name: str
) -> None:
    core = server.core
    topic = core.topic(TOPIC)
    core.publish(core.producer(topic, name="filler"))
    core.publish(core.producer(topic, name="batcher"), messages=3)
    core.commit()
    innocent = Innocent(server)
    refused = taken = 0
    for number, (label, data) in enumerate(commands(name, topic.log.position(topic.log.first_offset))):
        topic = prepare(core, name)
        client = server.connect(handshake=False)
        client.send_raw(OPENINGS.get(name, OPENING))
        core.commit()
        client.take()
        before = state(core)
        client.send_raw(data)
        core.commit()
        after = state(core)
        if refusal(client) is not None:
            refused += 1
            assert after == before, label
        else:
            taken += 1
            assert after[f"{TOPIC} innocent"] == before[f"{TOPIC} innocent"], label
            # Never more messages than are there, nor more bytes than came.
            most = {"send": 1, "send_batch": 3}.get(name, 0)
            assert min(1, most) <= after[TOPIC][2] - before[TOPIC][2] <= most, label
            assert after[TOPIC][3] - before[TOPIC][3] <= len(data), label
        client.abort()
        server.loop.run()
        core.commit()
        assert not innocent.client.lost, label
        if not number % BEAT_EVERY:
            innocent.check()
    innocent.check()
    assert refused or name in {"ping", "pong"}
    assert taken or name in NEVER_TAKEN
    kept = state(core, durable=True)
    core.restart()
    assert state(core, durable=True) == kept
    for stored in core.broker.directory.topics:
        assert str(TopicName.parse(stored)) == stored
