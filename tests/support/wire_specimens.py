"""One valid frame of every command a client may send, and ways to spoil it."""

from __future__ import annotations

import random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from heliograph_api.protocol import wire_pb2 as wire
from heliograph_api.protocol.encoder import encode_command, encode_command_with_entry

from .entries import make_entry
from .wire_client import _FIELD_OF_TYPE, Type, encode

TOPIC = "persistent://public/default/spoiled"
PRODUCER_ID = 1
CONSUMER_ID = 1

CONNECT = encode(Type.CONNECT, client_version="spoiler", protocol_version=21)
#: The first commands of a case's connection: a producer and a consumer that later commands can name.
OPENING = (
    CONNECT
    + encode(Type.PRODUCER, topic=TOPIC, producer_id=PRODUCER_ID, request_id=1)
    + encode(
        Type.SUBSCRIBE,
        topic=TOPIC,
        subscription="spoiled",
        subType=wire.CommandSubscribe.Shared,
        consumer_id=CONSUMER_ID,
        request_id=2,
    )
    + encode(Type.FLOW, consumer_id=CONSUMER_ID, messagePermits=10)
)

_ID = wire.MessageIdData(ledgerId=1, entryId=0)
_BATCH_ID = wire.MessageIdData(ledgerId=1, entryId=1, batch_index=1, ack_set=[5])
_CONSUMER: dict[str, Any] = {"consumer_id": CONSUMER_ID}
_TXN: dict[str, Any] = {"request_id": 9, "txnid_least_bits": 1, "txnid_most_bits": 2}

#: Name -> valid frame.
SPECIMENS: dict[str, bytes] = {
    "connect": CONNECT,
    "ping": encode(Type.PING),
    "pong": encode(Type.PONG),
    "lookup": encode(Type.LOOKUP, topic=TOPIC, request_id=9),
    "partitioned_metadata": encode(Type.PARTITIONED_METADATA, topic=TOPIC, request_id=9),
    "producer": encode(
        Type.PRODUCER,
        topic=TOPIC,
        producer_id=2,
        request_id=9,
        producer_name="named",
        producer_access_mode=wire.Exclusive,
        metadata=[wire.KeyValue(key="k", value="v")],
        schema=wire.Schema(name="s", schema_data=b'{"type":"string"}', type=wire.Schema.Json),
    ),
    "send": encode(Type.SEND, make_entry(b"single"), producer_id=PRODUCER_ID, sequence_id=1, num_messages=1),
    "send_batch": encode(
        Type.SEND, make_entry([b"a", b"bc", b""]), producer_id=PRODUCER_ID, sequence_id=2, num_messages=3
    ),
    "close_producer": encode(Type.CLOSE_PRODUCER, producer_id=PRODUCER_ID, request_id=9),
    "subscribe": encode(
        Type.SUBSCRIBE,
        topic=TOPIC,
        subscription="second",
        subType=wire.CommandSubscribe.Key_Shared,
        consumer_id=2,
        request_id=9,
        consumer_name="c",
        priority_level=1,
        durable=False,
        start_message_id=_ID,
        metadata=[wire.KeyValue(key="k", value="v")],
        keySharedMeta=wire.KeySharedMeta(keySharedMode=wire.STICKY, hashRanges=[wire.IntRange(start=0, end=65535)]),
    ),
    "flow": encode(Type.FLOW, messagePermits=100, **_CONSUMER),
    "ack": encode(
        Type.ACK, ack_type=wire.CommandAck.Individual, message_id=[_ID, _BATCH_ID], request_id=9, **_CONSUMER
    ),
    "ack_cumulative": encode(
        Type.ACK, ack_type=wire.CommandAck.Cumulative, message_id=[_BATCH_ID], request_id=9, **_CONSUMER
    ),
    "redeliver": encode(
        Type.REDELIVER_UNACKNOWLEDGED_MESSAGES, message_ids=[_ID, _BATCH_ID], consumer_epoch=1, **_CONSUMER
    ),
    "unsubscribe": encode(Type.UNSUBSCRIBE, request_id=9, **_CONSUMER),
    "seek": encode(Type.SEEK, request_id=9, message_id=_BATCH_ID, **_CONSUMER),
    "seek_time": encode(Type.SEEK, request_id=9, message_publish_time=1_700_000_000_000, **_CONSUMER),
    "get_last_message_id": encode(Type.GET_LAST_MESSAGE_ID, request_id=9, **_CONSUMER),
    "consumer_stats": encode(Type.CONSUMER_STATS, request_id=9, **_CONSUMER),
    "close_consumer": encode(Type.CLOSE_CONSUMER, request_id=9, **_CONSUMER),
    "topics_of_namespace": encode(
        Type.GET_TOPICS_OF_NAMESPACE,
        request_id=9,
        namespace="public/default",
        topics_pattern="persistent://public/default/sp.*",
        topics_hash="00",
    ),
    "watch_topic_list": encode(
        Type.WATCH_TOPIC_LIST,
        request_id=9,
        watcher_id=1,
        namespace="public/default",
        topics_pattern="persistent://public/default/sp.*",
    ),
    "watch_topic_list_close": encode(Type.WATCH_TOPIC_LIST_CLOSE, request_id=9, watcher_id=1),
    "get_schema": encode(Type.GET_SCHEMA, request_id=9, topic=TOPIC, schema_version=bytes(8)),
    "get_or_create_schema": encode(
        Type.GET_OR_CREATE_SCHEMA,
        request_id=9,
        topic=TOPIC,
        schema=wire.Schema(name="s", schema_data=b'{"type":"string"}', type=wire.Schema.Avro),
    ),
    "tc_client_connect": encode(Type.TC_CLIENT_CONNECT_REQUEST, request_id=9, tc_id=0),
    "new_txn": encode(Type.NEW_TXN, request_id=9, tc_id=0, txn_ttl_seconds=1),
    "add_partition_to_txn": encode(Type.ADD_PARTITION_TO_TXN, partitions=[TOPIC], **_TXN),
    "add_subscription_to_txn": encode(
        Type.ADD_SUBSCRIPTION_TO_TXN, subscription=[wire.Subscription(topic=TOPIC, subscription="s")], **_TXN
    ),
    "end_txn": encode(Type.END_TXN, txn_action=wire.COMMIT, **_TXN),
    # A client never sends these; the broker must say so.
    "send_receipt": encode(Type.SEND_RECEIPT, producer_id=1, sequence_id=1, message_id=_ID),
    "message": encode(Type.MESSAGE, make_entry(b"x"), consumer_id=1, message_id=_ID),
    "auth_challenge": encode(Type.AUTH_CHALLENGE, server_version="x"),
}

