"""Answers of HTTP that a client does not read: they are kept for a while only, and not while it reads slowly."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from tests.support.polling import DEADLINE_S, eventually
from tests.support.tls_broker import TlsBroker
from tests.support.tokens import Signer

CUT = 'heliograph_connections_cut_total{port="http",reason="unread"}'
#: More than the kernel holds on both sides.
REQUESTS = 30


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory, signer: Signer) -> Iterator[TlsBroker]:
    """A broker that waits for two seconds, and shows its metrics to everybody."""
    settings = signer.settings(monitors="anybody", anonymous_role="anybody", keep_alive_interval_s="1")
    with TlsBroker(tmp_path_factory.mktemp("closed"), environment=settings) as running:
        yield running


def asking(broker: TlsBroker, encrypted: bool) -> socket.socket:
    """Return a connection with a small buffer on which much was asked for."""
    url = urlsplit(broker.process.https_url if encrypted else broker.process.http_url)
    plain = socket.socket()
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    plain.settimeout(DEADLINE_S)
    plain.connect((url.hostname, url.port))
    client = broker.context().wrap_socket(plain, server_hostname=url.hostname) if encrypted else plain
    client.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * REQUESTS)
    return client


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_client_that_reads_no_answers_is_cut(closed: TlsBroker, encrypted: bool) -> None:
    before = closed.metric(CUT)
    with asking(closed, encrypted):
        eventually(lambda: closed.metric(CUT) == before + 1)


def test_a_client_that_reads_slowly_is_not(closed: TlsBroker) -> None:
    before = closed.metric(CUT)
    with asking(closed, False) as slow, asking(closed, False):
        # As long as the other one takes to be cut.
        while closed.metric(CUT) == before:
            assert slow.recv(64 * 1024)
        received = 0
        while received < 1024 * 1024:
            part = slow.recv(64 * 1024)
            assert part
            received += len(part)
    assert closed.metric(CUT) == before + 1
