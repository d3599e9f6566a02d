"""Pulsar's plugins for OAuth2 renew tokens on open connections, by TLS, also while the issuer replaces its key.

All three clients share a broker, and each is a client of its own of the identity provider, which issues tokens that are
valid for seconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.clients import fresh_name
from tests.support.closed_broker import ClosedBroker
from tests.support.polling import eventually
from tests.support.rotation_clients import PROGRAMS, RotationClient, finished_client, runnable
from tests.support.tokens import SHORT_S

from .test_rotation import trusts
from .test_rotation_clients import connected_since
from .test_rotation_of_issuers import Issued


def connect(closed: ClosedBroker, language: str, command: list[str], topic: str) -> RotationClient:
    """Start a client that is known to the identity provider by its language."""
    closed.issuer.add_client(language, f"the secret of the client in {language}")
    closed.grant(topic, "produce", "consume", role=language)
    credentials = closed.directory / f"{language}.json"
    content = {"type": "client_credentials", "client_id": language, "client_secret": closed.issuer.clients[language]}
    credentials.write_text(json.dumps(content | {"issuer_url": closed.issuer.url}))
    issuer = (closed.issuer.url, closed.issuer_trusted, credentials)
    # The plugin of Python takes the authorities of the broker, that of Go those of the system.
    trusted = str(closed.issuer_trusted)
    return RotationClient(command, closed.service_url, closed.all_trusted, topic, *issuer, SSL_CERT_FILE=trusted)


def renew(closed: ClosedBroker, clients: dict[str, RotationClient]) -> None:
    """Wait until each client has asked for another token, and gone on since."""
    before = dict(closed.issuer.issued)
    for language in clients:

        def renewed(language: str = language) -> bool:
            return closed.issuer.issued[language] >= before[language] + 1

        eventually(renewed, what=f"a token of {language}")
    for client in clients.values():
        client.does_more("received", 10)


def replace_key(closed: ClosedBroker) -> Iterator[str]:
    """Replace the issuer's key as providers do, step by step."""
    issuer = closed.issuer
    old, following = Issued(issuer), issuer.announce()
    eventually(lambda: trusts(closed.broker, Issued(issuer, following)), what="the new key")
    issuer.sign_by(following)
    yield "tokens are signed by the new key"
    issuer.withdraw_older_keys()
    unknown = Issued(issuer, claimed="unknown")
    eventually(lambda: not trusts(closed.broker, unknown) and not trusts(closed.broker, old), what="end of the old key")
    yield "the old key is withdrawn"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RotationClient]:
    """The clients, after they have received all that they had sent."""
    directory = tmp_path_factory.mktemp("rotation")
    clients: dict[str, RotationClient] = {}
    programs = runnable(directory)
    with ClosedBroker(directory / "closed") as closed:
        closed.issuer.valid_s = int(SHORT_S)
        topics = {language: f"persistent://public/default/{fresh_name(language)}" for language in programs}
        try:
            for language, command in programs.items():
                clients[language] = connect(closed, language, command, topics[language])
            for client in clients.values():
                client.does_more("received", 1)

            def since() -> list[list[str]]:
                return [connected_since(closed.broker, topic, closed.signer) for topic in topics.values()]

            # The plugin in Python keeps a token for as long as the issuer says from when it comes, which is a little
            # too long: a check of the broker in that time disconnects it. Those after a renewal are not in that time.
            renew(closed, clients)
            at_first = since()
            for _ in replace_key(closed):
                renew(closed, clients)
            assert since() == at_first
        finally:
            for client in clients.values():
                client.finish()
    return clients


@pytest.mark.timeout(1750)
@pytest.mark.parametrize("language", PROGRAMS)
def test_clients_lose_nothing_while_the_tokens_of_their_plugin_for_oauth2_are_renewed(
    finished: dict[str, RotationClient], language: str, tmp_path: Path
) -> None:
    finished_client(finished, language, tmp_path).lost_nothing()
