"""Accepts the connections of one port, and refuses those above a limit before they use memory.

The server of the event loop has no such limits, and retries without a pause when no descriptor is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import structlog
from heliograph_api.values.listeners import bracketed

from heliograph_broker.security.event_floods import EventFlood

from .connection_limits import ConnectionLimits
from .encryption import serve_encrypted
from .handshake_failures import handshake_failure
from .handshake_turns import HandshakeTurns

log = structlog.get_logger(__name__)

#: Makes the protocol of a connection, which calls the given function once when the connection is lost. The transport is
#: the one below TLS, None without TLS.
ProtocolFactory = Callable[[Callable[[], None], asyncio.Transport | None], asyncio.BaseProtocol]

ANY: Final = "*"
"""The host that stands for all addresses of the machine, whichever of IPv4 and IPv6 it has."""

#: To these a client cannot connect: they stand for all addresses of their family.
_EVERYWHERE: Final = (ANY, "0.0.0.0", "::")
_BACKLOG = 512
#: Most connections accepted in one iteration of the event loop.
_ACCEPTS_PER_TURN = 64
#: Pause (s) before accepting is tried again after the system refused.
_PAUSE_S = 1.0
#: Time (s) that a refused client has to read the reason, and most clients that get it at a time.
_LINGER_S = 1.0
_LINGERING = 4
#: Shortest time (s) between two log lines about refusals; the metrics count all of them.
_LOG_INTERVAL_S = 10.0


def host_in_url(host: str) -> str:
    """Return a host as URLs have it: an IPv6 address in brackets, ``localhost`` for all addresses of the machine."""
    if host in _EVERYWHERE:
        return "localhost"
    return bracketed(host)


class Encryption(NamedTuple):
    """TLS of a port: ``context`` returns the one for the next connection; times (s) end what a client leaves open."""

    context: Callable[[], ssl.SSLContext]
    turns: HandshakeTurns
    handshake_timeout_s: float
    close_timeout_s: float


class Acceptor:
    """The listening sockets of one port. ``refusal`` encodes the reason of a refusal for the client.

    With ``encryption``, a connection gets its protocol after the handshake; one that is refused is closed before it.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        limits: ConnectionLimits,
        protocol: ProtocolFactory,
        refusal: Callable[[str], bytes],
        encryption: Encryption | None = None,
    ) -> None:
        self.port = 0
        self._encryption = encryption
        self._loop = loop
        self._limits = limits
        self._protocol = protocol
        self._refusal = refusal
        self._listening: list[socket.socket] = []
        self._lingering: dict[socket.socket, asyncio.TimerHandle] = {}
        self._serving: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None
        self._next_log_at = 0.0
        self._failures = EventFlood(loop.time)

    async def listen(self, host: str, port: int) -> None:
        """Bind every address of ``host`` (``*``: all of this machine); port 0 takes any free one.

        Raises :class:`OSError` if one is taken.
        """
        found = await self._loop.getaddrinfo(
            None if host == ANY else host or None,
            port,
            type=socket.SOCK_STREAM,
            flags=socket.AI_PASSIVE,
            proto=socket.IPPROTO_TCP,
        )
        self.port = port
        try:
            for family, _, _, _, address in dict.fromkeys(found):
                self._bind(family, address, needed=host != ANY)
            if not self._listening:
                raise OSError(errno.EADDRNOTAVAIL, "this machine has neither IPv4 nor IPv6")
        except BaseException:
            self.stop()
            raise
        self._go_on()

    def _bind(self, family: int, address: tuple[Any, ...], *, needed: bool) -> None:
        """Listen on an address, at the port of the first one. Unless it is ``needed``, its family may be missing."""
        try:
            listening = socket.create_server((address[0], self.port, *address[2:]), family=family, backlog=_BACKLOG)
        except OSError as error:
            # A kernel without IPv6 says one or the other.
            if needed or error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                raise
            return
        listening.setblocking(False)
        self._listening.append(listening)
        self.port = listening.getsockname()[1]

    def stop(self) -> None:
        """Close the port; existing connections stay open."""
        if self._pause is not None:
            self._pause.cancel()
        for listening in self._listening:
            self._loop.remove_reader(listening)
            listening.close()
        self._listening.clear()
        for timer in self._lingering.values():
            timer.cancel()
        for refused in list(self._lingering):
            self._close_refused(refused)
        if self._encryption is not None:
            # Handshakes that are under way.
            for task in self._serving:
                task.cancel()

    def _go_on(self) -> None:
        self._pause = None
        for listening in self._listening:
            self._loop.add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                connection, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                # No descriptors or memory: the queue keeps waiting connections, and must not wake the loop meanwhile.
                log.error("cannot accept connections", error=str(error), again_in_s=_PAUSE_S)
                for each in self._listening:
                    self._loop.remove_reader(each)
                self._pause = self._loop.call_later(_PAUSE_S, self._go_on)
                return
            connection.setblocking(False)
            reason = self._limits.refusal(address[0], connection.fileno())
            if reason:
                self._refuse(connection, reason)
                continue
            self._limits.opened(address[0])
            task = self._loop.create_task(self._serve(connection, address[0]))
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)

    async def _serve(self, connection: socket.socket, address: str) -> None:
        ended = False

        def end() -> None:
            nonlocal ended
            if not ended:
                ended = True
                self._limits.closed(address)

        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._encryption is None:
                await self._loop.connect_accepted_socket(lambda: self._protocol(end, None), connection)
            else:
                await serve_encrypted(
                    self._loop,
                    connection,
                    self._encryption.context,
                    lambda below: self._protocol(end, below),
                    self._encryption.turns.turn(address),
                    within_s=self._encryption.handshake_timeout_s,
                    close_s=self._encryption.close_timeout_s,
                )
        except OSError as error:
            # The client has disconnected meanwhile, or it does not speak TLS as it must.
            reason = ""
            if isinstance(error, ssl.SSLError):
                reason = "tls"
            elif isinstance(error, TimeoutError):
                reason = "handshake"
            self._limits.cut(reason)
            self._note_failure(address, reason or "left", handshake_failure(error))
            end()
            connection.close()
        except BaseException:
            end()
            connection.close()
            raise

    def _note_failure(self, address: str, reason: str, error: str) -> None:
        """Log why a connection failed, unless many have just now: unknown clients can fail as often as they want."""
        self._failures.log(
            log.info,
            "connection setup failed",
            "further connections failed",
            {"port": self.port},
            client=address,
            reason=reason,
            error=error,
        )

    def _refuse(self, connection: socket.socket, reason: str) -> None:
        """End a connection; without TLS, its client gets the reason."""
        now = self._loop.time()
        if now >= self._next_log_at:
            self._next_log_at = now + _LOG_INTERVAL_S
            log.warning("connections are refused", port=self.port, reason=reason)
        if self._encryption is not None:
            connection.close()
            return
        # The client may have disconnected already.
        with contextlib.suppress(OSError):
            connection.send(self._refusal(reason))
            connection.shutdown(socket.SHUT_WR)
        if len(self._lingering) >= _LINGERING:
            connection.close()
        else:
            # With unread data, closing at once would send a reset, which may arrive before the answer.
            self._lingering[connection] = self._loop.call_later(_LINGER_S, self._close_refused, connection)

    def _close_refused(self, connection: socket.socket) -> None:
        self._lingering.pop(connection, None)
        connection.close()
