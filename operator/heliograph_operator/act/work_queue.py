"""The keys to reconcile: each at most once in the queue, by one worker at a time, now or at a later time.

A key that is added while it is being reconciled is requeued afterwards, so no change is missed.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

from heliograph_api.due_queue import DueQueue

K = TypeVar("K", bound=Hashable)


class WorkQueue(Generic[K]):
    """For one event loop; times are the loop's."""

    def __init__(self) -> None:
        self._ready: deque[K] = deque()
        self._queued: set[K] = set()
        self._working: set[K] = set()
        self._requeue: set[K] = set()
        self._delayed: DueQueue[K] = DueQueue()
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        """Return how many keys are due."""
        return len(self._ready) + len(self._requeue)

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
            self._ready.append(key)
            self._changed.set()

    def forget(self, key: K) -> None:
        """Drop a delayed key."""
        self._delayed.forget(key)

    async def take(self) -> K:
        """Return the next key as soon as one is due; call :meth:`done` after it."""
        while True:
            now_ms = _now_ms()
            while (due := self._delayed.take(now_ms)) is not None:
                self.add(due)
            if self._ready:
                key = self._ready.popleft()
                self._queued.discard(key)
                self._working.add(key)
                return key
            self._changed.clear()
            next_ms = self._delayed.next_ms()
            try:
                async with asyncio.timeout((next_ms - now_ms) / 1000 if next_ms is not None else None):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def done(self, key: K) -> None:
        """End the work on ``key``, whatever its outcome."""
        self._working.discard(key)
        if key in self._requeue:
            self._requeue.discard(key)
            self.add(key)


def _now_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1000)
