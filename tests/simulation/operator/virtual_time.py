"""An asyncio loop whose time passes only when nothing else can be done, and the wall clock that goes with it.

Processes share the loop. Each runs on a :class:`Machine`, which can stop for a while and has a wall clock of its own.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, Self, TypeVarTuple
from unittest.mock import patch

from heliograph_operator.objects import clock

Ts = TypeVarTuple("Ts")
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
            # The processes have to end all the same.
            self._steps = 0
            raise BusyLoop(f"{STEPS_AT_ONCE} steps and no time passed")
        return []


class Machine:
    """Runs the callbacks of one process, none of them while it is frozen (as by SIGSTOP, or a node that stalls)."""

    def __init__(self) -> None:
        #: How far (s) its wall clock is ahead of the true time.
        self.ahead_s = 0.0
        #: When (s) it was last frozen and ran on.
        self.thawed_at = 0.0
        self._frozen = False
        #: The callbacks that became due while it was frozen.
        self._late: list[tuple[Context, _Late]] = []

    def create_task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a process here."""
        context = Context()
        context.run(_MACHINE.set, self)
        return asyncio.get_running_loop().create_task(work, context=context)

    def freeze(self) -> None:
        """Run nothing from now on."""
        self._frozen = True

    def thaw(self) -> None:
        """Run on, at first what has become due meanwhile."""
        if self._frozen:
            self.thawed_at = asyncio.get_running_loop().time()
        self._frozen = False
        late, self._late = self._late, []
        for context, each in late:
            asyncio.get_running_loop().call_soon(each, context=context)

    def run(self, context: Context, callback: _Late) -> None:
        """Run a callback that is due, as soon as possible."""
        if self._frozen:
            self._late.append((context, callback))
        else:
            callback()


class _Late:
    """A callback that may run after it became due, and can be cancelled until then."""

    def __init__(self, callback: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._callback = callback
        self._arguments = arguments
        self.handle: asyncio.Handle | None = None

    def __call__(self) -> None:
        if self.handle is None or not self.handle.cancelled():
            self._callback(*self._arguments)


_MACHINE: ContextVar[Machine | None] = ContextVar("machine", default=None)


def machine() -> Machine | None:
    """Return where the running callback runs; None: outside all processes."""
    return _MACHINE.get()


class VirtualLoop(asyncio.SelectorEventLoop):
    """Runs callbacks in asyncio's order; a history of hours takes a fraction of a second."""

    def __init__(self) -> None:
        self._no_waiting = _NoWaiting()
        super().__init__(self._no_waiting)

    def time(self) -> float:
        return self._no_waiting.now

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        context = copy_context() if context is None else context
        if (where := context.get(_MACHINE)) is None:
            return super().call_soon(callback, *args, context=context)
        late = _Late(callback, args)
        late.handle = super().call_soon(where.run, context, late, context=context)
        return late.handle

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        context = copy_context() if context is None else context
        if (where := context.get(_MACHINE)) is None:
            return super().call_at(when, callback, *args, context=context)
        late = _Late(callback, args)
        late.handle = handle = super().call_at(when, where.run, context, late, context=context)
        return handle


class VirtualWallClock(datetime):
    """``datetime`` whose ``now`` is that of the running loop, as the machine of the running process shows it."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Self:
        where = machine()
        ahead_s = 0.0 if where is None else where.ahead_s
        passed = START + timedelta(seconds=asyncio.get_running_loop().time() + ahead_s)
        return cls.fromtimestamp(passed.timestamp(), tz)


@contextmanager
def virtual_wall_clock() -> Iterator[None]:
    """Let the operator read the virtual wall clock."""
    with patch.object(clock, "datetime", VirtualWallClock):
        yield


def stamp() -> str:
    """Return the time as the API server writes it: to the second."""
    return VirtualWallClock.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
