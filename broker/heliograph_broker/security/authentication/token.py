"""Authentication by a token: a JWT that a key signed which the broker trusts."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import Any, NamedTuple

from heliograph_api.broker_config import BrokerConfig
from heliograph_api.tables import readable_time
from heliograph_api.tokens.key_sources import split_sources
from heliograph_api.tokens.parts import MAX_TOKEN_BYTES, NotAToken, TokenParts, take_apart

from heliograph_broker.clock import Clock
from heliograph_broker.security.authentication.provider import Credentials, Provider, Unauthenticated
from heliograph_broker.security.authentication.token_keys import TrustedKeys
from heliograph_broker.security.identity import Identity

#: Tokens whose verification is remembered: some 300 bytes each.
MAX_REMEMBERED = 4096
#: The last second of the year 9999; later ends mean the same, and have no date.
_LAST_S = 253_402_300_799


class _Verified(NamedTuple):
    """The claims of a token that a trusted key signed. Times are wall-clock ms."""

    role: str
    not_before_ms: int | None
    expires_at_ms: int | None


class TokenProvider(Provider):
    """Verifies tokens; the data of a client are the token's own bytes.

    A token is first verified and then read, so a client without a key learns only that. Tokens that were verified are
    remembered while the keys stay the same; their times are checked whenever they are shown.
    """

    method = "token"

    def __init__(self, keys: TrustedKeys, clock: Clock, audience: str = "", role_claim: str = "sub") -> None:
        """Tokens must be for ``audience``, unless that is empty, and have their role in the claim ``role_claim``."""
        self._keys = keys
        self._clock = clock
        self._audience = audience
        self._role_claim = role_claim
        self._verified: OrderedDict[bytes, _Verified] = OrderedDict()
        self._version = keys.version

    @classmethod
    def from_config(cls, config: BrokerConfig, clock: Clock) -> TokenProvider:
        """Read the keys that ``config`` names, which blocks. Raises :class:`KeyUnusable` with the name of the key."""
        keys = TrustedKeys(split_sources(config.token_secret_key), split_sources(config.token_public_key), clock)
        return cls(keys, clock, config.token_audience, config.token_role_claim)

    @property
    def withdrawals(self) -> int:
        """Number of changes that removed a key."""
        return self._keys.removals

    async def refresh(self) -> None:
        await self._keys.refresh()

    async def authenticate(self, credentials: Credentials) -> Identity:
        token = credentials.data
        if len(token) > MAX_TOKEN_BYTES:
            raise Unauthenticated(
                f"the token is larger than {MAX_TOKEN_BYTES} bytes",
                f"a token of {len(token)} bytes, which is too large",
            )
        # Files of tokens often end with a new line, which some clients send.
        token = token.strip()
        if not token:
            raise Unauthenticated("the client has sent an empty token")
        await self._keys.refresh()
        verified = self._remembered(token)
        now_ms = self._clock.now_ms()
        if verified.expires_at_ms is not None and now_ms >= verified.expires_at_ms:
            raise Unauthenticated(f"the token expired at {readable_time(verified.expires_at_ms)} UTC")
        if verified.not_before_ms is not None and now_ms < verified.not_before_ms:
            raise Unauthenticated(f"the token is not valid before {readable_time(verified.not_before_ms)} UTC")
        return Identity(verified.role, self.method, verified.expires_at_ms)

    def _remembered(self, token: bytes) -> _Verified:
        if self._version != self._keys.version:
            self._verified.clear()
            self._version = self._keys.version
        digest = hashlib.sha256(token).digest()
        verified = self._verified.get(digest)
        if verified is None:
            verified = self._verified[digest] = self._verify(token)
            if len(self._verified) > MAX_REMEMBERED:
                self._verified.popitem(last=False)
        else:
            self._verified.move_to_end(digest)
        return verified

    def _verify(self, token: bytes) -> _Verified:
        try:
            parts = take_apart(token)
        except NotAToken as error:
            raise Unauthenticated("not a JWT; valid: a signed token, header.claims.signature", str(error)) from None
        if not self._is_signed(parts):
            raise Unauthenticated("the token is not signed by a key that this broker trusts")
        try:
            claims = parts.claims()
        except NotAToken as error:
            raise Unauthenticated(f"not a JWT: {error}") from None
        if self._audience and not self._is_for_us(claims.get("aud")):
            raise Unauthenticated("the token's audience (claim aud) is not this cluster's")
        return _Verified(self._role(claims), _time_ms(claims, "nbf"), _time_ms(claims, "exp"))

    def _is_signed(self, parts: TokenParts) -> bool:
        algorithm = parts.algorithm
        return any(key.verifies(algorithm, parts.signed, parts.signature) for key in self._keys.keys)

    def _is_for_us(self, claimed: object) -> bool:
        return claimed == self._audience or (isinstance(claimed, list) and self._audience in claimed)

    def _role(self, claims: dict[str, Any]) -> str:
        role = claims.get(self._role_claim)
        if role is None:
            raise Unauthenticated(f"the token has no role: its claim {self._role_claim} is missing")
        if not isinstance(role, str) or not role:
            raise Unauthenticated(f"the token has no role: its claim {self._role_claim} is not a text")
        return role


def _time_ms(claims: dict[str, Any], name: str) -> int | None:
    """Return a claim of seconds as ms. Raises :class:`Unauthenticated` for one of another type."""
    seconds = claims.get(name)
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise Unauthenticated(f"the token's claim {name} is not a number of seconds")
    return int(max(0, min(seconds, _LAST_S)) * 1000)
