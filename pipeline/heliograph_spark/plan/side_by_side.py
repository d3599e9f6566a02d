"""Does the same for many partitions at the same time: what a driver asks brokers is nearly all waiting."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

#: Questions at a time. More of them are no faster, because one process encodes and decodes them.
MOST_AT_ONCE = 16

_T = TypeVar("_T")
_R = TypeVar("_R")


def for_each(items: Iterable[_T], work: Callable[[_T], _R]) -> list[_R]:
    """Return what ``work`` returns for each item, in their order.

    Raises what it raises for the first of them that fails; those that have not begun by then are left out.
    """
    given = list(items)
    if len(given) < 2:
        return [work(item) for item in given]
    with ThreadPoolExecutor(min(MOST_AT_ONCE, len(given)), thread_name_prefix="heliograph-driver") as pool:
        begun = [pool.submit(work, item) for item in given]
        try:
            return [each.result() for each in begun]
        finally:
            for each in begun:
                each.cancel()
