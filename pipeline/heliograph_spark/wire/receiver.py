"""The entries of one consumer between its link and its reader. No I/O."""

from __future__ import annotations

from .message_heads import MessageHead


class Receiver:
    """The entries that have arrived for one consumer. The link appends to ``arrived``; only its reader removes.

    Past ``limit`` bytes that nobody takes, because others read the link, the consumer is given up: its reader goes on
    after what it has once it comes to that.

    An entry is bytes, or a read-only view of bytes that nobody changes, if it is long.
    """

    __slots__ = ("arrived", "assigned", "closed", "limit", "size")

    def __init__(self, limit: int) -> None:
        self.arrived: list[tuple[MessageHead, bytes | memoryview]] = []
        self.limit = limit
        self.size = 0
        #: Whether nothing more will come.
        self.closed = False
        #: The URL of the broker that has the topic now, if the one that closed the consumer said so.
        self.assigned = ""

    def take(self) -> tuple[list[tuple[MessageHead, bytes | memoryview]], int]:
        """Return what has arrived and its size (bytes), and forget it."""
        arrived = self.arrived
        taken, size = arrived[:], self.size
        del arrived[: len(taken)]
        self.size = 0
        return taken, size
