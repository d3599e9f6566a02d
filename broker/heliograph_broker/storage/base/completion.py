"""The completion of an operation that takes time: one call, with its result or with the error that ended it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

#: Called once; the result is None if the operation has none.
Completion = Callable[[T | Exception], None]


async def completed(start: Callable[[Completion[T]], object]) -> T:
    """Start an operation and wait for its result. Raises the error that ended it."""
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    start(completion_of(future))
    return await future


def completion_of(future: asyncio.Future[T]) -> Completion[T]:
    """Return a callback that completes ``future`` with the operation's outcome, unless it was cancelled."""

    def done(outcome: T | Exception) -> None:
        if future.done():
            return
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

    return done
