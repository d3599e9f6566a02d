"""A role in a broker: the identities that prove it, beside its own name, and its clients."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from heliograph_api.policies.policies import Rate

Method = Literal["serviceAccount", "certificate", "oidc"]
SERVICE_ACCOUNT: Final = "system:serviceaccount:"
"""Begins the name of a service account of Kubernetes."""
COMMON_NAME: Final = "CN="
"""Begins the identity of a certificate by its subject's common name."""
HOST_NAME: Final = "DNS:"
"""Begins that of one of its alternative names, which are compared in small letters."""


class ProvenIdentity(msgspec.Struct, frozen=True, omit_defaults=True):
    """An identity of a client that its credentials prove.

    ``name`` is that of a service account of the broker's Kubernetes (``system:serviceaccount:NAMESPACE:NAME``), of a
    certificate (``CN=NAME`` or ``DNS:NAME``), or the value of the claim in which an issuer's tokens have the role.
    """

    method: Method
    name: str
    issuer: str = ""
    """The issuer of tokens by ``oidc``."""

    def __str__(self) -> str:
        return f"{self.method} {self.name}{f' of {self.issuer}' if self.issuer else ''}"


def service_account(namespace: str, name: str) -> ProvenIdentity:
    """Return the identity of a service account's tokens."""
    return ProvenIdentity("serviceAccount", f"{SERVICE_ACCOUNT}{namespace}:{name}")


Most = Annotated[int, msgspec.Meta(ge=0)] | None


class RoleLimits(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Limits of all clients of a role together, on one broker; None: no limit."""

    connections: Most = None
    producers: Most = None
    consumers: Most = None
    publish_rate: Rate | None = None
    dispatch_rate: Rate | None = None


class RoleSettings(msgspec.Struct, omit_defaults=True):
    """Settings of a role: the identities whose clients have it instead of a role of their own name, and limits."""

    identities: list[ProvenIdentity] = []
    limits: RoleLimits = RoleLimits()


class RoleState(msgspec.Struct, rename="camel", omit_defaults=True):
    """Settings of a role, and its clients. Times are wall-clock ms, exact to the minute."""

    settings: RoleSettings
    connections: int = 0
    """Open connections to the binary ports."""
    last_seen_ms: int = -1
    """When a client of the role was there last; -1: not since the broker started."""
    denied_last_hour: int = 0
    """Requests that the role had no right to, in the last hour or since the broker started."""
