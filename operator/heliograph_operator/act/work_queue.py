"""The keys to reconcile: each at most once in the queue, by one worker at a time, now or at a later time.

A key that is added while it is being reconciled is requeued afterwards, so no change is missed. Each group of keys has
a limit of its own: the resources of one broker, however slow it is, never take the turn of another's.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from heliograph_api.due_queue import DueQueue

K = TypeVar("K", bound=Hashable)


def _one_group(_: object) -> Hashable:
    return None


class WorkQueue(Generic[K]):
    """For one event loop; times are the loop's.

    At most ``limit`` keys of a group are worked on at the same time; the groups take turns.
    """

    def __init__(self, limit: int | None = None, group_of: Callable[[K], Hashable] = _one_group) -> None:
        self._limit = math.inf if limit is None else limit
        self._group_of = group_of
        #: The keys that are due by group, and all of them; the group whose turn is next is first.
        self._ready: dict[Hashable, deque[K]] = {}
        self._queued: set[K] = set()
        #: The group of each key that is worked on, and how many of each group are.
        self._working: dict[K, Hashable] = {}
        self._in_group: Counter[Hashable] = Counter()
        self._requeue: set[K] = set()
        self._delayed: DueQueue[K] = DueQueue()
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        """Return how many keys are due."""
        return len(self._queued) + len(self._requeue)

    @property
    def working(self) -> int:
        """Number of keys that are being reconciled."""
        return len(self._working)

    def add(self, key: K, after_s: float = 0.0) -> None:
        """Enqueue ``key`` now, or in ``after_s`` seconds if it is not due before."""
        if after_s > 0:
            if key not in self._queued:
                self._delayed.sooner(key, _now_ms() + math.ceil(after_s * 1000))
                self._changed.set()
            return
        self._delayed.forget(key)
        if key in self._working:
            self._requeue.add(key)
        elif key not in self._queued:
            self._queued.add(key)
            self._ready.setdefault(self._group_of(key), deque()).append(key)
            self._changed.set()

    def forget(self, key: K) -> None:
        """Drop a delayed key."""
        self._delayed.forget(key)

    async def take(self) -> K:
        """Return the next key as soon as one is due whose group is not at its limit; call :meth:`done` after it."""
        while True:
            now_ms = _now_ms()
            while (due := self._delayed.take(now_ms)) is not None:
                self.add(due)
            if (found := self._next()) is not None:
                return found
            self._changed.clear()
            next_ms = self._delayed.next_ms()
            try:
                async with asyncio.timeout((next_ms - now_ms) / 1000 if next_ms is not None else None):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def done(self, key: K) -> None:
        """End the work on ``key``, whatever its outcome."""
        group = self._working.pop(key)
        self._in_group[group] -= 1
        if not self._in_group[group]:
            del self._in_group[group]
        if group in self._ready:
            # It may have been at its limit.
            self._changed.set()
        if key in self._requeue:
            self._requeue.discard(key)
            self.add(key)

    def _next(self) -> K | None:
        """Return a key to work on, and move its group behind the others."""
        group = next((each for each in self._ready if self._in_group[each] < self._limit), _NO_GROUP)
        if group is _NO_GROUP:
            return None
        keys = self._ready.pop(group)
        key = keys.popleft()
        if keys:
            self._ready[group] = keys
        self._queued.discard(key)
        self._working[key] = group
        self._in_group[group] += 1
        return key


_NO_GROUP: Hashable = object()


def _now_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1000)
