"""The port of a broker that starts: whatever clients do, it goes on to answer that the broker is live."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from pathlib import Path

from heliograph_broker.server.starting_port import MAX_CLIENTS, StartingPort

from tests.support.certificates import Authority

_WITHIN_S = 60.0
_REQUEST = b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n"


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def _connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=_WITHIN_S)


def _first_line(port: int) -> bytes:
    with _connect(port) as client:
        client.sendall(_REQUEST)
        return client.recv(8192).partition(b"\r\n")[0]


class _Full(StartingPort):
    """Waits with its most clients, so that what they do until it goes on is found at once."""

    def __init__(self, port: int) -> None:
        super().__init__("127.0.0.1", port)
        self.is_full, self.may_go_on = threading.Event(), threading.Event()
        self.accepted = 0

    def _accept(self, listening: socket.socket) -> None:
        super()._accept(listening)
        self.accepted += 1
        if self.accepted == MAX_CLIENTS:
            self.is_full.set()
            self.may_go_on.wait(_WITHIN_S)


def test_a_client_that_made_room_for_another_may_have_sent_something() -> None:
    port = _free_port()
    with _Full(port) as starting, contextlib.ExitStack() as clients:
        oldest, *_ = [clients.enter_context(_connect(port)) for _ in range(MAX_CLIENTS)]
        assert starting.is_full.wait(_WITHIN_S)
        clients.enter_context(_connect(port))
        oldest.sendall(b"G")
        starting.may_go_on.set()
        assert _first_line(port) == b"HTTP/1.1 200 OK"


def test_with_tls_it_answers_clients_that_speak_it_and_outlives_others(tmp_path: Path) -> None:
    authority = Authority()
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(*authority.issue().write(tmp_path))
    trusting = ssl.create_default_context(cadata=authority.pem.decode())
    port = _free_port()
    with StartingPort("127.0.0.1", port, served), _connect(port) as plain, _connect(port):
        plain.sendall(_REQUEST)
        # At most an alert, and the end.
        with contextlib.suppress(ConnectionError):
            while plain.recv(8192):
                pass
        with trusting.wrap_socket(_connect(port), server_hostname="localhost") as client:
            client.sendall(_REQUEST[:10])
            client.sendall(_REQUEST[10:])
            assert client.recv(8192).startswith(b"HTTP/1.1 200 OK\r\n")


class _Failing(StartingPort):
    def _answer(self, request: bytes) -> bytes:
        if b"/fails" in request:
            raise KeyError("unexpected")
        return super()._answer(request)


def test_an_unexpected_error_ends_one_connection_only() -> None:
    port = _free_port()
    with _Failing("127.0.0.1", port):
        with _connect(port) as client:
            client.sendall(b"GET /fails HTTP/1.1\r\n\r\n")
            assert client.recv(100) == b""
        assert _first_line(port) == b"HTTP/1.1 200 OK"
