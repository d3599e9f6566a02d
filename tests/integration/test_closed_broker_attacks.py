"""Attacks on a closed broker from outside: by unknown clients, and by clients that have lost a right."""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from heliograph_api.protocol import wire_pb2 as wire

from tests.support.broker_process import BrokerProcess
from tests.support.clients import fresh_name
from tests.support.passwords import write_users
from tests.support.polling import DEADLINE_S, eventually
from tests.support.tls_broker import TlsBroker, until_end
from tests.support.tokens import CHECK_EVERY_S, SHORT_S, Signer, ask
from tests.support.wire_client import ConnectionEndedError, Type, WireClient

ADMIN = "admin"
NAMESPACES = "/admin/v2/namespaces"


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory, signer: Signer) -> Iterator[BrokerProcess]:
    """A broker that only knows tokens, and checks for expired ones every few seconds."""
    settings = signer.settings(
        superusers=ADMIN,
        proxies="gate",
        auth_refresh_check_s=str(CHECK_EVERY_S),
    )
    with BrokerProcess(tmp_path_factory.mktemp("closed") / "data", environment=settings) as running:
        yield running


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory, signer: Signer) -> Iterator[BrokerProcess]:
    """A broker that cuts clients after a second, so that only those that are to be cut may connect."""
    settings = signer.settings(handshake_timeout_s="1")
    with BrokerProcess(tmp_path_factory.mktemp("impatient") / "data", environment=settings) as running:
        yield running


