"""Tokens (JWT) that the operator signs for the brokers of one BrokerCluster, and what is in those that it signed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from heliograph_api.resources.model import BrokerCluster
from heliograph_api.tokens.key_sources import KeyUnusable
from heliograph_api.tokens.keys import TokenKey, private_key, public_key
from heliograph_api.tokens.parts import NotAToken, take_apart
from heliograph_api.tokens.signing import sign_token

from .token_keys import SigningKey


@dataclass(frozen=True, slots=True)
class Issued:
    """The content of a token that one of the keys signed."""

    role: str
    key: str
    issued: datetime
    expires: datetime


@dataclass(frozen=True, slots=True, eq=False)
class Signer:
    """Signs with the current key of a BrokerCluster, and knows the tokens of all keys that its brokers trust."""

    key: str
    private: TokenKey = field(repr=False)
    trusted: Mapping[str, TokenKey] = field(repr=False)
    longest: timedelta
    role_claim: str = "sub"
    audience: str = ""

    @property
    def facts(self) -> tuple[object, ...]:
        """All that tells this signer from another one with the same key."""
        return frozenset(self.trusted), self.longest, self.role_claim, self.audience

    def sign(self, role: str, validity: timedelta, now: datetime) -> str:
        """Return a token for a role. It is valid for at most ``longest``."""
        issued = int(now.timestamp())
        claims: dict[str, Any] = {
            "sub": role,
            self.role_claim: role,
            "iat": issued,
            "exp": issued + int(min(validity, self.longest).total_seconds()),
        }
        if self.audience:
            claims["aud"] = self.audience
        return sign_token(self.private, claims, headers={"kid": self.key})

    def read(self, token: str) -> Issued | None:
        """Return what a token says; None for one that brokers would refuse, whether or not it has expired."""
        try:
            parts = take_apart(token.strip().encode())
            name = str(parts.header.get("kid", ""))
            key = self.trusted.get(name)
            if key is None or not key.verifies(parts.algorithm, parts.signed, parts.signature):
                return None
            claims = parts.claims()
            if self.audience and claims.get("aud") != self.audience:
                return None
            issued, expires = (datetime.fromtimestamp(claims[each], UTC) for each in ("iat", "exp"))
            return Issued(str(claims[self.role_claim]), name, issued, expires)
        except (NotAToken, KeyError, TypeError, ValueError, OverflowError, OSError):
            return None


def signer_of(cluster: BrokerCluster, keys: Iterable[SigningKey], current: SigningKey) -> Signer:
    """Return the signer of a BrokerCluster. Raises :class:`.KeyUnusable` for a key that is none."""
    config = cluster.spec.config
    return Signer(
        key=current.id,
        private=private_key(current.private.encode()),
        trusted={each.id: public_key(each.public.encode()) for each in keys},
        longest=timedelta(milliseconds=cluster.spec.authentication.max_token_validity),
        role_claim=str(config.get("token_role_claim", "sub")),
        audience=str(config.get("token_audience", "")),
    )


__all__ = ["Issued", "KeyUnusable", "Signer", "signer_of"]
