"""Tokens and files of keys: only what a trusted key has signed, by its own algorithm, makes a client known."""

from __future__ import annotations

import base64
import hmac
import json
from collections.abc import Callable, Iterator
from hashlib import sha256

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from heliograph_api.tokens.key_sources import KeyUnusable, read_source, split_sources
from heliograph_api.tokens.keys import private_key, public_key, secret_keys
from heliograph_broker.clock import VirtualClock
from heliograph_broker.security.authentication.provider import Credentials, Unauthenticated
from heliograph_broker.security.authentication.token import TokenProvider
from heliograph_broker.security.authentication.token_keys import TrustedKeys
from heliograph_broker.security.identity import Identity

from tests.fuzz.target import Finding, Source, sized

_SECRET = b"\x01\x82" * 16
_EDWARDS = ed25519.Ed25519PrivateKey.from_private_bytes(b"\3" * 32)
_CURVE = ec.derive_private_key(5, ec.SECP256R1())
_PUBLIC = [key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo) for key in (_EDWARDS, _CURVE)]
_FOREIGN = ed25519.Ed25519PrivateKey.from_private_bytes(b"\4" * 32)


def _data(content: bytes) -> str:
    return "data:;base64," + base64.b64encode(content).decode()


_CLOCK = VirtualClock()
_KEYS = TrustedKeys([_data(_SECRET)], [_data(content) for content in _PUBLIC], _CLOCK)
_AUDIENCE = "broker"
#: By the algorithm that the key really has; a public key's text as a secret is what must never be taken.
_SIGNERS: list[tuple[str, Callable[[bytes], bytes]]] = [
    ("HS256", lambda signed: hmac.digest(_SECRET, signed, sha256)),
    ("EdDSA", _EDWARDS.sign),
    ("", _FOREIGN.sign),
    ("", lambda signed: hmac.digest(_PUBLIC[0], signed, sha256)),
    ("", lambda signed: b""),
    ("", lambda signed: _CURVE.sign(signed, ec.ECDSA(hashes.SHA256()))),
]


def _base64(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def _identity(token: bytes, audience: str) -> Identity | None:
    """Return who a token makes its client, None for nobody; nothing is remembered."""
    asked = TokenProvider(_KEYS, _CLOCK, audience).authenticate(Credentials(token))
    try:
        asked.send(None)
    except StopIteration as done:
        identity: Identity = done.value
        return identity
    except Unauthenticated as refused:
        if len(str(refused)) > 300 or len(refused.detail) > 300:
            raise Finding(f"a reason of {len(refused.detail)} characters") from refused
        return None
    asked.close()
    raise Finding("it waits, though the keys have just been read")


def _raw(source: Source) -> None:
    audience = _AUDIENCE if source.number() & 1 else ""
    if (identity := _identity(source.rest(), audience)) is not None:
        raise Finding(f"{identity} by a token that nobody has signed")


def _signed(source: Source) -> None:
    """A token of any header and claims, signed by a key that is trusted or by another one."""
    audience = _AUDIENCE if source.number() & 1 else ""
    algorithm, sign = source.choose(_SIGNERS)
    header, claims = source.sized(), source.rest()
    signed = _base64(header) + b"." + _base64(claims)
    identity = _identity(signed + b"." + _base64(sign(signed)), audience)
    if identity is None:
        return
    named, content = json.loads(header).get("alg"), json.loads(claims)
    if not algorithm or named != algorithm:
        raise Finding(f"{identity} by a token of {named} that is not signed so")
    if not isinstance(identity.role, str) or not identity.role or content.get("sub") != identity.role:
        raise Finding(f"{identity} by {content}")
    if audience and audience != content.get("aud") and audience not in content.get("aud", ()):
        raise Finding(f"{identity} by a token for {content.get('aud')}")
    if identity.expires_at_ms is not None and identity.expires_at_ms <= _CLOCK.now_ms():
        raise Finding(f"{identity} has expired")
    if content.get("exp") is not None and identity.expires_at_ms is None:
        raise Finding(f"{identity} never expires, {content} does")


def _key_file(source: Source) -> None:
    """The content of a file of a key: keys, or the reason why it is none."""
    content = source.rest()
    for parse in (secret_keys, public_key, private_key):
        try:
            parse(content)
        except KeyUnusable as error:
            if len(content) > 20 and content.decode("latin-1") in str(error):
                raise Finding(f"an error shows the key: {error}") from error


def _sources(source: Source) -> None:
    text = source.rest().decode("utf-8", "surrogateescape")
    for each in split_sources(text):
        # Others are names of files of this machine.
        if each[:5].lower() == "data:":
            try:
                read_source(each)
            except KeyUnusable as error:
                str(error).encode()


_KINDS = [_signed, _raw, _key_file, _sources]


def run(data: bytes) -> None:
    source = Source(data)
    source.choose(_KINDS)(source)


_CLAIMS: list[dict[str, object]] = [
    {"sub": "alice"},
    {"sub": "alice", "exp": 1_700_000_001, "nbf": 1, "aud": "broker"},
    {"sub": "alice", "exp": 1.7e9, "aud": ["broker", "other"]},
    {"sub": 5, "exp": "soon", "nbf": True},
    {"sub": "alice", "exp": 10**30, "nbf": -1},
]


def seeds() -> Iterator[bytes]:
    for number, (algorithm, sign) in enumerate(_SIGNERS):
        for claims in _CLAIMS:
            header = json.dumps({"alg": algorithm or "HS256", "typ": "JWT"}).encode()
            text = json.dumps(claims).encode()
            yield bytes([0, number & 1, number]) + sized(header) + text
            signed = _base64(header) + b"." + _base64(text)
            if not algorithm:
                yield b"\1\0" + signed + b"." + _base64(sign(signed))
    for header in (b'{"alg": "none"}', b'{"alg": "ES256", "crit": ["b64"], "b64": false}', b'{"alg": ["HS256"]}'):
        yield b"\0\0\0" + sized(header) + b'{"sub": "alice"}'
    for content in (_SECRET, base64.b64encode(_SECRET), *_PUBLIC, _FOREIGN.private_bytes_raw()):
        yield b"\2" + content
    pem = _CURVE.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    yield b"\2" + pem
    yield b"\3" + f"{_data(_SECRET)}, /a/path ,file:///b,data:x".encode()


WORDS = [
    '"sub"',
    '"exp"',
    '"nbf"',
    '"aud"',
    '"alg"',
    '"none"',
    '"HS256"',
    '"EdDSA"',
    '"ES256"',
    '"crit"',
    "null",
    "1e999",
]
WORDS += [
    "NaN",
    "Infinity",
    "true",
    "[",
    "{",
    "-----BEGIN PUBLIC KEY-----",
    "-----BEGIN CERTIFICATE-----",
    "data:;base64,",
]
