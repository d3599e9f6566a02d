"""An identity provider whose server has a certificate of a private authority, with a broker process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pulsar
import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.certificates import Authority
from tests.support.clients import connect, fresh_name
from tests.support.oidc_issuer import AUDIENCE, OidcIssuer
from tests.support.polling import eventually
from tests.support.tokens import ask

ADMIN = "admin"
#: The authority that every issuer of these tests has at first.
FIRST = Authority("first authority")


@pytest.fixture
def issuer() -> Iterator[OidcIssuer]:
    with OidcIssuer(authority=FIRST) as running:
        yield running


@pytest.fixture
def made(issuer: OidcIssuer, broker_factory: Callable[..., BrokerProcess]) -> Callable[..., BrokerProcess]:
    """Makes brokers that trust the issuer."""

    def make(*arguments: str) -> BrokerProcess:
        environment = {
            "HELIOGRAPH_AUTH": "oidc",
            "HELIOGRAPH_OIDC_ISSUER": issuer.url,
            "HELIOGRAPH_OIDC_AUDIENCE": AUDIENCE,
            "HELIOGRAPH_SUPERUSERS": ADMIN,
        }
        return broker_factory(arguments=arguments, environment=environment)

    return make


def status(broker: BrokerProcess, issuer: OidcIssuer) -> int:
    """Return the status of a request with a token that is signed by the issuer's newest key."""
    return ask(f"{broker.http_url}/admin/v2/clusters", issuer.token(ADMIN).decode()).status


def test_clients_come_in_while_the_file_has_the_issuers_authority(
    issuer: OidcIssuer, made: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    trusted = FIRST.write(tmp_path)
    broker = made("--oidc-ca", str(trusted))
    broker.start()
    client = connect(broker.service_url, authentication=pulsar.AuthenticationToken(issuer.token(ADMIN).decode()))
    producer = client.create_producer(fresh_name())
    producer.send(b"by the first authority")
    # The issuer gets a certificate of another authority, and then another key, which the broker has to fetch.
    second = Authority("second authority")
    issuer.show_certificate_of(second)
    issuer.rotate()

    def refused() -> bool:
        assert status(broker, issuer) == 401
        return "certificate verify failed" in broker.log_path.read_text()

    eventually(refused, what="the reason in the log")
    producer.send(b"by the key that is known")
    trusted.write_bytes(FIRST.pem + second.pem)
    eventually(lambda: status(broker, issuer) == 200, what="the new authority")
    producer.send(b"by the second authority")
    client.close()


@pytest.mark.parametrize("another", [None, Authority("another")], ids=["system", "another"])
def test_an_issuer_whose_authority_is_not_known_is_not_trusted(
    another: Authority | None, issuer: OidcIssuer, made: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    broker = made(*([] if another is None else ["--oidc-ca", str(another.write(tmp_path))]))
    broker.start()
    refused = ask(f"{broker.http_url}/admin/v2/clusters", issuer.token(ADMIN).decode())
    assert (refused.status, refused.body["reason"]) == (
        401,
        "the keys of the token's issuer cannot be read at this time: try again later",
    )
    assert "certificate verify failed" in broker.log_path.read_text()
    assert not issuer.requests


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, r"cannot read .*ca\.crt: No such file or directory"),
        (b"a file of another kind", r".*ca\.crt holds no certificates in PEM, or a damaged one"),
        (FIRST.pem[:300], r".*ca\.crt holds no certificates in PEM, or a damaged one"),
    ],
)
def test_a_broker_does_not_start_with_authorities_that_it_cannot_read(
    content: bytes | None, words: str, made: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / "ca.crt").write_bytes(content)
    broker = made("--oidc-ca", str(tmp_path / "ca.crt"))
    expected = rf"heliograph: oidc_ca \(--oidc-ca\): {words}; valid: certificate authorities in PEM"
    with pytest.raises(AssertionError, match=expected):
        broker.start()
