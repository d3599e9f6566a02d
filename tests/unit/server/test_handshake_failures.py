"""The log about a client whose TLS handshake fails names the side that is wrong, and what would be right."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from heliograph_broker.server.handshake_failures import handshake_failure

from tests.support.certificates import Authority
from tests.support.tls_broker import HANDSHAKE

AUTHORITY = Authority()


@pytest.fixture
def context(tmp_path: Path) -> ssl.SSLContext:
    """TLS of a port, without a certificate of the client."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*AUTHORITY.issue().write(tmp_path))
    return context


def failure_of(context: ssl.SSLContext, client: ssl.SSLContext | bytes) -> str:
    """Return the words for a handshake with a client, or with the bytes that one sends instead."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = context.wrap_bio(to_server, to_client, server_side=True)
    peer = None
    if isinstance(client, bytes):
        to_server.write(client)
    else:
        peer = client.wrap_bio(to_client, to_server, server_hostname="localhost")
    try:
        for _ in range(4):
            for side in filter(None, (peer, server)):
                try:
                    side.do_handshake()
                except ssl.SSLWantReadError:
                    continue
                except ssl.SSLError:
                    if side is server:
                        raise
    except ssl.SSLError as error:
        return handshake_failure(error)
    raise AssertionError("the handshake did not fail")


@pytest.mark.parametrize(
    ("sent", "scheme"),
    [(HANDSHAKE, "pulsar+ssl:// or https://"), (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "https://")],
    ids=["pulsar", "http"],
)
def test_a_client_without_tls_is_told_the_scheme(context: ssl.SSLContext, sent: bytes, scheme: str) -> None:
    expected = f"the client does not speak TLS, and this port takes nothing else: its URL begins with {scheme} ("
    assert failure_of(context, sent).startswith(expected)


@pytest.mark.parametrize("name", ["another authority", "test authority"])
def test_a_client_that_does_not_trust_the_authority(context: ssl.SSLContext, name: str) -> None:
    client = ssl.create_default_context(cadata=Authority(name).pem.decode())
    assert failure_of(context, client).startswith(
        "the client does not trust the authority of this broker's certificate"
    )


def test_a_client_without_the_certificate_that_is_required(context: ssl.SSLContext) -> None:
    context.verify_mode = ssl.CERT_REQUIRED
    client = ssl.create_default_context(cadata=AUTHORITY.pem.decode())
    assert failure_of(context, client).startswith("the client has shown no certificate, and this port requires one")


def test_other_errors_keep_their_words() -> None:
    assert handshake_failure(TimeoutError()) == "the TLS handshake was not completed in time"
    assert handshake_failure(ConnectionResetError()) == "ConnectionResetError"
    assert handshake_failure(ConnectionAbortedError("the client left")) == "the client left"
