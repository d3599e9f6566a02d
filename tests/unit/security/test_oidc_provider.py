"""Authentication by tokens of issuers and of Kubernetes' service accounts, on virtual time with servers of both."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from heliograph_api.broker_config import BrokerConfig
from heliograph_api.resources.role_state import ProvenIdentity, service_account
from heliograph_broker.clock import VirtualClock
from heliograph_broker.security.authentication.issuer_keys import PAUSE_S, REFRESH_S, IssuerKeys
from heliograph_broker.security.authentication.kubernetes import ClusterKeys
from heliograph_broker.security.authentication.oidc import OidcProvider, TrustedIssuer
from heliograph_broker.security.authentication.provider import Credentials, ProviderUnusable, Unauthenticated
from heliograph_broker.security.authentication.published_keys import FetchFailed
from heliograph_broker.security.authentication.token import TokenProvider
from heliograph_broker.security.authentication.tokens_by_issuer import TokensByIssuer
from heliograph_broker.security.identity import Identity
from hypothesis import given
from hypothesis import strategies as st

from tests.support.certificates import Authority
from tests.support.oidc_issuer import AUDIENCE, DISCOVERY, VALID_S, OidcIssuer
from tests.support.polling import eventually_async
from tests.support.token_specimens import PAIRS, SECRETS, pair, signed

NOT_TRUSTED = "the token is not signed by a key that this broker trusts"
NOW_S = 1_700_000_000
KUBERNETES = "https://kubernetes.default.svc"


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(NOW_S * 1000)


@pytest.fixture
def issuer(clock: VirtualClock) -> Iterator[OidcIssuer]:
    with OidcIssuer(now_s=lambda: clock.now_ms() / 1000) as running:
        yield running


@pytest.fixture
def oidc(issuer: OidcIssuer, clock: VirtualClock) -> OidcProvider:
    return provider(issuer, clock)


def provider(issuer: OidcIssuer, clock: VirtualClock, **settings: Any) -> OidcProvider:
    given = {"auth": "oidc", "oidc_issuer": issuer.url, "oidc_audience": f"another,{AUDIENCE}"} | settings
    return OidcProvider.from_config(BrokerConfig(**given), clock)


def only(claim: str, value: Any) -> dict[str, Any]:
    return {claim: value}


async def role(oidc: OidcProvider, token: bytes) -> str:
    return (await oidc.authenticate(Credentials(token))).role


async def refusal(oidc: OidcProvider | TokensByIssuer, token: bytes) -> Unauthenticated:
    with pytest.raises(Unauthenticated) as caught:
        await oidc.authenticate(Credentials(token))
    # Neither the client nor the log sees a signature, by which the token could be used.
    signature = token.rpartition(b".")[2].decode(errors="replace")
    assert len(signature) < 20 or signature not in str(caught.value) + caught.value.detail
    return caught.value


async def test_the_subject_is_the_role_until_the_token_expires(oidc: OidcProvider, issuer: OidcIssuer) -> None:
    assert oidc.method == "token"
    found = await oidc.authenticate(Credentials(issuer.token("billing") + b"\n"))
    proven = (ProvenIdentity("oidc", "billing", issuer.url),)
    assert found == Identity("billing", "token", (NOW_S + VALID_S) * 1000, proven=proven)


@pytest.mark.parametrize("algorithm", PAIRS)
async def test_every_algorithm_of_key_pairs(algorithm: str, oidc: OidcProvider, issuer: OidcIssuer) -> None:
    issuer.rotate(algorithm)
    assert await role(oidc, issuer.token("billing")) == "billing"


async def test_an_issuer_with_audiences_of_its_own_cannot_issue_tokens_for_those_of_another(
    issuer: OidcIssuer, clock: VirtualClock
) -> None:
    with OidcIssuer(now_s=lambda: clock.now_ms() / 1000) as other:
        issuers, own = f"{issuer.url},{other.url}", f"{other.url}=orders, {other.url}=shop"
        oidc = provider(issuer, clock, oidc_issuer=issuers, oidc_audience_by_issuer=own)
        for audience in ("orders", "shop", ["foreign", "orders"]):
            assert await role(oidc, other.token(aud=audience)) == "billing"
            wrong = await refusal(oidc, issuer.token(aud=audience))
            assert str(wrong) == "the token's audience (claim aud) is not this cluster's"
        for audience in (AUDIENCE, "another"):
            assert await role(oidc, issuer.token(aud=audience)) == "billing"
            wrong = await refusal(oidc, other.token(aud=audience))
            assert str(wrong) == "the token's audience (claim aud) is not this cluster's"


async def test_the_role_is_in_the_claim_that_the_settings_name(issuer: OidcIssuer, clock: VirtualClock) -> None:
    oidc = provider(issuer, clock, oidc_role_claim="roles")
    assert await role(oidc, issuer.token(roles="billing")) == "billing"
    # As Pulsar does, the first of a list.
    assert await role(oidc, issuer.token(roles=["billing", "reports"])) == "billing"
    for value in (None, [], "", " ", 5, {"a": 1}, [5], [["billing"]]):
        assert str(await refusal(oidc, issuer.token(roles=value))) == "the token's claim roles has no role"
    assert "has no valid role" in str(await refusal(oidc, issuer.token(roles="a\nb")))
    assert "is a role of Heliograph's own parts" in str(await refusal(oidc, issuer.token(roles="heliograph:operator")))


async def test_tokens_are_for_one_of_the_audiences(oidc: OidcProvider, issuer: OidcIssuer) -> None:
    for audience in (AUDIENCE, "another", [AUDIENCE], ["foreign", AUDIENCE]):
        assert await role(oidc, issuer.token(aud=audience)) == "billing"
    wrong: tuple[Any, ...] = (None, "foreign", "", [], ["foreign"], 5, [5], {AUDIENCE: 1}, [[AUDIENCE]])
    for each in wrong:
        error = await refusal(oidc, issuer.token(aud=each))
        assert str(error) == "the token's audience (claim aud) is not this cluster's"


async def test_the_end_of_a_token_is_exact(oidc: OidcProvider, issuer: OidcIssuer, clock: VirtualClock) -> None:
    token = issuer.token(exp=NOW_S + 60)
    clock.advance_ms(59_999)
    assert await role(oidc, token) == "billing"
    clock.advance_ms(1)
    assert str(await refusal(oidc, token)) == "the token expired at 2023-11-14 22:14:20 UTC"


@pytest.mark.parametrize("claim", ["nbf", "iat"])
async def test_a_token_may_begin_ten_seconds_ahead(claim: str, oidc: OidcProvider, issuer: OidcIssuer) -> None:
    assert await role(oidc, issuer.token(**only(claim, NOW_S + 10))) == "billing"
    error = await refusal(oidc, issuer.token(**only(claim, NOW_S + 11)))
    assert str(error) == "the token is not valid before 2023-11-14 22:13:31 UTC"


async def test_times_are_numbers_and_an_end_is_needed(oidc: OidcProvider, issuer: OidcIssuer) -> None:
    assert await role(oidc, issuer.token(nbf=None)) == "billing"
    assert await role(oidc, issuer.token(exp=NOW_S + 0.5)) == "billing"
    far = await oidc.authenticate(Credentials(issuer.token(exp=10**15)))
    assert far.expires_at_ms == 253_402_300_799_000
    for claim in ("exp", "iat"):
        error = await refusal(oidc, issuer.token(**only(claim, None)))
        assert str(error) == f"the token's claim {claim} is missing"
    for claim in ("exp", "iat", "nbf"):
        for value in ("soon", True, [NOW_S]):
            # PyJWT writes no such token.
            payload = json.dumps(_claims(issuer) | {claim: value}).encode()
            token = jwt.PyJWS().encode(payload, issuer.private_key, "ES256", {"kid": "key-1"})
            error = await refusal(oidc, token.encode())
            assert str(error) == f"the token's claim {claim} is not a number of seconds"


def _claims(issuer: OidcIssuer) -> dict[str, Any]:
    return {"iss": issuer.name, "aud": AUDIENCE, "iat": NOW_S, "exp": NOW_S + 60, "sub": "admin"}


async def test_tokens_of_others_are_refused_in_the_same_words(oidc: OidcProvider, issuer: OidcIssuer) -> None:
    public = issuer.private_key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    claims = _claims(issuer)
    # PyJWT writes no such token either.
    head = signed("HS256", claims, SECRETS["HS256"], {"kid": "key-1"}).rpartition(b".")[0]
    by_public_key = head + b"." + jwt.utils.base64url_encode(hmac.digest(public, head, "sha256"))
    token = issuer.token()
    details = [
        await refusal(oidc, issuer.token(key=pair("ES256", 99).private)),
        await refusal(oidc, issuer.token(headers={"kid": "unknown"})),
        await refusal(oidc, issuer.token(iss="https://foreign")),
        await refusal(oidc, issuer.token(iss=None)),
        # A secret that everybody knows: the public key.
        await refusal(oidc, by_public_key),
        await refusal(oidc, signed("HS256", claims, SECRETS["HS256"], {"kid": "key-1"})),
        await refusal(oidc, jwt.encode(claims, "", "none", headers={"kid": "key-1"}).encode() + b"AAAA"),
        await refusal(oidc, signed("RS256", claims, headers={"kid": "key-1"})),
        await refusal(oidc, token[:-8] + b"AAAAAAAA"),
        await refusal(oidc, token.rpartition(b".")[0] + b".AAAA"),
    ]
    assert {str(each) for each in details} == {NOT_TRUSTED}
    assert "the token's signature is not by the key 'key-1' of the issuer" in details[0].detail
    assert "is by a key 'unknown' that is unknown" in details[1].detail
    assert "the token's issuer 'https://foreign' is not trusted" in details[2].detail
    assert "the token's algorithm 'HS256' is none of public keys" in details[4].detail


async def test_an_expired_token_of_nobody_learns_nothing(oidc: OidcProvider, issuer: OidcIssuer) -> None:
    forged = issuer.token(key=pair("ES256", 99).private, exp=NOW_S - 1, aud="foreign")
    assert str(await refusal(oidc, forged)) == NOT_TRUSTED


async def test_several_issuers_have_keys_of_their_own(issuer: OidcIssuer, clock: VirtualClock) -> None:
    with OidcIssuer(now_s=lambda: clock.now_ms() / 1000) as second:
        second.rotate()
        oidc = provider(issuer, clock, oidc_issuer=f"{issuer.url},{second.url}")
        assert oidc.trusted.keys() == {issuer.url, second.url}
        assert await role(oidc, issuer.token("a")) == "a"
        assert await role(oidc, second.token("b")) == "b"
        assert str(await refusal(oidc, second.token(iss=issuer.url))) == NOT_TRUSTED


async def test_keys_are_replaced_and_withdrawn(oidc: OidcProvider, issuer: OidcIssuer, clock: VirtualClock) -> None:
    old = issuer.token("a")
    assert await role(oidc, old) == "a"
    issuer.rotate(keep=False)
    clock.advance_ms(round(PAUSE_S * 1000))
    assert await role(oidc, issuer.token("b")) == "b"
    assert str(await refusal(oidc, old)) == NOT_TRUSTED


async def test_a_key_that_is_removed_is_a_withdrawal(
    oidc: OidcProvider, issuer: OidcIssuer, clock: VirtualClock
) -> None:
    assert await role(oidc, issuer.token()) == "billing"
    both = TokensByIssuer(None, oidc)
    issuer.rotate(keep=False)
    clock.advance_ms(round(REFRESH_S * 1000))
    assert both.withdrawals == 0
    await both.refresh()
    await eventually_async(lambda: both.withdrawals == 1)


async def test_an_issuer_that_is_away_is_named_in_the_log_only(oidc: OidcProvider, issuer: OidcIssuer) -> None:
    issuer.fail(status=500)
    error = await refusal(oidc, issuer.token())
    assert str(error) == "the keys of the token's issuer cannot be read at this time: try again later"
    assert error.detail.endswith(
        f"no keys of the issuer {issuer.url} are known: {issuer.url}{DISCOVERY} answers with status 500; valid: 200"
    )


async def test_keys_are_fetched_at_the_start(oidc: OidcProvider, issuer: OidcIssuer) -> None:
    oidc.start()
    await eventually_async(lambda: oidc.trusted[issuer.url].keys.age_s is not None)
    issuer.fail()
    assert await role(oidc, issuer.token()) == "billing"
    await oidc.close()


class TestServiceAccounts:
    """A Kubernetes is an issuer that speaks TLS and asks for a token itself."""

    @pytest.fixture
    def cluster(self, clock: VirtualClock) -> Iterator[OidcIssuer]:
        with OidcIssuer(KUBERNETES, authority=Authority(), now_s=lambda: clock.now_ms() / 1000) as running:
            # Its public address, with another certificate's name, is of no use in a pod.
            running.changes["jwks_uri"] = "https://203.0.113.1:6443/openid/v1/jwks"
            yield running

    @pytest.fixture
    def pod(self, cluster: OidcIssuer, tmp_path: Path) -> Path:
        return cluster.write_service_account(tmp_path / "serviceaccount")

    async def test_the_role_is_the_service_account(
        self, cluster: OidcIssuer, pod: Path, issuer: OidcIssuer, clock: VirtualClock
    ) -> None:
        keys = IssuerKeys(ClusterKeys(pod, cluster.url), clock)
        oidc = OidcProvider([TrustedIssuer(keys, kubernetes=True)], [AUDIENCE], clock)
        token = cluster.token("system:serviceaccount:shop:billing", aud=[AUDIENCE])
        found = await oidc.authenticate(Credentials(token))
        assert found.role == "system:serviceaccount:shop:billing"
        assert found.proven == (service_account("shop", "billing"),)
        # A token for the API server, which every pod has, is not for the broker.
        await refusal(oidc, cluster.token(aud=[KUBERNETES]))
        assert cluster.requests == {DISCOVERY: 1, "/openid/v1/jwks": 1}

    async def test_the_pods_token_is_read_each_time(self, cluster: OidcIssuer, pod: Path) -> None:
        keys = ClusterKeys(pod, cluster.url)
        cluster.bearer = "the next token"
        with pytest.raises(FetchFailed, match="answers with status 403; valid: 200"):
            await keys.fetch()
        (pod / "token").write_text("the next token\n")
        assert len(await keys.fetch()) == 1
        (pod / "token").unlink()
        with pytest.raises(FetchFailed, match=r"token cannot be read: FileNotFoundError"):
            await keys.fetch()

    async def test_another_server_gets_no_token(self, cluster: OidcIssuer, pod: Path) -> None:
        Authority().write(pod)
        with pytest.raises(FetchFailed, match="certificate verify failed"):
            await ClusterKeys(pod, cluster.url).fetch()
        assert not cluster.requests

    async def test_another_issuer_than_the_pods_has_failed(self, cluster: OidcIssuer, pod: Path) -> None:
        cluster.changes["issuer"] = "https://another"
        with pytest.raises(FetchFailed, match="is for the issuer 'https://another'; valid: 'https://kubernetes"):
            await ClusterKeys(pod, cluster.url).fetch()

    def test_the_settings_trust_the_cluster_beside_issuers(self, pod: Path, clock: VirtualClock) -> None:
        settings = {"oidc_audience": AUDIENCE, "oidc_kubernetes": True, "oidc_role_claim": "roles"}
        config = BrokerConfig(auth="oidc", oidc_issuer="https://id.example", **settings)  # type: ignore[arg-type]
        oidc = OidcProvider.from_config(config, clock, pod)
        claims = {issuer: trusted.role_claim for issuer, trusted in oidc.trusted.items()}
        assert claims == {"https://id.example": "roles", KUBERNETES: "sub"}

    def test_tokens_of_pods_may_need_an_audience_of_their_own(self, pod: Path, clock: VirtualClock) -> None:
        settings = {"oidc_audience": "apps", "oidc_audience_by_issuer": "kubernetes=pods", "oidc_kubernetes": True}
        config = BrokerConfig(auth="oidc", oidc_issuer="https://id.example", **settings)  # type: ignore[arg-type]
        oidc = OidcProvider.from_config(config, clock, pod)
        audiences = {issuer: trusted.audiences for issuer, trusted in oidc.trusted.items()}
        assert audiences == {"https://id.example": None, KUBERNETES: {"pods"}}

    @pytest.mark.parametrize("content", [None, b"", b"no token", b"\xff"])
    def test_without_a_token_the_setting_is_refused(
        self, content: bytes | None, tmp_path: Path, clock: VirtualClock
    ) -> None:
        if content is not None:
            (tmp_path / "token").write_bytes(content)
        config = BrokerConfig(auth="oidc", oidc_kubernetes=True, oidc_audience=AUDIENCE)
        with pytest.raises(ProviderUnusable, match=r"^oidc_kubernetes: "):
            OidcProvider.from_config(config, clock, tmp_path)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"auth": "oidc"}, "auth: oidc needs issuers"),
        ({"auth": "oidc", "oidc_issuer": "https://a"}, "oidc_audience: is empty"),
        (
            {"auth": "oidc", "oidc_issuer": "https://a", "oidc_audience": "a", "oidc_ca": "/none"},
            "oidc_ca: cannot read /none: No such file or directory; valid: certificate authorities in PEM",
        ),
        (
            {"auth": "oidc", "oidc_issuer": "https://a", "oidc_audience": "a", "oidc_ca": __file__},
            "oidc_provider.py holds no certificates in PEM, or a damaged one; valid: certificate authorities in PEM",
        ),
    ],
)
def test_settings_that_do_not_suffice_are_refused(settings: dict[str, str], words: str, clock: VirtualClock) -> None:
    with pytest.raises(ProviderUnusable, match=r"^(auth|oidc_[a-z]+): ") as caught:
        OidcProvider.from_config(BrokerConfig(**settings), clock)  # type: ignore[arg-type]
    assert words in str(caught.value)


class TestBothKindsOfTokens:
    """Tokens by keys in files and tokens of issuers have the same method."""

    @pytest.fixture
    def by_keys(self, tmp_path: Path, clock: VirtualClock) -> TokenProvider:
        path = tmp_path / "secret"
        path.write_bytes(SECRETS["HS256"])
        return TokenProvider.from_config(BrokerConfig(auth="token", token_secret_key=str(path)), clock)

    async def test_the_issuer_that_a_token_names_decides(
        self, oidc: OidcProvider, by_keys: TokenProvider, issuer: OidcIssuer
    ) -> None:
        both = TokensByIssuer(by_keys, oidc)
        assert both.method == "token"
        cases = [
            (issuer.token("a"), "a"),
            (issuer.token("a") + b"\n", "a"),
            (signed("HS256", {"sub": "b"}), "b"),
            (signed("HS256", {"sub": "c", "iss": "https://foreign"}), "c"),
        ]
        for token, expected in cases:
            assert (await both.authenticate(Credentials(token))).role == expected

    async def test_naming_an_issuer_chooses_the_keys_and_trusts_nothing(
        self, oidc: OidcProvider, by_keys: TokenProvider, issuer: OidcIssuer
    ) -> None:
        both = TokensByIssuer(by_keys, oidc)
        # Signed by the secret of the files, for the issuer: that one's keys count.
        assert str(await refusal(both, signed("HS256", _claims(issuer)))) == NOT_TRUSTED
        assert str(await refusal(both, issuer.token("admin", iss="https://foreign"))) == NOT_TRUSTED

    async def test_one_of_both_is_enough(self, oidc: OidcProvider, by_keys: TokenProvider, issuer: OidcIssuer) -> None:
        only_issuers, only_keys = TokensByIssuer(None, oidc), TokensByIssuer(by_keys, None)
        assert (await only_issuers.authenticate(Credentials(issuer.token("a")))).role == "a"
        assert str(await refusal(only_issuers, signed("HS256", {"sub": "b"}))) == NOT_TRUSTED
        assert (await only_keys.authenticate(Credentials(signed("HS256", {"sub": "b"})))).role == "b"
        assert str(await refusal(only_keys, issuer.token("a"))) == NOT_TRUSTED


_PARTS = st.one_of(
    st.binary(max_size=60).map(lambda raw: base64.urlsafe_b64encode(raw).rstrip(b"=")),
    st.sampled_from([b"eyJhbGciOiJFUzI1NiJ9", b"eyJpc3MiOiJodHRwOi8vMTI3LjAuMC4xOjEifQ", b"", b"AAAA"]),
)


@given(st.binary(max_size=120) | st.lists(_PARTS, min_size=2, max_size=4).map(b".".join))
def test_any_bytes_are_refused(data: bytes) -> None:
    async def ask() -> None:
        clock = VirtualClock()
        config = BrokerConfig(auth="oidc", oidc_issuer="http://127.0.0.1:1", oidc_audience=AUDIENCE)
        await refusal(TokensByIssuer(None, OidcProvider.from_config(config, clock)), data)
        await refusal(OidcProvider.from_config(config, clock), data)

    asyncio.run(ask())


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
)


def test_any_claims_that_are_signed_are_an_identity_or_refused(
    oidc: OidcProvider, issuer: OidcIssuer, clock: VirtualClock
) -> None:
    valid = _claims(issuer)

    @given(st.dictionaries(st.sampled_from(["aud", "exp", "nbf", "iat", "sub"]), _VALUES))
    def check(claims: dict[str, Any]) -> None:
        payload = json.dumps(valid | claims).encode()
        token = jwt.PyJWS().encode(payload, issuer.private_key, "ES256", {"kid": "key-1"}).encode()
        try:
            found = asyncio.run(oidc.authenticate(Credentials(token)))
        except Unauthenticated:
            return
        assert found.role
        assert found.expires_at_ms is not None
        assert found.expires_at_ms > clock.now_ms()

    check()
