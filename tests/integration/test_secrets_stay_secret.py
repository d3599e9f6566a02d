"""No output has a secret: no log, answer, metric or message of the command line, whatever fails on the way.

Each test shows the broker secrets in one way, good ones and false ones, and looks for all of them in what comes out.
The log is at the level ``debug``. At the end of a run the logs of all tests are searched in the same way.
"""

from __future__ import annotations

import base64
import json
import socket
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pulsar
import pytest
from heliograph_api.protocol import wire_pb2 as wire

from tests.support.broker_process import BrokerProcess
from tests.support.certificates import Authority
from tests.support.clients import connect, fresh_name
from tests.support.command_line import CommandLine
from tests.support.oidc_issuer import AUDIENCE, OidcIssuer
from tests.support.passwords import write_users
from tests.support.polling import eventually
from tests.support.secret_watch import WATCH
from tests.support.token_specimens import pair, signed
from tests.support.tokens import CHECK_EVERY_S, SHORT_S, Signer, ask
from tests.support.wire_client import ConnectionEndedError, Type, WireClient, encode

ADMIN = "admin"
PASSWORD = "what only the administrator knows: 7 % @"
GUESS = "what somebody else guessed: 8 % @"
FAILURES = "client not authenticated"


class Secured:
    """The files and the settings of a broker that knows tokens, passwords, an issuer and certificates."""

    def __init__(self, directory: Path, issuer: OidcIssuer) -> None:
        self.issuer = issuer
        self.signer = Signer(directory / "secret.key", b"what the tokens of this test are signed with")
        self.users = write_users(directory / "users", {ADMIN: PASSWORD})
        self.authority = Authority()
        self.tls = self.authority.issue().write(directory)
        self.environment = {
            "HELIOGRAPH_AUTH": "token,tls,basic,oidc",
            "HELIOGRAPH_TOKEN_SECRET_KEY": str(self.signer.path),
            "HELIOGRAPH_OIDC_ISSUER": issuer.url,
            "HELIOGRAPH_OIDC_AUDIENCE": AUDIENCE,
            "HELIOGRAPH_BASIC_FILE": str(self.users),
            "HELIOGRAPH_TLS_CERT": str(self.tls.certificate),
            "HELIOGRAPH_TLS_KEY": str(self.tls.key),
            "HELIOGRAPH_TLS_CLIENT_CA": str(self.authority.write(directory)),
            "HELIOGRAPH_SUPERUSERS": ADMIN,
            "HELIOGRAPH_AUTH_REFRESH_CHECK_S": str(CHECK_EVERY_S),
            "HELIOGRAPH_LOG_LEVEL": "debug",
        }
        self.broker = BrokerProcess(directory / "data", environment=self.environment)

    @property
    def log(self) -> str:
        return self.broker.log_path.read_text("utf-8", errors="replace")

    def false_credentials(self) -> list[tuple[str, str]]:
        """Return credentials that are refused, with their method: ten at most are logged in ten seconds."""
        WATCH.password(ADMIN, GUESS)
        good = self.signer.token(ADMIN)
        damaged = good[:-6] + ("A" if good[-6] != "A" else "B") + good[-5:]
        WATCH.secret("a damaged token", damaged)
        found = [
            ("token", damaged),
            ("token", self.signer.token(ADMIN, expires_in_s=-60)),
            ("token", signed("HS256", {"sub": ADMIN}, b"what somebody else signs its tokens with").decode()),
            ("token", self.issuer.token(ADMIN, aud="foreign").decode()),
            ("token", self.issuer.token(ADMIN, key=pair("ES256", 77).private).decode()),
            ("basic", f"{ADMIN}:{GUESS}"),
            ("basic", f"nobody:{GUESS}"),
            ("athenz", f"{ADMIN}:{GUESS}"),
        ]
        assert len(found) <= 10
        return found


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Secured]:
    with OidcIssuer() as issuer:
        made = Secured(tmp_path, issuer)
        with made.broker:
            yield made


def header(method: str, credentials: str) -> str:
    if method == "token":
        return f"Bearer {credentials}"
    return "Basic " + base64.b64encode(credentials.encode()).decode()


