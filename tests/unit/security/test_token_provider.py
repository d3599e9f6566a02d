"""Authentication by tokens: which are accepted as whom, and what the client of a refused one learns."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import jwt
import pytest
from heliograph_api.broker_config import BrokerConfig
from heliograph_api.tokens.key_sources import KeyUnusable
from heliograph_api.tokens.parts import TokenParts, take_apart
from heliograph_broker.clock import VirtualClock
from heliograph_broker.security.authentication import token as token_module
from heliograph_broker.security.authentication.provider import Credentials, Unauthenticated
from heliograph_broker.security.authentication.token import TokenProvider
from heliograph_broker.security.authentication.token_keys import TrustedKeys
from heliograph_broker.security.identity import Identity
from structlog.testing import capture_logs

from tests.support.token_specimens import ALGORITHMS, PAIRS, SECRETS, pair, signed, verifying

NOW_S = 1_700_000_000
NOT_TRUSTED = "the token is not signed by a key that this broker trusts"


class Tokens:
    """A provider on virtual time with its key files."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.clock = VirtualClock(NOW_S * 1000)

    def key(self, name: str, content: bytes) -> str:
        path = self.directory / name
        path.write_bytes(content)
        return str(path)

    def provider(self, secrets: str = "", publics: str = "", **settings: Any) -> TokenProvider:
        config = BrokerConfig(auth="token", token_secret_key=secrets, token_public_key=publics, **settings)
        return TokenProvider.from_config(config, self.clock)

    def provider_for(self, *algorithms: str, **settings: Any) -> TokenProvider:
        files = {each: self.key(f"{each}.key", verifying(each)) for each in algorithms}
        secrets = ",".join(path for name, path in files.items() if name in SECRETS)
        publics = ",".join(path for name, path in files.items() if name not in SECRETS)
        return self.provider(secrets, publics, **settings)


@pytest.fixture
def tokens(tmp_path: Path) -> Tokens:
    return Tokens(tmp_path)


async def identity(provider: TokenProvider, token: bytes) -> Identity:
    return await provider.authenticate(Credentials(token))


async def refusal(provider: TokenProvider, token: bytes) -> str:
    with pytest.raises(Unauthenticated) as caught:
        await identity(provider, token)
    return str(caught.value)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_a_token_of_every_algorithm_gives_its_subject_the_role(tokens: Tokens, algorithm: str) -> None:
    provider = tokens.provider_for(algorithm)
    assert await identity(provider, signed(algorithm, {"sub": "billing"})) == Identity("billing", "token")
    assert await identity(provider, signed(algorithm, {"sub": "ü", "exp": NOW_S + 60})) == Identity(
        "ü", "token", (NOW_S + 60) * 1000
    )


async def test_keys_of_several_types_are_trusted_together(tokens: Tokens) -> None:
    provider = tokens.provider_for(*ALGORITHMS)
    for algorithm in ALGORITHMS:
        token = signed(algorithm, {"sub": algorithm}, headers={"kid": "a name that no key has"})
        assert (await identity(provider, token)).role == algorithm


async def test_of_two_keys_of_a_type_either_may_have_signed(tokens: Tokens) -> None:
    files = [tokens.key(f"{number}", pair("ES256", number).public_pem) for number in (1, 2)]
    provider = tokens.provider(publics=",".join(files))
    for number in (1, 2):
        assert (await identity(provider, signed("ES256", {"sub": "a"}, pair("ES256", number).private))).role == "a"
    assert await refusal(provider, signed("ES256", {"sub": "a"}, pair("ES256", 3).private)) == NOT_TRUSTED


