"""Key sets of issuers: which keys are used, and why the others are not."""

from __future__ import annotations

import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from heliograph_api.tokens.parts import take_apart
from heliograph_broker.security.authentication.jwks import InvalidKeySet, parse_key_set
from hypothesis import given
from hypothesis import strategies as st

from tests.support.token_specimens import PAIRS, pair, rsa_pair, signed


def public(algorithm: str, key: Any = None, **members: Any) -> dict[str, Any]:
    """Return a public key as an issuer publishes it; members that are None are left out."""
    private = key or pair(algorithm).private
    made = jwt.get_algorithm_by_name(algorithm).to_jwk(private.public_key(), as_dict=True)
    merged = {"kid": algorithm, "alg": algorithm, "use": "sig"} | made | members
    return {name: value for name, value in merged.items() if value is not None}


def document(*keys: object) -> bytes:
    return json.dumps({"keys": keys}).encode()


@pytest.mark.parametrize("algorithm", PAIRS)
def test_a_key_verifies_by_the_algorithm_that_it_names(algorithm: str) -> None:
    parts = take_apart(signed(algorithm, {"sub": "billing"}))
    (key,) = parse_key_set(document(public(algorithm))).with_id(algorithm)
    assert set(key.algorithms) == {algorithm}
    assert key.verifies(algorithm, parts.signed, parts.signature)
    assert not key.verifies(algorithm, parts.signed + b"a", parts.signature)
    assert not key.verifies("HS256", parts.signed, parts.signature)


def test_a_key_without_an_algorithm_has_those_of_its_type() -> None:
    keys = parse_key_set(document(public("RS256", alg=None, use=None), public("ES384", alg=None, key_ops=["verify"])))
    assert set(keys.with_id("RS256")[0].algorithms) == {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}
    assert set(keys.with_id("ES384")[0].algorithms) == {"ES384"}
    assert len(keys) == 2


def test_a_key_is_found_by_its_id_and_the_only_one_without() -> None:
    one = parse_key_set(document(public("ES256")))
    assert len(one.with_id(None)) == len(one.with_id("ES256")) == 1
    assert one.with_id("another") == one.with_id("") == ()
    two = parse_key_set(document(public("ES256"), public("RS256", kid="ES256")))
    assert (len(two.with_id("ES256")), len(two.with_id(None))) == (2, 0)
    assert len(parse_key_set(document(public("ES256", kid=None))).with_id(None)) == 1


@pytest.mark.parametrize(
    ("now", "lacks"),
    [
        ((public("RS256"),), False),
        ((public("ES384"), public("RS256")), False),
        ((public("RS256", alg=None),), False),
        ((public("RS256", alg="RS384"),), True),
        ((public("RS256", kid="renamed"),), True),
        ((public("RS256", rsa_pair(2048, 9).private),), True),
        ((public("ES384", kid="RS256"),), True),
    ],
)
def test_keys_that_are_missing_are_noticed(now: tuple[dict[str, Any], ...], lacks: bool) -> None:
    assert parse_key_set(document(*now)).lacks_one_of(parse_key_set(document(public("RS256")))) is lacks


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ({"kty": "oct", "k": "AAAA", "kid": "a"}, "its type is none of RSA, EC, OKP"),
        ({"kty": "RSA", "kid": "a"}, "its parts are no key"),
        ({"kty": "EC", "crv": "P-999", "x": "AA", "y": "AA"}, "its parts are no key"),
        ("key", "it is no object"),
        (public("ES256", kid=1), "its kid, kty or alg is no text"),
        (public("ES256", alg="HS256"), "its algorithm is none for signatures by its type of key"),
        (public("RS256", alg="RSA-OAEP"), "its algorithm is none for signatures by its type of key"),
        (public("ES256", use="enc"), "it is not for signatures"),
        (public("ES256", key_ops=["encrypt"]), "it is not for signatures"),
        (public("ES256", key_ops="verify"), "it is not for signatures"),
        (public("ES256", x="A" * 1401), "a part of it is too long, or no text"),
        (public("ES256", x=5), "a part of it is too long, or no text"),
        (public("RS256", rsa_pair(1024).private), "it is an RSA key of 1024 bits; valid: 2048 bits or more"),
        (public("ES256", ec.generate_private_key(ec.SECP256K1()), crv="secp256k1"), "valid: "),
        (public("ES256", d="AAAA"), "it is a private key, which its issuer must replace"),
    ],
)
def test_keys_that_cannot_be_used_are_left_out_with_the_reason(key: object, reason: str) -> None:
    keys = parse_key_set(document(key, public("ES384")))
    assert len(keys) == 1
    assert len(keys.left_out) == 1
    assert keys.left_out[0].startswith("key 1: ")
    assert reason in keys.left_out[0]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b'{"keys":%s}' % (b"9" * 5000), "no JSON"),
        (b"[]", "no list `keys`"),
        (b'{"keys":{}}', "no list `keys`"),
        (b'{"keys":[]}', "no key that can be used (it is empty)"),
        (document({"kty": "oct", "k": "AAAA"}), "no key that can be used (key 1: its type is none of"),
        (document(*[{}] * 101), "has 101 keys; valid: up to 100"),
    ],
)
def test_documents_without_a_usable_key_are_refused(content: bytes, words: str) -> None:
    with pytest.raises(InvalidKeySet) as caught:
        parse_key_set(content)
    assert words in str(caught.value)


_TEXTS = st.sampled_from(["RSA", "EC", "OKP", "sig", "P-256", "Ed25519", "RS256", "AQAB", "AAAA"]) | st.text(max_size=9)
_JSON = st.recursive(st.none() | st.booleans() | st.integers() | _TEXTS, lambda inner: st.lists(inner, max_size=2))
_NAMES = st.sampled_from(["kty", "kid", "alg", "use", "key_ops", "crv", "n", "e", "x", "y", "d"])


@given(st.lists(st.dictionaries(_NAMES, _JSON) | _JSON, max_size=3), st.binary(max_size=50))
def test_any_document_is_a_set_of_keys_or_refused(keys: list[object], garbage: bytes) -> None:
    for content in (document(*keys), garbage):
        try:
            assert len(parse_key_set(content)) > 0
        except InvalidKeySet:
            continue
