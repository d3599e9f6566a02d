"""One HTTP connection: counted, and aborted if its client sends no request in time. aiohttp handles the requests.

A client whose certificate does not hold any more is cut when it sends more, and so is one that goes on sending much of
a request that is answered already: aiohttp would read and drop everything that comes in ten seconds. One that takes
nothing of its answers for a while is cut, too: aiohttp would keep them as long as the connection lives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, cast

import structlog
from aiohttp import StreamReader

from heliograph_broker.clock import Clock
from heliograph_broker.messaging.base.histograms import ConnectionMetrics
from heliograph_broker.security.tls.client_certificate import NO_CERTIFICATE, client_certificate

log = structlog.get_logger(__name__)

_LINE_END: Final = b"\r\n"
_HEAD_END: Final = 2 * _LINE_END
#: How long a client has to read its answer when it has sent more of an answered request than is read.
_ANSWER_READ_S: Final = 1.0


def refusal(reason: str) -> bytes:
    """Return the HTTP answer to a client that is refused."""
    body = f"{reason}\n".encode()
    return (
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    ).encode() + body


class HttpConnection(asyncio.Protocol):
    """Stands between a transport and aiohttp's ``handler``; ``ended`` is called once the connection is lost."""

    __slots__ = (
        "_below",
        "_certificate",
        "_clock",
        "_deadline",
        "_ended",
        "_handler",
        "_head",
        "_metrics",
        "_rest",
        "_rest_left",
        "_transport",
        "_unread_s",
        "_unread_timer",
        "_within_s",
    )

    def __init__(
        self,
        handler: asyncio.Protocol,
        metrics: ConnectionMetrics,
        clock: Clock,
        within_s: float,
        unread_s: float,
        ended: Callable[[], None],
        below: asyncio.Transport | None = None,
    ) -> None:
        """Wait ``within_s`` for the first request, and ``unread_s`` for a client that takes nothing of its answers.

        ``below`` is the transport below TLS, None without TLS.
        """
        self._handler = handler
        self._metrics = metrics
        self._clock = clock
        self._transport: asyncio.Transport | None = None
        self._certificate = NO_CERTIFICATE
        self._within_s = within_s
        self._unread_s = unread_s
        self._unread_timer: asyncio.TimerHandle | None = None
        self._below = below
        self._ended = ended
        self._deadline: asyncio.TimerHandle | None = None
        #: The last bytes of the first request's head, whose end they may begin.
        self._head = b""
        #: The body of an answered request that has not arrived in full, and how many bytes of it are read.
        self._rest: StreamReader | None = None
        self._rest_left = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport is one by behaviour, not by class.
        self._transport = cast(asyncio.Transport, transport)
        self._certificate = client_certificate(transport)
        self._deadline = asyncio.get_running_loop().call_later(self._within_s, self._cut, "handshake")
        self._handler.connection_made(transport)

    def _cut(self, reason: str) -> None:
        self._cancel_deadline()
        self._metrics.cut[reason] += 1
        if self._transport is not None:
            self._transport.abort()

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def answered_before(self, rest: StreamReader, at_most: int) -> None:
        """Read so many bytes at most from now on, until ``rest`` is complete; the client has its answer already."""
        self._rest = rest
        self._rest_left = at_most

    def _is_over(self, rest: StreamReader, received: int) -> bool:
        """Count bytes of an answered request; return whether they are more than are read, and the connection ends."""
        over = self._rest_left < 0
        if not over and rest.is_eof():
            self._rest = None
            return False
        self._rest_left -= received
        if self._rest_left >= 0:
            return False
        transport = self._transport
        if transport is None or transport.is_closing():
            return True
        if not over:
            self._metrics.cut["body"] += 1
            # Closing now would send a reset, at which some clients drop the answer. The end of what is sent lets them
            # read it: their next write fails as one to a client that has gone.
            if transport.can_write_eof():
                transport.write_eof()
            self._cancel_deadline()
            self._deadline = asyncio.get_running_loop().call_later(_ANSWER_READ_S, transport.abort)
            # aiohttp need not wait for it.
            rest.feed_eof()
        if transport.is_reading():
            transport.pause_reading()
        return True

    def data_received(self, data: bytes) -> None:
        if self._rest is not None and self._is_over(self._rest, len(data)):
            return
        if self._deadline is not None:
            # Empty lines before a request are none of it.
            head = self._head + data if self._head else data.lstrip(_LINE_END)
            self._head = head[-len(_HEAD_END) :]
            if _HEAD_END in head:
                self._cancel_deadline()
        over = self._certificate.why_over(self._clock.now_ms())
        if not over:
            self._handler.data_received(data)
        elif self._transport is not None and not self._transport.is_closing():
            log.info("aborting connection", reason=over)
            self._cut("certificate")

    def eof_received(self) -> bool | None:
        return self._handler.eof_received()

    def pause_writing(self) -> None:
        self._handler.pause_writing()
        self._await_reader()

    def resume_writing(self) -> None:
        self._cancel_reader()
        self._handler.resume_writing()

    def _await_reader(self) -> None:
        """Cut the connection if its client takes nothing from now on."""
        self._cancel_reader()
        loop = asyncio.get_running_loop()
        self._unread_timer = loop.call_later(self._unread_s, self._check_reader, self._unread_bytes())

    def _check_reader(self, before: int) -> None:
        if self._unread_bytes() < before:
            self._await_reader()
        else:
            self._cut("unread")

    def _cancel_reader(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    def _unread_bytes(self) -> int:
        return sum(each.get_write_buffer_size() for each in (self._transport, self._below) if each is not None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        self._cancel_reader()
        self._transport = self._below = None
        try:
            self._handler.connection_lost(exc)
        finally:
            self._ended()
