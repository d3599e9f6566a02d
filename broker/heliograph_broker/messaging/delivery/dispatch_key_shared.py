"""Key_Shared: all entries of a key go to one consumer at a time, in order, over joins and leaves (PIP-379)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heliograph_broker.messaging.base.replay import Replay
from heliograph_broker.messaging.clients.chunks import ChunkedMessages
from heliograph_broker.messaging.clients.key_selector import ConsistentHashSelector, StickyRangeSelector
from heliograph_broker.messaging.messages.key_hash import spread

from .dispatcher import DelayingDispatcher

if TYPE_CHECKING:
    from heliograph_broker.messaging.clients.consumer import Consumer
    from heliograph_broker.storage.base.entry import Entry

    from .dispatcher import DispatchedSubscription

#: Entries read ahead whose consumer cannot take them; beyond it nothing new is read until some are delivered.
LOOK_AHEAD = 20_000
_WAITING_READ = 100


class _Holder:
    """The consumer that has unacknowledged entries of a hash, and how many."""

    __slots__ = ("consumer", "entries")

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.entries = 0


class KeySharedDispatcher(DelayingDispatcher):
    """Every hash has at most one *holder*: the consumer with unacknowledged entries of it.

    An entry is delivered only if its hash's consumer (by the selector) is also the holder or there is none;
    else it waits in the hash's own queue, and everything later of that hash behind it. When a holder's last
    entry is acknowledged or taken back, the queue goes to whom the selector says then.
    """

    __slots__ = (
        "_assigned",
        "_chunks",
        "_holders",
        "_selector",
        "_some_gone",
        "_waiting",
        "allow_out_of_order",
        "sticky",
        "waiting_entries",
    )

    def __init__(self, subscription: DispatchedSubscription, *, sticky: bool, allow_out_of_order: bool) -> None:
        super().__init__(subscription)
        self.sticky = sticky
        self.allow_out_of_order = allow_out_of_order
        self._selector: ConsistentHashSelector | StickyRangeSelector = (
            StickyRangeSelector() if sticky else ConsistentHashSelector()
        )
        self._holders: dict[int, _Holder] = {}
        #: hash -> what of it waits
        self._waiting: dict[int, Replay] = {}
        #: consumer -> hashes (ordered) whose waiting entries it may get
        self._assigned: dict[Consumer, dict[int, None]] = {}
        self.waiting_entries = 0
        self._chunks = ChunkedMessages()
        #: Whether something may be acknowledged that is in a queue.
        self._some_gone = False

    def add(self, consumer: Consumer) -> None:
        self._selector.add(consumer)
        self.consumers.append(consumer)
        self._reassign()

    def remove(self, consumer: Consumer) -> None:
        self.consumers.remove(consumer)
        self._selector.remove(consumer)
        self._take_back(consumer, None, count=False)
        self._reassign()
        self.notify()

    def redeliver(self, consumer: Consumer, offsets: list[int] | None) -> None:
        self._take_back(consumer, offsets, count=True)
        self.notify()

    def _take_back(self, consumer: Consumer, offsets: list[int] | None, *, count: bool) -> None:
        if self._chunks:
            together = self._chunks.release(consumer, consumer.held if offsets is None else offsets)
            offsets = None if offsets is None else sorted(together)
        for offset, key_hash in self.subscription.take_back(consumer, offsets):
            self._release(key_hash)
            self._wait(offset, key_hash)
            if count:
                self.subscription.acks.redelivery_counts.count(offset)

    def rewind(self) -> None:
        super().rewind()
        self._holders.clear()
        self._waiting.clear()
        self._chunks.forget_all()
        self.waiting_entries = 0
        self._reassign()

    def ranges(self, consumer: Consumer) -> list[tuple[int, int]]:
        """Return the hash slots of ``consumer`` as inclusive ranges."""
        return self._selector.ranges(consumer)

    def acked(self, offset: int, key_hash: int) -> None:
        if self._chunks:
            self._chunks.settled(offset)
        self._release(key_hash)

    def gone(self, offset: int) -> None:
        self._some_gone = True

    def gone_up_to(self, offset: int) -> None:
        self._some_gone = True

    def _forget_gone(self) -> None:
        """Remove acknowledged entries from the queues: they must not count for the limit of waiting entries."""
        self._some_gone = False
        cursor = self.subscription.acks.cursor
        for key_hash, queue in list(self._waiting.items()):
            before = len(queue)
            queue.remove_range(0, cursor.first_unacked())
            queue -= cursor.acked
            self.waiting_entries -= before - len(queue)
            if queue:
                self._waiting[key_hash] = queue
            else:
                del self._waiting[key_hash]
                for assigned in self._assigned.values():
                    assigned.pop(key_hash, None)

    def _release(self, key_hash: int) -> None:
        holder = self._holders.get(key_hash)
        if holder is None:
            return
        holder.entries -= 1
        if holder.entries <= 0:
            del self._holders[key_hash]
            if key_hash in self._waiting:
                self._assign(key_hash)

    def _wait(self, offset: int, key_hash: int) -> None:
        queue = self._waiting.get(key_hash)
        if queue is None:
            self._waiting[key_hash] = Replay((offset,))
            self._assign(key_hash)
        elif offset in queue:
            return
        else:
            queue.add(offset)
        self.waiting_entries += 1

    def _assign(self, key_hash: int) -> None:
        """Give a waiting hash to its consumer, unless another one still holds it."""
        target = self._target(key_hash)
        if target is None:
            return
        holder = self._holders.get(key_hash)
        if holder is None or holder.consumer is target or self._may_pass:
            self._assigned[target][key_hash] = None

    def _target(self, key_hash: int) -> Consumer | None:
        """Return whose the hash is. It does not move on before its consumer has all chunks of a message it began."""
        if self._chunks.unfinished and key_hash in self._chunks.unfinished:
            holder = self._holders.get(key_hash)
            if holder is not None:
                return holder.consumer
        return self._selector.select(key_hash)

    @property
    def _may_pass(self) -> bool:
        """Whether a hash may move on while its consumer holds entries of it: never between chunks of a message."""
        return self.allow_out_of_order and not self._chunks

    def _reassign(self) -> None:
        self._assigned = {consumer: {} for consumer in self.consumers}
        for key_hash in self._waiting:
            self._assign(key_hash)

    def deliver(self, consumer: Consumer, entry: Entry, remaining: int | None = None) -> None:
        holder = self._holders.get(entry.key_hash)
        if holder is None:
            holder = self._holders[entry.key_hash] = _Holder(consumer)
        holder.entries += 1
        if entry.offset < self.subscription.topic.chunks_below:
            self._chunks.assign(entry, consumer)
        super().deliver(consumer, entry, remaining)

    def _dispatch(self) -> None:
        if not self.subscription.may_deliver:
            return
        self.release_due()
        if self.caught_up and not self._waiting:
            return
        if self.replay and not self._dispatch_replayed():
            return
        for consumer in self.consumers:
            if self._assigned[consumer] and consumer.ready and not self._dispatch_waiting(consumer):
                return
        self._dispatch_new()

    @property
    def _takes_more(self) -> bool:
        return self.subscription.may_deliver and any(consumer.ready for consumer in self.consumers)

    def _dispatch_waiting(self, consumer: Consumer) -> bool:
        """Deliver what waits for ``consumer``; return False if a read has begun."""
        topic = self.subscription.topic
        cursor = self.subscription.acks.cursor
        hashes = self._assigned[consumer]
        while hashes and consumer.ready and self.subscription.may_deliver:
            key_hash = next(iter(hashes))
            queue = self._waiting[key_hash]
            offset = queue.min()
            if offset >= topic.log.first_offset and not cursor.is_acked(offset):
                entry = self.fetch(offset, _WAITING_READ)
                if entry is None:
                    return False
                entry.key_hash = key_hash
                if not (topic.timing.may_expire and self.subscription.withholds(entry)):
                    self.deliver(consumer, entry)
            queue.discard(offset)
            self.waiting_entries -= 1
            if not queue:
                del self._waiting[key_hash]
                del hashes[key_hash]
        return True

    def _dispatch_replayed(self) -> bool:
        """Deliver what came back, or let it wait by its key; return False if not all of it was read."""
        while self._takes_more:
            entry = self.next_replayed()
            if entry is None:
                break
            self._place(entry)
        return not self.replay

    def _dispatch_new(self) -> None:
        if self._some_gone and self.waiting_entries >= LOOK_AHEAD:
            self._forget_gone()
        while self.waiting_entries < LOOK_AHEAD and self._takes_more:
            entry = self.next_new()
            if entry is None:
                return
            self._place(entry)

    def _place(self, entry: Entry) -> None:
        """Deliver an entry to the consumer of its key, or let it wait for it."""
        key_hash = entry.key_hash
        if not key_hash:
            key_hash = entry.key_hash = spread(entry.offset)
        target = self._target(key_hash)
        holder = self._holders.get(key_hash)
        if (
            target is None
            or key_hash in self._waiting
            or not target.ready
            or (holder is not None and holder.consumer is not target and not self._may_pass)
        ):
            self._wait(entry.offset, key_hash)
        else:
            self.deliver(target, entry)
