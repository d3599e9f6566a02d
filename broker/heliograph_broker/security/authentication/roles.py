"""Roles as credentials state them."""

from __future__ import annotations

from typing import Final

from .provider import Unauthenticated

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
    return value
