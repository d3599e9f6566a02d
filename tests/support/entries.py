"""The one builder of entries as clients send them, written without the broker's own.

Tests on virtual time use :func:`make_frame` and :func:`make_batch`; clients on a connection, which stamp entries with
the time of day, use :func:`make_entry`; hostile bytes go through :func:`seal`. :func:`open_entry` takes entries apart.
"""

from __future__ import annotations

import struct
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import cramjam
from crc32c import crc32c
from heliograph_api.protocol import wire_pb2 as wire
from heliograph_api.protocol.frames import parse_entry
from heliograph_broker.messaging.messages.batches import is_batch, open_batch

TTL_PROPERTY = "x-message-ttl"
COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "NONE": bytes,
    "LZ4": lambda data: bytes(cramjam.lz4.compress_block(data, store_size=False)),
    "ZLIB": zlib.compress,
    "ZSTD": lambda data: bytes(cramjam.zstd.compress(data)),
    "SNAPPY": lambda data: bytes(cramjam.snappy.compress_raw(data)),
}

#: A message of a batch.
Message = tuple[wire.SingleMessageMetadata, bytes]

_MAGIC = 0x0E01


def seal(metadata: bytes, payload: bytes) -> bytes:
    """Return an entry of encoded metadata, which need not be valid, and a payload: with magic and checksum."""
    checked = struct.pack(">I", len(metadata)) + metadata + payload
    return struct.pack(">HI", _MAGIC, crc32c(checked)) + checked


def text_field(number: int, value: bytes) -> bytes:
    """Return a length-delimited field of protobuf, whose text need not be UTF-8."""
    return bytes([number << 3 | 2, len(value)]) + value


def make_frame(
    payload: bytes = b"x",
    *,
    messages: int = 1,
    key: str | None = None,
    publish_time: int = 0,
    deliver_at: int | None = None,
    sequence_id: int = 0,
    highest_sequence_id: int = 0,
    chunk: tuple[int, int] | None = None,
    producer: str = "p",
    ttl: str | None = None,
    properties: Mapping[str, str] | None = None,
    size: int = 0,
    **fields: Any,
) -> tuple[wire.MessageMetadata, bytes]:
    """Return metadata and the entry's bytes as a client would send them after SEND.

    ``ttl`` is the message's own (its property ``x-message-ttl``), ``fields`` are further ones of MessageMetadata. An
    entry of less than ``size`` bytes is padded with dots to as many.
    """
    metadata = wire.MessageMetadata(
        producer_name=producer, sequence_id=sequence_id, publish_time=publish_time, **fields
    )
    if messages > 1:
        metadata.num_messages_in_batch = messages
    if highest_sequence_id:
        metadata.highest_sequence_id = highest_sequence_id
    if chunk is not None:
        metadata.chunk_id, metadata.num_chunks_from_msg = chunk
        metadata.uuid = f"{producer}-{sequence_id}"
    if key is not None:
        metadata.partition_key = key
    if deliver_at is not None:
        metadata.deliver_at_time = deliver_at
    _add_properties(metadata, ttl, properties)
    encoded = metadata.SerializeToString()
    frame = seal(encoded, payload)
    return metadata, frame if len(frame) >= size else seal(encoded, payload + b"." * (size - len(frame)))


def make_message(
    payload: bytes, *, key: str | None = None, ttl: str | None = None, properties: Mapping[str, str] | None = None
) -> Message:
    """Return a message of a batch; ``ttl`` is its own."""
    metadata = wire.SingleMessageMetadata(payload_size=len(payload))
    if key is not None:
        metadata.partition_key = key
    _add_properties(metadata, ttl, properties)
    return metadata, payload


def batch_payload(messages: Iterable[Message]) -> bytes:
    """Return the payload of a batch: size, metadata and payload of each message."""
    parts = []
    for metadata, payload in messages:
        encoded = metadata.SerializeToString()
        parts += [struct.pack(">I", len(encoded)), encoded, payload]
    return b"".join(parts)


def make_batch(
    *messages: bytes | Message, codec: str = "NONE", claimed: int | None = None, **options: Any
) -> tuple[wire.MessageMetadata, bytes]:
    """Return metadata and bytes of an entry that holds ``messages``, and says that it holds ``claimed`` of them.

    ``options`` are those of :func:`make_frame` for the batch as a whole.
    """
    payload = batch_payload(make_message(each) if isinstance(each, bytes) else each for each in messages)
    fields: dict[str, Any] = {"uncompressed_size": len(payload)}
    if codec != "NONE":
        fields["compression"] = codec
    count = len(messages) if claimed is None else claimed
    return make_frame(COMPRESS[codec](payload), num_messages_in_batch=count, **fields, **options)


def make_entry(payload: bytes | list[bytes], *, producer_name: str = "wire", **options: Any) -> bytes:
    """Return an entry as a client would publish it now, a batch for several payloads.

    ``options`` are those of :func:`make_frame`, further fields of MessageMetadata among them.
    """
    options.setdefault("publish_time", int(time.time() * 1000))
    options["producer"] = producer_name
    return (make_batch(*payload, **options) if isinstance(payload, list) else make_frame(payload, **options))[1]


def open_entry(frame: bytes) -> list[tuple[dict[str, str], bytes]]:
    """Return properties and payload of each message of an entry, as a client takes it apart."""
    metadata, at = parse_entry(frame)
    found: list[tuple[Any, bytes]] = [(metadata, frame[at:])]
    if is_batch(metadata):
        found = list(open_batch(metadata, frame[at:]))
    return [({pair.key: pair.value for pair in single.properties}, payload) for single, payload in found]


def _add_properties(
    metadata: wire.MessageMetadata | wire.SingleMessageMetadata, ttl: str | None, properties: Mapping[str, str] | None
) -> None:
    given = dict(properties or {})
    if ttl is not None:
        given[TTL_PROPERTY] = ttl
    for key, value in given.items():
        metadata.properties.add(key=key, value=value)
