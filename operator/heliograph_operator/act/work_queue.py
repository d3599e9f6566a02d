"""What is to be looked at, by key: once at a time, at most once in the queue, and later if asked so.

A key that is added while it is worked on comes again afterwards, so that no change is missed.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class WorkQueue(Generic[K]):
    """For one event loop; times are the loop's."""

    def __init__(self) -> None:
        self._ready: deque[K] = deque()
        self._queued: set[K] = set()
        self._working: set[K] = set()
        self._again: set[K] = set()
        # (when, key); an entry counts only if it is the time the key is due at.
        self._later: list[tuple[float, int, K]] = []
        self._due: dict[K, float] = {}
        self._count = 0
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        """Return how many keys are due."""
        return len(self._ready) + len(self._again)

    @property
    def working(self) -> int:
        """How many keys are worked on."""
        return len(self._working)

    def add(self, key: K, after_s: float = 0.0) -> None:
        """Have ``key`` looked at in ``after_s`` seconds at the latest."""
        if after_s > 0:
            when = asyncio.get_running_loop().time() + after_s
            if key not in self._queued and when < self._due.get(key, float("inf")):
                self._due[key] = when
                self._count += 1
                heapq.heappush(self._later, (when, self._count, key))
                self._changed.set()
            return
        self._due.pop(key, None)
        if key in self._working:
            self._again.add(key)
        elif key not in self._queued:
            self._queued.add(key)
            self._ready.append(key)
            self._changed.set()

    def forget(self, key: K) -> None:
        """Drop what is planned for later: there is nothing to look at any more."""
        self._due.pop(key, None)

    async def take(self) -> K:
        """Return the next key, when it is due; :meth:`done` has to follow."""
        loop = asyncio.get_running_loop()
        while True:
            now = loop.time()
            while self._later and self._later[0][0] <= now:
                when, _, key = heapq.heappop(self._later)
                if self._due.get(key) == when:
                    self.add(key)
            if self._ready:
                key = self._ready.popleft()
                self._queued.discard(key)
                self._working.add(key)
                return key
            self._changed.clear()
            wait_s = self._later[0][0] - now if self._later else None
            try:
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def done(self, key: K) -> None:
        """The work on ``key`` has ended, well or not."""
        self._working.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.add(key)
