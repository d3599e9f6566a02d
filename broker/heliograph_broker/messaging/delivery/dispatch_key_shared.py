"""Key_Shared: all entries of a key go to one consumer at a time, in order, over joins and leaves (PIP-379)."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from heliograph_broker.messaging.base.replay import Replay
from heliograph_broker.messaging.clients.chunks import ChunkedMessages
from heliograph_broker.messaging.clients.key_selector import selector_for
from heliograph_broker.messaging.messages.key_hash import WHOLE, dispatch_hash

from .dispatcher import DelayingDispatcher

if TYPE_CHECKING:
    from heliograph_broker.messaging.clients.consumer import Consumer, KeySharedPolicy
    from heliograph_broker.storage.base.entry import Entry

    from .dispatcher import DispatchedSubscription

#: Entries read ahead whose consumer cannot take them; beyond it nothing new is read until some are delivered.
LOOK_AHEAD = 20_000
_WAITING_READ = 100


class _Holder:
    """The consumer that has unacknowledged entries of a hash, and how many; None if several have."""

    __slots__ = ("consumer", "entries")

    def __init__(self, consumer: Consumer) -> None:
        self.consumer: Consumer | None = consumer
        self.entries = 0


class WaitingEntry(NamedTuple):
    """An entry that waits for its key's consumer, None if it has none, or that another one acknowledges (``held``)."""

    offset: int
    key_hash: int
    target: Consumer | None
    held: bool


