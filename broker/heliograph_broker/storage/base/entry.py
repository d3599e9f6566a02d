"""An entry as it is stored: a fixed header, then the bytes the producer sent, untouched."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

#: receive_ms, publish_ms, deliver_at_ms, ttl_ms, total_messages, total_bytes, messages, key_hash
HEADER = struct.Struct(">QQqqQQIH")
#: The part of a key hash that is stored: its lowest bits.
SLOT: Final = 0xFFFF


class EntryHeader(NamedTuple):
    """The header of a stored entry; ``size`` counts the frame's bytes."""

    entry_id: int
    receive_ms: int
    publish_ms: int
    deliver_at_ms: int
    ttl_ms: int
    total_messages: int
    total_bytes: int
    messages: int
    key_hash: int
    size: int


class Entry:
    """One entry. Times are wall-clock ms; ``total_*`` count the topic's messages and bytes up to and including it.

    ``ttl_ms`` is the shortest TTL of its own that a message in it has, -1 without. The store keeps only the lowest bits
    of ``key_hash`` (:data:`SLOT`).
    ``frame`` is what followed the command in the SEND frame, verbatim. ``offset`` is the entry's dense index in its
    topic; the topic sets it, it is not stored. Nor is ``taken_at``, when it came from its producer (monotonic, s).
    """

    __slots__ = (
        "deliver_at_ms",
        "entry_id",
        "frame",
        "key_hash",
        "ledger_id",
        "messages",
        "offset",
        "publish_ms",
        "receive_ms",
        "taken_at",
        "total_bytes",
        "total_messages",
        "ttl_ms",
    )

    def __init__(
        self,
        ledger_id: int,
        entry_id: int,
        receive_ms: int,
        publish_ms: int,
        deliver_at_ms: int,
        ttl_ms: int,
        messages: int,
        key_hash: int,
        total_messages: int,
        total_bytes: int,
        frame: bytes,
    ) -> None:
        self.ledger_id = ledger_id
        self.entry_id = entry_id
        self.receive_ms = receive_ms
        self.publish_ms = publish_ms
        self.deliver_at_ms = deliver_at_ms
        self.ttl_ms = ttl_ms
        self.messages = messages
        self.key_hash = key_hash
        self.total_messages = total_messages
        self.total_bytes = total_bytes
        self.frame = frame
        self.offset = -1
        self.taken_at = 0.0

    @property
    def size(self) -> int:
        return len(self.frame)
