"""Shared: entries go round the consumers that have permits; each entry to one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heliograph_broker.messaging.base.replay import Replay
from heliograph_broker.messaging.clients.chunks import ChunkedMessages

from .dispatcher import READ_ENTRIES, DelayingDispatcher

if TYPE_CHECKING:
    from heliograph_broker.messaging.clients.consumer import Consumer
    from heliograph_broker.storage.base.entry import Entry

    from .dispatcher import DispatchedSubscription

#: Entries one consumer gets before the next one's turn, as Pulsar's dispatcherMaxRoundRobinBatchSize.
TURN_ENTRIES = 20
#: So many chunks wait for consumers that take no more; beyond it nothing new is read until some are delivered.
MAX_WAITING_CHUNKS = 20_000


class SharedDispatcher(DelayingDispatcher):
    """Round robin over the consumers of the highest priority level that have permits; replays go first."""

    __slots__ = ("_chunks", "_held", "_turn")

    def __init__(self, subscription: DispatchedSubscription) -> None:
        super().__init__(subscription)
        self._turn = 0
        self._chunks = ChunkedMessages()
        #: Chunks whose message is at a consumer that can take no more now.
        self._held: dict[Consumer, Replay] = {}

    def add(self, consumer: Consumer) -> None:
        self.consumers.append(consumer)
        self.consumers.sort(key=lambda other: other.priority)

    def remove(self, consumer: Consumer) -> None:
        self.consumers.remove(consumer)
        self._take_back(consumer, None)
        self.notify()

    def redeliver(self, consumer: Consumer, offsets: list[int] | None) -> None:
        for offset in self._take_back(consumer, offsets):
            self.subscription.acks.redelivery_counts.count(offset)
        self.notify()

    def _take_back(self, consumer: Consumer, offsets: list[int] | None) -> list[int]:
        """Requeue all deliveries of ``consumer``, chunked messages as a whole; return the offsets."""
        if self._chunks:
            held = self._held.pop(consumer, Replay())
            together = self._chunks.release(consumer, [*consumer.held, *held] if offsets is None else offsets)
            self.replay.update(held & Replay(together))
            held.difference_update(Replay(together))
            if held:
                self._held[consumer] = held
            offsets = None if offsets is None else sorted(together)
        taken = [offset for offset, _ in self.subscription.take_back(consumer, offsets)]
        self.replay.update(taken)
        return taken

    def acked(self, offset: int, key_hash: int) -> None:
        if self._chunks:
            self._chunks.settled(offset)

    def gone(self, offset: int) -> None:
        if self._chunks:
            consumer = self._chunks.settled(offset)
            held = self._held.get(consumer) if consumer is not None else None
            if held is not None:
                held.discard(offset)
                if not held:
                    del self._held[consumer]  # type: ignore[arg-type]

    def gone_up_to(self, offset: int) -> None:
        if self._chunks:
            for each in self._chunks.up_to(offset):
                self.gone(each)

    @property
    def waiting_chunks(self) -> int:
        """Chunks that wait until their message's consumer takes more."""
        return sum(len(held) for held in self._held.values())

    @property
    def chunks_wait_for(self) -> dict[Consumer, Replay]:
        """The consumers that have to take more before chunks of their messages can follow, and these."""
        return self._held

    def rewind(self) -> None:
        super().rewind()
        self._chunks.forget_all()
        self._held.clear()

    def _dispatch(self) -> None:
        self.release_due()
        if self._held and not self._dispatch_held():
            return
        if self.caught_up or (self._held and self.waiting_chunks >= MAX_WAITING_CHUNKS):
            return
        chunks_below = self.subscription.topic.chunks_below
        while True:
            consumer = self._next_consumer()
            if consumer is None:
                return
            for _ in range(TURN_ENTRIES):
                entry = self._next_entry()
                if entry is None:
                    return
                target = consumer
                if entry.offset < chunks_below:
                    target = self._chunks.assign(entry, consumer)
                    if target is not consumer and not target.ready:
                        self._held.setdefault(target, Replay()).add(entry.offset)
                        if self.waiting_chunks >= MAX_WAITING_CHUNKS:
                            return
                        continue
                self.deliver(target, entry)
                if not consumer.ready or not self.subscription.may_deliver:
                    break

    def _dispatch_held(self) -> bool:
        """Deliver the chunks that waited for their message's consumer; return False if a read has begun."""
        subscription = self.subscription
        topic = subscription.topic
        for consumer, held in list(self._held.items()):
            while held and consumer.ready and subscription.may_deliver:
                offset = held.min()
                if offset < topic.log.first_offset or subscription.acks.cursor.is_acked(offset):
                    held.discard(offset)
                    self._chunks.settled(offset)
                    continue
                entry = self.fetch(offset, held.run(offset, READ_ENTRIES))
                if entry is None:
                    return False
                held.discard(offset)
                if not (topic.timing.may_expire and subscription.withholds(entry)):
                    self.deliver(consumer, entry)
            if not held:
                del self._held[consumer]
        return True

    def _next_consumer(self) -> Consumer | None:
        consumers = self.consumers
        count = len(consumers)
        if not self.subscription.may_deliver:
            return None
        best: Consumer | None = None
        for step in range(1, count + 1):
            at = (self._turn + step) % count
            candidate = consumers[at]
            if candidate.permits > 0 and candidate.ready and (best is None or candidate.priority < best.priority):
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
