"""Polling with a deadline: no test waits for a fixed time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Generic, TypeVar

#: Time that a change of state may take before a test fails; a healthy process needs far less.
DEADLINE_S = 60.0
EVERY_S = 0.02

T = TypeVar("T")


def eventually(
    check: Callable[[], T],
    *,
    within_s: float = DEADLINE_S,
    what: str = "condition",
    every_s: float = EVERY_S,
    not_yet: tuple[type[Exception], ...] = (),
) -> T:
    """Poll ``check`` until it returns something true, and return that.

    An exception of ``not_yet`` is an answer as good as a false one. Raises :class:`AssertionError` at the deadline,
    which says what was waited for and the last answer.
    """
    poll = _Poll(check, within_s, what, not_yet)
    while not poll.answered():
        time.sleep(every_s)
    return poll.value


async def eventually_async(
    check: Callable[[], T],
    *,
    within_s: float = DEADLINE_S,
    what: str = "condition",
    every_s: float = EVERY_S,
    not_yet: tuple[type[Exception], ...] = (),
) -> T:
    """Poll as :func:`eventually` does while the event loop runs; ``check`` must not block."""
    poll = _Poll(check, within_s, what, not_yet)
    while True:
        if poll.answered():
            return poll.value
        await asyncio.sleep(every_s)


class _Poll(Generic[T]):
    """Asks until the first true answer, which is the ``value``, or the deadline."""

    value: T

    def __init__(
        self, check: Callable[[], T], within_s: float, what: str, not_yet: tuple[type[Exception], ...]
    ) -> None:
        self._check = check
        self._within_s = within_s
        self._what = what
        self._not_yet = not_yet
        self._deadline = time.monotonic() + within_s

    def answered(self) -> bool:
        try:
            self.value = self._check()
            if self.value:
                return True
            last = f"last value: {self.value!r}"
        except self._not_yet as error:
            last = f"last answer: {error}"
        if time.monotonic() >= self._deadline:
            raise AssertionError(f"not within {self._within_s:g} s: {self._what}; {last}")
        return False
