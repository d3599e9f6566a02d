"""Streams of bytes that the frame reader reads in parts, as a connection receives them."""

from __future__ import annotations

from itertools import cycle

from heliograph_api.protocol.frame_reader import FrameReader
from heliograph_api.protocol.frames import FRAME_OVERHEAD, FrameError
from heliograph_api.protocol.receive_buffer import ReceiveBuffer, SharedBuffer

from .wire_client import Type

#: The largest message; frames may be larger by what is not message.
LARGEST = 20_000
LIMIT = LARGEST + FRAME_OVERHEAD
#: A stream is read in at most so many parts.
MAX_READS = 500

#: The type of a command, the command's bytes, the entry.
Frame = tuple[int, bytes, bytes]
#: The result of reading a stream: its frames, and the mistake that ends it.
Result = tuple[list[Frame], str | None]


class ReadingConnection:
    """Reads from a shared buffer as a session does, and keeps what it has read."""

    def __init__(self, shared: SharedBuffer, *, pauses: bool = False) -> None:
        self._buffer = ReceiveBuffer(shared)
        self._reader = FrameReader(self._buffer)
        self._pauses = pauses
        self.frames: list[Frame] = []
        self.error: str | None = None

    def receive(self, data: bytes) -> int:
        """Take what there is room for of ``data``; return how many bytes that were."""
        room = self._buffer.room()
        count = min(len(room), len(data))
        assert count
        room[:count] = data[:count]
        self._buffer.received(count)
        try:
            self._read()
        except FrameError as error:
            self.error = str(error)
        return count

    def _read(self) -> None:
        while True:
            for kind, command, entry in self._reader.frames():
                assert not self._reader.paused
                self.frames.append((kind, command.SerializePartialToString(), entry))
                if kind == Type.CONNECT:
                    self._reader.connected(LARGEST)
                self._reader.paused = self._pauses
            if not self._reader.paused:
                return
            assert list(self._reader.frames()) == []
            self._reader.paused = False

    def error_again(self) -> str | None:
        """Return the mistake that a further attempt to read meets."""
        try:
            list(self._reader.frames())
        except FrameError as error:
            return str(error)
        return None


def read_stream(stream: bytes, splits: list[int], shared: int, *, pauses: bool = False) -> Result:
    """Read a stream in parts of these sizes, repeated, into a buffer of ``shared`` bytes."""
    connection = ReadingConnection(SharedBuffer(shared), pauses=pauses)
    sizes = cycle(splits)
    # Long streams in fewer reads, or one case takes seconds.
    least = len(stream) // MAX_READS
    at = 0
    while at < len(stream) and connection.error is None:
        at += connection.receive(stream[at : at + max(least, next(sizes))])
    if connection.error is not None:
        assert connection.error_again() == connection.error
    return connection.frames, connection.error
