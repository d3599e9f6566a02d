"""The HTTP port while the broker reads its data directory: the process is live, and not ready yet.

Reading a large volume back takes long and keeps the event loop busy, so a thread answers. Without an answer, Kubernetes
would take the broker for dead and end it before it is ready.
"""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
import ssl
import threading
import time
from typing import Final, Self

import structlog

from .acceptor import ANY

log = structlog.get_logger(__name__)

#: Time (s) that a client has to send its request.
_REQUEST_S: Final = 5.0
#: Most clients at a time; the oldest makes room for another.
MAX_CLIENTS: Final = 64
_MAX_REQUEST: Final = 8192
#: Time (s) between two log lines about a start that goes on.
_LOG_INTERVAL_S: Final = 10.0


class StartingPort:
    """Use it with ``with``. A port that cannot be opened has no effect here: the start itself reports it."""

    def __init__(self, host: str, port: int, context: ssl.SSLContext | None = None) -> None:
        """Port 0 opens none, because nobody knows it yet. With ``context`` it is one with TLS."""
        self._host = host
        self._context = context
        self._port = port
        self._selector = selectors.DefaultSelector()
        self._listening: list[socket.socket] = []
        #: What each client has sent, and until when (s, monotonic) it may send the rest.
        self._clients: dict[socket.socket, tuple[bytes, float]] = {}
        self._began = time.monotonic()
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="starting-port", daemon=True)

    def __enter__(self) -> Self:
        if self._port:
            with contextlib.suppress(OSError):
                self._bind()
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the thread and free the port; further calls have no effect."""
        if self._thread.is_alive():
            self._wake.send(b"x")
            self._thread.join()
        for each in (*self._listening, *self._clients, self._wake, self._woken):
            each.close()
        self._listening.clear()
        self._clients.clear()
        self._selector.close()

    def _bind(self) -> None:
        host = None if self._host == ANY else self._host or None
        for family, _, _, _, address in dict.fromkeys(
            socket.getaddrinfo(host, self._port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        ):
            with contextlib.suppress(OSError):
                listening = socket.create_server((address[0], self._port, *address[2:]), family=family)
                listening.setblocking(False)
                self._listening.append(listening)
                self._selector.register(listening, selectors.EVENT_READ)

    def _run(self) -> None:
        log_at = self._began + _LOG_INTERVAL_S
        while True:
            for key, _ in self._selector.select(1.0):
                found = key.fileobj
                assert isinstance(found, socket.socket)
                if found is self._woken:
                    return
                try:
                    if found in self._listening:
                        self._accept(found)
                    elif found in self._clients:
                        # Otherwise, it has just made room for another.
                        self._read(found)
                except Exception as error:
                    # Without this thread, Kubernetes would take the broker for dead.
                    log.warning("a request to the starting broker failed", error=repr(error))
                    self._forget(found)
            now = time.monotonic()
            for client in [each for each, (_, until) in self._clients.items() if until <= now]:
                self._forget(client)
            if now >= log_at:
                log_at = now + _LOG_INTERVAL_S
                log.info("still reading the data directory", since_s=round(now - self._began))

    def _accept(self, listening: socket.socket) -> None:
        try:
            client, _ = listening.accept()
        except OSError:
            return
        if len(self._clients) >= MAX_CLIENTS:
            self._forget(next(iter(self._clients)))
        client.setblocking(False)
        if self._context is not None:
            # The handshake is part of the first reads.
            client = self._context.wrap_socket(client, server_side=True, do_handshake_on_connect=False)
        self._selector.register(client, selectors.EVENT_READ)
        self._clients[client] = (b"", time.monotonic() + _REQUEST_S)

    def _read(self, client: socket.socket) -> None:
        received, until = self._clients[client]
        try:
            more = client.recv(_MAX_REQUEST)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        except OSError:
            more = b""
        received += more
        if more and b"\r\n\r\n" not in received and len(received) < _MAX_REQUEST:
            self._clients[client] = (received, until)
            return
        if more:
            # It may have left.
            with contextlib.suppress(OSError):
                client.send(self._answer(received))
        self._forget(client)

    def _forget(self, client: socket.socket) -> None:
        if self._clients.pop(client, None) is not None:
            self._selector.unregister(client)
            client.close()

    def _answer(self, request: bytes) -> bytes:
        if request.startswith((b"GET /health/live ", b"GET /health/live?", b"HEAD /health/live ")):
            status, body = "200 OK", {"status": "live"}
        else:
            since_s = time.monotonic() - self._began
            status = "503 Service Unavailable"
            body = {"reason": f"the broker is starting: it has been reading its data directory for {since_s:.0f} s"}
        text = json.dumps(body).encode()
        head = (
            f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n"
            "Retry-After: 1\r\nConnection: close\r\n\r\n"
        )
        return head.encode() + (b"" if request.startswith(b"HEAD ") else text)