_NUMBERS = (
    0,
    1,
    2,
    127,
    128,
    65535,
    65536,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
    (1 << 63) - 1,
    1 << 63,
    (1 << 64) - 1,
)
_TEXTS = (
    "",
    " ",
    "/",
    "a/b/c",
    "public/default",
    TOPIC,
    "spoiled",
    "persistent://",
    "non-persistent://public/default/spoiled",
    "persistent://public/default/spoiled-partition-0",
    "persistent://public/default/spoiled-partition-99999999999999999999",
    "persistent://no/such/topic",
    "x" * 5000,
    "\0",
    "\ud7ff\U0010ffff",
    "%2F%ZZ",
    "(((((",
    ".*",
)
_BYTES = (b"", b"\0", b"\xff" * 9, b"{", b'{"type":"record"}', b"x" * 5000)
_SIGNED_32 = {FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_SINT32, FieldDescriptor.TYPE_SFIXED32}
_SIGNED_64 = {FieldDescriptor.TYPE_INT64, FieldDescriptor.TYPE_SINT64, FieldDescriptor.TYPE_SFIXED64}
_UNSIGNED_32 = {FieldDescriptor.TYPE_UINT32, FieldDescriptor.TYPE_FIXED32}


def flip(frame: bytes, bits: list[int]) -> bytes:
    """Return ``frame`` with the bits at these places (modulo its length) inverted."""
    spoiled = bytearray(frame)
    for bit in bits:
        at = bit % (len(frame) * 8)
        spoiled[at // 8] ^= 1 << at % 8
    return bytes(spoiled)


def with_extreme_fields(frame: bytes, rng: random.Random) -> bytes:
    """Return the same command, still well-formed, with extreme or absurd values in some of its fields."""
    command_end = 8 + int.from_bytes(frame[4:8], "big")
    command = wire.BaseCommand.FromString(frame[8:command_end])
    _disturb(getattr(command, _FIELD_OF_TYPE[command.type]), rng)
    entry = frame[command_end:]
    if not entry:
        return encode_command(command)
    return encode_command_with_entry(command, len(entry)) + entry


def _disturb(message: Message, rng: random.Random) -> None:
    for field in message.DESCRIPTOR.fields:
        dice = rng.random()
        if dice < 0.5 or (field.message_type is None and field.name in ("producer_id", "consumer_id") and dice < 0.9):
            continue
        if field.is_repeated:
            for _ in range(rng.choice((1, 3, 40))):
                if field.message_type is not None:
                    # Required fields must be present, or the command would not be well-formed.
                    _fill(getattr(message, field.name).add(), rng)
                else:
                    getattr(message, field.name).append(_value(field, rng))
        elif field.message_type is not None:
            _fill(getattr(message, field.name), rng)
        else:
            setattr(message, field.name, _value(field, rng))


def _fill(message: Message, rng: random.Random) -> None:
    message.SetInParent()
    for field in message.DESCRIPTOR.fields:
        if field.is_required and field.message_type is None:
            setattr(message, field.name, _value(field, rng))
    _disturb(message, rng)


def _value(field: Any, rng: random.Random) -> Any:
    kind = field.type
    if kind == FieldDescriptor.TYPE_STRING:
        return rng.choice(_TEXTS)
    if kind == FieldDescriptor.TYPE_BYTES:
        return rng.choice(_BYTES)
    if kind == FieldDescriptor.TYPE_BOOL:
        return rng.random() < 0.5
    if kind == FieldDescriptor.TYPE_ENUM:
        assert field.enum_type is not None
        return rng.choice(field.enum_type.values).number
    if kind in (FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FLOAT):
        return rng.choice((0.0, -1.0, float("nan"), float("inf")))
    number = rng.choice(_NUMBERS)
    if kind in _UNSIGNED_32:
        return number & 0xFFFFFFFF
    if kind in _SIGNED_32:
        return (number & 0xFFFFFFFF) - (1 << 31)
    if kind in _SIGNED_64:
        return number - (1 << 63)
    return number
