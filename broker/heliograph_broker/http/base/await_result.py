"""Operations of the core that call back, awaited by a handler."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TypeVar

from heliograph_broker.messaging.base.errors import BrokerError, PersistenceError
from heliograph_broker.messaging.delivery.subscription import Done

T = TypeVar("T")

#: Starts an operation; what it is given is called when that is durable or failed.
Change = Callable[[Done], None]


async def all_durable(changes: Iterable[Change]) -> None:
    """Start every change and wait for the end of all. Raises the first refusal when none is under way any more."""
    loop = asyncio.get_running_loop()
    waiting: list[asyncio.Future[None]] = []
    try:
        for change in changes:
            future: asyncio.Future[None] = loop.create_future()
            waiting.append(future)
            change(resolver(future))
    except BaseException:
        # Nobody will ask what became of the changes already started.
        for future in waiting:
            future.cancel()
        raise
    for outcome in await asyncio.gather(*waiting, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome


def resolver(future: asyncio.Future[None]) -> Done:
    """Return a callback that ends ``future`` as the operation ended, unless nobody waits for it any more."""

    def done(error: BrokerError | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    return done


async def found(look_up: Callable[[Callable[[T | Exception], None]], None]) -> T:
    """Start a look-up and wait for what it finds. Raises :class:`PersistenceError` if the store cannot tell."""
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def done(result: T | Exception) -> None:
        if future.done():
            return
        if isinstance(result, Exception):
            future.set_exception(PersistenceError(f"cannot read: {result}"))
        else:
            future.set_result(result)

    look_up(done)
    return await future
