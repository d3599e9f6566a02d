"""The time to live (TTL) that a message has of its own: a property, read when it is published and when it expires."""

from __future__ import annotations

from typing import TYPE_CHECKING

import re2
from heliograph_api.protocol import wire_pb2 as wire
from heliograph_api.protocol.frames import metadata_range

from heliograph_broker.messaging.base.errors import NotAllowed

from .batches import BatchError, is_encrypted, max_bytes_at_once, open_batch_at_once, open_payload

if TYPE_CHECKING:
    from collections.abc import Iterable

#: The message property that holds a TTL of its own, a decimal number of ms as text.
TTL_PROPERTY = "x-message-ttl"
#: The property's name as it is encoded, after its length.
_ENCODED_PROPERTY = bytes([len(TTL_PROPERTY)]) + TTL_PROPERTY.encode()
#: Finds it. RE2 skips to the first byte, which is rare: ``bytes.find`` takes seven times as long for a large batch.
_FIND = re2.compile(re2.escape(_ENCODED_PROPERTY.decode()).encode())
#: Up to this size of a batch, bytes, ``find`` is the faster one.
_FIND_BYTES = 4096
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


def may_hold_ttls(metadata: wire.MessageMetadata, frame: bytes) -> bool:
    """Return whether messages of a batch may have a TTL of their own: False for nearly all batches in which none has.

    A compressed batch is decompressed for that, unless it would take long: False for that too.
    """
    if metadata.compression == wire.NONE:
        searched: bytes | memoryview = frame
    elif is_encrypted(metadata):
        return False
    else:
        try:
            payload = frame[metadata_range(frame)[1] :]
            searched = open_payload(metadata, payload, max_bytes=max_bytes_at_once(len(payload)))
        except BatchError:
            return False
    if len(searched) <= _FIND_BYTES:
        return bytes(searched).find(_ENCODED_PROPERTY) >= 0
    return _FIND.search(searched) is not None


def ttls_in(metadata: wire.MessageMetadata, frame: bytes) -> list[int]:
    """Return the TTL of every message of a batch (-1 without), empty if it cannot be opened at once.

    Raises :class:`InvalidMessageTtl`.
    """
    try:
        opened = open_batch_at_once(metadata, frame[metadata_range(frame)[1] :])
    except BatchError:
        # Encrypted, too large, or of no use to any consumer either: the topic's own TTL is all that counts.
        return []
    return [ttl_of(single.properties) for single, _ in opened]


def stored_ttls_in(metadata: wire.MessageMetadata, frame: bytes) -> list[int]:
    """As :func:`ttls_in` for an entry that is stored, whatever was checked then: one that is invalid counts as none."""
    try:
        return ttls_in(metadata, frame)
    except InvalidMessageTtl:
        opened = open_batch_at_once(metadata, frame[metadata_range(frame)[1] :])
    ttls = []
    for single, _ in opened:
        try:
            ttls.append(ttl_of(single.properties))
        except InvalidMessageTtl:
            ttls.append(-1)
    return ttls
