"""Operations of the core that call back, awaited by a handler."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TypeVar

from heliograph_broker.messaging.base.errors import Done, PersistenceError
from heliograph_broker.storage.base.completion import Completion, completed, completion_of

T = TypeVar("T")

#: Starts an operation, which calls its argument when it is durable or has failed.
Change = Callable[[Done], None]


async def all_durable(changes: Iterable[Change]) -> None:
    """Start every change and wait for the end of all. Raises the first refusal when none is under way any more."""
    loop = asyncio.get_running_loop()
    waiting: list[asyncio.Future[None]] = []
    try:
        for change in changes:
            future: asyncio.Future[None] = loop.create_future()
            waiting.append(future)
            change(completion_of(future))
    except BaseException:
        # Nobody will ask what became of the changes already started.
        for future in waiting:
            future.cancel()
        raise
    for outcome in await asyncio.gather(*waiting, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome


async def found(look_up: Callable[[Completion[T]], None]) -> T:
    """Start a look-up and wait for its result. Raises :class:`PersistenceError` if the store cannot tell."""

    def start(done: Completion[T]) -> None:
        look_up(lambda result: done(_unreadable(result) if isinstance(result, Exception) else result))

    return await completed(start)


def _unreadable(error: Exception) -> PersistenceError:
    return PersistenceError(f"cannot read: {error}")
