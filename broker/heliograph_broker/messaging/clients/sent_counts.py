"""Counts of the deliveries of a subscription."""

from __future__ import annotations


class SentCounts:
    """The messages, bytes and entries delivered since the broker's start, repeated deliveries included."""

    __slots__ = ("bytes_out", "entries_out", "last_consumed_ms", "msg_out", "msg_redelivered")

    def __init__(self) -> None:
        self.msg_out = 0
        self.bytes_out = 0
        self.entries_out = 0
        #: Messages that were delivered again after a negative acknowledgment.
        self.msg_redelivered = 0
        #: When an entry was delivered last, wall-clock ms.
        self.last_consumed_ms = 0