async def test_the_header_chooses_no_algorithm_that_the_type_of_the_key_does_not_have(tokens: Tokens) -> None:
    public = pair("RS256").public_pem
    provider = tokens.provider_for("RS256", "ES256", "HS256")
    header = base64.urlsafe_b64encode(b'{"alg":"none"}').rstrip(b"=")
    payload = base64.urlsafe_b64encode(b'{"sub":"admin"}').rstrip(b"=")
    assert "not a JWT" in await refusal(provider, header + b"." + payload + b".")
    assert await refusal(provider, header + b"." + payload + b".AAAA") == NOT_TRUSTED
    # Signed by the text of the public key as if that were a secret, which is what the libraries refuse to make.
    for name in ("HS256", "HS384", "HS512"):
        algorithm = jwt.get_algorithm_by_name(name)
        head = base64.urlsafe_b64encode(json.dumps({"alg": name}).encode()).rstrip(b"=")
        for text in (public, pair("RS256").public_der):
            signature = algorithm.sign(head + b"." + payload, text)
            forged = b".".join((head, payload, base64.urlsafe_b64encode(signature).rstrip(b"=")))
            assert await refusal(provider, forged) == NOT_TRUSTED
    # Its own secret, with an algorithm that needs a longer one.
    with pytest.warns(jwt.InsecureKeyLengthWarning):
        short = signed("HS512", {"sub": "a"}, SECRETS["HS256"])
    assert await refusal(provider, short) == NOT_TRUSTED


async def test_a_token_is_valid_from_its_beginning_until_its_end(tokens: Tokens) -> None:
    provider = tokens.provider_for("HS256")
    token = signed("HS256", {"sub": "a", "nbf": NOW_S + 10, "exp": NOW_S + 20.5})
    assert await refusal(provider, token) == "the token is not valid before 2023-11-14 22:13:30 UTC"
    tokens.clock.advance_ms(10_000)
    assert (await identity(provider, token)).expires_at_ms == NOW_S * 1000 + 20_500
    tokens.clock.advance_ms(10_499)
    assert (await identity(provider, token)).role == "a"
    tokens.clock.advance_ms(1)
    assert await refusal(provider, token) == "the token expired at 2023-11-14 22:13:40 UTC"


@pytest.mark.parametrize("end", [10**15, 1e300, 253_402_300_800])
async def test_an_end_without_a_date_is_far_away(tokens: Tokens, end: float) -> None:
    found = await identity(tokens.provider_for("HS256"), signed("HS256", {"sub": "a", "exp": end}))
    assert found.expires_at_ms == 253_402_300_799_000


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({}, "the token has no role: its claim sub is missing"),
        ({"sub": None}, "the token has no role: its claim sub is missing"),
        ({"sub": ""}, "the token has no role: its claim sub is not a text"),
        ({"sub": 7}, "the token has no role: its claim sub is not a text"),
        ({"sub": ["a"]}, "the token has no role: its claim sub is not a text"),
        ({"sub": "a", "exp": "tomorrow"}, "the token's claim exp is not a number of seconds"),
        ({"sub": "a", "nbf": True}, "the token's claim nbf is not a number of seconds"),
        ({"sub": "a", "exp": -5}, "the token expired at 1970-01-01 00:00:00 UTC"),
        ({"sub": "a", "exp": 0}, "the token expired at 1970-01-01 00:00:00 UTC"),
    ],
)
async def test_claims_that_give_nobody_a_role(tokens: Tokens, claims: dict[str, Any], reason: str) -> None:
    provider = tokens.provider_for("HS256")
    token = jwt.api_jws.encode(json.dumps(claims).encode(), SECRETS["HS256"], "HS256")
    assert await refusal(provider, token.encode()) == reason


async def test_the_role_is_in_the_claim_of_the_setting(tokens: Tokens) -> None:
    provider = tokens.provider_for("HS256", token_role_claim="role")
    assert (await identity(provider, signed("HS256", {"sub": "a", "role": "b"}))).role == "b"
    assert await refusal(provider, signed("HS256", {"sub": "a"})) == "the token has no role: its claim role is missing"


