"""Shared: entries go round the consumers that have permits; each entry to one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .dispatcher import DelayingDispatcher

if TYPE_CHECKING:
    from heliograph_broker.storage.entry import Entry

    from .consumer import Consumer
    from .subscription import Subscription

#: Entries one consumer gets before the next one's turn, as Pulsar's dispatcherMaxRoundRobinBatchSize.
TURN_ENTRIES = 20


class SharedDispatcher(DelayingDispatcher):
    """Round robin over the consumers of the highest priority level that have permits; replays go first."""

    __slots__ = ("_turn", "consumers")

    def __init__(self, subscription: Subscription) -> None:
        super().__init__(subscription)
        self.consumers: list[Consumer] = []
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

    def _dispatch(self) -> None:
        self.release_due()
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
        if self.replay:
            entry = self.next_replayed()
            if entry is not None or self.replay:
                return entry
        return self.next_new()
