"""Finds who a client is: by its method, as a proxy's client, or as the anonymous role."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import Final

import msgspec
from heliograph_api.resources.role_state import ProvenIdentity

from heliograph_broker.security.identity import Identity

from .provider import Credentials, KeyFetches, MayNotSpeak, Provider, Unauthenticated

#: The methods that Heliograph has; a broker may have fewer of them switched on.
METHODS: Final = ("token", "tls", "basic")
#: What clients call it if they have no credentials.
NO_METHOD: Final = ("", "none")
#: Those of Pulsar that there are not here. Other unknown ones are not repeated: they are what a client made up.
REFUSED: Final = ("athenz", "sasl")
ANONYMOUS: Final = "anonymous"

#: Returns the role that is set for one of several identities, empty without one.
Assigned = Callable[[tuple[ProvenIdentity, ...]], str]


def _nobody(proven: tuple[ProvenIdentity, ...]) -> str:
    return ""


class Authenticator:
    """The ways to authenticate that are switched on.

    ``anonymous_role`` is the role of clients without credentials; empty: they are refused. ``proxies`` are the roles
    that speak for others, and never for themselves. ``assigned`` finds the roles that are set for identities. Clients
    whose own names are ``fixed`` have these roles whatever is set: else a role could be taken from an administrator.
    """

    def __init__(
        self,
        providers: Iterable[Provider],
        *,
        anonymous_role: str = "",
        proxies: Collection[str] = (),
        assigned: Assigned = _nobody,
        fixed: Collection[str] = (),
    ) -> None:
        self._providers = {provider.method: provider for provider in providers}
        self.anonymous_role = anonymous_role
        self._proxies = frozenset(proxies)
        self._assigned = assigned
        self._fixed = frozenset(fixed)
        #: Attempts since the start, by method (an unknown one counts as ``other``) and whether they succeeded.
        self.attempts: Counter[tuple[str, bool]] = Counter()

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods that are switched on, by the names that clients have for them."""
        return tuple(self._providers)

    async def authenticate(self, method: str, credentials: Credentials) -> Identity:
        """Return who the credentials belong to. Raises :class:`Unauthenticated`."""
        counted = method if method in self._providers else ANONYMOUS if method in NO_METHOD else "other"
        try:
            identity = await self._authenticate(method, credentials)
        except Unauthenticated:
            self.attempts[counted, False] += 1
            raise
        self.attempts[counted, True] += 1
        return identity

    async def _authenticate(self, method: str, credentials: Credentials) -> Identity:
        provider = self._providers.get(method)
        if provider is not None:
            identity = await provider.authenticate(credentials)
            role = "" if identity.role in self._fixed else self._assigned(identity.proven)
            if not role and not identity.role:
                raise Unauthenticated("the client's credentials name no role, and none is set for what they prove")
            return msgspec.structs.replace(
                identity, role=role or identity.role, assigned=bool(role), withdrawals=provider.withdrawals
            )
        valid = f"valid here: {', '.join(self.methods)}"
        if method in NO_METHOD:
            if self.anonymous_role:
                return Identity(self.anonymous_role, ANONYMOUS)
            raise Unauthenticated(f"authentication is required: connect with credentials; {valid}")
        if method in METHODS:
            raise Unauthenticated(f"authentication by {method} is not switched on here; {valid}")
        if method in REFUSED:
            raise Unauthenticated(f"Heliograph does not have Pulsar's authentication by {method}; {valid}")
        raise Unauthenticated(
            f"Heliograph does not have this authentication method; {valid}",
            f"a client asked for an unknown authentication method of {len(method)} characters",
        )

    def start(self) -> None:
        """Begin what providers do beside the authentications, on the running event loop."""
        for provider in self._providers.values():
            provider.start()

    async def close(self) -> None:
        """End what providers do beside the authentications."""
        for provider in self._providers.values():
            await provider.close()

    def key_fetches(self) -> list[KeyFetches]:
        """Return the state of each issuer whose keys are fetched."""
        return [fetches for provider in self._providers.values() for fetches in provider.key_fetches()]

    async def refresh(self) -> None:
        """Let every provider read again what may have changed."""
        for provider in self._providers.values():
            await provider.refresh()

    def withdrawn(self, identity: Identity) -> bool:
        """Return whether credentials were withdrawn since these were accepted, perhaps these."""
        if identity.proxy is not None and self.withdrawn(identity.proxy):
            return True
        provider = None if identity.vouched else self._providers.get(identity.method)
        return provider is not None and provider.withdrawals != identity.withdrawals

    def has_another_role(self, identity: Identity) -> bool:
        """Return whether the client, or its proxy, would have another role if it authenticated now."""
        if identity.proxy is not None and self.has_another_role(identity.proxy):
            return True
        if not identity.proven or (identity.role in self._fixed and not identity.assigned):
            return False
        return self._assigned(identity.proven) != (identity.role if identity.assigned else "")

    async def through_proxy(
        self, identity: Identity, principal: str, method: str = "", credentials: Credentials | None = None
    ) -> Identity:
        """Return the identity that a client speaks for: of a proxy, ``principal`` or the owner of ``credentials``.

        Raises :class:`MayNotSpeak` if a proxy names nobody or a proxy, and if somebody else names another role;
        :class:`Unauthenticated` if the credentials are not good.
        """
        if identity.role not in self._proxies:
            if principal not in ("", identity.role):
                raise MayNotSpeak(
                    "only a proxy may speak for another role",
                    f"role {identity.role!r} named an original principal and is not one of the proxies",
                )
            return identity
        original = Identity(principal, identity.method, vouched=True)
        if credentials is not None:
            original = await self.authenticate(method, credentials)
            if self.has_another_role(identity):
                # Nobody has looked for it yet among the connections that are open.
                raise Unauthenticated("the proxy has another role by now: connect again")
            if principal not in ("", original.role):
                raise MayNotSpeak("the original principal is not that of the original credentials")
        if not original.role or original.role in self._proxies:
            raise MayNotSpeak("a proxy names the role that it speaks for, which is not a proxy's")
        return msgspec.structs.replace(
            original,
            via=identity.role,
            expires_at_ms=earlier(identity.expires_at_ms, original.expires_at_ms),
            original_expires_at_ms=original.expires_at_ms,
            proxy=identity,
        )


def earlier(one: int | None, other: int | None) -> int | None:
    """Return the earlier of two ends; None is no end."""
    ends = [end for end in (one, other) if end is not None]
    return min(ends) if ends else None