async def test_a_token_for_another_audience_is_refused(tokens: Tokens) -> None:
    provider = tokens.provider_for("HS256", token_audience="west")
    for audience in ("west", ["east", "west"]):
        assert (await identity(provider, signed("HS256", {"sub": "a", "aud": audience}))).role == "a"
    others: list[dict[str, Any]] = [{}]
    others += [{"aud": other} for other in ("east", ["east"], [], "west-2", {"west": 1})]
    for claims in others:
        reason = await refusal(provider, signed("HS256", {"sub": "a"} | claims))
        assert reason == "the token's audience (claim aud) is not this cluster's"
    # Without the setting nobody asks.
    assert (await identity(tokens.provider_for("HS256"), signed("HS256", {"sub": "a", "aud": "east"}))).role == "a"


async def test_claims_are_read_after_the_signature(tokens: Tokens) -> None:
    provider = tokens.provider_for("HS256", token_audience="west")
    others: list[dict[str, Any]] = [{}, {"exp": 1}, {"sub": "a", "aud": "east"}]
    for claims in others:
        assert await refusal(provider, signed("HS256", claims, b"x" * 32)) == NOT_TRUSTED


@pytest.mark.parametrize("data", [b"user:password", b"a.b", b"a.b.c", b"....", b"\xff.\xff.\xff", b"a" * 16_000])
async def test_other_bytes_are_no_token(tokens: Tokens, data: bytes) -> None:
    provider = tokens.provider_for(*ALGORITHMS)
    assert await refusal(provider, data) == "not a JWT; valid: a signed token, header.claims.signature"


async def test_signed_bytes_that_are_no_claims_are_no_token(tokens: Tokens) -> None:
    provider = tokens.provider_for("HS256")
    for payload in (b"[]", b"{", b'"sub"', b"[" * 10_000, b'{"sub":"\xff"}', b'{"exp": NaN}'):
        token = jwt.api_jws.encode(payload, SECRETS["HS256"], "HS256").encode()
        assert (await refusal(provider, token)).startswith("not a JWT: ")


async def test_a_header_with_extensions_is_refused(tokens: Tokens) -> None:
    provider = tokens.provider_for("HS256")
    extensions: list[dict[str, Any]] = [{"crit": ["exp"]}, {"crit": []}, {"b64": 0}]
    for headers in extensions:
        head = base64.urlsafe_b64encode(json.dumps({"alg": "HS256"} | headers).encode()).rstrip(b"=") + b".e30"
        signature = jwt.get_algorithm_by_name("HS256").sign(head, SECRETS["HS256"])
        token = head + b"." + base64.urlsafe_b64encode(signature).rstrip(b"=")
        assert (await refusal(provider, token)).startswith("not a JWT")


async def test_a_large_or_missing_token_is_refused(tokens: Tokens) -> None:
    provider = tokens.provider_for("HS256")
    large = signed("HS256", {"sub": "a", "filler": "x" * 16_384})
    assert await refusal(provider, large) == "the token is larger than 16384 bytes"
    assert await refusal(provider, b"") == "the client has sent an empty token"
    assert await refusal(provider, b" \n") == "the client has sent an empty token"


async def test_the_end_of_line_of_a_token_file_is_no_part_of_it(tokens: Tokens) -> None:
    provider = tokens.provider_for("HS256")
    assert (await identity(provider, signed("HS256", {"sub": "a"}) + b"\r\n")).role == "a"


