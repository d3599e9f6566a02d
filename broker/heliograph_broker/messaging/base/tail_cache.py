"""The newest entries in memory, under one budget of bytes for all topics of the broker."""

from __future__ import annotations

from collections import deque

from heliograph_broker.storage.base.entry import Entry


class TopicTail(dict[int, Entry]):
    """A topic's cached entries by offset."""

    __slots__ = ()


class TailCache:
    """First in, first out over all topics: an entry that has left is read from the store again.

    The budget counts frame bytes plus a flat allowance per entry, since small entries cost mostly objects.
    """

    __slots__ = ("_budget", "_fifo", "used_bytes")

    ENTRY_OVERHEAD = 400

    def __init__(self, budget_bytes: int) -> None:
        self._budget = budget_bytes
        self._fifo: deque[tuple[TopicTail, int, int]] = deque()
        self.used_bytes = 0

    def add(self, tail: TopicTail, entry: Entry) -> None:
        """Keep ``entry`` at its offset and drop the oldest ones of any topic that are over the budget."""
        if entry.offset in tail:
            return
        cost = len(entry.frame) + self.ENTRY_OVERHEAD
        tail[entry.offset] = entry
        self._fifo.append((tail, entry.offset, cost))
        self.used_bytes += cost
        while self.used_bytes > self._budget:
            oldest, offset, freed = self._fifo.popleft()
            oldest.pop(offset, None)
            self.used_bytes -= freed
