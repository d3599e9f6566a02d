"""Keys ordered by the time they are due, so that finding the due ones does not depend on how many wait."""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

_STALE_ALLOWED = 64


class DueQueue(Generic[K]):
    """Each key is due at one time (ms, of whichever clock the owner uses). O(log n) a change.

    Keys that are due at the same time come by their ``order``, the lowest first, and then as they were scheduled.

    An item that was replaced by another time stays in the heap until it is popped, but never more than is due itself.
    """

    __slots__ = ("_due", "_heap", "_serial")

    def __init__(self) -> None:
        #: key -> when it is due, its order, and the number of the heap's entry that says so
        self._due: dict[K, tuple[int, int, int]] = {}
        self._heap: list[tuple[int, int, int, K]] = []
        self._serial = 0

    def __len__(self) -> int:
        return len(self._due)

    def __contains__(self, key: K) -> bool:
        return key in self._due

    def schedule(self, key: K, due_ms: int, order: int = 0) -> None:
        """Make ``key`` due at ``due_ms``, replacing any earlier time."""
        self._serial += 1
        self._due[key] = due_ms, order, self._serial
        heappush(self._heap, (due_ms, order, self._serial, key))
        if len(self._heap) > 2 * len(self._due) + _STALE_ALLOWED:
            self._sweep()

    def sooner(self, key: K, due_ms: int) -> None:
        """Make ``key`` due at ``due_ms`` unless it is due before that."""
        known = self._due.get(key)
        if known is None or due_ms < known[0]:
            self.schedule(key, due_ms)

    def forget(self, key: K) -> None:
        """Remove ``key``."""
        self._due.pop(key, None)

    def clear(self) -> None:
        """Remove all keys."""
        self._due.clear()
        self._heap.clear()

    def next_ms(self) -> int | None:
        """Return when the next key is due; None if there is none."""
        heap = self._heap
        while heap and self._due.get(heap[0][3]) != heap[0][:3]:
            heappop(heap)
        return heap[0][0] if heap else None

    def take(self, now_ms: int) -> K | None:
        """Return a key that is due, the one that has been for longest, and forget it; None if none is."""
        heap = self._heap
        while heap and heap[0][0] <= now_ms:
            due_ms, order, serial, key = heappop(heap)
            if self._due.get(key) == (due_ms, order, serial):
                del self._due[key]
                return key
        return None

    def _sweep(self) -> None:
        self._heap[:] = [item for item in self._heap if self._due.get(item[3]) == item[:3]]
        heapify(self._heap)