def exchange(url: str, *sent: bytes) -> str:
    """Return what the broker answers to bytes on a connection of their own."""
    address = urlsplit(url)
    with socket.create_connection((address.hostname or "", address.port or 0), timeout=60) as client:
        for part in sent:
            client.sendall(part)
        client.shutdown(socket.SHUT_WR)
        answer = bytearray()
        try:
            while data := client.recv(65536):
                answer += data
        except ConnectionResetError:
            pass
    return answer.decode(errors="replace")


def test_refused_clients(secured: Secured) -> None:
    refused = secured.false_credentials()
    for method, credentials in refused:
        with WireClient(secured.broker.service_url, connect=False) as client:
            fields: dict[str, Any] = {"auth_method_name": method, "auth_data": credentials.encode()}
            client.send(Type.CONNECT, client_version="test", protocol_version=21, **fields)
            error = client.expect(Type.ERROR).body
        assert WATCH.found_in(error.message) == []
    eventually(lambda: secured.log.count(FAILURES) == len(refused), what="each of them is logged")
    assert WATCH.found_in(secured.log) == []


def test_a_client_whose_renewed_token_is_false(secured: Secured) -> None:
    _, false = secured.false_credentials()[0]
    with WireClient(secured.broker.service_url, connect=False) as client:
        first = secured.signer.token(ADMIN, expires_in_s=SHORT_S).encode()
        flags = wire.FeatureFlags(supports_auth_refresh=True)
        fields: dict[str, Any] = {"auth_method_name": "token", "auth_data": first, "feature_flags": flags}
        client.send(Type.CONNECT, client_version="test", protocol_version=21, **fields)
        client.expect(Type.CONNECTED)
        client.expect(Type.AUTH_CHALLENGE)
        client.send(Type.AUTH_RESPONSE, response=wire.AuthData(auth_method_name="token", auth_data=false.encode()))
        with pytest.raises(ConnectionEndedError):
            client.expect(Type.CONNECTED)
        assert WATCH.found_in(repr(client.inbox)) == []
    assert FAILURES in secured.log
    assert WATCH.found_in(secured.log) == []


@pytest.mark.parametrize("cut", ["end", "length", "inside", "twice"])
def test_frames_with_credentials_that_are_damaged(secured: Secured, cut: str) -> None:
    token = secured.signer.token(ADMIN)
    fields: dict[str, Any] = {"auth_method_name": "token", "auth_data": token.encode(), "client_version": "test"}
    frame = encode(Type.CONNECT, protocol_version=21, **fields)
    damaged = {
        "end": frame[:-3],
        "length": frame[:6] + b"\xff\xff" + frame[8:],
        "inside": frame[:12] + b"\xff\xff\xff" + frame[15:],
        "twice": frame + frame,
    }[cut]
    # It ends the connection, and has logged why.
    answer = exchange(secured.broker.service_url, damaged)
    assert WATCH.found_in(answer + secured.log) == []


def test_refused_requests(secured: Secured) -> None:
    url = secured.broker.http_url
    refused = [each for each in secured.false_credentials() if each[0] != "athenz"]
    for method, credentials in refused:
        answer = ask(f"{url}/admin/v2/clusters", Authorization=header(method, credentials))
        assert answer.status == 401
        assert WATCH.found_in(repr(answer)) == []
    assert secured.log.count(FAILURES) == len(refused)
    assert WATCH.found_in(secured.log) == []


