"""The output of a connection: collected, and handed to the transport in few writes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from heliograph_api.protocol import wire_pb2 as wire
from heliograph_api.protocol.encoder import Encoder, encode_command


class Output:
    """The output of one connection. It is written at the end of the loop iteration, or earlier above ``limit``."""

    __slots__ = (
        "_below",
        "_bytes",
        "_closed",
        "_limit",
        "_loop",
        "_scheduled",
        "_sent",
        "_transport",
        "_written",
        "encoder",
        "frames",
    )

    def __init__(
        self, loop: asyncio.AbstractEventLoop, encoder: Encoder, limit: int, written: Callable[[], None]
    ) -> None:
        """``written`` is called after each write, to hold back a client that does not read."""
        self._loop = loop
        self.encoder = encoder
        self._limit = limit
        self._written = written
        self._transport: asyncio.Transport | None = None
        #: The transport below TLS.
        self._below: asyncio.Transport | None = None
        self._closed = False
        #: The queued bytes. Those that precede a frame may be added here, if :meth:`write` follows with the frame.
        self.frames: list[bytes] = []
        self._bytes = 0
        self._scheduled = False
        #: Bytes handed to the transport.
        self._sent = 0

    def open(self, transport: asyncio.Transport, below: asyncio.Transport | None = None) -> None:
        """Write to ``transport``; what it encrypts waits in the one ``below`` it, which it does not count."""
        self._transport, self._below = transport, below
        transport.set_write_buffer_limits(high=self._limit)

    def close(self) -> None:
        """Write nothing from now on; the transport keeps its data."""
        self._closed = True

    def lost(self) -> None:
        """The transport is gone, and nothing is written any more."""
        self._transport = self._below = None
        # It refers to the connection: nothing may keep the two alive for each other.
        del self._written

    @property
    def unread_bytes(self) -> int:
        """Bytes that the transports keep because the client does not read them."""
        if self._transport is None:
            return 0
        unread = self._transport.get_write_buffer_size()
        return unread if self._below is None else unread + self._below.get_write_buffer_size()

    @property
    def unwritten_bytes(self) -> int:
        """Bytes queued for the client that the socket has not accepted yet."""
        return self._bytes + self.unread_bytes

    @property
    def taken_bytes(self) -> int:
        """Bytes that the client has taken since the connection was made."""
        return self._sent - self.unwritten_bytes

    @property
    def has_drained(self) -> bool:
        """Whether so little is unread that the transport, if it had paused writing, has resumed it."""
        return self.unread_bytes <= self._limit // 4

    @property
    def is_flooded(self) -> bool:
        """Whether more is unread than stopping messages alone can explain."""
        return self.unread_bytes > 2 * self._limit

    def write(self, data: bytes) -> None:
        """Queue bytes, which are written at the end of the loop iteration, or earlier above the limit."""
        self.frames.append(data)
        self._bytes += len(data)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush_at_end)
        elif self._bytes > self._limit:
            self.flush()

    def _flush_at_end(self) -> None:
        self._scheduled = False
        self.flush()

    def flush(self) -> None:
        """Write the queued bytes now."""
        frames = self.frames
        if not frames:
            return
        self.frames = []
        transport = self._transport
        if transport is not None and not self._closed:
            self._sent += self._bytes
            self._bytes = 0
            if self._below is None:
                transport.writelines(frames)
            else:
                # Otherwise, each frame would be encrypted by itself.
                transport.write(b"".join(frames))
            self._written()
        self._bytes = 0

    def discard(self) -> None:
        """Forget the queued bytes."""
        self.frames, self._bytes = [], 0

    def send(self, command: wire.BaseCommand) -> None:
        self.write(encode_command(command))

    def send_error(self, request_id: int, server_error: int, message: str) -> None:
        self.write(self.encoder.error(request_id, server_error, message))
