"""The base of all dispatchers: the next offset to read, one read under way at a time, and delivery to a consumer."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pyroaring import BitMap64

from heliograph_broker.messaging.acknowledgment.acknowledgment import AckedSubscription, AckedView, AckObserver
from heliograph_broker.messaging.base.errors import PersistenceError
from heliograph_broker.messaging.base.offsets import run_end
from heliograph_broker.messaging.base.replay import Replay
from heliograph_broker.messaging.clients.deliveries import Delivery
from heliograph_broker.messaging.log.damaged import lost_range
from heliograph_broker.messaging.log.skipping import skip_range
from heliograph_broker.messaging.policies.delayed_topics import release_due
from heliograph_broker.messaging.policies.rate_limits import ThrottledSubscription

if TYPE_CHECKING:
    from heliograph_broker.messaging.acknowledgment.stored_topic import StoredTopic
    from heliograph_broker.messaging.clients.consumer import Consumer
    from heliograph_broker.messaging.policies.expiry import Expiry
    from heliograph_broker.storage.base.entry import Entry

#: Limit of one read from the store (bytes); a single larger entry comes whole.
READ_BYTES = 1024 * 1024
READ_ENTRIES = 1000
#: The duty that :mod:`.containment` suspends when a dispatch raises.
DISPATCH = "dispatch"
#: The same for a read that brings nothing and may do so later.
READ = "read"


class ReadView(AckedView):
    """A compacted view, as dispatchers know it."""

    __slots__ = ()

    def dispatch(self, dispatcher: OrderedDispatcher, consumer: Consumer) -> bool:
        """Deliver what the view has up to the horizon; return whether the topic's own entries are next."""
        raise NotImplementedError


class DispatchedSubscription(AckedSubscription, ThrottledSubscription):
    """A subscription, as dispatchers and the compacted view know it."""

    __slots__ = ()

    topic: StoredTopic
    expiry: Expiry
    dispatcher: Dispatcher | None
    view: ReadView | None

    @property
    def may_deliver(self) -> bool:
        """Whether consumers hold few enough messages to get more; Exclusive and Failover have no limit."""
        raise NotImplementedError

    def withholds(self, entry: Entry) -> bool:
        """Whether an entry about to be delivered has expired. Readers see all stored messages, expired or not."""
        raise NotImplementedError

    def must_wait(self, entry: Entry) -> bool:
        """Whether a delayed entry is not deliverable yet."""
        raise NotImplementedError

    def take_back(self, consumer: Consumer, offsets: list[int] | None) -> list[tuple[int, int]]:
        """Take entries (all, or ``offsets``) from ``consumer``; return their offsets and key hashes, in order."""
        raise NotImplementedError

    def forget_deliveries(self, consumer: Consumer) -> None:
        """Treat the deliveries of the (only) active consumer as not delivered."""
        raise NotImplementedError


