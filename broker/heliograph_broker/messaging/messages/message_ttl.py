"""The time to live (TTL) that a message has of its own: a property, read when it is published and when it expires."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heliograph_api.protocol.frames import parse_entry

from heliograph_broker.messaging.base.errors import NotAllowed

from .batches import BatchError, open_batch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from heliograph_api.protocol import wire_pb2 as wire

#: The message property that holds a TTL of its own, a decimal number of ms as text.
TTL_PROPERTY = "x-message-ttl"
_MAX_TTL_MS = (1 << 63) - 1


class InvalidMessageTtl(NotAllowed):
    """A message carries a TTL that is not a number of ms."""


def ttl_of(properties: Iterable[wire.KeyValue]) -> int:
    """Return the TTL among a message's properties in ms, -1 if there is none. Raises :class:`InvalidMessageTtl`."""
    for pair in properties:
        if pair.key == TTL_PROPERTY:
            text = pair.value
            if not (text.isascii() and text.isdigit()) or len(text) > 19 or int(text) > _MAX_TTL_MS:
                shown = text if len(text) <= 40 else f"{text[:40]}..."
                raise InvalidMessageTtl(
                    f"property {TTL_PROPERTY} is '{shown}'; valid: milliseconds as decimal text, 0 to {_MAX_TTL_MS}"
                )
            return int(text)
    return -1


def ttls_in(metadata: wire.MessageMetadata, frame: bytes) -> list[int]:
    """Return the TTL of every message of a batch (-1 without), empty if it cannot be opened.

    Raises :class:`InvalidMessageTtl`.
    """
    try:
        opened = open_batch(metadata, frame[parse_entry(frame).payload_offset :])
    except BatchError:
        # Encrypted, or of no use to any consumer either: the topic's own TTL is all that counts.
        return []
    return [ttl_of(single.properties) for single, _ in opened]


def stored_ttls_in(metadata: wire.MessageMetadata, frame: bytes) -> list[int]:
    """As :func:`ttls_in` for an entry that is stored, whatever was checked then: one that is invalid counts as none."""
    try:
        return ttls_in(metadata, frame)
    except InvalidMessageTtl:
        opened = open_batch(metadata, frame[parse_entry(frame).payload_offset :])
    ttls = []
    for single, _ in opened:
        try:
            ttls.append(ttl_of(single.properties))
        except InvalidMessageTtl:
            ttls.append(-1)
    return ttls
