"""A body whose request is answered already: a limited number of its bytes is read, and clients see the answer."""

from __future__ import annotations

import asyncio
import contextlib
import io
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
import requests

from tests.support.polling import eventually
from tests.support.tls_broker import TlsBroker
from tests.support.tokens import Signer, ask

ADMIN = "admin"
MIB = 1024 * 1024
PATH = "/admin/v2/tenants/large"
#: More than is read of unknown clients' answered requests, and within what is read of known ones'.
LARGE = 8 * MIB
#: More than is read of anybody's.
TOO_LARGE = 40 * MIB
#: Read by the broker, and what the kernel holds on both sides besides.
MOST_SENT = 64 * MIB
ENDLESS = 10_000 * MIB
CUT = 'heliograph_connections_cut_total{port="http",reason="body"}'


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory, signer: Signer) -> Iterator[TlsBroker]:
    """A broker that only knows tokens, with and without TLS, and shows its metrics to everybody."""
    settings = signer.settings(superusers=ADMIN, monitors="anybody", anonymous_role="anybody")
    with TlsBroker(tmp_path_factory.mktemp("closed"), environment=settings) as running:
        yield running


def connected(broker: TlsBroker, encrypted: bool) -> socket.socket:
    url = urlsplit(broker.process.https_url if encrypted else broker.process.http_url)
    client = socket.create_connection((url.hostname or "", url.port or 0), timeout=30)
    return broker.context().wrap_socket(client, server_hostname=url.hostname) if encrypted else client


def head(size: int, *, known: str = "", method: str = "PUT") -> bytes:
    credentials = f"Authorization: Bearer {known}\r\n" if known else ""
    return (
        f"{method} {PATH} HTTP/1.1\r\nHost: x\r\n{credentials}Content-Type: application/json\r\n"
        f"Content-Length: {size}\r\n\r\n"
    ).encode()


def sent_until_end(client: socket.socket, piece: bytes) -> int:
    """Send until the broker ends the connection, or far too much is sent; return the number of bytes."""
    sent = 0
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        while sent < 4 * MOST_SENT:
            client.sendall(piece)
            sent += len(piece)
    return sent


@pytest.mark.parametrize("encrypted", [False, True])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_limited_part_of_a_refused_request_is_read(closed: TlsBroker, encrypted: bool, chunked: bool) -> None:
    before = closed.metric(CUT)
    piece = bytes(64 * 1024)
    with connected(closed, encrypted) as client:
        first = head(ENDLESS, known="x.y.z")
        if chunked:
            first = first.replace(b"Content-Length: %d" % ENDLESS, b"Transfer-Encoding: chunked")
            piece = b"%x\r\n%s\r\n" % (len(piece), piece)
        client.sendall(first)
        assert client.recv(1000).split()[1] == b"401"
        assert sent_until_end(client, piece) < MOST_SENT
    assert closed.metric(CUT) == before + 1


def test_a_rest_within_the_limit_is_read_and_the_connection_goes_on(closed: TlsBroker, signer: Signer) -> None:
    before = closed.metric(CUT)
    with connected(closed, False) as client:
        for _ in range(3):
            client.sendall(head(MIB // 2, known="x.y.z"))
            assert client.recv(1000).split()[1] == b"401"
            client.sendall(bytes(MIB // 2))
        client.sendall(b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n")
        assert client.recv(1000).split()[1] == b"200"
    assert closed.metric(CUT) == before


def test_a_body_that_is_read_in_full_may_be_larger(closed: TlsBroker, signer: Signer) -> None:
    before = closed.metric(CUT)
    body = {"adminRoles": [], "allowedClusters": ["standalone"], "ignored": "x" * LARGE}
    assert ask(closed.process.http_url + PATH, signer.token(ADMIN), "PUT", body).status == 204
    assert closed.metric(CUT) == before


#: The credentials, a size beyond what is read (except that 415 is answered only after all) and one within, and headers.
KNOWN, UNKNOWN = "known", "Bearer x.y.z"
REFUSALS: dict[int, tuple[str, int, int, dict[str, str]]] = {
    401: (UNKNOWN, LARGE, MIB // 2, {}),
    403: ("", TOO_LARGE, LARGE, {}),
    413: (KNOWN, TOO_LARGE, 24 * MIB, {}),
    415: (KNOWN, LARGE, LARGE, {"Content-Encoding": "gzip"}),
}


def by_requests(url: str, body: Path, headers: dict[str, str], trusted: Path) -> tuple[int, str]:
    answer = requests.put(url, body.read_bytes(), headers=headers, verify=str(trusted), timeout=60)
    return answer.status_code, answer.text


def by_aiohttp(url: str, body: Path, headers: dict[str, str], trusted: Path) -> tuple[int, str]:
    data = io.BytesIO(body.read_bytes())

    async def put() -> tuple[int, str]:
        connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=str(trusted)))
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.put(url, data=data, headers=headers) as answer,
        ):
            transport = answer.connection and answer.connection.transport
            text = await answer.text()
            if transport and transport.get_extra_info("socket").fileno() >= 0:
                # Else it would wait, beyond the end of the loop, to have sent the whole body.
                transport.abort()
            return answer.status, text

    return asyncio.run(put())


def by_curl(url: str, body: Path, headers: dict[str, str], trusted: Path) -> tuple[int, str]:
    given = [argument for name, value in headers.items() for argument in ("-H", f"{name}: {value}")]
    command = ["curl", "-sS", "-X", "PUT", "--data-binary", f"@{body}", "--cacert", str(trusted), *given]
    # curl may report that it could not send everything, after it has written the answer.
    ran = subprocess.run([*command, "-w", "\n%{http_code}", url], capture_output=True, text=True, timeout=60)
    text, _, status = ran.stdout.rpartition("\n")
    return int(status), text


CLIENTS: dict[str, Any] = {"requests": by_requests, "aiohttp": by_aiohttp, "curl": by_curl}


@pytest.mark.parametrize("encrypted", [False, True])
@pytest.mark.parametrize("refusal", REFUSALS)
@pytest.mark.parametrize("client", CLIENTS)
def test_clients_that_are_still_sending_see_the_answer(
    closed: TlsBroker, signer: Signer, tmp_path: Path, client: str, refusal: int, encrypted: bool
) -> None:
    if client == "curl" and shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    credentials, beyond, within, further = REFUSALS[refusal]
    headers = {"Content-Type": "application/json", **further}
    if credentials:
        headers["Authorization"] = f"Bearer {signer.token(ADMIN)}" if credentials == KNOWN else credentials
    body = tmp_path / "body"
    # With TLS, the end of one direction is the end of both, and requests reads nothing after a write that fails.
    body.write_bytes(b" " * (within if encrypted and client == "requests" else beyond))
    url = (closed.process.https_url if encrypted else closed.process.http_url) + PATH
    found, text = CLIENTS[client](url, body, headers, closed.trusted)
    assert found == refusal
    assert '"reason"' in text
    eventually(lambda: ask(closed.process.http_url + "/health/live").status == 200)
