"""The keys that sign and verify tokens, and the algorithms that each may be used with.

A key's type determines its algorithms; the header of a token can only choose among these. Otherwise a token
could be signed by a secret that is everybody's, the text of a public key, or by none.
"""

from __future__ import annotations

import base64
import binascii
import re
import warnings
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import Algorithm

from heliograph_api.tokens.key_sources import KeyUnusable
from heliograph_api.tokens.parts import NotAToken, take_apart

SECRET_BYTES: Final[Mapping[str, int]] = {"HS256": 32, "HS384": 48, "HS512": 64}
"""The shortest secret of each algorithm, bytes."""
RSA_ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
CURVES: Final[Mapping[str, type[ec.EllipticCurve]]] = {
    "ES256": ec.SECP256R1,
    "ES384": ec.SECP384R1,
    "ES512": ec.SECP521R1,
}
EDWARDS: Final = "EdDSA"
PUBLIC_KEY_ALGORITHMS: Final = (*RSA_ALGORITHMS, *CURVES, EDWARDS)
MIN_RSA_BITS: Final = 2048

_VALID_PAIRS = f"RSA of {MIN_RSA_BITS} bits or more, EC on P-256, P-384 or P-521, Ed25519"
_PEM_PUBLIC = re.compile(rb"-----BEGIN PUBLIC KEY-----.*?-----END PUBLIC KEY-----", re.DOTALL)
_BASE64 = re.compile(rb"[A-Za-z0-9+/]+={0,2}")

PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey
PublicKey = rsa.RSAPublicKey | ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey


class TokenKey(NamedTuple):
    """A secret, a public or a private key, and its algorithms by name; the usual one first, which signs."""

    key: Any
    algorithms: Mapping[str, Algorithm]

    def verifies(self, algorithm: str, signed: bytes, signature: bytes) -> bool:
        """Return whether this key has made the signature, by an algorithm that its type has."""
        found = self.algorithms.get(algorithm)
        return found is not None and bool(found.verify(signed, self.key, signature))


def secret_keys(content: bytes) -> list[TokenKey]:
    """Return the keys that the content of a secret's file stands for, the one that signs first.

    That is the content itself, as Pulsar takes it, and for text in base64 also the bytes that it encodes. Raises
    :class:`KeyUnusable` for one that is too short, or no secret at all.
    """
    if _is_asymmetric(content):
        raise KeyUnusable("it is a public or private key or a certificate; valid: a secret of 32 random bytes or more")
    if _is_token(content):
        # It would pass as a long secret, and everybody who is shown the token could sign others.
        raise KeyUnusable("it is a token; valid: a secret of 32 random bytes or more")
    least = SECRET_BYTES["HS256"]
    found = [secret for secret in (content, _decoded(content)) if secret is not None and len(secret) >= least]
    if not found:
        raise KeyUnusable(f"it is a secret of {len(content)} bytes; valid: {least} random bytes or more")
    return [_secret_key(secret) for secret in found]


def public_key(content: bytes) -> TokenKey:
    """Return the key in DER or PEM (SubjectPublicKeyInfo). Raises :class:`KeyUnusable`."""
    if b"-----BEGIN CERTIFICATE" in content:
        raise KeyUnusable(
            "it is a certificate; valid: its public key, from openssl x509 -in CERTIFICATE -pubkey -noout"
        )
    load = serialization.load_pem_public_key if _is_pem(content) else serialization.load_der_public_key
    try:
        return token_key(load(content))
    except KeyUnusable:
        raise
    except (ValueError, UnsupportedAlgorithm, TypeError):
        pass
    if _private(content) is not None:
        raise KeyUnusable("it is a private key, which only the signer of tokens needs; valid: its public key")
    raise KeyUnusable(f"it is not a public key in DER or PEM; valid: {_VALID_PAIRS}")


def public_keys(content: bytes) -> list[TokenKey]:
    """Return the keys of a file: one in DER or PEM, or several in PEM. Raises :class:`KeyUnusable`."""
    several = _PEM_PUBLIC.findall(content)
    return [public_key(each) for each in several] if len(several) > 1 else [public_key(content)]


def private_key(content: bytes) -> TokenKey:
    """Return the key in DER or PEM (PKCS #8) that is not encrypted. Raises :class:`KeyUnusable`."""
    if b"ENCRYPTED" in content and _is_pem(content):
        raise KeyUnusable("it is encrypted; valid: a private key without a password")
    found = _private(content)
    if found is None:
        raise KeyUnusable(f"it is not a private key in DER or PEM; valid: {_VALID_PAIRS}")
    return token_key(found)


def token_key(key: object) -> TokenKey:
    """Return a public or private key with the algorithms of its type. Raises :class:`KeyUnusable` for other types."""
    if isinstance(key, rsa.RSAPublicKey | rsa.RSAPrivateKey):
        if key.key_size < MIN_RSA_BITS:
            raise KeyUnusable(f"it is an RSA key of {key.key_size} bits; valid: {MIN_RSA_BITS} bits or more")
        return _with_algorithms(key, RSA_ALGORITHMS)
    if isinstance(key, ec.EllipticCurvePublicKey | ec.EllipticCurvePrivateKey):
        for name, curve in CURVES.items():
            if isinstance(key.curve, curve):
                return _with_algorithms(key, (name,))
        raise KeyUnusable(f"it is on the curve {key.curve.name}; valid: {_VALID_PAIRS}")
    if isinstance(key, ed25519.Ed25519PublicKey | ed25519.Ed25519PrivateKey):
        return _with_algorithms(key, (EDWARDS,))
    raise KeyUnusable(f"it is a key of a type that signs no tokens; valid: {_VALID_PAIRS}")


def _secret_key(secret: bytes) -> TokenKey:
    # The strongest first, by which Pulsar's tools sign.
    names = [name for name, least in reversed(list(SECRET_BYTES.items())) if len(secret) >= least]
    return _with_algorithms(secret, names)


def _with_algorithms(key: Any, names: list[str] | tuple[str, ...]) -> TokenKey:
    return TokenKey(key, {name: jwt.get_algorithm_by_name(name) for name in names})


def _is_token(content: bytes) -> bool:
    try:
        take_apart(content.strip())
    except NotAToken:
        return False
    return True


def _decoded(content: bytes) -> bytes | None:
    text = b"".join(content.split())
    if _BASE64.fullmatch(text) is None:
        return None
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        return None


def _is_pem(content: bytes) -> bool:
    return b"-----BEGIN " in content


def _is_asymmetric(content: bytes) -> bool:
    if _is_pem(content) or _private(content) is not None:
        return True
    try:
        jwt.get_algorithm_by_name("HS256").prepare_key(content)
    except jwt.InvalidKeyError:
        return True
    return False


def _private(content: bytes) -> object | None:
    load = serialization.load_pem_private_key if _is_pem(content) else serialization.load_der_private_key
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return load(content, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return None
