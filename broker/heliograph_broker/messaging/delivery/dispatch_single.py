"""Exclusive and Failover: one active consumer gets every entry in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heliograph_broker.messaging.base.errors import ConsumerBusy
from heliograph_broker.messaging.base.offsets import run_end
from heliograph_broker.messaging.clients.active_consumer import choose_active
from heliograph_broker.messaging.clients.key_selector import StickyRangeSelector
from heliograph_broker.messaging.messages.key_hash import slot_of

from .dispatcher import READ_ENTRIES, OrderedDispatcher

if TYPE_CHECKING:
    from heliograph_broker.messaging.clients.consumer import Consumer
    from heliograph_broker.storage.base.entry import Entry

    from .dispatcher import DispatchedSubscription


class SingleActiveDispatcher(OrderedDispatcher):
    """In-order delivery to one consumer; with ``failover`` the others stand by.

    :func:`.active_consumer.choose_active` says which one is active. An exclusive consumer that names ranges of hash
    slots gets only messages whose keys are in them, as a reader of a part of the keys asks for; it passes the others
    by, and they stay unacknowledged.
    """

    __slots__ = ("_ranges", "active", "failover")

    def __init__(self, subscription: DispatchedSubscription, *, failover: bool) -> None:
        super().__init__(subscription)
        self.failover = failover
        self.active: Consumer | None = None
        #: The ranges of an exclusive consumer that names some.
        self._ranges: StickyRangeSelector | None = None

    def add(self, consumer: Consumer) -> None:
        if not self.failover and self.consumers:
            raise ConsumerBusy("Exclusive consumer is already connected")
        if not self.failover and consumer.key_shared.ranges:
            ranges = StickyRangeSelector()
            ranges.add(consumer)
            self._ranges = ranges
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

    def _elect(self) -> bool:
        """Make the right consumer the active one; return whether that changed anything."""
        chosen = choose_active(self.consumers, self.subscription.topic.name.partition)
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
            entry = tail.get(offset) or self.fetch(offset, self._wanted(consumer))
            if entry is None:
                break
            offset += 1
            self.read_offset = offset
            # First: what is withheld may be offered again, to who wants it.
            if self._ranges is not None and self.passes_by(entry):
                continue
            if topic.timing.may_expire and self.subscription.withholds(entry):
                continue
            self.deliver(consumer, entry)
        self.read_offset = offset

    def _wanted(self, consumer: Consumer) -> int:
        """Return how many entries to read at once: of those that are passed by, any number may come first."""
        return READ_ENTRIES if self._ranges is not None else min(consumer.permits, READ_ENTRIES)

    def passes_by(self, entry: Entry) -> bool:
        return self._ranges is not None and self._ranges.select(slot_of(entry)) is None
