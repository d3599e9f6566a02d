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


#: A difference (ms) up to which :class:`SteadyClock` follows the wall clock by going slower or faster; a larger one
#: means that somebody has set it.
STEP_MS = 10_000
#: Time (s) that a wall clock must have been set before the steady clock believes it.
CONFIRM_S = 60.0
_MAX_SLEW = 0.05
#: A difference of so many ms is made up for in about a minute, a larger one at the most that is allowed.
_SLEW_OVER_MS = 60_000
#: Both clocks are read one after the other, in whole ms.
_GRAIN_MS = 2.0


class SteadyClock:
    """Wall-clock time by which ages can be measured: it goes on with monotonic time and follows the wall clock.

    Small differences are made up for by going up to 5 % slower or faster. A wall clock that is set, forward or back,
    changes nothing at first; once it has stayed so for :data:`CONFIRM_S`, :meth:`follow` moves this clock by the
    whole difference and says so. Only then can it go back.
    """

    __slots__ = ("_clock", "_origin_ms", "_rate", "_step_ms", "_stepped_at", "monotonic")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.monotonic = clock.monotonic
        #: The ms a second since the rate changed last, and the wall-clock ms where that line crosses monotonic 0.
        self._rate = 1000.0
        self._origin_ms = clock.now_ms() - clock.monotonic() * 1000.0
        #: Since when the wall clock has been away, and by how much.
        self._stepped_at: float | None = None
        self._step_ms = 0.0

    def now_ms(self) -> int:
        return round(self._origin_ms + self.monotonic() * self._rate)

    def follow(self) -> int:
        """Follow the wall clock; call it often. Return by how many ms this clock was moved, mostly 0."""
        now = self.monotonic()
        line = self._origin_ms + now * self._rate
        ahead = self._clock.now_ms() - line
        if abs(ahead) <= STEP_MS:
            self._stepped_at = None
            slew = 0.0 if abs(ahead) < _GRAIN_MS else max(-_MAX_SLEW, min(_MAX_SLEW, ahead / _SLEW_OVER_MS))
            self._go_on(now, line, 1000.0 * (1 + slew))
            return 0
        self._go_on(now, line, 1000.0)
        if self._stepped_at is None or abs(ahead - self._step_ms) > STEP_MS:
            self._stepped_at, self._step_ms = now, ahead
            return 0
        if now - self._stepped_at < CONFIRM_S:
            return 0
        self._stepped_at = None
        self._origin_ms += round(ahead)
        return round(ahead)

    def _go_on(self, now: float, line: float, rate: float) -> None:
        if rate != self._rate:
            self._origin_ms, self._rate = line - now * rate, rate


class VirtualClock:
    """A clock that only advances on request; its wall clock can also be set."""

    __slots__ = ("_ms", "_set_by_ms", "_start")

    def __init__(self, start_ms: int = 1_700_000_000_000) -> None:
        self._start = start_ms
        self._ms = start_ms
        self._set_by_ms = 0

    def now_ms(self) -> int:
        return self._ms + self._set_by_ms

    def monotonic(self) -> float:
        return (self._ms - self._start) / 1000

    def advance_ms(self, ms: int) -> None:
        """Let ``ms`` pass. Raises :class:`ValueError` for a negative amount."""
        if ms < 0:
            raise ValueError(f"time cannot go back by {-ms} ms")
        self._ms += ms

    def step_wall_ms(self, ms: int) -> None:
        """Set the wall clock forward or back by ``ms``; monotonic time is unaffected."""
        self._set_by_ms += ms
