"""The one builder of entries as clients send them, written without the broker's own.

Tests on virtual time use :func:`make_frame`; clients on a connection, which stamp entries with the time of day, use
``make_entry`` of :mod:`tests.integration.wire.client`; hostile bytes go through :func:`seal`.
"""

from __future__ import annotations

import struct

from crc32c import crc32c
from heliograph_api.protocol import wire_pb2 as wire

_MAGIC = 0x0E01


def seal(metadata: bytes, payload: bytes) -> bytes:
    """Return an entry of encoded metadata, which need not be valid, and a payload: with magic and checksum."""
    checked = struct.pack(">I", len(metadata)) + metadata + payload
    return struct.pack(">HI", _MAGIC, crc32c(checked)) + checked


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
    size: int = 0,
) -> tuple[wire.MessageMetadata, bytes]:
    """Return metadata and the entry's bytes as a client would send them after SEND.

    ``ttl`` is the message's own (its property ``x-message-ttl``). An entry of less than ``size`` bytes is padded with
    dots to as many.
    """
    metadata = wire.MessageMetadata(producer_name=producer, sequence_id=sequence_id, publish_time=publish_time)
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
    if ttl is not None:
        metadata.properties.add(key="x-message-ttl", value=ttl)
    encoded = metadata.SerializeToString()
    frame = seal(encoded, payload)
    return metadata, frame if len(frame) >= size else seal(encoded, payload + b"." * (size - len(frame)))
