"""Roles as credentials state them."""

from __future__ import annotations

from typing import Final

from .provider import Unauthenticated

#: Beginning of the roles of Heliograph's own parts: ``authentication_spec.RESERVED``, whose module imports slowly.
#: They have tokens by the cluster's keys, and nobody who is known in another way may have their rights.
OWN_ROLES: Final = "heliograph:"
#: A role is written into logs, metrics and grants.
MAX_ROLE_LENGTH: Final = 256


def stated_role(value: object, where: str) -> str:
    """Return the role that ``where`` states. Raises :class:`Unauthenticated` for a value that cannot be a role."""
    if not isinstance(value, str) or not value.strip():
        raise Unauthenticated(f"{where} has no role")
    if len(value) > MAX_ROLE_LENGTH or not value.isprintable() or value != value.strip():
        raise Unauthenticated(
            f"{where} has no valid role; valid: up to {MAX_ROLE_LENGTH} printable characters, no blanks around them"
        )
    if value.startswith(OWN_ROLES):
        raise Unauthenticated(
            f"{where} is a role of Heliograph's own parts; valid: one that does not begin with {OWN_ROLES}"
        )
    return value
