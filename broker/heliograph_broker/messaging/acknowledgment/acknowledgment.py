"""What a subscription has acknowledged, and everything that acknowledges: clients, skips, expiry, eviction."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from heliograph_api.policies.policies import of_subscription
from pyroaring import BitMap64

from heliograph_broker.messaging.base.entry_counts import EntryCounts
from heliograph_broker.messaging.base.errors import BrokerError, Done, NotAllowed, PersistenceError, PreconditionFailed
from heliograph_broker.messaging.clients.consumer import AckId, Consumer
from heliograph_broker.messaging.clients.deliveries import Deliveries, RedeliveryCounts
from heliograph_broker.messaging.clients.subscription_type import PARALLEL, SubscriptionType
from heliograph_broker.messaging.log.damaged import lost_range
from heliograph_broker.messaging.log.skipping import correct_counts
from heliograph_broker.messaging.log.subscribed_log import LogSubscription

if TYPE_CHECKING:
    from heliograph_broker.messaging.log.cursor import Cursor

    from .stored_topic import StoredTopic


class AckObserver:
    """Something that delivers entries and is notified when they are acknowledged."""

    __slots__ = ()

    def acked(self, offset: int, key_hash: int) -> None:
        """An entry that was delivered is acknowledged in full."""

    def gone(self, offset: int) -> None:
        """An entry that no consumer holds is acknowledged in full: expired, skipped, evicted, or by its id."""

    def gone_up_to(self, offset: int) -> None:
        """Everything up to and including ``offset`` is acknowledged; :meth:`acked` says which of it was delivered."""


class AckedView:
    """A compacted view, as acknowledgments know it."""

    __slots__ = ()

    def clear(self) -> None:
        """Everything there is counts as acknowledged."""
        raise NotImplementedError

    def entry_acknowledged(self, offset: int) -> None:
        """An entry of the topic is acknowledged in full: so is what was left out right after it."""
        raise NotImplementedError

    def acknowledged_up_to(self, offset: int) -> None:
        """All of the topic is acknowledged up to and including ``offset``, and what was left out right after it."""
        raise NotImplementedError

    def acknowledge_trimmed(self, ledger_id: int, entry_id: int, remaining: int | None) -> None:
        """A client acknowledged an entry, or of its batch all but ``remaining``, which the topic has trimmed."""
        raise NotImplementedError

    def acknowledge_trimmed_up_to(self, ledger_id: int, entry_id: int, remaining: int | None) -> None:
        """A client acknowledged everything up to an id; of the batch it names only the indexes up to it."""
        raise NotImplementedError


class Acknowledgments(LogSubscription):
    """The part of a :class:`~.subscription.Subscription` that moves its cursor; the cursor is exact at every moment."""

    __slots__ = (
        "_marked",
        "last_acked_ms",
        "last_expire_ms",
        "last_mark_delete_ms",
        "messages_acked",
        "msg_expired",
        "pending",
        "redelivery_counts",
        "sub_type",
        "topic",
        "unacked_messages",
    )

    topic: StoredTopic
    pending: Deliveries
    #: Its position in the compacted view, once a consumer asked for that.
    view: AckedView | None
    dispatcher: AckObserver | None

    def __init__(
        self, name: str, record_key: bytes, cursor: Cursor, *, durable: bool, counts_for_backlog: bool
    ) -> None:
        super().__init__(name, record_key, cursor, durable=durable, counts_for_backlog=counts_for_backlog)
        self.sub_type: SubscriptionType | None = None
        self.pending = Deliveries()
        self.redelivery_counts = RedeliveryCounts()
        self.messages_acked = 0
        #: Messages delivered to connected consumers and not acknowledged.
        self.unacked_messages = 0
        self.msg_expired = 0
        self.last_acked_ms = 0
        self.last_expire_ms = 0
        self.last_mark_delete_ms = 0
        self._marked = cursor.mark_delete

    @property
    def ttl_ms(self) -> int:
        """The message TTL that holds for the subscription: its own, else its topic's; -1 without."""
        topic = self.topic
        if topic.effective.subscription_policies is None:
            return topic.ttl_ms
        ttl_ms = of_subscription(topic.effective, self.name).message_ttl_ms
        return -1 if ttl_ms is None else ttl_ms

    @property
    def dead_letter_topic(self) -> str | None:
        """Full name of the topic that its expired messages go to."""
        return of_subscription(self.topic.effective, self.name).dead_letter_topic

    def skip_damaged(self, first: int, last: int, reason: str) -> None:
        """Pass over entries that cannot be read, see :func:`.skipping.skip_range`."""
        raise NotImplementedError

    def offer_again(self, offsets: BitMap64) -> None:
        """Deliver entries after all that were withheld as expired."""
        raise NotImplementedError

    def notify_end(self) -> None:
        """Tell consumers that have acknowledged everything of a terminated topic that nothing more will come."""
        raise NotImplementedError

    def _unacked_in(self, offset: int, messages: int) -> int:
        remaining = self.cursor.partial.get(offset)
        return messages if remaining is None else remaining.bit_count()

    def unacked_bits(self, offset: int, messages: int) -> int:
        """Return a bit for each unacknowledged message of the entry, bit 0 for a single message."""
        if self.cursor.is_acked(offset):
            return 0
        remaining = self.cursor.partial.get(offset)
        return (1 << messages) - 1 if remaining is None else remaining

    # -- acknowledgment ----------------------------------------------------------------------------------------

    def acknowledge(self, consumer: Consumer | None, ids: Iterable[AckId], done: Done | None) -> None:
        """Acknowledge single entries or batch indexes. ``done`` is called when that is durable.

        Ids of entries that are gone or were never stored are ignored, as a repeated ack is.
        """
        topic = self.topic
        unknown: list[tuple[int, int | None]] = []
        for ledger_id, entry_id, remaining in ids:
            offset = topic.offset_of(ledger_id, entry_id)
            if offset is None:
                if self.view is not None:
                    self.view.acknowledge_trimmed(ledger_id, entry_id, remaining)
                continue
            delivery = self.pending.get(offset)
            if delivery is not None:
                self.acknowledge_entry(offset, delivery.messages, delivery.size, remaining)
                continue
            entry = topic.tail.get(offset)
            if entry is not None:
                self.acknowledge_entry(offset, entry.messages, len(entry.frame), remaining)
            elif not self.cursor.is_acked(offset):
                unknown.append((offset, remaining))
        now_ms = topic.host.clock.now_ms()
        if consumer is not None:
            consumer.last_acked_ms = self.last_acked_ms = now_ms
        if unknown:
            self._ack_unknown(unknown, done)
        else:
            self.acked(done, now_ms)

    def _ack_unknown(
        self, unknown: list[tuple[int, int | None]], done: Done | None, refusal: BrokerError | None = None
    ) -> None:
        """Acknowledge entries whose size is known only to the store: one header look-up after the other.

        ``refusal`` is why one of them could not be acknowledged; the others are all the same.
        """
        if not unknown:
            if refusal is None:
                self.acked(done)
                return
            self.acked(None)
            if done is not None:
                done(refusal)
            return
        generation = self.generation
        offset, remaining = unknown.pop()

        def found(headers: list[EntryCounts] | Exception) -> None:
            lost = lost_range(self.topic, offset, headers)
            if lost is not None:
                # A consumer that got it before it was lost is done with it; it cannot be delivered again.
                headers = self._pass_over(generation, offset, offset, lost[1]) or []
            if isinstance(headers, Exception):
                self._ack_unknown(unknown, done, PersistenceError(f"cannot read entry header: {headers}"))
                return
            if generation == self.generation and not self.closed:
                for entry in headers:
                    self.acknowledge_entry(entry.offset, entry.messages, entry.size, remaining)
            self._ack_unknown(unknown, done, refusal)

        self.topic.read_headers(offset, offset, found)

    def _pass_over(self, generation: int, first: int, last: int, reason: str) -> PersistenceError | None:
        """Skip lost entries, unless the cursor was moved since ``generation``; return why that failed."""
        if generation == self.generation and not self.closed:
            try:
                self.skip_damaged(first, last, reason)
            except Exception as error:
                return PersistenceError(f"cannot skip damaged entries: {error}")
        return None

    def acknowledge_entry(self, offset: int, messages: int, size: int, remaining: int | None) -> None:
        """Acknowledge an entry, or all of it but the messages in ``remaining``; :meth:`acked` has to follow."""
        cursor = self.cursor
        if remaining:
            newly = cursor.ack_batch(offset, remaining, messages, size)
            whole = newly > 0 and cursor.is_acked(offset)
        else:
            newly = cursor.ack(offset, messages, size)
            whole = True
        self.messages_acked += newly
        delivery = self.pending.get(offset)
        if delivery is not None:
            consumer = delivery.consumer
            consumer.unacked -= newly
            self.unacked_messages -= newly
            consumer.messages_acked += newly
            if whole:
                # As Deliveries.settle, without the call.
                del self.pending[offset]
                consumer.held.discard(offset)
                if self.dispatcher is not None:
                    self.dispatcher.acked(offset, delivery.key_hash)
        elif whole and self.dispatcher is not None:
            self.dispatcher.gone(offset)
        if whole and self.redelivery_counts:
            self.redelivery_counts.forget(offset)
        if whole and self.view is not None:
            self.view.entry_acknowledged(offset)

    def acknowledge_cumulative(self, consumer: Consumer, up_to: AckId, done: Done | None) -> None:
        """Acknowledge everything up to and including ``up_to``, of which the entry -1 is before the first of a ledger.

        Refused on Shared and Key_Shared, and beyond the last entry there is: nobody can have received that.
        """
        refusal = self._cumulative_refusal(up_to)
        if refusal is not None:
            if done is not None:
                done(refusal)
            return
        consumer.last_acked_ms = self.last_acked_ms = self.topic.host.clock.now_ms()
        if self.view is not None:
            self.view.acknowledge_trimmed_up_to(*up_to)
        offset = self.topic.offset_at_or_after(up_to.ledger_id, up_to.entry_id)
        if self.topic.offset_of(up_to.ledger_id, up_to.entry_id) is None:
            # Trimmed meanwhile: everything below it that exists.
            self.acknowledge_up_to(offset - 1, done)
        elif up_to.remaining:
            self.acknowledge_up_to(offset - 1, done, then=partial(self.acknowledge, consumer, [up_to], done))
        else:
            self.acknowledge_up_to(offset, done)

    def _cumulative_refusal(self, up_to: AckId) -> BrokerError | None:
        if self.sub_type in PARALLEL:
            return NotAllowed(f"Cumulative acknowledgment is not allowed on a {self.sub_type.label} subscription")
        if (up_to.ledger_id, up_to.entry_id) > self.topic.last_position():
            return PreconditionFailed(
                f"{up_to.ledger_id}:{up_to.entry_id} is not the id of a message of {self.topic.name}"
            )
        return None

    def acknowledge_up_to(
        self,
        offset: int,
        done: Done | None,
        *,
        counted: Callable[[int], None] | None = None,
        failed: Callable[[BrokerError], None] | None = None,
        then: Callable[[], None] | None = None,
    ) -> None:
        """Acknowledge every entry up to and including ``offset`` (cumulative ack, expiry, eviction, clear).

        ``counted`` is called, perhaps several times, with the number of newly acknowledged messages. ``failed`` gets
        the reason why the rest is not acknowledged, as does ``done``, whose caller may wait for the disk. ``then``,
        which goes on in the same step and calls ``done``, is called if nobody moved the cursor by hand in the meantime.
        """
        last = min(offset, self.topic.end_offset - 1)
        self._acknowledge_from(self.cursor.mark_delete + 1, last, done, counted, failed or done, then)

    def _acknowledge_from(
        self,
        first: int,
        offset: int,
        done: Done | None,
        counted: Callable[[int], None] | None,
        failed: Callable[[BrokerError], None] | None,
        then: Callable[[], None] | None,
    ) -> None:
        """Acknowledge the entries ``first..offset``: everything before ``first`` has been seen to.

        Each step begins behind the last entry it has read, wherever the mark-delete position is, so that it ends.
        """
        cursor = self.cursor
        arrived = partial(self.acked, done) if then is None else then
        if offset <= cursor.mark_delete or offset < first:
            arrived()
            return
        generation = self.generation
        contiguous = cursor.is_contiguous()
        begin = offset if contiguous else max(first, cursor.mark_delete + 1, self.topic.first_offset)

        def found(headers: list[EntryCounts] | Exception) -> None:
            lost = lost_range(self.topic, begin, headers)
            if lost is not None and generation == self.generation and not self.closed:
                before = cursor.acked_messages
                failure = self._pass_over(generation, begin, min(lost[0], offset), lost[1])
                if failure is not None:
                    self._stop_acknowledging(str(failure), failed)
                    return
                if counted is not None:
                    counted(cursor.acked_messages - before)
                # Where the last one is lost that was to be acknowledged, the others are not yet.
                self._acknowledge_from(first if contiguous else lost[0] + 1, offset, done, counted, failed, then)
                return
            if isinstance(headers, Exception) or not headers:
                self._stop_acknowledging(f"cannot read entry headers: {headers or 'none is stored'}", failed)
                return
            if generation != self.generation or self.closed:
                self.acked(done)
                return
            before = cursor.acked_messages
            if contiguous and cursor.is_contiguous():
                reached = headers[-1]
                self._drop_pending(reached.offset)
                self.messages_acked += cursor.advance(reached.offset, reached.total_messages, reached.total_bytes)
                if self.view is not None:
                    self.view.acknowledged_up_to(reached.offset)
            else:
                if contiguous:
                    # An ack came in between: now entry by entry.
                    self._acknowledge_from(first, offset, done, counted, failed, then)
                    return
                for entry in headers:
                    self.acknowledge_entry(entry.offset, entry.messages, entry.size, None)
            if counted is not None:
                counted(cursor.acked_messages - before)
            if headers[-1].offset < offset:
                self._acknowledge_from(headers[-1].offset + 1, offset, done, counted, failed, then)
            else:
                arrived()

        known = self._known_header(offset) if contiguous else None
        if known is not None:
            found([known])
        else:
            self.topic.read_headers(begin, offset, found)

    def _stop_acknowledging(self, reason: str, failed: Callable[[BrokerError], None] | None) -> None:
        """Report why the rest is not acknowledged. What the steps before have acknowledged stays acknowledged."""
        self.acked(None)
        if failed is not None:
            failed(PersistenceError(reason))

    def _known_header(self, offset: int) -> EntryCounts | None:
        held = self.pending.get(offset)
        if held is not None:
            return EntryCounts(offset, held.messages, held.size, held.total_messages, held.total_bytes)
        entry = self.topic.tail.get(offset)
        if entry is not None:
            return EntryCounts(offset, entry.messages, len(entry.frame), entry.total_messages, entry.total_bytes)
        return None

    def _drop_pending(self, up_to: int) -> None:
        """Settle the deliveries that a cumulative move acknowledges."""
        self.redelivery_counts.forget_up_to(up_to)
        for offset, delivery in self.pending.take_up_to(up_to, self.consumers):
            messages = self._unacked_in(offset, delivery.messages)
            consumer = delivery.consumer
            consumer.unacked -= messages
            self.unacked_messages -= messages
            consumer.messages_acked += messages
            if self.dispatcher is not None:
                self.dispatcher.acked(offset, delivery.key_hash)
        if self.dispatcher is not None:
            self.dispatcher.gone_up_to(up_to)

    def acked(self, done: Done | None, now_ms: int | None = None) -> None:
        """After any change of the cursor: persist it, let trimming know, and dispatch what the ack freed."""
        if not self.closed:
            if self.cursor.estimated:
                correct_counts(self.topic, self.cursor, self.pending)
            if self.topic.terminated:
                self.notify_end()
            if self.cursor.mark_delete != self._marked:
                self._marked = self.cursor.mark_delete
                if self.redelivery_counts:
                    self.redelivery_counts.forget_up_to(self._marked)
                self.last_mark_delete_ms = self.topic.host.clock.now_ms() if now_ms is None else now_ms
            self.persist_cursor(done)
            self.notify()
        elif done is not None:
            done(None)

    def count_expired(self, messages: int) -> None:
        """Messages were acknowledged because they expired."""
        self.msg_expired += messages
        self.last_expire_ms = self.topic.host.clock.now_ms()

    def clear_backlog(self, done: Done) -> None:
        """Acknowledge everything there is now."""
        if self.view is not None:
            self.view.clear()
        self.acknowledge_up_to(self.topic.end_offset - 1, done)

    def skip(self, messages: int, done: Done) -> None:
        """Acknowledge the oldest ``messages`` unacknowledged messages; of a batch its first ones if not all."""
        topic = self.topic
        generation = self.generation
        first = max(self.cursor.first_unacked(), topic.first_offset)
        if messages <= 0 or first >= topic.end_offset:
            self.acked(done)
            return

        def found(headers: list[EntryCounts] | Exception) -> None:
            left = messages
            lost = lost_range(topic, first, headers)
            if lost is not None:
                # They are the oldest messages, and nobody gets any of them.
                before = self.cursor.acked_messages
                headers = self._pass_over(generation, first, *lost) or []
                left = max(0, messages - (self.cursor.acked_messages - before))
                if left and generation == self.generation and self.cursor.is_acked(first):
                    self.skip(left, done)
                    return
            if isinstance(headers, Exception):
                # What the steps before it have skipped stays so.
                self.acked(None)
                done(PersistenceError(f"cannot read entry headers: {headers}"))
                return
            if generation == self.generation and not self.closed:
                for entry in headers:
                    bits = self.unacked_bits(entry.offset, entry.messages)
                    unacked = bits.bit_count()
                    if 0 < unacked <= left:
                        left -= unacked
                        self.acknowledge_entry(entry.offset, entry.messages, entry.size, None)
                    elif unacked:
                        for _ in range(left):
                            bits &= bits - 1
                        left = 0
                        self.acknowledge_entry(entry.offset, entry.messages, entry.size, bits)
                    if not left:
                        break
            if 0 < left < messages:
                self.skip(left, done)
            else:
                self.acked(done)

        topic.read_headers(first, topic.end_offset - 1, found)

    def acknowledge_trimmed(self, offset: int, total_messages: int, total_bytes: int) -> None:
        """Entries up to ``offset`` were trimmed although this cursor, not a durable one, had not passed them."""
        cursor = self.cursor
        self._drop_pending(offset)
        if cursor.is_contiguous():
            cursor.advance(offset, total_messages, total_bytes)
        else:
            # A reader's acks are cumulative in practice; holes beyond the trim point count as unread again.
            cursor.reset(offset, total_messages, total_bytes)