class KeySharedDispatcher(DelayingDispatcher):
    """Every hash has at most one *holder*: the consumer with unacknowledged entries of it.

    An entry is delivered only if its hash's consumer (by the selector) is also the holder or there is none;
    else it waits in the hash's own queue, and everything later of that hash behind it. When a holder's last
    entry is acknowledged or taken back, the queue goes to whom the selector says then. A consumer that allows
    delivery out of order does not wait for that.
    """

    __slots__ = (
        "_assigned",
        "_chunks",
        "_holders",
        "_joining",
        "_selector",
        "_some_gone",
        "_waiting",
        "sticky",
        "waiting_entries",
    )

    def __init__(self, subscription: DispatchedSubscription, policy: KeySharedPolicy) -> None:
        super().__init__(subscription)
        config = subscription.topic.host.config
        self.sticky = policy.sticky
        self._selector = selector_for(policy, consistent_hashing=config.subscription_key_shared_use_consistent_hashing)
        #: Consumer -> read position when it joined: it gets keys when everything before that is acknowledged.
        self._joining: dict[Consumer, int] = {}
        self._holders: dict[int, _Holder] = {}
        #: hash -> what of it waits
        self._waiting: dict[int, Replay] = {}
        #: consumer -> hashes (ordered) whose waiting entries it may get
        self._assigned: dict[Consumer, dict[int, None]] = {}
        self.waiting_entries = 0
        self._chunks = ChunkedMessages()
        #: Whether something may be acknowledged that is in a queue.
        self._some_gone = False

    @property
    def allow_out_of_order(self) -> bool:
        """Whether any consumer allows delivery out of order."""
        return any(consumer.key_shared.allow_out_of_order for consumer in self.consumers)

    def add(self, consumer: Consumer) -> None:
        if _waits_to_join(self, consumer):
            self._joining[consumer] = self.read_offset
        else:
            self._selector.add(consumer)
        self.consumers.append(consumer)
        self._reassign()

    def remove(self, consumer: Consumer) -> None:
        self.consumers.remove(consumer)
        if self._joining.pop(consumer, None) is None:
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
        return [] if consumer in self._joining else self._selector.ranges(consumer)

    def acked(self, offset: int, key_hash: int) -> None:
        if self._chunks:
            self._chunks.settled(offset)
        self._release(key_hash)

    def gone(self, offset: int) -> None:
        self._some_gone = True

    def gone_up_to(self, offset: int) -> None:
        self._some_gone = True

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
        if target is not None and self._may_have(target, key_hash):
            self._assigned[target][key_hash] = None

    def _may_have(self, consumer: Consumer, key_hash: int) -> bool:
        """Whether no other consumer holds entries of the hash, or ``consumer`` does not mind."""
        holder = self._holders.get(key_hash)
        return holder is None or holder.consumer is consumer or self._may_pass(consumer)

    def _target(self, key_hash: int) -> Consumer | None:
        """Return whose the hash is. It does not move on before its consumer has all chunks of a message it began."""
        if self._chunks.unfinished and key_hash in self._chunks.unfinished:
            holder = self._holders.get(key_hash)
            if holder is not None:
                return holder.consumer
        return self._selector.select(key_hash)

    def _may_pass(self, consumer: Consumer) -> bool:
        """Whether a hash may move on to ``consumer`` while others hold entries of it.

        Where there are chunks it may not: it is the holder of a hash who gets the rest of a message.
        """
        topic = self.subscription.topic
        return consumer.key_shared.allow_out_of_order and topic.chunks_below <= topic.log.first_offset

    def _reassign(self) -> None:
        self._assigned = {consumer: {} for consumer in self.consumers}
        for key_hash in self._waiting:
            self._assign(key_hash)

    def deliver(self, consumer: Consumer, entry: Entry, remaining: int | None = None) -> None:
        holder = self._holders.get(entry.key_hash)
        if holder is None:
            holder = self._holders[entry.key_hash] = _Holder(consumer)
        elif holder.consumer is not consumer:
            holder.consumer = None
        holder.entries += 1
        if entry.offset < self.subscription.topic.chunks_below:
            self._chunks.assign(entry, consumer)
        super().deliver(consumer, entry, remaining)

    def _dispatch(self) -> None:
        if not self.subscription.may_deliver:
            return
        self.release_due()
        if self._joining:
            _let_join(self)
        if self.caught_up and not self._waiting:
            return
        if self.replay and not self._dispatch_replayed():
            return
        for consumer in self.consumers:
            if self._assigned[consumer] and consumer.ready and not self._dispatch_waiting(consumer):
                return
        self._dispatch_new()

    def _dispatch_waiting(self, consumer: Consumer) -> bool:
        """Deliver what waits for ``consumer``; return False if a read has begun."""
        topic = self.subscription.topic
        cursor = self.subscription.acks.cursor
        hashes = self._assigned[consumer]
        while hashes and consumer.ready and self.subscription.may_deliver:
            key_hash = next(iter(hashes))
            if not self._may_have(consumer, key_hash):
                # A chunk has come since, so that it may not pass others any more.
                del hashes[key_hash]
                continue
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
        while _takes_more(self):
            entry = self.next_replayed()
            if entry is None:
                break
            self._place(entry)
        return not self.replay

    def _dispatch_new(self) -> None:
        if self._some_gone and self.waiting_entries >= LOOK_AHEAD:
            _forget_gone(self)
        while self.waiting_entries < LOOK_AHEAD and _takes_more(self):
            entry = self.next_new()
            if entry is None:
                return
            self._place(entry)

    def _place(self, entry: Entry) -> None:
        """Deliver an entry to the consumer of its key, or let it wait for it."""
        key_hash = entry.key_hash
        if key_hash < WHOLE:
            config = self.subscription.topic.host.config
            key_hash = dispatch_hash(entry, spread_keyless=config.subscription_key_shared_spread_keyless)
        target = self._target(key_hash)
        holder = self._holders.get(key_hash)
        if (
            target is None
            or key_hash in self._waiting
            or not target.ready
            or (holder is not None and holder.consumer is not target and not self._may_pass(target))
        ):
            self._wait(entry.offset, key_hash)
        else:
            self.deliver(target, entry)


def _waits_to_join(dispatcher: KeySharedDispatcher, consumer: Consumer) -> bool:
    return (
        bool(dispatcher.consumers)
        and dispatcher.subscription.topic.host.config.subscription_key_shared_join_at_read_position
        and not (dispatcher.sticky or consumer.key_shared.allow_out_of_order)
    )


