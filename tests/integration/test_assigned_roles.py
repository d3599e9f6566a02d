"""Roles that are set for identities at run time: by certificates and by tokens of an issuer, with official clients."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlsplit

import pulsar
import pytest

from tests.support.clients import connect
from tests.support.closed_broker import ADMIN, ROLE, ClosedBroker
from tests.support.polling import DEADLINE_S, eventually
from tests.support.tokens import Answer, ask

TOPIC = "persistent://public/default/invoices"
USER = "shop/billing"


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClosedBroker]:
    with ClosedBroker(tmp_path_factory.mktemp("closed")) as running:
        running.grant(TOPIC, "produce", "consume", role=quote(USER, safe=""))
        yield running


@pytest.fixture(autouse=True)
def nothing_set(closed: ClosedBroker) -> Iterator[None]:
    yield
    for role in (USER, "shop/orders"):
        assert roles(closed, role, "DELETE").status == 204


def roles(closed: ClosedBroker, role: str, method: str = "GET", body: object = None, token: str = "") -> Answer:
    url = f"{closed.http_url}/heliograph/v1/roles/{quote(role, safe='')}"
    token = token or closed.signer.token(ADMIN)
    return ask(url, token, method, body, context=closed.broker.context())


def prove(closed: ClosedBroker, *identities: dict[str, str], role: str = USER) -> Answer:
    return roles(closed, role, "PUT", {"identities": list(identities)})


def by_issuer(closed: ClosedBroker) -> dict[str, str]:
    return {"method": "oidc", "name": ROLE, "issuer": closed.issuer.url}


def client(closed: ClosedBroker, authentication: pulsar.Authentication) -> pulsar.Client:
    return connect(
        closed.service_url,
        authentication=authentication,
        tls_trust_certs_file_path=str(closed.broker.trusted),
    )


def token(closed: ClosedBroker) -> pulsar.Authentication:
    return pulsar.AuthenticationToken(closed.issuer.token(ROLE).decode())


def test_a_token_of_an_issuer_has_the_role_that_is_set_for_it(closed: ClosedBroker) -> None:
    connected = client(closed, token(closed))
    with pytest.raises(pulsar.AuthorizationError):
        connected.create_producer(TOPIC)
    assert prove(closed, by_issuer(closed)).status == 204
    # The open connection is closed, and the client connects again by itself, with its new role.
    producer = eventually(lambda: may_produce(connected), what="the new role is in effect")
    assert producer is not None
    producer.send(b"paid")
    assert prove(closed).status == 204
    eventually(lambda: may_produce(connected) is None, what="the role is gone")
    connected.close()


def may_produce(connected: pulsar.Client) -> pulsar.Producer | None:
    try:
        return connected.create_producer(TOPIC)
    except pulsar.AuthorizationError:
        return None


def test_a_certificate_without_a_common_name_has_the_role_of_its_dns_name(closed: ClosedBroker, tmp_path: Path) -> None:
    files = closed.broker.authority.issue("", hosts=["billing.example.org"]).write(tmp_path, "nameless")
    shown = pulsar.AuthenticationTLS(str(files.certificate), str(files.key))
    assert prove(closed, {"method": "certificate", "name": "DNS:billing.example.org"}).status == 204
    connected = client(closed, shown)
    connected.create_producer(TOPIC).send(b"paid")
    connected.close()


def test_http_knows_the_role_as_well(closed: ClosedBroker) -> None:
    path = f"{closed.http_url}/admin/v2/{TOPIC.replace('://', '/')}/subscriptions"
    shown, context = closed.issuer.token(ROLE).decode(), closed.broker.context()
    assert ask(path, shown, context=context).status == 403
    assert prove(closed, by_issuer(closed)).status == 204
    assert ask(path, shown, context=context).status == 200
    assert roles(closed, USER).body == {"identities": [by_issuer(closed)]}
    state = ask(f"{closed.http_url}/heliograph/v1/status", closed.signer.token(ADMIN), context=context).body
    assert state["roles"][USER]["settings"] == {"identities": [by_issuer(closed)]}


def test_a_role_that_is_taken_away_before_the_body_has_arrived_allows_nothing(closed: ClosedBroker) -> None:
    admin, context = closed.signer.token(ADMIN), closed.broker.context()
    namespace = f"{closed.http_url}/admin/v2/namespaces/late/orders"
    tenant = {"adminRoles": [USER], "allowedClusters": ["standalone"]}
    assert ask(f"{closed.http_url}/admin/v2/tenants/late", admin, "PUT", tenant, context=context).status == 204
    assert ask(namespace, admin, "PUT", context=context).status == 204
    assert prove(closed, by_issuer(closed)).status == 204
    url = urlsplit(namespace)
    body, shown = b'["produce", "consume"]', closed.issuer.token(ROLE).decode()
    with context.wrap_socket(
        socket.create_connection((url.hostname or "", url.port or 0), DEADLINE_S), server_hostname=url.hostname
    ) as late:
        late.sendall(
            f"POST {url.path}/permissions/x HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
            f"Authorization: Bearer {shown}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        )
        assert late.recv(1000).startswith(b"HTTP/1.1 100")
        assert prove(closed).status == 204
        late.sendall(body)
        assert late.recv(1000).split()[1] == b"401"
    assert ask(f"{namespace}/permissions", admin, context=context).body == {}


def test_the_status_tells_of_the_clients_of_a_role_for_which_something_is_set(closed: ClosedBroker) -> None:
    def known() -> dict[str, dict[str, int]]:
        answer = ask(
            f"{closed.http_url}/heliograph/v1/status", closed.signer.token(ADMIN), context=closed.broker.context()
        )
        found: dict[str, dict[str, int]] = answer.body["roles"]
        return found

    assert prove(closed, by_issuer(closed)).status == 204
    assert known()[USER].get("lastSeenMs", -1) == -1
    began_ms = int(time.time()) * 1000
    connected = client(closed, token(closed))
    connected.create_producer(TOPIC)
    assert known()[USER]["connections"] >= 1
    with pytest.raises(pulsar.AuthorizationError):
        connected.create_producer("persistent://public/default/others")
    connected.close()
    state = eventually(lambda: found if "connections" not in (found := known()[USER]) else None, what="it has left")
    assert state is not None
    assert state["deniedLastHour"] >= 1
    assert state["lastSeenMs"] % 60_000 == 0
    assert began_ms - 60_000 <= state["lastSeenMs"] <= began_ms + 600_000
    # Nothing is set for the administrator, so nothing is kept about that role.
    assert list(known()) == [USER]


def test_an_identity_of_another_role_is_refused(closed: ClosedBroker) -> None:
    assert prove(closed, by_issuer(closed)).status == 204
    refused = prove(closed, by_issuer(closed), role="shop/orders")
    assert refused.status == 409
    assert f"proves the role {USER} already" in refused.body["reason"]
    assert roles(closed, "shop/orders").status == 404
    assert roles(closed, USER, token=closed.issuer.token(ROLE).decode()).status == 403


@pytest.mark.parametrize(
    ("role", "identity", "words"),
    [
        (USER, {"method": "password", "name": "x"}, "password"),
        (USER, {"method": "certificate", "name": "billing"}, "identities[0].name is not one of a certificate"),
        (USER, {"method": "certificate", "name": "CN="}, "valid: CN=… or DNS:…"),
        (USER, {"method": "certificate", "name": "DNS:Billing.example.org"}, "small letters: DNS:billing.example.org"),
        (USER, {"method": "serviceAccount", "name": "shop:billing"}, "valid: system:serviceaccount:…"),
        (USER, {"method": "oidc", "name": "billing"}, "identities[0].issuer should be the URL"),
        (USER, {"method": "certificate", "name": "CN=x", "issuer": "https://x"}, "left out otherwise"),
        ("heliograph:operator", {"method": "certificate", "name": "CN=x"}, "Heliograph's own parts"),
    ],
)
def test_what_cannot_be_proven_is_refused(
    closed: ClosedBroker, role: str, identity: dict[str, str], words: str
) -> None:
    refused = prove(closed, identity, role=role)
    assert refused.status == 400
    assert words in refused.body["reason"]
