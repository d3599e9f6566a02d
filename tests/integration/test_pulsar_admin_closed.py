"""Pulsar's own pulsar-admin with a broker that is closed: TLS, credentials of its plugins, and refusals."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.clients import fresh_name
from tests.support.closed_broker import ADMIN, PASSWORD, ROLE, ClosedBroker, shown
from tests.support.oidc_issuer import AUDIENCE
from tests.support.pulsar_admin import PulsarAdmin, missing, trusting

pytestmark = pytest.mark.skipif(missing() is not None, reason=f"pulsar-admin is not tested: {missing()}")

_PLUGINS = "org.apache.pulsar.client.impl.auth."


@pytest.fixture(scope="module")
def tool(closed: ClosedBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PulsarAdmin]:
    """The tool, in one JVM for the whole file, which trusts the authority of the identity provider.

    The plugin for OAuth2 of this release has no setting for that.
    """
    directory = tmp_path_factory.mktemp("pulsar-admin")
    properties = trusting(closed.issuer_trusted, directory)
    with PulsarAdmin(directory, closed.http_url, closed.service_url, *properties) as running:
        yield running


def options(closed: ClosedBroker, plugin: str, parameters: str) -> str:
    """Return the options that say who asks, and whom the tool trusts."""
    trusted = f"--tls-trust-cert-path {closed.broker.trusted} --tls-enable-hostname-verification"
    return f"{trusted} --auth-plugin {_PLUGINS}{plugin} --auth-params '{parameters}'"


def with_token(closed: ClosedBroker, role: str) -> str:
    return options(closed, "AuthenticationToken", f"token:{closed.signer.token(role)}")


def test_permissions_are_granted_shown_and_revoked(tool: PulsarAdmin, closed: ClosedBroker) -> None:
    admin = with_token(closed, ADMIN)
    namespace = f"public/{fresh_name('ns')}"
    tool(f"{admin} namespaces create {namespace}")
    tool(f"{admin} topics create {namespace}/t")
    for level, target in (("namespaces", namespace), ("topics", f"{namespace}/t")):
        tool(f"{admin} {level} grant-permission {target} --role team --actions produce,consume")
        granted = tool(f"{admin} {level} permissions {target}").out
        assert "team" in granted, granted
        assert "produce" in granted, granted
        assert tool(f"{with_token(closed, 'team')} topics stats {namespace}/t").json["subscriptions"] == {}
        tool(f"{admin} {level} revoke-permission {target} --role team")
        assert "team" not in tool(f"{admin} {level} permissions {target}").out
        refused = tool.refused(f"{with_token(closed, 'team')} topics stats {namespace}/t")
        assert "role team" in refused, refused


def test_a_refusal_has_its_reason(tool: PulsarAdmin, closed: ClosedBroker) -> None:
    refused = tool.refused(f"{with_token(closed, 'team')} tenants list")
    assert "role team is not a superuser" in refused
    expired = options(closed, "AuthenticationToken", f"token:{closed.signer.token(ADMIN, expires_in_s=-60)}")
    assert "the token expired at" in tool.refused(f"{expired} tenants list")


def test_a_refusal_of_a_large_body_has_its_reason(tool: PulsarAdmin, closed: ClosedBroker, tmp_path: Path) -> None:
    """The broker reads 1 MiB of what a client with an expired token sends, and the tool gets the answer."""
    schema = tmp_path / "schema"
    schema.write_text(json.dumps({"type": "STRING", "schema": "", "properties": {"large": "x" * 8 * 1024 * 1024}}))
    expired = options(closed, "AuthenticationToken", f"token:{closed.signer.token(ADMIN, expires_in_s=-60)}")
    refused = tool.refused(f"{expired} schemas upload public/default/large --filename {schema}")
    assert "the token expired at" in refused


def test_the_brokers_authority_and_name_are_verified(tool: PulsarAdmin, closed: ClosedBroker) -> None:
    admin = with_token(closed, ADMIN)
    # Reached, but not in the certificate.
    by_address = f"--admin-url {closed.http_url.replace('localhost', '127.0.0.2')}"
    assert "No subject alternative names matching" in tool.refused(f"{by_address} {admin} tenants list")
    foreign = admin.replace(str(closed.broker.trusted), str(closed.issuer_trusted))
    assert "unable to find valid certification path" in tool.refused(f"{foreign} tenants list")


def certificate(closed: ClosedBroker) -> str:
    return options(
        closed, "AuthenticationTls", f"tlsCertFile:{closed.identity.certificate},tlsKeyFile:{closed.identity.key}"
    )


def user(closed: ClosedBroker) -> str:
    return options(closed, "AuthenticationBasic", json.dumps({"userId": ROLE, "password": PASSWORD}))


def issuers_client(closed: ClosedBroker) -> str:
    parameters = {"issuerUrl": closed.issuer.url, "privateKey": closed.credentials.as_uri(), "audience": AUDIENCE}
    return options(closed, "oauth2.AuthenticationOAuth2", json.dumps(parameters))


def token_file(closed: ClosedBroker) -> str:
    return options(closed, "AuthenticationToken", closed.token_file.as_uri())


@pytest.mark.parametrize("identity", [certificate, user, issuers_client, token_file])
def test_every_plugin_shows_who_asks(
    tool: PulsarAdmin, closed: ClosedBroker, identity: Callable[[ClosedBroker], str]
) -> None:
    topic = f"persistent://public/default/{fresh_name()}"
    closed.grant(topic, "consume")
    assert tool(f"{identity(closed)} topics subscriptions {topic}").out == ""
    assert f"role {ROLE} is not a superuser" in tool.refused(f"{identity(closed)} tenants list")


def test_the_command_of_the_guide_works(tool: PulsarAdmin, closed: ClosedBroker, tmp_path: Path) -> None:
    [command] = shown("sh")
    token = tmp_path / "admin.token"
    token.write_text(closed.signer.token(ADMIN))
    for there, here in (
        ("https://broker.example.org:8443", closed.http_url),
        ("/etc/heliograph/ca.crt", str(closed.broker.trusted)),
        ("file:///etc/heliograph/admin.token", token.as_uri()),
        ("\\\n", ""),
    ):
        assert there in command
        command = command.replace(there, here)
    tool(command.removeprefix("bin/pulsar-admin "))
    granted = closed.ask("namespaces/public/default/permissions").body
    assert sorted(granted["billing"]) == ["consume", "produce"]
    assert closed.ask("namespaces/public/default/permissions/billing", "DELETE").status == 204
