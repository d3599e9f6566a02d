"""Frames of SEND as they wait for their receipts. No I/O."""

from __future__ import annotations

from collections.abc import Sequence


class Frames:
    """Whole frames of one producer, one after the other in ``data``, in the order of their sequence ids.

    ``ends`` is where each of them ends (byte offset into ``data``), ``sequences`` the sequence id that its receipt
    has, and ``messages`` the number of messages in it. All chunks of a message have one sequence id.
    """

    __slots__ = ("acknowledged", "data", "ends", "messages", "sequences", "since", "tries")

    def __init__(
        self, data: bytes | memoryview, ends: Sequence[int], sequences: Sequence[int], messages: Sequence[int]
    ) -> None:
        self.data = data
        self.ends = ends
        self.sequences = sequences
        self.messages = messages
        #: The number of frames that have a receipt; those are the first ones.
        self.acknowledged = 0
        #: When the frames were handed over (monotonic, s), and how often they were sent.
        self.since = 0.0
        self.tries = 0

    @property
    def size(self) -> int:
        """The number of bytes."""
        return len(self.data)

    @property
    def in_chunks(self) -> bool:
        """Whether there are chunks of a message, of which only the last one counts as one."""
        return 0 in self.messages

    def unacknowledged(self) -> bytes | memoryview:
        """Return the frames that have no receipt yet."""
        if not self.acknowledged:
            return self.data
        return memoryview(self.data)[self.ends[self.acknowledged - 1] :]

    def rewind(self) -> int:
        """Count no chunk of the message that comes next as acknowledged; return how many were.

        Chunks that are not stored one after the other, from the first one on, make no message for most consumers.
        """
        before = self.acknowledged
        while self.acknowledged > 0 and self.sequences[self.acknowledged - 1] == self.sequences[self.acknowledged]:
            self.acknowledged -= 1
        return before - self.acknowledged

    def of(self, sequence: int) -> list[bytes]:
        """Return the frames with this sequence id that have no receipt yet."""
        starts = [0, *self.ends]
        return [
            bytes(memoryview(self.data)[starts[at] : starts[at + 1]])
            for at in range(self.acknowledged, len(self.ends))
            if self.sequences[at] == sequence
        ]
