"""Tokens of both kinds under one method: of identity providers, and signed by keys in files."""

from __future__ import annotations

from heliograph_broker.security.identity import Identity

from .claims import claimed_issuer
from .oidc import NOT_TRUSTED, OidcProvider
from .provider import Credentials, KeyFetches, Provider, Unauthenticated


class TokensByIssuer(Provider):
    """Method ``token``: a token that names a trusted issuer is for ``oidc``, every other one for ``by_keys``.

    The issuer is not verified yet: it chooses who verifies the token, and both accept only what their own keys signed.
    """

    method = "token"

    def __init__(self, by_keys: Provider | None, oidc: OidcProvider | None) -> None:
        self._by_keys = by_keys
        self._oidc = oidc
        self._both = [each for each in (by_keys, oidc) if each is not None]

    def start(self) -> None:
        for each in self._both:
            each.start()

    async def close(self) -> None:
        for each in self._both:
            await each.close()

    def key_fetches(self) -> list[KeyFetches]:
        return [fetches for each in self._both for fetches in each.key_fetches()]

    @property
    def withdrawals(self) -> int:
        return sum(each.withdrawals for each in self._both)

    async def refresh(self) -> None:
        for each in self._both:
            await each.refresh()

    async def authenticate(self, credentials: Credentials) -> Identity:
        if self._oidc is not None and claimed_issuer(credentials.data) in self._oidc.trusted:
            return await self._oidc.authenticate(credentials)
        if self._by_keys is not None:
            return await self._by_keys.authenticate(credentials)
        raise Unauthenticated(NOT_TRUSTED, "the token names no issuer that this broker trusts")
