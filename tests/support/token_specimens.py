"""Keys of every kind and tokens that they sign, made by the libraries themselves and not by this project."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from .secret_watch import WATCH

SECRETS = {"HS256": b"\x01\x82" * 16, "HS384": b"\x02\x83" * 24, "HS512": b"\x03\x84" * 32}
PAIRS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
ALGORITHMS = (*SECRETS, *PAIRS)


class Pair(NamedTuple):
    """A key pair: the private key, and both halves in the forms that files hold."""

    private: Any
    private_der: bytes
    public_der: bytes
    public_pem: bytes


@functools.cache
def pair(algorithm: str, number: int = 0) -> Pair:
    """Return a pair for an algorithm; the same for the same ``number``."""
    if algorithm.startswith(("RS", "PS")):
        return rsa_pair(2048, number)
    curves = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}
    if algorithm in curves:
        return as_pair(ec.generate_private_key(curves[algorithm]))
    return as_pair(ed25519.Ed25519PrivateKey.generate())


@functools.cache
def rsa_pair(bits: int, number: int = 0) -> Pair:
    return as_pair(rsa.generate_private_key(65537, bits))


def as_pair(private: Any) -> Pair:
    public = private.public_key()
    return Pair(
        private,
        private.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption()),
        public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
        public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
    )


def signed(algorithm: str, claims: dict[str, Any], key: Any = None, headers: dict[str, Any] | None = None) -> bytes:
    """Return a token that ``key`` signs, by default the first one of this algorithm."""
    if key is None:
        key = SECRETS.get(algorithm) or pair(algorithm).private
    token = jwt.encode(claims, key, algorithm, headers=headers)
    WATCH.secret(f"a token of {claims.get('sub')}", token)
    return token.encode()


def verifying(algorithm: str) -> bytes:
    """Return what a file of the key that verifies :func:`signed` holds."""
    return SECRETS.get(algorithm) or pair(algorithm).public_der