class Flood:
    """Bounds the lines that the log may have of events that began now."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def most_lines(self, kinds: int = 1, *, before: bool = True) -> int:
        """Return ten of a kind in ten seconds and a line for the others, and those of a while that began ``before``."""
        whiles = 1 + before + int((time.monotonic() - self._began) / 10)
        return kinds * 11 * whiles


def http_socket(broker: BrokerProcess) -> socket.socket:
    url = urlsplit(broker.http_url)
    return socket.create_connection((url.hostname or "", url.port or 0), DEADLINE_S)


def administered_by(broker: BrokerProcess, signer: Signer, tenant: str, role: str, method: str) -> None:
    body = {"adminRoles": [role], "allowedClusters": ["standalone"]}
    path = f"{broker.http_url}/admin/v2/tenants/{tenant}"
    assert ask(path, signer.token(ADMIN), method, body).status == 204


@pytest.mark.parametrize(("expires_in_s", "status"), [(None, b"403"), (SHORT_S, b"401")])
def test_a_right_that_is_lost_before_the_body_has_arrived_allows_nothing(
    closed: BrokerProcess, signer: Signer, expires_in_s: float | None, status: bytes
) -> None:
    tenant = f"late-{status.decode()}"
    administered_by(closed, signer, tenant, "boss", "PUT")
    path = f"{NAMESPACES}/{tenant}/orders"
    assert ask(closed.http_url + path, signer.token(ADMIN), "PUT").status == 204
    body = b'["produce", "consume"]'
    token = signer.token("boss", expires_in_s=expires_in_s)
    with http_socket(closed) as client:
        client.sendall(
            f"POST {path}/permissions/boss HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
            f"Expect: 100-continue\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        )
        # The broker has read the head, and waits for the body.
        assert client.recv(1000).startswith(b"HTTP/1.1 100")
        client.sendall(body[:3])
        if expires_in_s is None:
            administered_by(closed, signer, tenant, "successor", "POST")
        else:
            _expired(closed, token)
        client.sendall(body[3:])
        answer = client.recv(1000)
        assert answer.split()[1] == status
        assert (b"\r\nWWW-Authenticate: Bearer\r\n" in answer) == (status == b"401")
    assert ask(f"{closed.http_url}{path}/permissions", signer.token(ADMIN)).body == {}


def _expired(broker: BrokerProcess, token: str) -> None:
    eventually(lambda: ask(f"{broker.http_url}/admin/v2/brokers/version", token).status == 401)


def test_credentials_that_are_no_text_are_refused_as_any_false_ones(closed: BrokerProcess, signer: Signer) -> None:
    for scheme in (b"Bearer", b"Basic"):
        with http_socket(closed) as client:
            client.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: " + scheme + b" \xff\xfe\r\n\r\n")
            assert client.recv(1000).split()[1] == b"401"
    assert "Traceback" not in closed.log_path.read_text()


@pytest.mark.parametrize("sent", [b"", b"GET /metr", b"\r\n\r\nGET /metrics HTTP/1.1\r\n"])
def test_an_unknown_client_cannot_hold_a_connection_without_a_request(impatient: BrokerProcess, sent: bytes) -> None:
    with http_socket(impatient) as client:
        client.sendall(sent)
        with contextlib.suppress(ConnectionResetError):
            assert client.recv(1000) == b""


def test_a_request_in_pieces_that_comes_in_time_is_answered(closed: BrokerProcess) -> None:
    with http_socket(closed) as client:
        for piece in (b"\r\n", b"GET /health/live HTTP/1.1\r\nHost: x\r", b"\n\r", b"\n"):
            client.sendall(piece)
        assert client.recv(1000).split()[1] == b"200"


def test_a_proxy_does_not_renew_what_its_client_has_shown(closed: BrokerProcess, signer: Signer) -> None:
    gate = signer.token("gate")
    with WireClient(closed.service_url, connect=False) as client:
        client.authenticate(
            gate,
            feature_flags=wire.FeatureFlags(supports_auth_refresh=True),
            original_principal="behind",
            original_auth_data=signer.token("behind", expires_in_s=SHORT_S),
            original_auth_method="token",
        )
        client.expect(Type.AUTH_CHALLENGE)
        client.send(Type.AUTH_RESPONSE, response=wire.AuthData(auth_method_name="token", auth_data=gate.encode()))
        client.send(Type.PING)
        error = client.expect(Type.ERROR).body
        assert error.error == wire.AuthenticationError
        assert "the credentials of the proxy's client have expired" in error.message


def test_the_settings_of_a_broker_do_not_show_its_keys(tmp_path: Path, signer: Signer) -> None:
    key = base64.b64encode(signer.path.read_bytes()).decode()
    environment = {
        "HELIOGRAPH_AUTH": "token",
        "HELIOGRAPH_TOKEN_SECRET_KEY": f"{signer.path},data:;base64,{key}",
        "HELIOGRAPH_SUPERUSERS": ADMIN,
    }
    with BrokerProcess(tmp_path / "data", environment=environment) as broker:
        settings = ask(f"{broker.http_url}/admin/v2/brokers/configuration/runtime", signer.token(ADMIN)).body
        assert settings["token_secret_key"] == f"{signer.path},data:…"
        assert key not in repr(settings)


def test_refused_clients_do_not_fill_the_log(closed: BrokerProcess) -> None:
    before, flood = len(closed.log_path.read_text().splitlines()), Flood()
    for _ in range(100):
        with WireClient(closed.service_url, connect=False) as client:
            client.send(Type.CONNECT, client_version="test", protocol_version=21)
            client.expect(Type.ERROR)
        with WireClient(closed.service_url, connect=False) as client:
            client.send(Type.LOOKUP, topic="t", request_id=1)
            client.expect(Type.ERROR)
    assert len(closed.log_path.read_text().splitlines()) - before <= flood.most_lines()


def test_failed_handshakes_do_not_fill_the_log(tmp_path: Path) -> None:
    with TlsBroker(tmp_path) as broker:
        flood = Flood()
        for _ in range(100):
            with broker.raw(broker.process.https_url) as client:
                client.sendall(b"GET / HTTP/1.1\r\n\r\n")
                with contextlib.suppress(ConnectionResetError):
                    assert client.recv(1000)[:1] != b"H"
        failed = 'heliograph_connections_cut_total{port="http",reason="tls"}'
        eventually(lambda: broker.metric(failed) == 100)
        logged = broker.process.log_path.read_text().count("connection setup failed")
        assert logged <= flood.most_lines(before=False)


def test_a_proxy_that_is_withdrawn_ends_though_its_client_has_another_method(tmp_path: Path, signer: Signer) -> None:
    password = "what only the proxy knows"
    users = write_users(tmp_path / "users", {"gate": password})
    environment = {
        "HELIOGRAPH_AUTH": "token,basic",
        "HELIOGRAPH_TOKEN_SECRET_KEY": str(signer.path),
        "HELIOGRAPH_BASIC_FILE": str(users),
        "HELIOGRAPH_PROXIES": "gate",
        "HELIOGRAPH_AUTH_REFRESH_CHECK_S": "1",
    }
    with (
        BrokerProcess(tmp_path / "data", environment=environment) as broker,
        WireClient(broker.service_url, connect=False) as client,
    ):
        client.send(
            Type.CONNECT,
            client_version="test",
            protocol_version=21,
            auth_method_name="basic",
            auth_data=f"gate:{password}".encode(),
            original_auth_data=signer.token("behind"),
            original_auth_method="token",
        )
        client.expect(Type.CONNECTED)
        write_users(users, {"other": password})
        assert client.expect(Type.ERROR).body.error == wire.AuthenticationError


def test_nothing_is_decompressed_for_anybody(closed: BrokerProcess, signer: Signer) -> None:
    """Bytes that are no gzip would end the connection if anything tried to decompress them."""
    known = f"Authorization: Bearer {signer.token(ADMIN)}\r\n"
    for credentials, status in (("", b"401"), (known, b"415")):
        head = f"PUT /admin/v2/tenants/packed HTTP/1.1\r\nHost: x\r\n{credentials}Content-Encoding: gzip\r\n"
        with http_socket(closed) as client:
            client.sendall(f"{head}Content-Length: 9\r\n\r\nno gzip!!".encode())
            assert client.recv(1000).split()[1] == status
            client.sendall(b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n")
            assert client.recv(1000).split()[1] == b"200"


@pytest.mark.parametrize("chunked", [False, True])
def test_large_bodies_are_for_superusers(closed: BrokerProcess, signer: Signer, chunked: bool) -> None:
    path = f"{closed.http_url}{NAMESPACES}/grantPermissionsOnTopics"
    permission = {"topic": "missing", "role": "r", "actions": ["consume"]}
    body = json.dumps([permission] * 20_000).encode()
    for role, status in (("nobody", 413), (ADMIN, 404)):
        sent: Any = iter([body[:1000], body[1000:]]) if chunked else body
        headers = {"Authorization": f"Bearer {signer.token(role)}"} | (
            {"Transfer-Encoding": "chunked"} if chunked else {}
        )
        url = urlsplit(path)
        connection = HTTPConnection(url.netloc, timeout=60)
        with contextlib.closing(connection):
            connection.request("POST", url.path, sent, headers, encode_chunked=chunked)
            assert connection.getresponse().status == status
    # Everybody may send the usual ones.
    assert ask(path, signer.token("nobody"), "POST", [permission] * 1000).status == 403


def test_a_body_as_it_is_may_say_so(closed: BrokerProcess, signer: Signer) -> None:
    url = f"{closed.http_url}/admin/v2/tenants/unpacked"
    body = {"adminRoles": [], "allowedClusters": ["standalone"]}
    assert ask(url, signer.token(ADMIN), "PUT", body, Content_Encoding="identity").status == 204


MALFORMED = (
    b"GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + b"abc.def" * 2000 + b"\r\n\r\n",
    b"GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer abc.def\0\r\n\r\n",
    b"GET /metrics HTTP/1.1\r\nHost: x\r\n" + b"A: abc.def\r\n" * 200 + b"\r\n",
    b"GET /health/live?abc.def HTTP/1.1\r\nHost: x\r\n\r\nabc.def \x01\r\n\r\n",
    b"POST /metrics HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nabc.def\r\n",
)


def test_malformed_requests_are_refused_and_neither_fill_nor_show_in_the_log(closed: BrokerProcess) -> None:
    before, flood = closed.log_path.stat().st_size, Flood()
    for _ in range(50):
        for request in MALFORMED:
            with http_socket(closed) as client:
                client.sendall(request)
                answer = until_end(client)
                assert answer.startswith(b"HTTP/1."), request
                assert b"aiohttp" not in answer
    assert ask(f"{closed.http_url}/health/live").status == 200
    with closed.log_path.open("rb") as log:
        log.seek(before)
        logged = log.read()
    assert b"malformed request" in logged
    assert b"abc.def" not in logged
    assert b"Traceback" not in logged
    # Malformed requests, and those without credentials.
    assert len(logged.splitlines()) <= flood.most_lines(kinds=2)


def test_nobody_states_an_address_of_its_own(closed: BrokerProcess, signer: Signer) -> None:
    forged = "203.0.113.7"
    headers: dict[str, Any] = dict.fromkeys(
        ("X_Forwarded_For", "X_Real_IP", "X_Client_IP", "X_Cluster_Client_IP", "Via"), forged
    )
    path = f"{closed.http_url}/admin/v2/tenants/{fresh_name()}"
    body = {"allowedClusters": ["standalone"]}
    assert ask(path, signer.token(ADMIN), "PUT", body, Forwarded=f"for={forged}", **headers).status == 204
    assert ask(path, "x.y.z", Forwarded=f"for={forged}", **headers).status == 401
    announced = f"PROXY TCP4 {forged} 203.0.113.1 56324 6650\r\n".encode()
    with http_socket(closed) as client:
        client.sendall(announced + b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n")
        assert until_end(client).split()[1] == b"400"
    with WireClient(closed.service_url, connect=False) as client:
        client.send_raw(announced)
        client.expect_end()
    log = closed.log_path.read_text()
    assert forged not in log
    [line] = [line for line in log.splitlines() if '"status": 204' in line and path.rpartition("/")[2] in line]
    assert '"address": "127.0.0.1"' in line


def refused_after(broker: BrokerProcess, *sent: tuple[int, dict[str, Any]]) -> str:
    """Send commands; return why the broker refuses one and ends the connection."""
    with WireClient(broker.service_url, connect=False) as client:
        for kind, fields in sent:
            client.send(kind, **fields)
        answer = client.read_frame()
        if answer.command.type == Type.CONNECTED:
            answer = client.read_frame()
        assert answer.command.type == Type.ERROR
        with pytest.raises(ConnectionEndedError):
            client.read_frame()
        return str(answer.body.message)


def test_answers_without_a_question_and_a_second_connect_end_the_connection(
    closed: BrokerProcess, signer: Signer
) -> None:
    token = signer.token(ADMIN).encode()
    connect = (
        Type.CONNECT,
        {"client_version": "test", "protocol_version": 21, "auth_method_name": "token", "auth_data": token},
    )
    answer = (Type.AUTH_RESPONSE, {"response": wire.AuthData(auth_method_name="token", auth_data=token)})
    assert "the first command must be CONNECT" in refused_after(closed, answer)
    assert "AUTH_RESPONSE without an AUTH_CHALLENGE" in refused_after(closed, connect, answer)
    assert "CONNECT was sent twice" in refused_after(closed, connect, connect)


def test_a_challenge_takes_one_answer_only(closed: BrokerProcess, signer: Signer) -> None:
    with WireClient(closed.service_url, connect=False) as client:
        client.authenticate(
            signer.token(ADMIN, expires_in_s=SHORT_S), feature_flags=wire.FeatureFlags(supports_auth_refresh=True)
        )
        client.expect(Type.AUTH_CHALLENGE)
        answer = wire.AuthData(auth_method_name="token", auth_data=signer.token(ADMIN).encode())
        for _ in range(3):
            client.send(Type.AUTH_RESPONSE, response=answer)
        assert "AUTH_RESPONSE without an AUTH_CHALLENGE" in client.expect(Type.ERROR).body.message


def test_unknown_clients_that_send_nothing_do_not_fill_the_log(impatient: BrokerProcess) -> None:
    before, flood = impatient.log_path.read_text().count("aborting connection"), Flood()
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(WireClient(impatient.service_url, connect=False)) for _ in range(100)]
        for client in clients:
            with pytest.raises(ConnectionEndedError):
                client.read_frame()
    assert 0 < impatient.log_path.read_text().count("aborting connection") - before <= flood.most_lines()


def test_a_header_that_says_who_a_client_is_comes_once(closed: BrokerProcess, signer: Signer) -> None:
    """A front-end that adds its own to those of its client would leave the first one to the client."""
    gate, admin = (f"Authorization: Bearer {signer.token(role)}\r\n" for role in ("gate", ADMIN))
    first, second = (f"X-Original-Principal: {role}\r\n" for role in (ADMIN, "joe"))
    for headers, status in (
        (admin + admin, b"401"),
        (gate + first + second, b"401"),
        (admin + "X-Pulsar-Auth-Method-Name: token\r\n" * 2, b"401"),
        (admin, b"200"),
    ):
        with http_socket(closed) as client:
            client.sendall(f"GET /admin/v2/tenants HTTP/1.1\r\nHost: x\r\n{headers}\r\n".encode())
            answer = client.recv(4096)
            assert answer.split()[1] == status, headers
            assert (b"is there more than once" in answer) == (status == b"401")


def test_numbers_of_thousands_of_digits_are_no_defects_of_the_broker(closed: BrokerProcess, signer: Signer) -> None:
    url = f"{closed.http_url}/admin/v2/schemas/public/default/orders/schema/{'9' * 5000}"
    answer = ask(url, signer.token(ADMIN))
    assert answer.status == 400
    assert "version should be a number from 0 on" in answer.body["reason"]
