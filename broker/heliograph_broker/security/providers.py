"""The ways to authenticate that settings switch on."""

from __future__ import annotations

from heliograph_api.broker_config import BrokerConfig

from heliograph_broker.clock import Clock

from .authentication.basic import BasicProvider
from .authentication.certificate import CertificateProvider
from .authentication.oidc import OidcProvider
from .authentication.provider import Provider
from .authentication.token import TokenProvider
from .authentication.tokens_by_issuer import TokensByIssuer


def providers_of(config: BrokerConfig, clock: Clock) -> list[Provider]:
    """Return a provider for each method that is on. Reads keys and users, which blocks.

    Raises :class:`KeyUnusable` with the name of a key that cannot be used, and :class:`ProviderUnusable` with the
    setting that is wrong.
    """
    methods = config.auth_methods()
    by_keys = TokenProvider.from_config(config, clock) if "token" in methods else None
    by_issuers = OidcProvider.from_config(config, clock) if "oidc" in methods else None
    found: list[Provider] = []
    if by_issuers is not None:
        found.append(TokensByIssuer(by_keys, by_issuers))
    elif by_keys is not None:
        found.append(by_keys)
    if "tls" in methods:
        found.append(CertificateProvider(clock))
    if "basic" in methods:
        found.append(BasicProvider.from_config(config, clock))
    return found
