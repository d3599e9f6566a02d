"""A broker whose clients have tokens of an identity provider, or users and passwords, with the official clients."""

from __future__ import annotations

import base64
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

from tests.support import rest
from tests.support.broker_process import BrokerProcess
from tests.support.clients import connect, fresh_name
from tests.support.oidc_issuer import AUDIENCE, OidcIssuer
from tests.support.passwords import write_users
from tests.support.polling import eventually
from tests.support.tokens import Signer, ask
from tests.support.wire_client import Type, WireClient

ADMIN = "admin"
PASSWORD = "what only the administrator knows"


@pytest.fixture(scope="module")
def issuer() -> Iterator[OidcIssuer]:
    with OidcIssuer() as running:
        running.add_client(ADMIN, "the secret of a client")
        yield running


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_users(tmp_path_factory.mktemp("users") / "users", {ADMIN: PASSWORD})


@pytest.fixture(scope="module")
def signer(tmp_path_factory: pytest.TempPathFactory) -> Signer:
    return Signer(tmp_path_factory.mktemp("keys") / "secret.key")


@pytest.fixture(scope="module")
def closed(
    tmp_path_factory: pytest.TempPathFactory, issuer: OidcIssuer, users: Path, signer: Signer
) -> Iterator[BrokerProcess]:
    environment = {
        "HELIOGRAPH_AUTH": "token,oidc,basic",
        "HELIOGRAPH_TOKEN_SECRET_KEY": str(signer.path),
        "HELIOGRAPH_OIDC_ISSUER": issuer.url,
        "HELIOGRAPH_OIDC_AUDIENCE": AUDIENCE,
        "HELIOGRAPH_BASIC_FILE": str(users),
        "HELIOGRAPH_SUPERUSERS": ADMIN,
        "HELIOGRAPH_AUTH_REFRESH_CHECK_S": "1",
    }
    with BrokerProcess(tmp_path_factory.mktemp("closed") / "data", environment=environment) as running:
        yield running


def publish(broker: BrokerProcess, authentication: Any) -> None:
    client = connect(broker.service_url, authentication=authentication)
    try:
        client.create_producer(fresh_name()).send(b"x")
    finally:
        client.close()


def test_the_official_clients_plugin_for_oauth2(closed: BrokerProcess, issuer: OidcIssuer) -> None:
    credentials = {
        "issuer_url": issuer.url,
        "client_id": ADMIN,
        "client_secret": issuer.clients[ADMIN],
        "audience": AUDIENCE,
    }
    publish(closed, pulsar.AuthenticationOauth2(json.dumps(credentials)))


def test_tokens_of_both_kinds_and_passwords(closed: BrokerProcess, issuer: OidcIssuer, signer: Signer) -> None:
    publish(closed, pulsar.AuthenticationToken(issuer.token(ADMIN).decode()))
    publish(closed, pulsar.AuthenticationToken(signer.token(ADMIN)))
    publish(closed, pulsar.AuthenticationBasic(ADMIN, PASSWORD))


def test_http_asks_for_them_as_well(closed: BrokerProcess, issuer: OidcIssuer) -> None:
    url = f"{closed.http_url}/admin/v2/clusters"
    assert ask(url, issuer.token(ADMIN).decode()).status == 200
    assert ask(url, issuer.token(ADMIN, aud="foreign").decode()).status == 401
    assert ask(url, Authorization=basic(ADMIN, PASSWORD)).status == 200
    refused = ask(url, Authorization=basic(ADMIN, "guess"))
    assert (refused.status, refused.body) == (401, {"reason": "the user or the password is wrong"})


def test_a_client_without_credentials_gets_to_know_which_are_valid(closed: BrokerProcess) -> None:
    with WireClient(closed.service_url, connect=False) as client:
        client.send(Type.CONNECT, client_version="test", protocol_version=21)
        assert client.expect(Type.ERROR).body.message.endswith("; valid here: token, basic")
    for header in ({}, {"Authorization": "Negotiate x"}):
        challenges, reason = refused(f"{closed.http_url}/admin/v2/clusters", header)
        assert challenges == ["Bearer", 'Basic realm="heliograph", charset="UTF-8"']
        assert reason.endswith(
            "; valid here: token (Authorization: Bearer TOKEN), basic (Authorization: Basic, USER:PASSWORD in base64)"
        )


def refused(url: str, headers: dict[str, str]) -> tuple[list[str], str]:
    """Send a request that is refused with 401; return its challenges and its reason."""
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=rest.WITHIN_S)
    with error.value as answer:
        assert answer.code == 401
        return answer.headers.get_all("WWW-Authenticate", []), json.load(answer)["reason"]


def test_metrics_count_the_fetches_of_keys(closed: BrokerProcess, issuer: OidcIssuer) -> None:
    text = ask(f"{closed.http_url}/metrics", issuer.token(ADMIN).decode()).body
    fetches = f'heliograph_issuer_key_fetches_total{{issuer="{issuer.name}",outcome="%s"}} %d\n'
    assert fetches % ("success", 1) in text
    assert fetches % ("failure", 0) in text
    assert f'heliograph_issuer_keys_age_seconds{{issuer="{issuer.name}"}} ' in text


def test_a_token_is_renewed_on_the_open_connection(closed: BrokerProcess, issuer: OidcIssuer) -> None:
    given: list[float] = []

    def supply() -> str:
        given.append(time.time())
        return issuer.token(ADMIN, exp=int(time.time()) + 2).decode()

    client = connect(closed.service_url, authentication=pulsar.AuthenticationToken(supply))
    producer = client.create_producer(fresh_name())
    eventually(lambda: len(given) >= 3, what="two renewals")
    producer.send(b"x")
    client.close()


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def test_a_broker_does_not_start_with_users_that_it_cannot_read(
    broker_factory: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    (tmp_path / "users").write_text(f"{ADMIN}:$apr1$salt$aaaaaaaaaaaaaaaaaaaaaa\n")
    environment = {"HELIOGRAPH_AUTH": "basic"}
    broker = broker_factory(arguments=["--basic-file", str(tmp_path / "users")], environment=environment)
    with pytest.raises(
        AssertionError,
        match=r"heliograph: basic_file \(--basic-file\): .*users: line 1: user 'admin' has a hash of MD5",
    ):
        broker.start()
