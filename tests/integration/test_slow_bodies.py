"""Bodies that arrive slowly or are announced first: what they may take of time, and who is asked to send one."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.polling import DEADLINE_S, eventually
from tests.support.rest import metrics
from tests.support.tokens import Signer

ADMIN = "admin"
TENANT = b"/admin/v2/tenants/slow"
KIB = 1024
CUT = 'heliograph_connections_cut_total{port="http",reason="slow"} '


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory, signer: Signer) -> Iterator[BrokerProcess]:
    """A broker that only knows tokens, waits a second for slow clients, and shows its metrics to everybody."""
    settings = signer.settings(superusers=ADMIN, monitors="anybody", anonymous_role="anybody", handshake_timeout_s="1")
    with BrokerProcess(tmp_path_factory.mktemp("closed") / "data", environment=settings) as running:
        yield running


@pytest.fixture(scope="module")
def open_to_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker without authentication that waits a second for slow clients."""
    settings = {"HELIOGRAPH_HANDSHAKE_TIMEOUT_S": "1"}
    with BrokerProcess(tmp_path_factory.mktemp("open") / "data", environment=settings) as running:
        yield running


@contextlib.contextmanager
def asking(
    broker: BrokerProcess, *headers: bytes, path: bytes = TENANT, method: bytes = b"PUT"
) -> Iterator[socket.socket]:
    """Yield a connection on which the head of a request was sent."""
    url = urlsplit(broker.http_url)
    with socket.create_connection((url.hostname or "", url.port or 0), DEADLINE_S) as client:
        client.sendall(b"\r\n".join((b"%s %s HTTP/1.1" % (method, path), b"Host: x", *headers, b"", b"")))
        yield client


def cut(broker: BrokerProcess) -> float:
    return next((float(line.split()[-1]) for line in metrics(broker.http_url).splitlines() if line.startswith(CUT)), 0)


def of(signer: Signer, role: str) -> bytes:
    return f"Authorization: Bearer {signer.token(role)}".encode()


def trickled(client: socket.socket, piece: bytes) -> bytes:
    """Send pieces until there is an answer, and return it."""
    client.settimeout(0.05)

    def answer() -> bytes:
        client.sendall(piece)
        with contextlib.suppress(TimeoutError):
            return client.recv(4 * KIB)
        return b""

    answered = eventually(answer)
    client.settimeout(DEADLINE_S)
    return answered


@pytest.mark.parametrize("role", [ADMIN, "somebody", None])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_byte_by_byte_is_given_up(
    closed: BrokerProcess, open_to_all: BrokerProcess, signer: Signer, role: str | None, chunked: bool
) -> None:
    broker = closed if role is not None else open_to_all
    before = cut(broker)
    size = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: 100000"
    # Anybody who is known may ask this.
    path = b"/admin/v2/namespaces/grantPermissionsOnTopics"
    with asking(broker, size, *([of(signer, role)] if role else []), path=path, method=b"POST") as client:
        answer = trickled(client, b"1\r\n \r\n" if chunked else b" ")
    assert answer.split()[1] == b"408"
    assert b"\r\nConnection: close\r\n" in answer
    assert (
        b"the body arrives too slowly; valid: all of it within 1 s, and another second for each 32768 bytes" in answer
    )
    assert cut(broker) == before + 1


def test_a_large_body_has_more_time(closed: BrokerProcess, signer: Signer) -> None:
    body = b'{"allowedClusters": ["standalone"]}'.ljust(1024 * KIB)
    with asking(closed, of(signer, ADMIN), b"Content-Length: %d" % len(body)) as client:
        client.sendall(body[: 512 * KIB])
        with asking(closed, of(signer, ADMIN), b"Content-Length: 9") as slow:
            assert trickled(slow, b"").split()[1] == b"408"
            assert slow.recv(4 * KIB) == b""
        client.sendall(body[512 * KIB :])
        assert client.recv(4 * KIB).split()[1] == b"204"


EXPECTS = b"Expect: 100-continue"


@pytest.mark.parametrize(
    ("credentials", "path", "method", "size", "status"),
    [
        (b"Authorization: Bearer x.y.z", TENANT, b"PUT", 9, b"401"),
        (b"Authorization: Bearer x.y.z", b"/admin/v2/nothing", b"PUT", 9, b"401"),
        (b"Authorization: Bearer x.y.z", TENANT, b"PATCH", 9, b"401"),
        (b"X-Pulsar-Auth-Method-Name: strange", TENANT, b"PUT", 9, b"401"),
        (b"X-Nothing: x", TENANT, b"PUT", 9, b"403"),
        (b"X-Nothing: x", b"/admin/v2/namespaces/grantPermissionsOnTopics", b"POST", 2 * KIB * KIB, b"413"),
        # A probe, which everybody may ask and which has no body.
        (b"Authorization: Bearer x.y.z", b"/health/live", b"GET", 9, b"401"),
        (b"X-Nothing: x", b"/health/live", b"GET", 9, b"200"),
    ],
)
def test_nobody_is_asked_for_a_body_that_is_refused(
    closed: BrokerProcess, credentials: bytes, path: bytes, method: bytes, size: int, status: bytes
) -> None:
    length = b"Content-Length: %d" % size
    with asking(closed, credentials, EXPECTS, length, path=path, method=method) as client:
        assert client.recv(4 * KIB).split()[1] == status


def test_a_body_that_is_announced_is_asked_for_once_the_client_may_send_it(
    closed: BrokerProcess, open_to_all: BrokerProcess, signer: Signer
) -> None:
    body = b'{"allowedClusters": ["standalone"]}'
    for broker, headers in ((closed, [of(signer, ADMIN)]), (open_to_all, [])):
        path = b"/admin/v2/tenants/announced"
        with asking(broker, *headers, EXPECTS, b"Content-Length: %d" % len(body), path=path) as client:
            assert client.recv(4 * KIB) == b"HTTP/1.1 100 Continue\r\n\r\n"
            client.sendall(body)
            assert client.recv(4 * KIB).split()[1] == b"204"


def test_another_expectation_is_refused(closed: BrokerProcess, open_to_all: BrokerProcess, signer: Signer) -> None:
    for broker, headers in ((closed, [of(signer, ADMIN)]), (open_to_all, [])):
        with asking(broker, *headers, b"Expect: miracles", b"Content-Length: 9") as client:
            answer = client.recv(4 * KIB)
        assert answer.split()[1] == b"417"
        assert b"the header Expect is 'miracles'; valid: 100-continue" in answer
    with asking(closed, b"Expect: miracles", b"Content-Length: 9", b"Authorization: Bearer x.y.z") as client:
        assert client.recv(4 * KIB).split()[1] == b"401"
