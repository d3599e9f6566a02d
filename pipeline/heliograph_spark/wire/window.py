"""The frames of one task that have no receipt yet: their limits, and the wait for room."""

from __future__ import annotations

from typing import Protocol

#: Bytes on their way to the brokers, and frames: brokers handle a thousand of a connection at a time.
MOST_BYTES = 32 << 20
MOST_FRAMES = 4000


class Waiting(Protocol):
    """A producer with frames that have no receipt."""

    @property
    def waits_since(self) -> float:
        """Since when the oldest of them waits (monotonic, s)."""

    def wait(self) -> None:
        """Wait a moment for answers."""

    def poll(self) -> None:
        """Do what the answers that have come ask for."""


class Window:
    """Counts the bytes and frames that have no receipt, of all producers of a task."""

    def __init__(self, most_bytes: int = MOST_BYTES, most_frames: int = MOST_FRAMES) -> None:
        self._most_bytes = most_bytes
        self._most_frames = most_frames
        self._frames: dict[Waiting, int] = {}
        self.bytes = 0
        self.frames = 0

    def add(self, producer: Waiting, size: int, frames: int) -> None:
        """Count frames that are sent."""
        self.bytes += size
        self.frames += frames
        self._frames[producer] = self._frames.get(producer, 0) + frames

    def remove(self, producer: Waiting, size: int, frames: int) -> None:
        """Count receipts."""
        self.bytes -= size
        self.frames -= frames
        self._frames[producer] -= frames
        if not self._frames[producer]:
            del self._frames[producer]

    @property
    def full(self) -> bool:
        """Whether there is more than may be on its way."""
        return self.bytes > self._most_bytes or self.frames > self._most_frames

    def make_room(self) -> None:
        """Wait until no more is on its way than may be."""
        while self.full:
            self.wait()

    def flush(self) -> None:
        """Wait until everything has its receipt."""
        while self._frames:
            self.wait()

    def wait(self) -> None:
        """Wait a moment for the receipt that is due first; take all that have come. Raises as producers do."""
        due = min(self._frames, key=lambda producer: producer.waits_since, default=None)
        if due is None:
            return
        due.wait()
        for producer in list(self._frames):
            if producer is not due:
                producer.poll()