class Dispatcher(AckObserver):
    """Hands a subscription's entries to its consumers; one subclass a subscription type.

    ``read_offset`` is the next offset never read so far. :meth:`notify` is called whenever something may have
    become possible (new entries, permits, an ack, a writable connection) and is cheap when nothing did.
    """

    __slots__ = (
        "_ahead",
        "_busy",
        "_now_ms",
        "_once_more",
        "consumers",
        "generation",
        "read_offset",
        "reading",
        "reading_since_ms",
        "replay",
        "subscription",
    )

    def __init__(self, subscription: DispatchedSubscription) -> None:
        self.subscription = subscription
        self.consumers: list[Consumer] = []
        self.read_offset = subscription.acks.cursor.first_unacked()
        self.reading = False
        #: When the last read began, wall-clock ms.
        self.reading_since_ms = 0
        #: Entries to deliver before anything new.
        self.replay = Replay()
        #: Grows when the read position is moved by hand: a read begun before it is void.
        self.generation = 0
        self._busy = False
        #: Whether a read that was done at once has changed the next offset.
        self._once_more = False
        #: When the dispatch under way began to deliver, wall-clock ms, 0 before.
        self._now_ms = 0
        #: The entries of the last read, for the dispatch right after it only.
        self._ahead: dict[int, Entry] = {}

    def add(self, consumer: Consumer) -> None:
        raise NotImplementedError

    def remove(self, consumer: Consumer) -> None:
        raise NotImplementedError

    def notify(self) -> None:
        """Dispatch all entries that can be dispatched now."""
        if self._busy or self.reading:
            return
        subscription = self.subscription
        containment = subscription.topic.host.containment
        if containment.suspended and containment.holds(subscription, DISPATCH):
            return
        self._busy = True
        try:
            self._dispatch()
            while self._once_more:
                self._once_more = False
                self._dispatch()
        except Exception as error:
            # The client whose command or acknowledgment caused this has nothing to do with it.
            containment.failed(subscription, DISPATCH, error, subscription.notify)
        else:
            if containment.suspended:
                containment.succeeded(subscription, DISPATCH)
        finally:
            self._busy = self._once_more = False
            self._now_ms = 0
            if self._ahead:
                self._ahead.clear()

    def _dispatch(self) -> None:
        raise NotImplementedError

    def fetch(self, offset: int, count: int) -> Entry | None:
        """Return the entry at ``offset`` if it is in memory; else begin to read up to ``count`` from there on.

        Read entries that cannot be delivered at once stay only in the tail cache, so that its byte budget bounds
        read-ahead too. Returns None while the read is under way: :meth:`notify` runs again when it is done.
        """
        topic = self.subscription.topic
        entry = topic.log.tail.get(offset) or self._ahead.get(offset)
        if entry is not None:
            return entry
        self.reading = True
        self.reading_since_ms = topic.host.clock.now_ms()
        topic.log.read(offset, count, READ_BYTES, partial(self._read_done, self.generation, offset))
        return self._ahead.get(offset)

    def _read_done(self, generation: int, offset: int, result: list[Entry] | Exception) -> None:
        """Continue after a read from ``offset`` on; lost entries are skipped, failed reads are tried again."""
        if generation != self.generation:
            return
        self.reading = False
        subscription = self.subscription
        topic = subscription.topic
        if isinstance(result, list) and result and result[0].offset == offset:
            topic.log.remember(result)
            self._ahead = {entry.offset: entry for entry in result}
            self.read_succeeded()
            self.notify()
            return
        lost = lost_range(topic.log, offset, result)
        if lost is not None:
            try:
                skip_range(subscription, offset, *lost)
            except Exception as error:
                self.failed_to_read(error)
                return
        if offset < topic.log.first_offset or subscription.acks.cursor.is_acked(offset):
            self.read_succeeded()
            self._once_more = self._busy
            self.notify()
        else:
            self.failed_to_read(result if isinstance(result, Exception) else PersistenceError("a read brought nothing"))

    def failed_to_read(self, error: Exception) -> None:
        """Suspend reading after a read that failed, until the next attempt, after a growing pause."""
        self.reading = True
        again = partial(self._read_again, self.generation)
        self.subscription.topic.host.containment.failed(self.subscription, READ, error, again)

    def _read_again(self, generation: int) -> None:
        if generation == self.generation:
            self.reading = False
            self.notify()
            if not self.reading:
                # Nobody wants it any more, or it has come to memory.
                self.read_succeeded()

    def read_succeeded(self) -> None:
        """End the suspension of reads: the entries were read, or are no longer needed."""
        containment = self.subscription.topic.host.containment
        if containment.suspended:
            containment.succeeded(self.subscription, READ)

    def redeliver(self, consumer: Consumer, offsets: list[int] | None) -> None:
        """Deliver again what ``consumer`` holds: all of it, or the given offsets."""
        raise NotImplementedError

    def next_replayed(self) -> Entry | None:
        """Return the next entry to deliver of those in ``replay``; None if there is none, or a read has begun."""
        subscription = self.subscription
        topic = subscription.topic
        replay = self.replay
        while replay:
            offset = replay.min()
            if offset < topic.log.first_offset or subscription.acks.cursor.is_acked(offset):
                replay.discard(offset)
                continue
            entry = self.fetch(offset, 1 if offset in topic.log.tail else replay.run(offset, READ_ENTRIES))
            if entry is None:
                return None
            replay.discard(offset)
            if not (topic.timing.may_expire and subscription.withholds(entry)):
                return entry
        return None

    @property
    def caught_up(self) -> bool:
        """Whether there is nothing to deliver to any consumer."""
        subscription = self.subscription
        topic = subscription.topic
        offset = max(self.read_offset, subscription.acks.cursor.mark_delete + 1)
        return offset >= topic.log.end_offset and not self.replay

    def next_new(self) -> Entry | None:
        """Return the next entry never offered so far; None if there is none, or a read has begun.

        Entries that are acknowledged or wait for their time are skipped without being read, however many they are.
        """
        subscription = self.subscription
        topic = subscription.topic
        cursor = subscription.acks.cursor
        tail = topic.log.tail
        waiting = topic.timing.timed.waiting
        while True:
            offset = max(self.read_offset, cursor.mark_delete + 1, topic.log.first_offset)
            self.read_offset = offset
            if offset >= topic.log.end_offset:
                return None
            if cursor.acked and offset in cursor.acked:
                self.read_offset = run_end(cursor.acked, offset)
                continue
            if waiting and offset in waiting:
                self.read_offset = run_end(waiting, offset)
                continue
            entry = tail.get(offset)
            if entry is None:
                entry = self.fetch(offset, self._entries_before_waiting(offset))
                if entry is None:
                    return None
            self.read_offset = offset + 1
            if entry.deliver_at_ms and subscription.must_wait(entry):
                continue
            if topic.timing.may_expire and subscription.withholds(entry):
                continue
            return entry

    def _entries_before_waiting(self, offset: int) -> int:
        """Return how many entries from ``offset`` on are worth reading at once: those up to the next that waits."""
        waiting = self.subscription.topic.timing.timed.waiting
        if not waiting or waiting.max() < offset:
            return READ_ENTRIES
        return min(READ_ENTRIES, waiting.next_set_bit(offset) - offset)

    def rewind(self) -> None:
        """Start over at the first unacknowledged entry (seek, takeover): delivered entries count as not delivered."""
        self.generation += 1
        self.reading = False
        self.read_succeeded()
        self.replay.clear()
        self.read_offset = self.subscription.acks.cursor.first_unacked()
        self.subscription.expiry.dispatch_restarts()

    def delays_over(self, due: BitMap64) -> None:
        """Queue delayed entries that are due: those that were passed over come before anything new."""

    @property
    def delayed(self) -> int:
        """Entries waiting for their delivery time."""
        return 0

    def deliver(self, consumer: Consumer, entry: Entry, remaining: int | None = None) -> None:
        """Send one entry and account for it; of a batch only the ``remaining`` bits (None: as the cursor says)."""
        subscription = self.subscription
        acks = subscription.acks
        offset = entry.offset
        in_entry = entry.messages
        partly_acked = acks.cursor.partial
        if partly_acked:
            remaining = partly_acked.get(offset, remaining)
        messages = unacked = in_entry if remaining is None else remaining.bit_count()
        if subscription.expiry.masked_bits:
            # Expired messages of a batch are not sent; it stays unacknowledged until the expiry is recorded.
            remaining = subscription.expiry.visible(offset, in_entry, remaining)
            messages = in_entry if remaining is None else remaining.bit_count()
        size = len(entry.frame)
        now_ms = self._now_ms
        if not now_ms:
            now_ms = self._now_ms = subscription.topic.host.clock.now_ms()
        acks.pending[offset] = Delivery(
            consumer,
            in_entry,
            size,
            entry.total_messages,
            entry.total_bytes,
            entry.key_hash,
            now_ms,
        )
        consumer.held.add(offset)
        consumer.permits -= messages
        consumer.unacked += unacked
        acks.unacked_messages += unacked
        consumer.msg_out += messages
        consumer.entries_out += 1
        consumer.bytes_out += size
        sent = subscription.sent
        sent.msg_out += messages
        sent.bytes_out += size
        sent.entries_out += 1
        count = 0
        if acks.redelivery_counts:
            count = acks.redelivery_counts.get(offset, 0)
            if count:
                sent.msg_redelivered += messages
                consumer.msg_redelivered += messages
        consumer.last_consumed_ms = sent.last_consumed_ms = now_ms
        gate = subscription.dispatch_gate
        if gate is not None:
            gate.dispatched(messages, size)
        if not consumer.first_sent_ms:
            consumer.first_sent_ms = now_ms
        consumer.sink.send_message(consumer, entry, count, remaining)


