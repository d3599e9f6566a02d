"""Exclusive and Failover: one active consumer gets every entry in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heliograph_broker.messaging.base.errors import ConsumerBusy
from heliograph_broker.messaging.base.offsets import run_end

from .dispatcher import READ_ENTRIES, Dispatcher

if TYPE_CHECKING:
    from heliograph_broker.messaging.clients.consumer import Consumer

    from .dispatcher import DispatchedSubscription


class SingleActiveDispatcher(Dispatcher):
    """In-order delivery to one consumer; with ``failover`` the others stand by.

    On a partitioned topic the consumers of the highest priority (lowest level), sorted by name, take the
    partitions in turn; on any other topic the one that subscribed first is active.
    """

    __slots__ = ("active", "failover")

    def __init__(self, subscription: DispatchedSubscription, *, failover: bool) -> None:
        super().__init__(subscription)
        self.failover = failover
        self.active: Consumer | None = None

    def add(self, consumer: Consumer) -> None:
        if not self.failover and self.consumers:
            raise ConsumerBusy("Exclusive consumer is already connected")
        self.consumers.append(consumer)
        if not self.failover:
            self.active = consumer
            self.rewind()
        elif not self._elect():
            consumer.active = False
            consumer.sink.send_active_change(consumer, False)

    def remove(self, consumer: Consumer) -> None:
        self.consumers.remove(consumer)
        if consumer is self.active:
            self.subscription.forget_deliveries(consumer)
            self.active = None
            self._elect()

    def _choose(self) -> Consumer | None:
        if not self.consumers:
            return None
        top = min(consumer.priority for consumer in self.consumers)
        candidates = [consumer for consumer in self.consumers if consumer.priority == top]
        partition = self.subscription.topic.name.partition
        if partition < 0:
            return candidates[0]
        candidates.sort(key=lambda consumer: consumer.name)
        return candidates[partition % len(candidates)]

    def _elect(self) -> bool:
        """Make the right consumer the active one; return whether that changed anything."""
        chosen = self._choose()
        if chosen is self.active:
            return False
        if self.active is not None:
            self.subscription.forget_deliveries(self.active)
        self.active = chosen
        self.rewind()
        if self.failover:
            for consumer in self.consumers:
                consumer.active = consumer is chosen
                consumer.sink.send_active_change(consumer, consumer.active)
        self.notify()
        return True

    def redeliver(self, consumer: Consumer, offsets: list[int] | None) -> None:
        # Single entries cannot come again without breaking the order, so everything unacknowledged does.
        if consumer is self.active:
            self.subscription.forget_deliveries(consumer)
            self.rewind()
            self.notify()

    def _dispatch(self) -> None:
        consumer = self.active
        topic = self.subscription.topic
        cursor = self.subscription.acks.cursor
        if self.replay:
            while consumer is not None and consumer.ready:
                entry = self.next_replayed()
                if entry is None:
                    break
                self.deliver(consumer, entry)
            if self.replay:
                return
        view = self.subscription.view
        if view is not None and consumer is not None and consumer.read_compacted and not view.dispatch(self, consumer):
            return
        # Nothing in this loop acknowledges or trims, so the lower bound stays as it is.
        offset = max(self.read_offset, cursor.mark_delete + 1, topic.log.first_offset)
        end = topic.log.end_offset
        tail = topic.log.tail
        while consumer is not None and consumer.ready and offset < end:
            if cursor.acked and offset in cursor.acked:
                offset = run_end(cursor.acked, offset)
                continue
            entry = tail.get(offset) or self.fetch(offset, min(consumer.permits, READ_ENTRIES))
            if entry is None:
                break
            offset += 1
            self.read_offset = offset
            if topic.timing.may_expire and self.subscription.withholds(entry):
                continue
            self.deliver(consumer, entry)
        self.read_offset = offset
