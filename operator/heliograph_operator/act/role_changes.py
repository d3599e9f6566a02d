"""Remembers when a session changed roles, which shows whether a listing of the broker has these changes."""

from __future__ import annotations


class RoleChanges:
    """When roles were changed last (s, of the loop's clock)."""

    __slots__ = ("_last", "_unlisted")

    def __init__(self) -> None:
        self._last = 0.0
        #: The times of changes that no listing has, by role.
        self._unlisted: dict[str, float] = {}

    def add(self, role: str, at: float) -> None:
        """Take in a change of a role that ended at this time."""
        self._last = self._unlisted[role] = at

    def last(self, role: str | None) -> float:
        """Return when a role was changed last, 0 if a listing has its changes; None for any role."""
        return self._last if role is None else self._unlisted.get(role, 0.0)

    def listed(self, at: float) -> None:
        """Take in that there is a listing of this time."""
        self._unlisted = {role: then for role, then in self._unlisted.items() if then > at}
