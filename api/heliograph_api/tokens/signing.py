"""Making keys and signing tokens."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any, NamedTuple

import jwt
import msgspec
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from heliograph_api.tokens.key_sources import KeyUnusable
from heliograph_api.tokens.keys import CURVES, EDWARDS, MIN_RSA_BITS, SECRET_BYTES, PrivateKey, TokenKey
from heliograph_api.values.quoting import quoted

#: Fields of the header that change what a signature means.
_RESERVED_HEADERS = ("alg", "b64", "crit")


class KeyPair(NamedTuple):
    """Both halves of a new pair in DER: PKCS #8, not encrypted, and SubjectPublicKeyInfo."""

    private: bytes
    public: bytes


def new_secret(algorithm: str = "HS256") -> bytes:
    """Return a random secret of the length that the algorithm needs."""
    return secrets.token_bytes(SECRET_BYTES[algorithm])


def new_pair(algorithm: str = "RS256") -> KeyPair:
    """Return a new pair for one of :data:`heliograph_api.tokens.keys.PUBLIC_KEY_ALGORITHMS`."""
    private: PrivateKey
    if algorithm in CURVES:
        private = ec.generate_private_key(CURVES[algorithm]())
    elif algorithm == EDWARDS:
        private = ed25519.Ed25519PrivateKey.generate()
    else:
        private = rsa.generate_private_key(65537, MIN_RSA_BITS)
    return KeyPair(
        private.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption()),
        private.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
    )


def sign_token(
    key: TokenKey, claims: Mapping[str, Any], algorithm: str = "", headers: Mapping[str, str] | None = None
) -> str:
    """Return a token with these claims; without ``algorithm``, by the one that the key is usually used with.

    Raises :class:`KeyUnusable` if the key has no such algorithm, :class:`ValueError` for a header that a signer sets.
    """
    usual = next(iter(key.algorithms))
    if algorithm and algorithm not in key.algorithms:
        raise KeyUnusable(f"the key signs by {', '.join(key.algorithms)}, not by {algorithm}")
    for name in headers or {}:
        if name in _RESERVED_HEADERS:
            raise ValueError(f"the header {quoted(name)} is set by the signer; valid: any but alg, b64 and crit")
    payload = msgspec.json.encode(dict(claims))
    return jwt.api_jws.encode(payload, key.key, algorithm or usual, headers=dict(headers or {}))
