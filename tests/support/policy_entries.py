"""The messages of a step as an entry, and an entry as messages."""

from __future__ import annotations

from heliograph_api.protocol import wire_pb2 as wire
from heliograph_api.protocol.frames import parse_entry

from .entries import make_batch, make_frame, make_message, open_entry
from .policy_oracle_state import Message


def encode(
    messages: list[Message], batch: bool, size: int, key: str | None, deliver_at: int, now: int, sequence_id: int
) -> tuple[wire.MessageMetadata, bytes]:
    """An entry as a client sends it; ``size`` is how much its payloads are padded."""
    payloads = [message.text.encode() + b"." * (size // len(messages)) for message in messages]
    if not batch:
        return make_frame(
            payloads[0],
            ttl=messages[0].ttl,
            key=key,
            deliver_at=deliver_at or None,
            publish_time=now,
            sequence_id=sequence_id,
        )
    singles = [
        make_message(payload, key=key, ttl=message.ttl) for message, payload in zip(messages, payloads, strict=True)
    ]
    return make_batch(*singles, key=key, deliver_at=deliver_at or None, publish_time=now, sequence_id=sequence_id)


def decode(frame: bytes) -> tuple[wire.MessageMetadata, list[tuple[dict[str, str], str]]]:
    """Properties and text of every message of an entry."""
    found = [(properties, payload.rstrip(b".").decode()) for properties, payload in open_entry(frame)]
    return parse_entry(frame).metadata, found
