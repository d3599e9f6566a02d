"""Connections between simulated clients and a broker: bytes with delays, peers that stop reading, sudden ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, cast

from .loop import SimulatedLoop

#: Bytes that the kernels on both sides hold for a client that does not read.
SOCKET_BYTES = 64 * 1024


class Connection(asyncio.Transport):
    """The broker's side is an asyncio transport; the client's side is what has no name of asyncio's."""

    def __init__(self, loop: SimulatedLoop, address: tuple[str, int], written: Callable[[bytes], None]) -> None:
        """``written`` is called with what the broker writes, when it does. Raises :class:`ConnectionRefusedError`."""
        super().__init__()
        if loop.accept is None:
            raise ConnectionRefusedError("nobody listens")
        self._loop = loop
        self._address = address
        self._written = written
        #: Whether the client takes what the broker writes.
        self.reads = True
        #: Whether the client is gone silently: nothing arrives any more, in either direction.
        self.silent = False
        self.lost = False
        self._unread = 0
        self._paused_writing = False
        self._high = 64 * 1024
        self._low = 16 * 1024
        self._closing = False
        self._reading = True
        self._inbound = bytearray()
        self._feeding = False
        self.most_unread = 0
        self.protocol = cast(asyncio.BufferedProtocol, loop.accept())
        self.protocol.connection_made(self)

    # -- the client's side ---------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Send bytes; they arrive in one or in several parts."""
        if self.lost or self.silent:
            return
        self._inbound += data
        self._feed_soon()

    def cut(self) -> None:
        """End the connection at once, from outside."""
        self._lose(ConnectionResetError("cut"))

    def read_on(self) -> None:
        """Read all there is, and from now on as it comes."""
        self.reads = True
        self._drain()

    def _feed_soon(self) -> None:
        if not self._feeding and self._inbound and self._reading:
            self._feeding = True
            self._loop.call_later(self._loop.rng.choice([0, 0, 0.001]), self._feed)

    def _feed(self) -> None:
        self._feeding = False
        if self.lost or not self._reading or not self._inbound:
            return
        rng = self._loop.rng
        buffer = cast(memoryview, self.protocol.get_buffer(-1))
        size = min(len(buffer), len(self._inbound))
        if rng.random() < 0.1:
            size = rng.randint(1, size)
        buffer[:size] = self._inbound[:size]
        del self._inbound[:size]
        self.protocol.buffer_updated(size)
        self._feed_soon()

    # -- the broker's side ---------------------------------------------------------------------------------------

    def write(self, data: Any) -> None:
        if self.lost or self._closing or not data:
            return
        data = bytes(data)
        self._unread += len(data)
        self.most_unread = max(self.most_unread, self._unread - SOCKET_BYTES)
        if not self.silent:
            self._written(data)
        if self.reads and not self.silent:
            self._loop.call_soon(self._drain)
        if self.get_write_buffer_size() > self._high and not self._paused_writing:
            self._paused_writing = True
            self.protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))

    def _drain(self) -> None:
        if self.lost or not self.reads or self.silent:
            return
        self._unread = 0
        if self._paused_writing:
            self._paused_writing = False
            self.protocol.resume_writing()
        if self._closing:
            self._lose(None)

    def get_write_buffer_size(self) -> int:
        return max(0, self._unread - SOCKET_BYTES)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 64 * 1024 if high is None else high
        self._low = self._high // 4 if low is None else low

    def close(self) -> None:
        if not self._closing and not self.lost:
            self._closing = True
            self._reading = False
            if not self.get_write_buffer_size():
                self._loop.call_soon(self._lose, None)

    def abort(self) -> None:
        self._closing = True
        self._loop.call_soon(self._lose, None)

    def _lose(self, error: Exception | None) -> None:
        if not self.lost:
            self.lost = self._closing = True
            self.protocol.connection_lost(error)

    def is_closing(self) -> bool:
        return self._closing

    def is_reading(self) -> bool:
        return self._reading

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._closing:
            self._reading = True
            self._feed_soon()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": self._address, "sockname": ("127.0.0.1", 6650)}.get(name, default)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self.protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = cast(asyncio.BufferedProtocol, protocol)
