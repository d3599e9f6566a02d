"""Tokens, keys and the certificate are replaced while the Java and the Go client send and receive: nothing is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.clients import fresh_name
from tests.support.polling import eventually
from tests.support.rotation_clients import PROGRAMS, RotationClient
from tests.support.tls_broker import TlsBroker
from tests.support.tokens import Signer, TokenFile, ask

from .test_rotation import ADMIN, ROLE, Keys, prepare, serial_shown, trusts


def connected_since(broker: TlsBroker, topic: str, signer: Signer) -> list[str]:
    """Return when the producer and the consumer have connected."""
    url = f"{broker.process.https_url}/admin/v2/{topic.replace('://', '/')}/stats"
    stats = ask(url, signer.token(ADMIN), context=broker.context()).body
    [producer] = stats["publishers"]
    [consumer] = stats["subscriptions"]["s"]["consumers"]
    return [producer["connectedSince"], consumer["connectedSince"]]


@pytest.mark.timeout(1750)
@pytest.mark.parametrize("language", ["java", "go"])
def test_clients_lose_nothing_while_all_that_secures_a_broker_is_replaced(language: str, tmp_path: Path) -> None:
    command = PROGRAMS[language](tmp_path)
    topic = f"persistent://public/default/{fresh_name('rotation')}"
    keys = Keys(tmp_path)
    old = keys.signer
    environment = keys.environment | {"HELIOGRAPH_ADVERTISED_HOST": "localhost"}
    tokens = TokenFile(tmp_path / "token", old, ROLE)
    with TlsBroker(tmp_path / "broker", "--tls-only", environment=environment) as broker, tokens.renewed():
        prepare(broker, old)
        url = broker.process.service_tls_url.replace("127.0.0.1", "localhost")
        client = RotationClient(command, url, broker.trusted, topic, tokens.path)
        try:
            client.does_more("received", 1)
            since = connected_since(broker, topic, old)
            client.does_more("asked", 2)

            renewed = broker.authority.issue()
            broker.replace(renewed)
            new = keys.add(b"the secret that tokens are signed with after the rotation of keys")
            eventually(lambda: trusts(broker, new), what="the new key")
            tokens.signer = new
            client.does_more("asked", 2)
            keys.remove()
            eventually(lambda: not trusts(broker, old), what="the end of the old key")
            client.does_more("asked", 2)
            eventually(lambda: serial_shown(broker) == renewed.parsed.serial_number, what="the new certificate")
            # Neither has been disconnected by any of this.
            assert connected_since(broker, topic, new) == since

            broker.process.restart()
            client.does_more("asked", 2)
            client.does_more("sent", 10)
        finally:
            client.finish()
    client.lost_nothing()
