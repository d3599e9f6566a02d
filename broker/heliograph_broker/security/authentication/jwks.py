"""The public keys of an issuer of tokens, from its JSON Web Key Set (RFC 7517)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

import jwt
from heliograph_api.tokens.key_sources import KeyUnusable
from heliograph_api.tokens.keys import TokenKey, token_key

_ASYMMETRIC_TYPES: Final = ("RSA", "EC", "OKP")
_PUBLIC_MEMBERS: Final = ("kty", "crv", "n", "e", "x", "y")
#: A modulus of 8192 bits has 1366 characters; larger ones take long to verify by.
_MAX_MEMBER_LENGTH: Final = 1400
_MAX_KEYS: Final = 100


class InvalidKeySet(Exception):
    """A document is no set of keys, or has none that can be used."""


class KeySet:
    """The keys of an issuer by their ids; ``left_out`` has the reason for each key that cannot be used."""

    __slots__ = ("_by_id", "left_out")

    def __init__(self, by_id: Mapping[str, Sequence[TokenKey]], left_out: Sequence[str]) -> None:
        self._by_id = by_id
        self.left_out = left_out

    def __len__(self) -> int:
        return sum(map(len, self._by_id.values()))

    def lacks_one_of(self, others: KeySet) -> bool:
        """Return whether one of the other keys is not among these, or has fewer algorithms here."""
        return any(
            not any(
                key.key == each.key and key.algorithms.keys() <= each.algorithms.keys() for each in self.with_id(key_id)
            )
            for key_id, keys in others._by_id.items()
            for key in keys
        )

    def with_id(self, key_id: str | None) -> Sequence[TokenKey]:
        """Return the keys of this id; without one, the only key there is."""
        if key_id is not None:
            return self._by_id.get(key_id, ())
        keys = [key for keys in self._by_id.values() for key in keys]
        return keys if len(keys) == 1 else ()


def parse_key_set(document: bytes) -> KeySet:
    """Return the keys of a document that can verify signatures. Raises :class:`InvalidKeySet`."""
    try:
        parsed = json.loads(document)
    except (ValueError, RecursionError) as error:
        raise InvalidKeySet(f"the key set is no JSON: {type(error).__name__}") from None
    keys = parsed.get("keys") if isinstance(parsed, dict) else None
    if not isinstance(keys, list):
        raise InvalidKeySet("the key set has no list `keys`")
    if len(keys) > _MAX_KEYS:
        raise InvalidKeySet(f"the key set has {len(keys)} keys; valid: up to {_MAX_KEYS}")
    by_id: dict[str, list[TokenKey]] = {}
    left_out = []
    for number, key in enumerate(keys, 1):
        try:
            key_id, usable = _verification_key(key)
            by_id.setdefault(key_id, []).append(usable)
        except InvalidKeySet as error:
            left_out.append(f"key {number}: {error}")
    if not by_id:
        raise InvalidKeySet(f"the key set has no key that can be used ({'; '.join(left_out[:4]) or 'it is empty'})")
    return KeySet(by_id, left_out)


def _verification_key(key: object) -> tuple[str, TokenKey]:
    if not isinstance(key, dict):
        raise InvalidKeySet("it is no object")
    key_id, kind, algorithm = (key.get(name, "") for name in ("kid", "kty", "alg"))
    if not all(isinstance(each, str) for each in (key_id, kind, algorithm)):
        raise InvalidKeySet("its kid, kty or alg is no text")
    if kind not in _ASYMMETRIC_TYPES:
        # By a symmetric one, everybody who can read it could sign.
        raise InvalidKeySet(f"its type is none of {', '.join(_ASYMMETRIC_TYPES)}")
    operations = key.get("key_ops", ["verify"])
    if key.get("use", "sig") != "sig" or not isinstance(operations, list) or "verify" not in operations:
        raise InvalidKeySet("it is not for signatures")
    if "d" in key:
        raise InvalidKeySet("it is a private key, which its issuer must replace")
    public = {name: key[name] for name in _PUBLIC_MEMBERS if name in key}
    if not all(isinstance(each, str) and len(each) <= _MAX_MEMBER_LENGTH for each in public.values()):
        raise InvalidKeySet("a part of it is too long, or no text")
    try:
        usable = token_key(jwt.PyJWK(public).key)
    except KeyUnusable as error:
        raise InvalidKeySet(str(error)) from None
    except Exception as error:
        # The libraries have errors of many classes for numbers that are no key.
        raise InvalidKeySet(f"its parts are no key ({type(error).__name__})") from None
    if algorithm:
        if algorithm not in usable.algorithms:
            raise InvalidKeySet("its algorithm is none for signatures by its type of key")
        usable = TokenKey(usable.key, {algorithm: usable.algorithms[algorithm]})
    return key_id, usable
