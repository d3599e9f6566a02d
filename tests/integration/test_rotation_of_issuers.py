"""The keys of an identity provider are replaced while clients with its tokens send and receive: nothing is lost."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.support.clients import fresh_name
from tests.support.oidc_issuer import AUDIENCE, OidcIssuer
from tests.support.polling import eventually
from tests.support.secret_watch import WATCH
from tests.support.tls_broker import TlsBroker
from tests.support.tokens import CHECK_EVERY_S, Signer

from .test_rotation import ADMIN, connected_since, in_order, prepare, repeated_ones, trusts, under_load


class Issued:
    """Tokens signed by a key of an issuer, by default the one that signs now, or that claim to be by ``claimed``."""

    def __init__(self, issuer: OidcIssuer, key_id: str = "", *, claimed: str = "") -> None:
        self._issuer = issuer
        self._key = issuer.key(key_id or issuer.key_id)
        self._headers = {"kid": claimed or key_id or issuer.key_id}

    def token(self, role: str, *, expires_in_s: float) -> str:
        ends = time.time() + expires_in_s
        token = self._issuer.token(role, headers=self._headers, key=self._key, exp=ends).decode()
        WATCH.secret(f"a token of {role}", token)
        return token


@pytest.mark.timeout(180)
def test_an_issuer_replaces_its_key_under_load_and_every_client_stays_connected(tmp_path: Path) -> None:
    topic = f"persistent://public/default/{fresh_name('rotation')}"
    admin = Signer(tmp_path / "admin.key")
    with OidcIssuer() as issuer:
        settings = admin.settings(
            auth="token,oidc",
            superusers=ADMIN,
            oidc_issuer=issuer.url,
            oidc_audience=AUDIENCE,
            auth_refresh_check_s=str(CHECK_EVERY_S),
        )
        with TlsBroker(tmp_path / "broker", "--tls-only", environment=settings) as broker:
            prepare(broker, admin)
            old = Issued(issuer)
            with under_load(broker, topic, old) as load:
                since = connected_since(broker, topic, admin)
                eventually(lambda: load.all_have_renewed(2), what="renewal of all tokens")

                issuer.rotate()
                new = Issued(issuer)
                eventually(lambda: trusts(broker, new), what="the new key")
                load.sign_with(new)
                eventually(load.all_have_renewed, what="tokens of the new key")
                issuer.withdraw_older_keys()
                # A key that it does not know makes the broker ask the issuer, which it does not for those it knows.
                unknown = Issued(issuer, claimed="unknown")
                eventually(lambda: not trusts(broker, unknown) and not trusts(broker, old), what="end of the old key")
                load.sign_with(new)
                eventually(load.all_have_renewed, what="renewal after the old key")
                load.check()
                assert connected_since(broker, topic, admin) == since
        in_order(load)
        assert repeated_ones(load.alone) == repeated_ones(load.shared) == set()
