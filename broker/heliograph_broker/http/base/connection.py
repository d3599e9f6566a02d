"""One HTTP connection: counted, and aborted if its client sends no request in time. aiohttp handles the requests.

A client whose certificate does not hold any more is cut when it sends more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, cast

import structlog

from heliograph_broker.clock import Clock
from heliograph_broker.messaging.base.histograms import ConnectionMetrics
from heliograph_broker.security.tls.client_certificate import NO_CERTIFICATE, client_certificate

log = structlog.get_logger(__name__)

_LINE_END: Final = b"\r\n"
_HEAD_END: Final = 2 * _LINE_END


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
        "_certificate",
        "_clock",
        "_deadline",
        "_ended",
        "_handler",
        "_head",
        "_metrics",
        "_transport",
        "_within_s",
    )

    def __init__(
        self,
        handler: asyncio.Protocol,
        metrics: ConnectionMetrics,
        clock: Clock,
        within_s: float,
        ended: Callable[[], None],
    ) -> None:
        self._handler = handler
        self._metrics = metrics
        self._clock = clock
        self._transport: asyncio.Transport | None = None
        self._certificate = NO_CERTIFICATE
        self._within_s = within_s
        self._ended = ended
        self._deadline: asyncio.TimerHandle | None = None
        #: The last bytes of the first request's head, whose end they may begin.
        self._head = b""

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

    def data_received(self, data: bytes) -> None:
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

    def resume_writing(self) -> None:
        self._handler.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        self._transport = None
        try:
            self._handler.connection_lost(exc)
        finally:
            self._ended()
