"""A command that a broker refuses names the credentials that this broker takes, as options of the command."""

from __future__ import annotations

import pytest
from heliograph_broker.cli.base.access import Credentials
from heliograph_broker.cli.base.broker_failures import refused_credentials

TOKEN = "give a token with --token-file FILE or HELIOGRAPH_TOKEN_FILE"
CERTIFICATE = "a certificate with --client-cert FILE --client-key FILE"
BY_HTTP = "tls (a client certificate), basic (Authorization: Basic, USER:PASSWORD in base64)"


@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        ("authentication is required: connect with credentials; valid here: token", f"{TOKEN}, or name"),
        ("authentication is required: connect with credentials; valid here: oidc, basic", f"{TOKEN}, or name"),
        (
            "authentication is required: connect with credentials; valid here: tls, token",
            f"{TOKEN} or {CERTIFICATE}, or",
        ),
        (f"the request needs credentials; valid here: {BY_HTTP}", f"give {CERTIFICATE}, or name"),
        ("authentication is required: connect with credentials; valid here: basic", "the broker takes passwords only"),
        ("Authentication required", f"{TOKEN}, or name"),
    ],
)
def test_it_names_the_credentials_that_the_broker_takes(reason: str, advice: str) -> None:
    line = refused_credentials("http://127.0.0.1:8080", reason, Credentials())
    assert line.startswith("the broker at http://127.0.0.1:8080 requires credentials, and this command has none; ")
    assert advice in line
