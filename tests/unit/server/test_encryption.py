"""TLS of accepted connections on both event loops: what a client sends early, and what waits below TLS."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop
from heliograph_api.broker_config import BrokerConfig
from heliograph_api.protocol.encoder import Encoder
from heliograph_broker.messaging.base.tls_metrics import TlsMetrics
from heliograph_broker.server.encryption import serve_encrypted
from heliograph_broker.server.handshake_turns import HandshakeTurns, Turn
from heliograph_broker.server.output import Output
from heliograph_broker.standalone import Standalone

from tests.support.certificates import Authority
from tests.support.tls_broker import HANDSHAKE
from tests.support.wire_client import Type, encode, take_frames

AUTHORITY = Authority()
MIB = 1024 * 1024
WITHIN_S = 60.0


def on(loop: str, work: Coroutine[Any, Any, None]) -> None:
    """Run it on one of the loops."""
    if loop == "uvloop":
        uvloop.run(work)
    else:
        asyncio.run(work)


def trusting() -> ssl.SSLContext:
    return ssl.create_default_context(cadata=AUTHORITY.pem.decode())


def serving(directory: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*AUTHORITY.issue().write(directory))
    return context


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_commands_that_follow_the_handshake_at_once_are_answered(loop: str, tmp_path: Path) -> None:
    async def run() -> None:
        certificate, key = AUTHORITY.issue().write(tmp_path)
        ports: dict[str, Any] = {"broker_port": 0, "http_port": 0, "broker_tls_port": 0, "https_port": 0}
        config = BrokerConfig(data_dir=str(tmp_path / "d"), tls_cert=str(certificate), tls_key=str(key), **ports)
        broker = Standalone(config, [])
        await broker.start()
        try:
            port = int(broker.broker_tls_url.rpartition(":")[2])
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, ssl=trusting(), server_hostname="localhost"
            )
            writer.write(HANDSHAKE + encode(Type.PING) * 3)
            received, kinds = bytearray(), list[int]()
            async with asyncio.timeout(WITHIN_S):
                while len(kinds) < 4:
                    received += await reader.read(65536)
                    kinds += [frame.command.type for frame in take_frames(received)]
            assert kinds == [Type.CONNECTED, *[Type.PONG] * 3]
            writer.close()
        finally:
            await broker.stop()

    on(loop, run())


def a_turn() -> Turn:
    """Return the turn of a client beside which there are no others."""
    return HandshakeTurns(asyncio.get_running_loop(), TlsMetrics(), time.monotonic).turn("192.0.2.7")


def nothing_follows(below: asyncio.Transport | None) -> asyncio.BaseProtocol:
    raise AssertionError(f"a handshake ended well: {below}")


class Kept(asyncio.Protocol):
    """A connection that keeps what it is given."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.ended = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set()


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_bytes_that_wait_below_tls_count_as_unread(loop: str, tmp_path: Path) -> None:
    async def run() -> None:
        running = asyncio.get_running_loop()
        here, there = socket.socketpair(socket.AF_UNIX)
        here.setblocking(False)
        made: list[tuple[Kept, asyncio.Transport | None]] = []

        def make(below: asyncio.Transport | None) -> Kept:
            made.append((Kept(), below))
            return made[0][0]

        served = serve_encrypted(
            running, here, lambda: serving(tmp_path), make, a_turn(), within_s=WITHIN_S, close_s=1.0
        )
        client = running.run_in_executor(None, lambda: trusting().wrap_socket(there, server_hostname="localhost"))
        await asyncio.gather(served, client)
        connection, below = made[0]
        assert connection.transport is not None
        output = Output(running, Encoder(), 16 * MIB, lambda: None)
        output.open(connection.transport, below)
        for _ in range(3):
            output.write(bytes(MIB))
            output.flush()
        # The client reads nothing, and the socket takes some hundred kilobytes.
        assert 2 * MIB < output.unread_bytes < 3.2 * MIB
        assert output.taken_bytes < MIB
        connection.transport.abort()
        async with asyncio.timeout(WITHIN_S):
            await connection.ended.wait()
        (await client).close()

    on(loop, run())


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize(
    ("sent", "error", "within_s"),
    [
        (b"", TimeoutError, 0.2),
        (b"GET / HTTP/1.1", ssl.SSLError, WITHIN_S),
        (b"\x16\x03\x01\x02\x00\x01", TimeoutError, 0.2),
    ],
)
def test_a_handshake_that_does_not_end_well_is_an_error_in_time(
    loop: str, sent: bytes, error: type[OSError], within_s: float, tmp_path: Path
) -> None:
    async def run() -> None:
        here, there = socket.socketpair(socket.AF_UNIX)
        here.setblocking(False)
        there.sendall(sent)
        with there, here, pytest.raises(error):
            await serve_encrypted(
                asyncio.get_running_loop(), here, lambda: serving(tmp_path), nothing_follows, a_turn(),
                within_s=within_s, close_s=1.0,
            )  # fmt: skip

    on(loop, run())


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_client_that_leaves_before_the_handshake_is_an_error(loop: str, tmp_path: Path) -> None:
    async def run() -> None:
        here, there = socket.socketpair(socket.AF_UNIX)
        here.setblocking(False)
        there.close()
        with here, pytest.raises(ConnectionError):
            await serve_encrypted(
                asyncio.get_running_loop(), here, lambda: serving(tmp_path), nothing_follows, a_turn(),
                within_s=WITHIN_S, close_s=1.0,
            )  # fmt: skip

    on(loop, run())