def _let_join(dispatcher: KeySharedDispatcher) -> None:
    """Give keys to the newcomers for which everything before their read position is acknowledged."""
    first = dispatcher.subscription.acks.cursor.first_unacked()
    nobody = len(dispatcher._joining) == len(dispatcher.consumers)
    joining = dispatcher._joining
    ready = [consumer for consumer, read_offset in joining.items() if read_offset <= first or nobody]
    for consumer in ready:
        del joining[consumer]
        dispatcher._selector.add(consumer)
    if ready:
        dispatcher._reassign()


def _forget_gone(dispatcher: KeySharedDispatcher) -> None:
    """Remove acknowledged entries from the queues: they must not count for the limit of waiting entries."""
    dispatcher._some_gone = False
    cursor = dispatcher.subscription.acks.cursor
    for key_hash, queue in list(dispatcher._waiting.items()):
        before = len(queue)
        queue.remove_range(0, cursor.first_unacked())
        queue -= cursor.acked
        dispatcher.waiting_entries -= before - len(queue)
        if queue:
            dispatcher._waiting[key_hash] = queue
        else:
            del dispatcher._waiting[key_hash]
            for assigned in dispatcher._assigned.values():
                assigned.pop(key_hash, None)


def _takes_more(dispatcher: KeySharedDispatcher) -> bool:
    return dispatcher.subscription.may_deliver and any(consumer.ready for consumer in dispatcher.consumers)


def first_waiting(dispatcher: KeySharedDispatcher) -> WaitingEntry | None:
    """Return the first entry that waits for its key's consumer, None if none does."""
    subscription = dispatcher.subscription
    cursor = subscription.acks.cursor
    first = max(cursor.first_unacked(), subscription.topic.log.first_offset)
    found: tuple[int, int] | None = None
    for key_hash, queue in dispatcher._waiting.items():
        if found is None or queue.min() < found[0]:
            offset = next((each for each in queue if each >= first and each not in cursor.acked), None)
            if offset is not None and (found is None or offset < found[0]):
                found = offset, key_hash
    if found is None:
        return None
    offset, key_hash = found
    return WaitingEntry(offset, key_hash, dispatcher._target(key_hash), _held(dispatcher, key_hash))


def _held(dispatcher: KeySharedDispatcher, key_hash: int) -> bool:
    """Whether entries of the hash wait until others of it are acknowledged, which another consumer has."""
    target = dispatcher._target(key_hash)
    if target is not None:
        return not dispatcher._may_have(target, key_hash)
    holder = dispatcher._holders.get(key_hash)
    return holder is not None and holder.consumer is None


def key_holder(dispatcher: KeySharedDispatcher, key_hash: int) -> Consumer | None:
    """Return the consumer that holds entries of the hash; None if there is none, or there are several."""
    holder = dispatcher._holders.get(key_hash)
    return None if holder is None else holder.consumer


def first_held(dispatcher: KeySharedDispatcher, key_hash: int) -> tuple[Consumer, int] | None:
    """Return the first entry of the hash that a consumer holds, and that consumer; None if it is not near the front."""
    holder = key_holder(dispatcher, key_hash)
    holders = dispatcher.consumers if holder is None else [holder]
    pending = dispatcher.subscription.acks.pending
    found: tuple[Consumer, int] | None = None
    for consumer in holders:
        held = islice(consumer.held, LOOK_AHEAD // len(holders))
        offset = next((each for each in held if pending[each].key_hash == key_hash), None)
        if offset is not None and (found is None or offset < found[1]):
            found = consumer, offset
    return found


def is_held(dispatcher: KeySharedDispatcher, offset: int, key_hash: int) -> bool:
    """Whether ``offset`` waits until a consumer has acknowledged earlier entries of its key."""
    return offset in dispatcher._waiting.get(key_hash, ()) and _held(dispatcher, key_hash)