def test_requests_with_secrets_in_the_wrong_places(secured: Secured) -> None:
    token, url = secured.signer.token(ADMIN), secured.broker.http_url
    thief = secured.signer.token("thief")
    WATCH.password(ADMIN, GUESS)
    named = urllib.parse.quote(GUESS)
    requests: list[tuple[str, str, Any, dict[str, Any]]] = [
        ("GET", f"/admin/v2/clusters?token={token}&password={named}", None, {}),
        ("PUT", f"/admin/v2/tenants/acme?access_token={token}", {"adminRoles": 1, "password": GUESS}, {}),
        ("POST", "/admin/v2/namespaces/public/default/retention", {"password": GUESS, "token": token}, {}),
        ("POST", "/admin/v2/namespaces/public/default/retention", [GUESS, token], {}),
        ("GET", "/admin/v2/clusters", None, {"Cookie": f"token={token}", "X_Password": GUESS}),
        ("PUT", f"/admin/v2/namespaces/public/default/property/password/{named}", None, {}),
        ("POST", f"/admin/v2/brokers/configuration/password/{named}", None, {}),
        ("GET", f"/no/such/path?token={token}", None, {"Referer": f"https://x/?token={token}"}),
    ]
    for method, path, body, headers in requests:
        for shown in (token, thief, ""):
            answer = ask(url + path, shown, method, body, **headers)
            assert answer.status < 500, (method, path, answer)
    assert secured.log.count('"event": "administration"') >= 12
    assert WATCH.found_in(secured.log) == []


@pytest.mark.parametrize(
    "request_",
    [
        "GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\x00\r\n\r\n",
        "GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization Bearer {}\r\n\r\n",
        "GET /metrics?token={} HTTP/9.9.9\r\nHost: x\r\n\r\n",
        "Bearer {}\r\n\r\n",
        "POST /admin/v2/clusters/x HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {0}\r\nContent-Length: {0}\r\n\r\n",
        "POST /admin/v2/clusters/x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n{}\r\n",
        "GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}" + "x" * 100_000 + "\r\n\r\n",
    ],
    ids=["control character", "no colon", "bad version", "no request", "bad length", "bad chunk", "too long"],
)
def test_requests_that_are_damaged(secured: Secured, request_: str) -> None:
    token = secured.signer.token(ADMIN)
    answer = exchange(secured.broker.http_url, request_.format(token).encode())
    assert answer == "" or answer.split()[1] in ("400", "401", "431"), answer
    assert ask(f"{secured.broker.http_url}/health/live").status == 200
    assert WATCH.found_in(secured.log) == []
    assert "Traceback" not in secured.log


