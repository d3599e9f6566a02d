"""A broker whose clients have tokens of an identity provider, or users and passwords, with the official clients."""

from __future__ import annotations

import base64
import json
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pulsar
import pytest

from tests.support import rest
from tests.support.broker_process import BrokerProcess
from tests.support.clients import connect, fresh_name
from tests.support.closed_broker import ADMIN, PASSWORD, ROLE, ClosedBroker
from tests.support.oidc_issuer import AUDIENCE
from tests.support.polling import eventually
from tests.support.tls_broker import HANDSHAKE, frames_of
from tests.support.tokens import SHORT_S, Answer, ask


def connected(closed: ClosedBroker, authentication: Any) -> pulsar.Client:
    """Return an official client that verifies the broker and its name.

    It has one setting for the authorities of the broker and of the identity provider.
    """
    options = {"tls_trust_certs_file_path": str(closed.all_trusted), "tls_validate_hostname": True}
    return connect(closed.service_url, authentication=authentication, **options)


def publish(closed: ClosedBroker, authentication: Any) -> None:
    """Publish a message as the role of the provider's client and of the user."""
    topic = f"persistent://public/default/{fresh_name()}"
    closed.grant(topic, "produce")
    client = connected(closed, authentication)
    try:
        client.create_producer(topic).send(b"x")
    finally:
        client.close()


def test_the_official_clients_plugin_for_oauth2(closed: ClosedBroker) -> None:
    credentials = {
        "issuer_url": closed.issuer.url,
        "client_id": ROLE,
        "client_secret": closed.issuer.clients[ROLE],
        "audience": AUDIENCE,
    }
    assert closed.issuer.url.startswith("https://")
    publish(closed, pulsar.AuthenticationOauth2(json.dumps(credentials)))


def test_tokens_of_both_kinds_and_passwords(closed: ClosedBroker) -> None:
    publish(closed, pulsar.AuthenticationToken(closed.issuer.token(ROLE).decode()))
    publish(closed, pulsar.AuthenticationToken(closed.signer.token(ROLE)))
    publish(closed, pulsar.AuthenticationBasic(ROLE, PASSWORD))


def test_http_asks_for_them_as_well(closed: ClosedBroker) -> None:
    def asked(**credentials: str) -> Answer:
        return ask(f"{closed.http_url}/admin/v2/brokers/version", context=closed.broker.context(), **credentials)

    assert asked(token=closed.issuer.token(ROLE).decode()).status == 200
    assert asked(token=closed.issuer.token(ROLE, aud="foreign").decode()).status == 401
    assert asked(Authorization=basic(ROLE, PASSWORD)).status == 200
    refused = asked(Authorization=basic(ROLE, "guess"))
    assert (refused.status, refused.body) == (401, {"reason": "the user or the password is wrong"})


def test_a_client_without_credentials_gets_to_know_which_are_valid(closed: ClosedBroker) -> None:
    with closed.broker.encrypted() as connection:
        connection.sendall(HANDSHAKE)
        assert next(frames_of(connection)).body.message.endswith("; valid here: token, tls, basic")
    for header in ({}, {"Authorization": "Negotiate x"}):
        challenges, reason = refused(f"{closed.http_url}/admin/v2/clusters", header, closed.broker.context())
        assert challenges == ["Bearer", "TLS", 'Basic realm="heliograph", charset="UTF-8"']
        assert reason.endswith(
            "; valid here: token (Authorization: Bearer TOKEN), tls (a client certificate), "
            "basic (Authorization: Basic, USER:PASSWORD in base64)"
        )


def refused(url: str, headers: dict[str, str], context: ssl.SSLContext) -> tuple[list[str], str]:
    """Send a request that is refused with 401; return its challenges and its reason."""
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=rest.WITHIN_S, context=context)
    with error.value as answer:
        assert answer.code == 401
        return answer.headers.get_all("WWW-Authenticate", []), json.load(answer)["reason"]


def test_metrics_count_the_fetches_of_keys(closed: ClosedBroker) -> None:
    text = ask(f"{closed.http_url}/metrics", closed.signer.token(ADMIN), context=closed.broker.context()).body
    fetches = f'heliograph_issuer_key_fetches_total{{issuer="{closed.issuer.name}",outcome="%s"}} %d\n'
    assert fetches % ("success", 1) in text
    assert fetches % ("failure", 0) in text
    assert f'heliograph_issuer_keys_age_seconds{{issuer="{closed.issuer.name}"}} ' in text


def test_a_token_of_an_issuer_is_renewed_on_the_open_connection(closed: ClosedBroker) -> None:
    topic = f"persistent://public/default/{fresh_name()}"
    closed.grant(topic, "produce")
    given = 0

    def supply() -> str:
        nonlocal given
        given += 1
        return closed.issuer.token(ROLE, exp=time.time() + SHORT_S).decode()

    def has_given(tokens: int) -> bool:
        return given >= tokens

    def connected_since() -> str:
        [publisher] = closed.ask(f"{topic.replace('://', '/')}/stats").body["publishers"]
        return str(publisher["connectedSince"])

    client = connected(closed, pulsar.AuthenticationToken(supply))
    producer = client.create_producer(topic)
    since, at_first = connected_since(), given
    for renewals in (1, 2):
        eventually(partial(has_given, at_first + renewals), what=f"renewal {renewals}")
        producer.send(b"x")
    assert connected_since() == since
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
