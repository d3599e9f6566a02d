"""Clients of roles: when they were there last, and how many of their requests were denied in the last hour.

It is in memory only, so that no request waits for the store. Nothing is kept about roles for which nothing is
set: unknown clients must not be able to fill the memory.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Container
from typing import Final

from heliograph_broker.clock import Clock

_MINUTE_S: Final = 60
_MINUTES: Final = 60


class LastHour:
    """Counts events of the last 60 minutes, the present one included. Minutes are of a monotonic clock."""

    __slots__ = ("_counts", "_minute")

    def __init__(self, minute: int) -> None:
        self._counts = array("Q", bytes(8 * _MINUTES))
        self._minute = minute

    def add(self, minute: int) -> None:
        """Count an event."""
        self._advance(minute)
        self._counts[minute % _MINUTES] += 1

    def total(self, minute: int) -> int:
        """Return the number of events."""
        self._advance(minute)
        return sum(self._counts)

    def _advance(self, minute: int) -> None:
        for over in range(max(self._minute + 1, minute - _MINUTES + 1), minute + 1):
            self._counts[over % _MINUTES] = 0
        self._minute = minute


def _none(role: str) -> int:
    return 0


class RoleActivity:
    """See the module. ``known`` has the roles for which something is set."""

    __slots__ = ("_clock", "_denied", "_known", "_seen_ms", "connections", "started_ms")

    def __init__(self, known: Container[str], clock: Clock) -> None:
        self._known = known
        self._clock = clock
        self._seen_ms: dict[str, int] = {}
        self._denied: dict[str, LastHour] = {}
        #: Since when this counts (wall-clock ms).
        self.started_ms = clock.now_ms()
        #: Returns the number of open connections of a role to the binary ports.
        self.connections: Callable[[str], int] = _none

    def seen(self, role: str) -> None:
        """A client of the role is there."""
        if role in self._known:
            self._seen_ms[role] = self._clock.now_ms()

    def denied(self, role: str) -> None:
        """The role had no right to something."""
        if role in self._known:
            minute = self._minute()
            counts = self._denied.get(role)
            if counts is None:
                counts = self._denied[role] = LastHour(minute)
            counts.add(minute)

    def forget(self, role: str) -> None:
        """Nothing is set for the role any more."""
        self._seen_ms.pop(role, None)
        self._denied.pop(role, None)

    def last_seen_ms(self, role: str) -> int:
        """Return the minute (wall-clock ms) in which a client of the role was there last, -1 if none was."""
        ms = self._clock.now_ms() if self.connections(role) else self._seen_ms.get(role, -1)
        return ms if ms < 0 else ms - ms % (_MINUTE_S * 1000)

    def denied_last_hour(self, role: str) -> int:
        """Return how many requests were denied to the role in the last hour."""
        counts = self._denied.get(role)
        return 0 if counts is None else counts.total(self._minute())

    def _minute(self) -> int:
        return int(self._clock.monotonic() // _MINUTE_S)
