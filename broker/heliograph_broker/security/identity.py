"""The identity of a client that has authenticated."""

from __future__ import annotations

import msgspec
from heliograph_api.resources.role_state import ProvenIdentity


class Identity(msgspec.Struct, frozen=True):
    """A role, how it was shown, and until when that holds.

    ``expires_at_ms`` is wall-clock ms, None for credentials without an end. ``via`` is the role of the proxy that
    speaks for ``role``; empty for a client that speaks for itself.
    """

    role: str
    method: str
    expires_at_ms: int | None = None
    via: str = ""
    withdrawals: int = 0
    """The provider's count of withdrawals when it accepted the credentials."""
    original_expires_at_ms: int | None = None
    """The end of the credentials of a proxy's client, which the proxy cannot renew; None: they have none."""
    proxy: Identity | None = None
    """The identity of the proxy itself, which it can renew."""
    vouched: bool = False
    """Whether the proxy only names the role, without credentials of its client."""
    proven: tuple[ProvenIdentity, ...] = ()
    """Identities that the credentials prove, for which a role may be set."""
    assigned: bool = False
    """Whether the role is one that was set for what is proven, and not that of the client's own name."""
