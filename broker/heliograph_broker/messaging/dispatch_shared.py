"""Shared: entries go round the consumers that have permits; each entry to one of them."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

from .dispatcher import READ_ENTRIES, Dispatcher
from .offsets import run_end

if TYPE_CHECKING:
    from heliograph_broker.storage.entry import Entry

    from .consumer import Consumer
    from .subscription import Subscription

#: Entries one consumer gets before the next one's turn, as Pulsar's dispatcherMaxRoundRobinBatchSize.
TURN_ENTRIES = 20


class SharedDispatcher(Dispatcher):
    """Round robin over the consumers of the highest priority level that have permits; replays go first."""

    __slots__ = ("_delayed", "_turn", "consumers")

    def __init__(self, subscription: Subscription) -> None:
        super().__init__(subscription)
        self.consumers: list[Consumer] = []
        self._delayed: list[tuple[int, int]] = []
        self._turn = 0

    def add(self, consumer: Consumer) -> None:
        self.consumers.append(consumer)
        self.consumers.sort(key=lambda other: other.priority)

    def remove(self, consumer: Consumer) -> None:
        self.consumers.remove(consumer)
        for offset, _ in self.subscription.take_back(consumer, None):
            self.replay.add(offset)
        self.notify()

    def redeliver(self, consumer: Consumer, offsets: list[int] | None) -> None:
        for offset, _ in self.subscription.take_back(consumer, offsets):
            self.replay.add(offset)
            self.subscription.redelivery_counts.count(offset)
        self.notify()

    def rewind(self) -> None:
        super().rewind()
        self._delayed.clear()

    @property
    def delayed(self) -> int:
        return len(self._delayed)

    def next_due_ms(self) -> int | None:
        return self._delayed[0][0] if self._delayed else None

    def tick(self, now_ms: int) -> None:
        while self._delayed and self._delayed[0][0] <= now_ms:
            self.replay.add(heappop(self._delayed)[1])
        self.notify()

    def _dispatch(self) -> None:
        while True:
            consumer = self._next_consumer()
            if consumer is None:
                return
            for _ in range(TURN_ENTRIES):
                entry = self._next_entry()
                if entry is None:
                    return
                self.deliver(consumer, entry)
                if not consumer.ready:
                    break

    def _next_consumer(self) -> Consumer | None:
        consumers = self.consumers
        count = len(consumers)
        if not self.subscription.may_deliver:
            return None
        best: Consumer | None = None
        for step in range(1, count + 1):
            at = (self._turn + step) % count
            candidate = consumers[at]
            if candidate.ready and (best is None or candidate.priority < best.priority):
                best = candidate
                turn = at
                if candidate.priority == consumers[0].priority:
                    break
        if best is not None:
            self._turn = turn
        return best

    def _next_entry(self) -> Entry | None:
        """Return the next entry to deliver; None if there is none or a read has begun."""
        topic = self.subscription.topic
        cursor = self.subscription.cursor
        if self.replay:
            entry = self.next_replayed()
            if entry is not None or self.replay:
                return entry
        while True:
            offset = max(self.read_offset, cursor.mark_delete + 1, topic.first_offset)
            self.read_offset = offset
            if offset >= topic.end_offset:
                return None
            if cursor.acked and offset in cursor.acked:
                self.read_offset = run_end(cursor.acked, offset)
                continue
            entry = self.fetch(offset, READ_ENTRIES)
            if entry is None:
                return None
            self.read_offset = offset + 1
            if entry.deliver_at_ms and self.subscription.must_wait(entry):
                heappush(self._delayed, (entry.deliver_at_ms, offset))
                continue
            if topic.may_expire and self.subscription.withholds(entry):
                continue
            return entry
