"""Authentication by tokens of identity providers (OpenID Connect), and of Kubernetes' service accounts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from heliograph_api.broker_config import BrokerConfig
from heliograph_api.resources.role_state import ProvenIdentity
from heliograph_api.tables import readable_time
from heliograph_api.tokens.keys import PUBLIC_KEY_ALGORITHMS
from heliograph_api.tokens.parts import NotAToken, TokenParts, take_apart
from heliograph_api.values.comma_separated import comma_separated
from heliograph_api.values.issuers import KUBERNETES, parse_audiences, parse_issuers
from heliograph_api.values.quoting import quoted

from heliograph_broker.clock import Clock
from heliograph_broker.security.identity import Identity

from .authority_file import SYSTEM, AuthoritiesUnusable, AuthorityFile
from .claims import time_ms
from .issuer_keys import IssuerKeys
from .kubernetes import SERVICE_ACCOUNT, ClusterKeys
from .provider import Credentials, KeyFetches, Provider, ProviderUnusable, Unauthenticated
from .published_keys import DiscoveredKeys
from .roles import stated_role

#: Difference (ms) of the issuer's and this clock with which a new token is valid already. Its end is exact, as in
#: Pulsar, whose setting of a leeway is 0 by default.
LEEWAY_MS: Final = 10_000
NOT_TRUSTED: Final = "the token is not signed by a key that this broker trusts"


class TrustedIssuer(NamedTuple):
    """An issuer's keys, the claim of its tokens that holds the role, and whether it is the broker's own Kubernetes.

    ``audiences``: a token must be for one of them; None: of those of all issuers that have none of their own.
    """

    keys: IssuerKeys
    role_claim: str = "sub"
    kubernetes: bool = False
    audiences: frozenset[str] | None = None


class OidcProvider(Provider):
    """Method ``token``, which Pulsar's plugin for OAuth2 uses, too: tokens signed by a key of a trusted issuer.

    ``audiences``: a token must be for one of them, unless its issuer has others.
    """

    method = "token"

    def __init__(self, trusted: Iterable[TrustedIssuer], audiences: Iterable[str], clock: Clock) -> None:
        self.trusted = {each.keys.issuer: each for each in trusted}
        self._audiences = frozenset(audiences)
        self._clock = clock

    @classmethod
    def from_config(cls, config: BrokerConfig, clock: Clock, service_account: Path = SERVICE_ACCOUNT) -> Self:
        """Return what the settings describe; ``service_account`` has the credentials of the broker's pod.

        Raises :class:`ProviderUnusable` naming a setting that is wrong or missing. Reads small files, which blocks.
        """
        try:
            config.check_together()
        except ValueError as error:
            raise ProviderUnusable(str(error)) from None
        authorities = AuthorityFile(Path(config.oidc_ca)) if config.oidc_ca else SYSTEM
        try:
            authorities.context()
        except AuthoritiesUnusable as error:
            raise ProviderUnusable(f"oidc_ca: {error}; valid: certificate authorities in PEM") from None
        issuers = parse_issuers(config.oidc_issuer)
        own = {
            name: frozenset(audiences)
            for name, audiences in parse_audiences(config.oidc_audience_by_issuer, [*issuers, KUBERNETES]).items()
        }
        trusted = [
            TrustedIssuer(
                IssuerKeys(DiscoveredKeys(issuer, authorities), clock),
                config.oidc_role_claim,
                audiences=own.get(issuer),
            )
            for issuer in issuers
        ]
        if config.oidc_kubernetes:
            # Last, so that it is the one in effect for an issuer that is named, too.
            keys = IssuerKeys(ClusterKeys(service_account), clock)
            trusted.append(TrustedIssuer(keys, kubernetes=True, audiences=own.get(KUBERNETES)))
        if not trusted:
            raise ProviderUnusable("oidc_issuer: missing; valid: the URL of an issuer, or oidc_kubernetes")
        return cls(trusted, comma_separated(config.oidc_audience), clock)

    def start(self) -> None:
        """Fetch the keys of all issuers in the background, so that the first clients need not wait for them."""
        for issuer in self.trusted.values():
            issuer.keys.refresh()

    def key_fetches(self) -> list[KeyFetches]:
        return [
            KeyFetches(name, issuer.keys.fetches - issuer.keys.failures, issuer.keys.failures, issuer.keys.age_s)
            for name, issuer in self.trusted.items()
        ]

    @property
    def withdrawals(self) -> int:
        """Fetches that took away a key of an issuer."""
        return sum(issuer.keys.removals for issuer in self.trusted.values())

    async def refresh(self) -> None:
        """Fetch keys that are old in the background."""
        for issuer in self.trusted.values():
            issuer.keys.refresh_if_old()

    async def close(self) -> None:
        """End the fetches that are under way."""
        for issuer in self.trusted.values():
            await issuer.keys.close()

    async def authenticate(self, credentials: Credentials) -> Identity:
        try:
            token = take_apart(credentials.data.strip())
            claims = token.claims()
        except NotAToken as error:
            raise Unauthenticated("not a JWT; valid: a signed token, header.claims.signature", str(error)) from None
        name = claims.get("iss")
        issuer = self.trusted.get(name) if isinstance(name, str) else None
        if issuer is None:
            raise Unauthenticated(NOT_TRUSTED, f"the token's issuer {quoted(name)} is not trusted")
        await self._verify(token, issuer.keys)
        return self._identity(claims, issuer)

    async def _verify(self, token: TokenParts, issuer: IssuerKeys) -> None:
        """Return if one of the issuer's keys has signed the token. Raises :class:`Unauthenticated`."""
        algorithm, key_id = token.algorithm, token.header.get("kid")
        if algorithm not in PUBLIC_KEY_ALGORITHMS or not isinstance(key_id, str | None):
            raise Unauthenticated(NOT_TRUSTED, f"the token's algorithm {quoted(algorithm)} is none of public keys")
        keys = await issuer.find(key_id)
        if keys is None:
            raise Unauthenticated(
                "the keys of the token's issuer cannot be read at this time: try again later",
                f"no keys of the issuer {issuer.issuer} are known: {issuer.last_failure or 'they are being fetched'}",
            )
        if not any(key.verifies(algorithm, token.signed, token.signature) for key in keys):
            what = f"is not by the key {quoted(key_id)}" if keys else f"is by a key {quoted(key_id)} that is unknown"
            raise Unauthenticated(NOT_TRUSTED, f"the token's signature {what} of the issuer {issuer.issuer}")

    def _identity(self, claims: Mapping[str, Any], issuer: TrustedIssuer) -> Identity:
        """Return who a token that is signed belongs to. Raises :class:`Unauthenticated`."""
        audience = claims.get("aud")
        audiences = audience if isinstance(audience, list) else [audience]
        accepted = self._audiences if issuer.audiences is None else issuer.audiences
        if not any(isinstance(each, str) and each in accepted for each in audiences):
            raise Unauthenticated("the token's audience (claim aud) is not this cluster's")
        try:
            ends_ms, begins_ms, issued_ms = (time_ms(claims, name) for name in ("exp", "nbf", "iat"))
        except ValueError as error:
            raise Unauthenticated(str(error)) from None
        if ends_ms is None or issued_ms is None:
            raise Unauthenticated(f"the token's claim {'exp' if ends_ms is None else 'iat'} is missing")
        now_ms = self._clock.now_ms()
        if now_ms >= ends_ms:
            raise Unauthenticated(f"the token expired at {readable_time(ends_ms)} UTC")
        valid_from_ms = max(issued_ms, begins_ms or 0)
        if now_ms < valid_from_ms - LEEWAY_MS:
            raise Unauthenticated(f"the token is not valid before {readable_time(valid_from_ms)} UTC")
        value = claims.get(issuer.role_claim)
        if isinstance(value, list) and value:
            value = value[0]
        role = stated_role(value, f"the token's claim {issuer.role_claim}")
        if issuer.kubernetes:
            proven = ProvenIdentity("serviceAccount", role)
        else:
            proven = ProvenIdentity("oidc", role, issuer.keys.issuer)
        return Identity(role, self.method, ends_ms, proven=(proven,))