async def test_a_verified_token_is_verified_once(tokens: Tokens, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[bytes] = []

    def counted(token: bytes) -> TokenParts:
        taken.append(token)
        return take_apart(token)

    monkeypatch.setattr(token_module, "take_apart", counted)
    monkeypatch.setattr(token_module, "MAX_REMEMBERED", 2)
    provider = tokens.provider_for("HS256")
    first, second, third = (signed("HS256", {"sub": name}) for name in "abc")
    for token in (first, second, first, third, first):
        await identity(provider, token)
    assert taken == [first, second, third]
    await identity(provider, second)
    assert taken[3:] == [second], "the one that was shown longest ago is forgotten"
    bad = signed("HS256", {"sub": "a"}, b"x" * 32)
    for _ in range(2):
        await refusal(provider, bad)
    assert taken[4:] == [bad, bad]


async def test_keys_overlap_while_they_rotate(tokens: Tokens) -> None:
    path = tokens.key("new.key", pair("ES256", 2).public_der)
    old = tokens.key("old.key", pair("ES256", 1).public_der)
    provider = tokens.provider(publics=f"{old},{path}")
    first, second, third = (signed("ES256", {"sub": "a"}, pair("ES256", number).private) for number in (1, 2, 3))
    assert [(await identity(provider, each)).role for each in (first, second)] == ["a", "a"]
    tokens.key("old.key", pair("ES256", 3).public_pem)
    # It is looked at once a second.
    assert (await identity(provider, first)).role == "a"
    tokens.clock.advance_ms(1000)
    assert await refusal(provider, first) == NOT_TRUSTED
    assert [(await identity(provider, each)).role for each in (second, third)] == ["a", "a"]


@pytest.mark.parametrize("content", [b"", b"not a key", b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----"])
async def test_a_broken_new_file_keeps_the_old_key_and_is_logged_once(tokens: Tokens, content: bytes) -> None:
    path = tokens.key("a.key", pair("EdDSA").public_der)
    other = tokens.key("b.key", SECRETS["HS256"])
    provider = tokens.provider(other, path)
    tokens.key("a.key", content)
    tokens.key("b.key", b"y" * 40)
    with capture_logs() as logs:
        for _ in range(3):
            tokens.clock.advance_ms(1000)
            assert (await identity(provider, signed("EdDSA", {"sub": "a"}))).role == "a"
    # The other file's new key counts all the same.
    assert (await identity(provider, signed("HS256", {"sub": "b"}, b"y" * 40))).role == "b"
    assert await refusal(provider, signed("HS256", {"sub": "b"})) == NOT_TRUSTED
    changed, broken = logs
    assert broken["event"] == "a token key cannot be read; the one before stays valid"
    assert (broken["key"], changed["key"]) == (repr(path), repr(other))
    assert changed["event"] == "a token key has changed"
    assert "AAAA" not in str(logs)
    (tokens.directory / "a.key").unlink()
    with capture_logs() as logs:
        tokens.clock.advance_ms(1000)
        assert (await identity(provider, signed("EdDSA", {"sub": "a"}))).role == "a"
        tokens.key("a.key", pair("EdDSA").public_der)
        tokens.clock.advance_ms(1000)
        assert (await identity(provider, signed("EdDSA", {"sub": "a"}))).role == "a"
    missing, found = logs
    assert "there is no file" in missing["error"]
    assert found["event"] == "a token key can be read again, and is the same"
    tokens.key("a.key", pair("EdDSA", 1).public_der)
    tokens.clock.advance_ms(1000)
    assert await refusal(provider, signed("EdDSA", {"sub": "a"})) == NOT_TRUSTED
    assert (await identity(provider, signed("EdDSA", {"sub": "a"}, pair("EdDSA", 1).private))).role == "a"


async def test_many_clients_at_once_wait_for_one_reading_of_the_files(
    tokens: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = tokens.provider_for("HS256", "ES256")
    read: list[str] = []
    original = TrustedKeys._read_again

    def counted(keys: TrustedKeys) -> None:
        read.append("again")
        original(keys)

    monkeypatch.setattr(TrustedKeys, "_read_again", counted)
    tokens.clock.advance_ms(5000)
    token = signed("HS256", {"sub": "a"})
    found = await asyncio.gather(*(identity(provider, token) for _ in range(50)))
    assert {each.role for each in found} == {"a"}
    assert read == ["again"]


@pytest.mark.parametrize("algorithm", PAIRS)
def test_a_public_key_is_no_secret(tokens: Tokens, algorithm: str) -> None:
    made = pair(algorithm)
    for content in (made.public_der, made.public_pem, made.private_der):
        path = tokens.key("a.key", content)
        with pytest.raises(KeyUnusable, match=r"a\.key.*it is a public or private key"):
            tokens.provider(secrets=path)