def test_what_a_broker_tells_about_itself(
    secured: Secured, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    token, topic = secured.signer.token(ADMIN), f"persistent://public/default/{fresh_name()}"
    methods = [
        pulsar.AuthenticationToken(token),
        pulsar.AuthenticationToken(secured.issuer.token(ADMIN).decode()),
        pulsar.AuthenticationBasic(ADMIN, PASSWORD),
    ]
    for authentication in methods:
        client = connect(secured.broker.service_url, authentication=authentication)
        consumer, producer = client.subscribe(topic, "s"), client.create_producer(topic)
        producer.send(b"x")
        consumer.acknowledge(consumer.receive(60_000))
        path = topic.replace("://", "/")
        outputs = [
            ask(secured.broker.http_url + each, token)
            for each in (
                "/metrics",
                "/health/ready",
                "/admin/v2/brokers/configuration/runtime",
                "/admin/v2/brokers/configuration/values",
                "/admin/v2/brokers/configuration",
                f"/admin/v2/{path}/stats",
                f"/admin/v2/{path}/internalStats",
                f"/heliograph/v1/explain/{path}",
            )
        ]
        assert [each.status for each in outputs[:3]] == [200] * 3
        assert WATCH.found_in(json.dumps(outputs, default=str)) == []
        client.close()
    monkeypatch.setenv("HELIOGRAPH_CONFIG", str(tmp_path / "config.yaml"))
    monkeypatch.setenv("HELIOGRAPH_HTTP_URL", secured.broker.http_url)
    monkeypatch.setenv("HELIOGRAPH_TOKEN", token)
    run = CommandLine(monkeypatch, capsys)
    for command in ("explain", "topics stats", "brokers version", "context show", "context list"):
        ran = run(*command.split(), *([topic] if command in ("explain", "topics stats") else []))
        assert WATCH.found_in(ran.out + ran.err) == [], command
    assert WATCH.found_in(secured.log) == []


def test_the_command_line_with_credentials_that_are_refused(
    secured: Secured, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("HELIOGRAPH_CONFIG", str(tmp_path / "config.yaml"))
    run = CommandLine(monkeypatch, capsys)
    tokens = [credentials for method, credentials in secured.false_credentials() if method == "token"]
    tokens += [f"{tokens[0]}\n{tokens[1]}", f"Bearer {tokens[0]}", f"token:{tokens[0]}", tokens[0] + "\x00"]
    file = tmp_path / "token"
    addresses = ("--http-url", secured.broker.http_url, "--service-url", secured.broker.service_url)
    for token in tokens:
        file.write_text(token)
        assert run("context", "set", "it", *addresses, "--token-file", file).code == 0
        for command in (["topics", "list", "public/default"], ["produce", "public/default/t", "-m", "x"]):
            ran = run("--context", "it", *command)
            assert ran.code != 0, token
            assert WATCH.found_in(ran.out + ran.err) == []
    key = tmp_path / "client.key"
    key.write_bytes(secured.tls.key.read_bytes()[:-40])
    refused = run(
        "--http-url", secured.broker.https_url, "--tls-ca", str(secured.environment["HELIOGRAPH_TLS_CLIENT_CA"]),
        "--client-cert", str(secured.tls.certificate), "--client-key", str(key), "brokers", "version",
    )  # fmt: skip
    assert refused.code != 0
    assert WATCH.found_in(refused.out + refused.err) == []


def _damaged_key(secured: Secured) -> None:
    secured.tls.key.write_bytes(secured.tls.key.read_bytes()[:-60])


def _users_in_clear(secured: Secured) -> None:
    WATCH.secret("a password in clear", "a password that nobody hashed")
    secured.users.write_text(f"{ADMIN}:a password that nobody hashed\n")


def _no_user(secured: Secured) -> None:
    WATCH.secret("a password in clear", "a password that nobody hashed")
    secured.users.write_text("a password that nobody hashed\n")


def _short_key(secured: Secured) -> None:
    WATCH.secret("a short key", "short secret")
    secured.signer.path.write_text("short secret")


DAMAGES: dict[str, Callable[[Secured], None]] = {
    "key of the certificate": _damaged_key,
    "users in clear": _users_in_clear,
    "line without a user": _no_user,
    "short key": _short_key,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_files_that_cannot_be_read_at_the_start(tmp_path: Path, damage: Callable[[Secured], None]) -> None:
    with OidcIssuer() as issuer:
        secured = Secured(tmp_path, issuer)
        damage(secured)
        with pytest.raises(AssertionError, match="instead of its ready line"):
            secured.broker.start()
    assert "heliograph: " in secured.log
    assert WATCH.found_in(secured.log) == []


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_files_that_cannot_be_read_any_more(secured: Secured, damage: Callable[[Secured], None]) -> None:
    damage(secured)
    eventually(lambda: '"level": "error"' in secured.log, what="it is logged", within_s=90)
    assert WATCH.found_in(secured.log) == []


@pytest.mark.parametrize(
    "settings",
    [
        {"HELIOGRAPH_TOKEN_SECRET_KEY": "data:;base64,{key}!"},
        {"HELIOGRAPH_TOKEN_PUBLIC_KEY": "data:;base64,{key}"},
        {"HELIOGRAPH_TOKEN_SECRET_KEY": "{key}"},
        {"HELIOGRAPH_OIDC_ISSUER": "https://user:{key}@issuer.example"},
    ],
    ids=["damaged key", "secret key as a public one", "key instead of its file", "password in a URL"],
)
def test_settings_with_secrets_that_are_wrong(tmp_path: Path, settings: dict[str, str]) -> None:
    key = base64.b64encode(b"what somebody wrote into a setting").decode()
    WATCH.secret("a secret of the settings", key)
    with OidcIssuer() as issuer:
        secured = Secured(tmp_path, issuer)
        wrong = {name: value.format(key=key) for name, value in settings.items()}
        broker = BrokerProcess(tmp_path / "wrong", environment=secured.environment | wrong)
        with pytest.raises(AssertionError, match="instead of its ready line"):
            broker.start()
    text = broker.log_path.read_text()
    assert "heliograph: " in text
    assert WATCH.found_in(text) == []
