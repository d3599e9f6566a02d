"""Holds a task to a number of messages a second, and to the times that were recorded."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

#: Waiting for less than this is not worth a call to the system; so much may go out at once.
_GRAIN_S = 0.02


class Pacer:
    """Lets at most ``rate`` messages a second go, and what ``_GRAIN_S`` holds of them (or one) beyond.

    Time that was not used is not made up for: after a pause the rate is the same as before it.
    """

    def __init__(
        self, rate: float, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        if not rate > 0:
            raise ValueError(f"{rate} messages a second is no rate above zero")
        self._each_s = 1 / rate
        self._clock = clock
        self._sleep = sleep
        self._due = clock()

    def wait(self) -> None:
        """Return when the next message may go."""
        now = self._clock()
        ahead = self._due - now
        if ahead > _GRAIN_S:
            self._sleep(ahead)
        elif ahead < 0:
            self._due = now
        self._due += self._each_s


@dataclass(frozen=True, slots=True)
class Speed:
    """Lets messages go with the gaps between their recorded times, divided by ``factor``.

    All tasks have the same one: what was recorded at ``first_ms`` goes at ``begin_s``, both since 1970. A task that was
    held up sends at once what is due by then, so the differences do not add up.
    """

    factor: float
    first_ms: int
    begin_s: float

    def __post_init__(self) -> None:
        if not 0 < self.factor < math.inf:
            raise ValueError(f"{self.factor} is no factor above zero")

    def wait(
        self, at_ms: int, clock: Callable[[], float] = time.time, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        """Return when a message that was recorded at ``at_ms`` may go."""
        ahead = self.begin_s + (at_ms - self.first_ms) / 1000 / self.factor - clock()
        if ahead > 0:
            sleep(ahead)


def shares(rate: float, rows: dict[int, int]) -> dict[int, float]:
    """Return the rate of each task with rows, in proportion to them, together ``rate``: they end at the same time."""
    total = sum(rows.values())
    return {task: rate * count / total for task, count in rows.items() if count}
