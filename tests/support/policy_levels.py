"""Resolves the policy of a topic in the plainest way: level by level, then the limits."""

from __future__ import annotations

from typing import Any

#: One level's policies: the names of ``Policies``' fields with plain values; quotas are (limit, action), retention
#: is (time, size). A missing name is "not set here". The effective retention is (time, size, by ledger).
Level = dict[str, Any]


def lower(one: int | None, other: int | None) -> int | None:
    """The lower of two limits; None and below 0 are no limit."""
    limits = [limit for limit in (one, other) if limit is not None and limit >= 0]
    return min(limits) if limits else None


class PolicyLevels:
    """The levels: ``topic:<name>``, ``namespace:<name>``, ``broker``, ``tenant limits`` and ``broker limits``."""

    def __init__(self, namespaces: dict[str, str]) -> None:
        self._namespace_of = namespaces
        self.levels: dict[str, Level] = {}

    def policy(self, topic: str, name: str) -> Any:
        """Return the policy of a topic: its own, else its namespace's, else the broker's; then the limits."""
        value: Any = None
        for level in (f"topic:{topic}", f"namespace:{self._namespace_of[topic]}", "broker"):
            value = self.levels.get(level, {}).get(name)
            if value is not None:
                break
        if name == "retention":
            value = (-1, -1, True) if value is None else (*value, False)
        for level in ("tenant limits", "broker limits"):
            cap = self.levels.get(level, {}).get(name)
            if cap is None:
                continue
            if name == "message_ttl_ms":
                value = lower(value, cap)
            elif name == "retention":
                limits = [lower(own, limit) for own, limit in zip(value[:2], cap, strict=True)]
                value = (*(-1 if limit is None else limit for limit in limits), value[2])
            elif name.startswith("backlog_quota") and cap[0] >= 0 and (not value or not 0 <= value[0] <= cap[0]):
                value = cap
        if name in ("message_ttl_ms", "expires_ms"):
            return None if value is None or value < 0 else value
        if name.startswith("backlog_quota"):
            return None if value is None or value[0] < 0 else value
        if name in ("delayed_delivery", "ttl_in_batches"):
            return value is not False
        return value or None
