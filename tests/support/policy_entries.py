"""Entries as clients send them, and taken apart again."""

from __future__ import annotations

from typing import Any

from heliograph_api.protocol import wire_pb2 as wire
from heliograph_api.protocol.frames import parse_entry
from heliograph_broker.messaging.messages import batches

from .policy_oracle_state import Message

TTL_PROPERTY = "x-message-ttl"


def encode(
    messages: list[Message], batch: bool, size: int, key: str | None, deliver_at: int, now: int
) -> tuple[wire.MessageMetadata, bytes]:
    """An entry as a client sends it; ``size`` is how much its payloads are padded."""
    metadata = wire.MessageMetadata(producer_name="p", sequence_id=0, publish_time=now)
    if deliver_at:
        metadata.deliver_at_time = deliver_at
    if key is not None:
        metadata.partition_key = key
    payloads = [message.text.encode() + b"." * (size // len(messages)) for message in messages]
    if not batch:
        if messages[0].ttl is not None:
            metadata.properties.add(key=TTL_PROPERTY, value=messages[0].ttl)
        return metadata, batches.build_frame(metadata, payloads[0])
    singles = []
    for message, payload in zip(messages, payloads, strict=True):
        single = wire.SingleMessageMetadata(payload_size=len(payload))
        if key is not None:
            single.partition_key = key
        if message.ttl is not None:
            single.properties.add(key=TTL_PROPERTY, value=message.ttl)
        singles.append((single, payload))
    metadata, payload = batches.build_batch(metadata, singles)
    return metadata, batches.build_frame(metadata, payload)


def decode(frame: bytes) -> tuple[wire.MessageMetadata, list[tuple[dict[str, str], str]]]:
    """Properties and text of every message of an entry."""
    metadata, at = parse_entry(frame)
    found: list[tuple[Any, bytes]] = [(metadata, frame[at:])]
    if batches.is_batch(metadata):
        found = list(batches.open_batch(metadata, frame[at:]))
    return metadata, [
        ({pair.key: pair.value for pair in single.properties}, payload.rstrip(b".").decode())
        for single, payload in found
    ]