class OrderedDispatcher(Dispatcher):
    """One that delivers to one consumer in order: of Exclusive and Failover. It alone may read a compacted view."""

    __slots__ = ()

    def passes_by(self, entry: Entry) -> bool:
        """Whether the consumer does not want the key of ``entry``, which then stays unacknowledged."""
        raise NotImplementedError


class DelayingDispatcher(Dispatcher):
    """One that keeps delayed entries back until their time: of Shared and Key_Shared, as in Pulsar."""

    __slots__ = ()

    @property
    def delayed(self) -> int:
        """Entries it has been past that wait for their delivery time."""
        cursor = self.subscription.acks.cursor
        waiting = self.subscription.topic.timing.timed.waiting
        if not waiting:
            return 0
        passed = BitMap64()
        passed.add_range(cursor.first_unacked(), max(self.read_offset, cursor.first_unacked()))
        passed &= waiting
        return len(passed) - passed.intersection_cardinality(cursor.acked)

    def delays_over(self, due: BitMap64) -> None:
        first = self.subscription.acks.cursor.first_unacked()
        passed = BitMap64()
        passed.add_range(first, max(self.read_offset, first))
        passed &= due
        passed -= self.subscription.acks.cursor.acked
        for consumer in self.subscription.consumers:
            # Delivered before, when delays did not count.
            passed -= consumer.held
        self.replay.update(passed)

    def release_due(self) -> None:
        """See that no entry is passed over whose time came since the last tick."""
        topic = self.subscription.topic
        timed = topic.timing.timed
        if timed.waiting and (timed.next_due_ms <= topic.host.clock.now_ms() or not topic.timing.delayed_delivery):
            release_due(topic)
