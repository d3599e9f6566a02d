"""An asyncio loop whose time passes only when nothing else can be done, and the wall clock that goes with it."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, Self
from unittest.mock import patch

from heliograph_operator.act import status_report
from heliograph_operator.cluster import cluster_rollout
from heliograph_operator.kube import events
from heliograph_operator.objects import kinds

START = datetime(2026, 1, 1, tzinfo=UTC)
#: More than this happens at no moment of virtual time unless something goes round in circles.
STEPS_AT_ONCE = 100_000


class BusyLoop(BaseException):
    """The operator never comes to rest; no handler of ``Exception`` may keep it."""


class _NoWaiting(selectors.DefaultSelector):
    """Passes virtual time instead of waiting; no file ever becomes ready."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self._steps = 0

    def select(self, timeout: float | None = None) -> list[Any]:
        self._steps += 1
        if timeout is None:
            raise BusyLoop("everything waits, and nothing will ever happen")
        if timeout > 0:
            self.now += timeout
            self._steps = 0
        elif self._steps > STEPS_AT_ONCE:
            raise BusyLoop(f"{STEPS_AT_ONCE} steps and no time passed")
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """Runs callbacks in asyncio's order; a history of hours takes a fraction of a second."""

    def __init__(self) -> None:
        self._no_waiting = _NoWaiting()
        super().__init__(self._no_waiting)

    def time(self) -> float:
        return self._no_waiting.now


class VirtualWallClock(datetime):
    """``datetime`` whose ``now`` is that of the running loop."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Self:
        passed = START + timedelta(seconds=asyncio.get_running_loop().time())
        return cls.fromtimestamp(passed.timestamp(), tz)


@contextmanager
def virtual_wall_clock() -> Iterator[None]:
    """Let the operator's modules read the virtual wall clock."""
    with ExitStack() as stack:
        for module in (kinds, status_report, events, cluster_rollout):
            stack.enter_context(patch.object(module, "datetime", VirtualWallClock))
        yield


def stamp() -> str:
    """Return the time as the API server writes it: to the second."""
    return VirtualWallClock.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
