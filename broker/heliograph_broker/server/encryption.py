"""The TLS handshake of an accepted connection.

The event loop's ``start_tls`` encrypts a transport that is made before, so that the bytes that wait in it are known.
The loops do not count them for the transport that they return, and without them a slow client would look like a silent
one.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Final, cast

from .handshake_turns import Turn

#: Bytes that are read of a client before the turn of its handshake: a greeting has less.
_FIRST_BYTES: Final = 4096

#: Makes the protocol of a connection; it is given the transport below TLS, None without TLS.
ProtocolFactory = Callable[[asyncio.Transport | None], asyncio.BaseProtocol]


async def serve_encrypted(
    loop: asyncio.AbstractEventLoop,
    connection: socket.socket,
    context: Callable[[], ssl.SSLContext],
    make: ProtocolFactory,
    turn: Turn,
    *,
    within_s: float,
    close_s: float,
) -> None:
    """Give an accepted connection its protocol once the handshake has ended well, which begins at its ``turn``.

    Raises :class:`OSError` otherwise: :class:`TimeoutError` if it takes longer than ``within_s``,
    :class:`ssl.SSLError` if it fails. ``close_s`` is the time that a client has to confirm the end of the connection.
    """
    raw: asyncio.Transport | None = None
    encrypting: asyncio.Task[asyncio.Transport | None] | None = None
    try:
        async with asyncio.timeout(within_s):
            raw, early = await loop.connect_accepted_socket(_Early, connection)
            await early.begins
            handshake = _Handshake()
            async with turn:
                if _has_left(connection):
                    raise ConnectionResetError("the client left before the handshake")
                encrypting = loop.create_task(
                    loop.start_tls(
                        raw,
                        handshake,
                        context(),
                        server_side=True,
                        ssl_handshake_timeout=within_s,
                        ssl_shutdown_timeout=close_s,
                    )
                )
                # Now the loop's own protocol has followed the first one.
                await asyncio.sleep(0)
                early.pass_on(raw)
                turn.begun()
                transport = await encrypting
        if transport is None or transport.is_closing() or handshake.lost:
            raise ConnectionResetError("the client left after the handshake")
        protocol = make(raw)
        handshake.followed_by(protocol)
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        deliver(bytes(handshake.received), protocol)
    except BaseException:
        if encrypting is not None:
            encrypting.add_done_callback(_forget_outcome)
            encrypting.cancel()
        if raw is not None:
            raw.abort()
        raise


def _has_left(connection: socket.socket) -> bool:
    """Return whether the client is gone: nothing was read while it waited, so nobody has noticed."""
    try:
        return not connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True


def _forget_outcome(task: asyncio.Task[asyncio.Transport | None]) -> None:
    """Take the exception of a handshake that nobody waits for any more: asyncio would log it."""
    if not task.cancelled():
        task.exception()


class _Early(asyncio.BufferedProtocol):
    """Keeps the first bytes of a client, mostly the beginning of a handshake, and reads no more until its turn."""

    def __init__(self) -> None:
        #: Done once there are bytes, or the client has left.
        self.begins: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport is one by behaviour, not by class.
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> bytearray:
        self._buffer = bytearray(_FIRST_BYTES)
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._received, self._buffer = bytes(self._buffer[:nbytes]), bytearray()
        if self._transport is not None:
            self._transport.pause_reading()
        self._settle()

    def connection_lost(self, exc: Exception | None) -> None:
        self._settle()

    def _settle(self) -> None:
        if not self.begins.done():
            self.begins.set_result(None)

    def pass_on(self, transport: asyncio.BaseTransport) -> None:
        """Give it to the protocol that has followed. Raises :class:`ConnectionResetError` if the client has left."""
        following = transport.get_protocol()
        if following is self or transport.is_closing():
            raise ConnectionResetError("the client left before the handshake")
        deliver(self._received, following)
        self._received = b""


class _Handshake(asyncio.Protocol):
    """Stands in for the protocol of a connection until its handshake has ended."""

    def __init__(self) -> None:
        self.lost = False
        #: asyncio's own loop delivers what follows the handshake in the same read.
        self.received = bytearray()
        self._following: asyncio.BaseProtocol | None = None

    def followed_by(self, protocol: asyncio.BaseProtocol) -> None:
        self._following = protocol

    def data_received(self, data: bytes) -> None:
        self.received += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        if self._following is not None:
            self._following.connection_lost(exc)


def deliver(data: bytes, protocol: asyncio.BaseProtocol) -> None:
    """Give bytes to a protocol of either kind, as a transport does."""
    if isinstance(protocol, asyncio.Protocol):
        if data:
            protocol.data_received(data)
        return
    # The loops' protocols of TLS are buffered ones by behaviour, not all by class.
    buffered = cast(asyncio.BufferedProtocol, protocol)
    while data:
        room = memoryview(buffered.get_buffer(len(data)))
        count = min(len(room), len(data))
        if not count:
            raise ConnectionResetError("the client sent more than is read before its commands are handled")
        room[:count] = data[:count]
        buffered.buffer_updated(count)
        data = data[count:]
