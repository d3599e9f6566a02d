"""Tokens and keys of any content: what is signed is accepted as it was signed, everything else is refused by name."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from heliograph_api.tokens.key_sources import KeyUnusable, read_source, source_name, split_sources
from heliograph_api.tokens.keys import TokenKey, private_key, public_key, secret_keys
from heliograph_api.tokens.parts import NotAToken, take_apart
from heliograph_api.tokens.signing import sign_token
from heliograph_broker.clock import VirtualClock
from heliograph_broker.security.authentication.provider import Credentials, Unauthenticated
from heliograph_broker.security.authentication.token import TokenProvider
from heliograph_broker.security.authentication.token_keys import TrustedKeys
from heliograph_broker.security.identity import Identity
from hypothesis import given
from hypothesis import strategies as st

from tests.support.token_specimens import ALGORITHMS, PAIRS, SECRETS, pair, signed, verifying

NOW_S = 1_700_000_000

texts = st.text(st.characters(exclude_categories=["Cs"]))
roles = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
times = st.integers(-10, 10) | st.floats(-10, 10)


def identity(provider: TokenProvider, token: bytes) -> Identity:
    """Authenticate at once: time stands still, so no key is read again."""
    with pytest.raises(StopIteration) as ended:
        provider.authenticate(Credentials(token)).send(None)
    found = ended.value.value
    assert isinstance(found, Identity)
    return found


def data_url(content: bytes) -> str:
    return f"data:;base64,{base64.b64encode(content).decode()}"


def provider_of(*algorithms: str) -> TokenProvider:
    clock = VirtualClock(NOW_S * 1000)
    secrets = [data_url(SECRETS[name]) for name in algorithms if name in SECRETS]
    publics = [data_url(verifying(name)) for name in algorithms if name in PAIRS]
    return TokenProvider(TrustedKeys(secrets, publics, clock), clock)


@pytest.fixture(scope="module")
def providers() -> dict[str, TokenProvider]:
    """A provider for each algorithm, and one that trusts all keys: ``all``."""
    return {name: provider_of(name) for name in ALGORITHMS} | {"all": provider_of(*ALGORITHMS)}


def signing_key(algorithm: str) -> TokenKey:
    if algorithm in SECRETS:
        return secret_keys(SECRETS[algorithm])[0]
    return private_key(pair(algorithm).private_der)


@given(
    algorithm=st.sampled_from(ALGORITHMS),
    role=roles,
    claims=st.dictionaries(texts.filter(lambda name: name not in ("exp", "nbf", "iat", "iss", "jti")), json_values),
    headers=st.dictionaries(texts.filter(lambda name: name not in ("alg", "b64", "crit", "typ", "kid")), texts),
)
def test_a_signed_token_gives_its_role(
    providers: dict[str, TokenProvider], algorithm: str, role: str, claims: dict[str, Any], headers: dict[str, str]
) -> None:
    token = sign_token(signing_key(algorithm), claims | {"sub": role}, algorithm, headers)
    if len(token) > 16_384 or len(token.partition(".")[0]) > 4096:
        return
    for provider in (providers[algorithm], providers["all"]):
        assert identity(provider, token.encode()) == Identity(role, "token")
    # The library that did not sign it agrees.
    options: Any = {"verify_aud": False}
    assert jwt.decode(token, verifying_object(algorithm), [algorithm], options=options)["sub"] == role


def verifying_object(algorithm: str) -> Any:
    return SECRETS.get(algorithm) or pair(algorithm).private.public_key()


@given(begins=times | st.none(), ends=times | st.none())
def test_a_token_is_valid_between_its_times(
    providers: dict[str, TokenProvider], begins: float | None, ends: float | None
) -> None:
    claims: dict[str, Any] = {"sub": "a"}
    if begins is not None:
        claims["nbf"] = NOW_S + begins
    if ends is not None:
        claims["exp"] = NOW_S + ends
    token = signed("HS256", claims)
    accepted = True
    try:
        identity(providers["HS256"], token)
    except Unauthenticated:
        accepted = False
    starts_ms = int(claims.get("nbf", 0) * 1000)
    ends_ms = int(claims.get("exp", 2**40) * 1000)
    assert accepted == (starts_ms <= NOW_S * 1000 < ends_ms)


@given(algorithm=st.sampled_from(ALGORITHMS), where=st.floats(0, 1, exclude_max=True), byte=st.integers(0, 255))
def test_a_token_with_another_byte_is_refused(
    providers: dict[str, TokenProvider], algorithm: str, where: float, byte: int
) -> None:
    token = bytearray(TOKENS[algorithm])
    at = int(where * len(token))
    if token[at] == byte:
        byte ^= 1
    token[at] = byte
    for provider in (providers[algorithm], providers["all"]):
        with pytest.raises(Unauthenticated):
            identity(provider, bytes(token))


@pytest.mark.parametrize("algorithm", ["HS256", "EdDSA"])
def test_a_token_with_any_other_last_characters_is_refused(providers: dict[str, TokenProvider], algorithm: str) -> None:
    # The bits of the last character that encode nothing are where a lax decoder accepts two texts for one signature.
    token = TOKENS[algorithm]
    for at in range(len(token) - 4, len(token)):
        for byte in range(256):
            if byte != token[at]:
                with pytest.raises(Unauthenticated):
                    identity(providers["all"], token[:at] + bytes([byte]) + token[at + 1 :])


@given(algorithm=st.sampled_from(ALGORITHMS), cut=st.data())
def test_a_part_of_a_token_or_more_than_one_is_refused(
    providers: dict[str, TokenProvider], algorithm: str, cut: st.DataObject
) -> None:
    token = TOKENS[algorithm]
    begin = cut.draw(st.integers(0, len(token)))
    end = cut.draw(st.integers(begin, len(token)))
    for mutated in (token[:begin] + token[end:], token[:end] + token[begin:], token[:begin] + b"=" + token[begin:]):
        if mutated != token:
            with pytest.raises(Unauthenticated):
                identity(providers["all"], mutated)


def encoded(part: bytes) -> bytes:
    return base64.urlsafe_b64encode(part).rstrip(b"=")


headers = st.fixed_dictionaries(
    {"alg": st.sampled_from([*ALGORITHMS, "none", "NONE", "", "ES256K", "A128KW"]) | json_values},
    optional={"crit": json_values, "b64": json_values, "kid": json_values, "jwk": json_values, "typ": json_values},
)
header_bytes = headers.map(lambda header: json.dumps(header).encode()) | json_values.map(
    lambda value: json.dumps(value).encode()
)
parts = (header_bytes | st.binary(max_size=300)).map(encoded) | st.binary(max_size=100)


@given(data=st.binary(max_size=300) | st.lists(parts, max_size=5).map(b".".join))
def test_bytes_without_a_signature_are_refused(providers: dict[str, TokenProvider], data: bytes) -> None:
    with pytest.raises(Unauthenticated) as caught:
        identity(providers["all"], data)
    assert str(caught.value)
    assert str(caught.value).isprintable()
    with contextlib.suppress(NotAToken):
        take_apart(data).claims()


@given(payload=json_values.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=100))
def test_any_claims_give_a_role_or_a_reason(providers: dict[str, TokenProvider], payload: bytes) -> None:
    token = jwt.api_jws.encode(payload, SECRETS["HS256"], "HS256").encode()
    with contextlib.suppress(Unauthenticated):
        found = identity(providers["HS256"], token)
        assert json.loads(payload)["sub"] == found.role


@given(claims=st.fixed_dictionaries({"sub": json_values, "exp": json_values, "nbf": json_values, "aud": json_values}))
def test_claims_of_any_type_give_a_role_or_a_reason(
    providers: dict[str, TokenProvider], claims: dict[str, Any]
) -> None:
    token = jwt.api_jws.encode(json.dumps(claims).encode(), SECRETS["HS256"], "HS256").encode()
    try:
        found = identity(providers["HS256"], token)
    except Unauthenticated:
        return
    assert found.role == claims["sub"]
    assert (found.expires_at_ms is None) == (claims["exp"] is None)


@given(content=st.binary(max_size=200))
def test_the_content_of_a_key_is_a_key_or_unusable(content: bytes) -> None:
    for parse in (public_key, private_key):
        with pytest.raises(KeyUnusable):
            parse(content)
    if len(content) < 32:
        with pytest.raises(KeyUnusable):
            secret_keys(content)
        return
    key = secret_keys(content)[0]
    assert key.key == content
    assert jwt.decode(sign_token(key, {"sub": "a"}), content, ["HS256", "HS384", "HS512"])["sub"] == "a"


@given(
    form=st.sampled_from(["public_der", "public_pem", "private_der"]),
    algorithm=st.sampled_from(["RS256", "ES256", "EdDSA"]),
    where=st.floats(0, 1, exclude_max=True),
    byte=st.integers(0, 255),
    length=st.integers(0, 3),
)
def test_a_damaged_key_is_another_key_or_unusable(
    form: str, algorithm: str, where: float, byte: int, length: int
) -> None:
    content = getattr(pair(algorithm), form)
    at = int(where * len(content))
    damaged = content[:at] + bytes([byte]) * length + content[at + 1 :]
    for parse in (public_key, private_key, secret_keys):
        with contextlib.suppress(KeyUnusable):
            parse(damaged)
    # Whatever a public key looks like, nobody signs by its text.
    with pytest.raises(KeyUnusable):
        secret_keys(content)


@given(source=st.text(max_size=50) | st.text(max_size=50).map(lambda text: f"data:;base64,{text}"))
def test_any_source_is_read_or_unusable(source: str) -> None:
    with contextlib.suppress(KeyUnusable):
        read_source(source)
    if source.startswith("data:;base64,") and len(source) > 20:
        assert source[13:] not in source_name(source)


paths = st.text(st.characters(exclude_categories=["Cs"], exclude_characters=","), min_size=1).map(str.strip)


@given(sources=st.lists(paths.filter(lambda path: path and path[:5] != "data:") | st.binary().map(data_url)))
def test_sources_are_separated_by_commas(sources: list[str]) -> None:
    assert split_sources(",".join(sources)) == sources
    assert split_sources(" , ".join(sources)) == sources


@given(content=st.binary(min_size=32, max_size=100))
def test_a_secret_is_the_same_in_every_form(content: bytes) -> None:
    assert read_source(data_url(content)) == content
    in_base64 = base64.b64encode(content)
    with contextlib.suppress(KeyUnusable):
        assert [key.key for key in secret_keys(in_base64 + b"\n")] == [in_base64 + b"\n", content]


def test_a_file_is_read_by_its_path_and_its_url(tmp_path: Path) -> None:
    path = tmp_path / "a key%20ü.key"
    path.write_bytes(SECRETS["HS256"])
    for source in (str(path), path.as_uri(), path.as_uri().replace("file://", "file:")):
        assert read_source(source) == SECRETS["HS256"]
    for source in ("file://other.example/a", "data:c2VjcmV0", "data:;base64,a", "data:;base64,", str(tmp_path), "\0"):
        with pytest.raises(KeyUnusable):
            read_source(source)
    large = tmp_path / "large"
    large.write_bytes(b"x" * 65_537)
    with pytest.raises(KeyUnusable, match="larger than a key: more than 65536 bytes"):
        read_source(str(large))


def _tokens() -> Iterator[tuple[str, bytes]]:
    for algorithm in ALGORITHMS:
        yield algorithm, signed(algorithm, {"sub": "billing", "exp": NOW_S + 60})


#: A token of each algorithm that is valid.
TOKENS = dict(_tokens())
