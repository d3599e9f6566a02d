"""Requests between simulated processes: they travel, take effect and return, whatever becomes of who sent them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import TypeVar

T = TypeVar("T")


class NoAnswer(Exception):
    """The request is lost, and nobody says so for ``after_s``; then it fails with ``error``. None: ever."""

    def __init__(self, after_s: float = 0.0, error: Exception | None = None) -> None:
        super().__init__()
        self.after_s = after_s
        self.error = error


async def exchange(travel_s: Callable[[], float], effect: Callable[[], T], back: Callable[[], None]) -> T:
    """Call ``effect`` where the request arrives and ``back`` where its answer does; either may raise what is answered.

    Both may raise :class:`NoAnswer`. Neither runs in the process that sent the request, which may be frozen by then.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def fail(error: Exception) -> None:
        if isinstance(error, NoAnswer):
            if error.error is not None:
                loop.call_later(error.after_s, fail, error.error, context=Context())
        elif not answer.done():
            answer.set_exception(error)

    def arrive() -> None:
        try:
            result = effect()
        except Exception as error:
            refused = error
            loop.call_later(travel_s(), lambda: fail(refused), context=Context())
        else:
            loop.call_later(travel_s(), lambda: return_(result), context=Context())

    def return_(result: T) -> None:
        try:
            back()
        except Exception as error:
            fail(error)
        else:
            if not answer.done():
                answer.set_result(result)

    loop.call_later(travel_s(), arrive, context=Context())
    return await answer
