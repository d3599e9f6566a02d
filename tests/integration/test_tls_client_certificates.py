"""Certificates of clients on both ports with TLS: who is admitted, until when, and the authorities that are removed."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pulsar
import pytest

from tests.support.certificates import Authority
from tests.support.polling import eventually
from tests.support.tls_broker import HANDSHAKE, TlsBroker, exchanges, frames_of, until_end
from tests.support.wire_client import Type, encode

#: What it issues is trusted by nobody in these tests.
FOREIGN = Authority("foreign authority")
LIVE = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture(scope="module")
def verifying(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsBroker]:
    """A broker to which clients need a certificate, on its ports with TLS."""
    directory = tmp_path_factory.mktemp("tls-clients")
    # Silent clients are left alone for 40 s, and certificates are checked every 5 s.
    environment = {"HELIOGRAPH_TLS_REQUIRE_CLIENT_CERTIFICATE": "true", "HELIOGRAPH_KEEP_ALIVE_INTERVAL_S": "20"}
    with TlsBroker(directory, "--tls-client-ca", str(directory / "ca.crt"), environment=environment) as running:
        yield running


def test_a_client_with_a_certificate_is_admitted(verifying: TlsBroker, topic: str, tmp_path: Path) -> None:
    certificate, key = verifying.authority.identify(tmp_path)
    authentication = pulsar.AuthenticationTLS(str(certificate), str(key))
    exchanges(verifying.connect(authentication=authentication), topic)


def is_refused(broker: TlsBroker, context: ssl.SSLContext, url: str = "") -> bool:
    """Whether the broker ends the connection of a client that can only be refused for its certificate."""
    try:
        with broker.encrypted(context, url=url) as connection:
            # With TLS 1.3, a client learns of it after its own part of the handshake.
            connection.sendall(HANDSHAKE)
            return until_end(connection) == b""
    except (ssl.SSLError, ConnectionError):
        return True


@pytest.mark.parametrize("port", ["service_tls_url", "https_url"])
@pytest.mark.parametrize("kind", ["none", "foreign", "expired"])
def test_clients_without_a_valid_certificate_are_refused(
    verifying: TlsBroker, tmp_path: Path, kind: str, port: str
) -> None:
    authority = FOREIGN if kind == "foreign" else verifying.authority
    ends = datetime.now(UTC) + timedelta(days=-1 if kind == "expired" else 1)
    own = None if kind == "none" else authority.identify(tmp_path, ends=ends)
    assert is_refused(verifying, verifying.context(own), getattr(verifying.process, port))


def test_a_certificate_may_be_left_out_unless_it_is_required(tmp_path: Path, topic: str) -> None:
    with TlsBroker(tmp_path, "--tls-client-ca", str(tmp_path / "ca.crt")) as broker:
        exchanges(broker.connect(), topic)
        assert is_refused(broker, broker.context(FOREIGN.identify(tmp_path)))


def test_a_connection_ends_when_its_clients_certificate_expires(verifying: TlsBroker, tmp_path: Path) -> None:
    ends = datetime.now(UTC) + timedelta(seconds=6)
    context = verifying.context(verifying.authority.identify(tmp_path, ends=ends))
    lasting = verifying.context(verifying.authority.identify(tmp_path / "lasting"))
    with verifying.encrypted(context) as connection, verifying.encrypted(lasting) as other:
        for each in (connection, other):
            each.sendall(HANDSHAKE)
        kinds = set()
        for frame in frames_of(connection):
            kinds.add(frame.command.type)
            connection.sendall(encode(Type.PONG))
        assert kinds <= {Type.CONNECTED, Type.PING}
        assert datetime.now(UTC) >= ends - timedelta(seconds=1)
        other.sendall(encode(Type.PING))
        assert any(frame.command.type == Type.PONG for frame in frames_of(other))
    assert "the client's certificate has expired" in verifying.process.log_tail()
    assert verifying.metric('heliograph_connections_cut_total{port="binary",reason="certificate"}') == 1


def test_a_request_on_an_open_connection_is_not_answered_when_its_clients_certificate_has_expired(
    verifying: TlsBroker, tmp_path: Path
) -> None:
    cut = 'heliograph_connections_cut_total{port="http",reason="certificate"}'
    ends = datetime.now(UTC) + timedelta(seconds=6)
    context = verifying.context(verifying.authority.identify(tmp_path, ends=ends))
    request = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
    before = verifying.metric(cut)
    with verifying.encrypted(context, url=verifying.process.https_url) as connection:

        def answers() -> bool:
            try:
                connection.sendall(request)
                return connection.recv(65536).startswith(b"HTTP/1.1 200")
            except OSError:
                return False

        assert answers()
        # Each request is answered until the certificate ends, and none after that.
        eventually(lambda: not answers(), what="the end of the connection")
        assert datetime.now(UTC) >= ends - timedelta(seconds=1)
    assert verifying.metric(cut) == before + 1


def test_clients_of_an_authority_that_is_removed_are_disconnected_and_those_of_others_come_back(tmp_path: Path) -> None:
    old, new = Authority("old authority"), Authority("new authority")
    trusted = tmp_path / "clients.crt"
    trusted.write_bytes(old.pem)
    # Silent clients are left alone for 40 s, and certificates are checked every 5 s.
    environment = {"HELIOGRAPH_KEEP_ALIVE_INTERVAL_S": "20"}
    with TlsBroker(tmp_path, "--tls-client-ca", str(trusted), environment=environment) as broker:
        contexts = [broker.context(each.identify(tmp_path / name)) for each, name in ((old, "old"), (new, "new"))]
        with (
            broker.encrypted(contexts[0]) as connection,
            broker.encrypted(contexts[0], url=broker.process.https_url) as http,
            broker.encrypted() as without,
        ):
            for each in (connection, without):
                each.sendall(HANDSHAKE)
            http.sendall(LIVE)
            assert http.recv(1000).split()[1] == b"200"
            trusted.write_bytes(old.pem + new.pem)
            eventually(lambda: not is_refused_at_once(broker, contexts[1]))
            # Nobody has lost anything yet.
            http.sendall(LIVE)
            assert http.recv(1000).split()[1] == b"200"
            trusted.write_bytes(new.pem)
            for frame in frames_of(connection):
                if frame.command.type == Type.PING:
                    connection.sendall(encode(Type.PONG))
            http.sendall(LIVE)
            assert until_end(http) == b""
            without.sendall(encode(Type.PING))
            assert any(frame.command.type == Type.PONG for frame in frames_of(without))
        assert is_refused(broker, contexts[0])
        assert not is_refused_at_once(broker, contexts[1])
        assert "an authority of clients' certificates was removed" in broker.process.log_path.read_text()


def is_refused_at_once(broker: TlsBroker, context: ssl.SSLContext) -> bool:
    """Whether a client is refused for its certificate, which would be answered otherwise."""
    try:
        with broker.encrypted(context, url=broker.process.https_url) as connection:
            connection.sendall(LIVE)
            return not connection.recv(1000)
    except (ssl.SSLError, ConnectionError):
        return True
