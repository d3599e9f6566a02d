"""The one source of time: tests put a virtual clock in its place."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Wall-clock time for records and policies, monotonic time for intervals."""

    def now_ms(self) -> int:
        """Return the time since the Unix epoch, ms."""

    def monotonic(self) -> float:
        """Return seconds from an arbitrary point; never goes back."""


def monotonic_ms(clock: Clock) -> int:
    """Return ms from an arbitrary point, for periods that setting the machine's clock must not shorten or stretch."""
    return round(clock.monotonic() * 1000)


class SystemClock:
    """The machine's clocks."""

    __slots__ = ()

    #: Asked for every message: a method around it would take twice as long.
    monotonic = staticmethod(time.monotonic)

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


class VirtualClock:
    """A clock that stands still until it is told to advance."""

    __slots__ = ("_ms", "_start")

    def __init__(self, start_ms: int = 1_700_000_000_000) -> None:
        self._start = start_ms
        self._ms = start_ms

    def now_ms(self) -> int:
        return self._ms

    def monotonic(self) -> float:
        return (self._ms - self._start) / 1000

    def advance_ms(self, ms: int) -> None:
        """Let ``ms`` pass. Raises :class:`ValueError` for a negative amount."""
        if ms < 0:
            raise ValueError(f"time cannot go back by {-ms} ms")
        self._ms += ms
