"""The wall clock of the operator: what decides by it gets it as a parameter, so that tests choose the time."""

from __future__ import annotations

from datetime import UTC, datetime


def now() -> datetime:
    """Return the time, in UTC."""
    return datetime.now(UTC)
