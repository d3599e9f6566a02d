"""The acknowledgments of a subscription, from all their sources: clients, skips, expiry, eviction."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from heliograph_broker.messaging.base.entry_counts import EntryCounts
from heliograph_broker.messaging.base.errors import BrokerError, Done, NotAllowed, PersistenceError, PreconditionFailed
from heliograph_broker.messaging.clients.consumer import AckId, Consumer
from heliograph_broker.messaging.clients.deliveries import Deliveries, RedeliveryCounts
from heliograph_broker.messaging.clients.subscription_type import PARALLEL
from heliograph_broker.messaging.log.damaged import lost_range, received_from
from heliograph_broker.messaging.log.skipping import correct_counts, skip_range
from heliograph_broker.messaging.log.subscribed_topic import LogAcknowledgments, LogSubscription

if TYPE_CHECKING:
    from pyroaring import BitMap64

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
        """Count everything as acknowledged."""
        raise NotImplementedError

    def entry_acknowledged(self, offset: int) -> None:
        """An entry of the topic is acknowledged in full: so is the gap right after it."""
        raise NotImplementedError

    def acknowledged_up_to(self, offset: int) -> None:
        """All of the topic is acknowledged up to and including ``offset``, and the gap right after it."""
        raise NotImplementedError

    def acknowledge_trimmed(self, ledger_id: int, entry_id: int, remaining: int | None) -> None:
        """A client acknowledged an entry, or of its batch all but ``remaining``, which the topic has trimmed."""
        raise NotImplementedError

    def acknowledge_trimmed_up_to(self, ledger_id: int, entry_id: int, remaining: int | None) -> None:
        """A client acknowledged everything up to an id; of the batch it names only the indexes up to it."""
        raise NotImplementedError


class AckedSubscription(LogSubscription):
    """A subscription, as its acknowledgments and its expiry know it."""

    __slots__ = ()

    topic: StoredTopic
    acks: Acknowledgments
    dispatcher: AckObserver | None
    #: Its position in the compacted view, once a consumer asked for that.
    view: AckedView | None

    def offer_again(self, offsets: BitMap64) -> None:
        """Deliver entries after all that were withheld as expired."""
        raise NotImplementedError

    def notify_end(self) -> None:
        """Tell consumers that have acknowledged everything of a terminated topic that nothing more will come."""
        raise NotImplementedError


class Acknowledgments(LogAcknowledgments):
    """Acknowledged messages of a subscription, and deliveries that its consumers hold; the cursor is always exact."""

    __slots__ = (
        "_marked",
        "_oldest",
        "_subscription",
        "_topic",
        "cursor",
        "generation",
        "last_acked_ms",
        "last_mark_delete_ms",
        "messages_acked",
        "pending",
        "recorded_mark",
        "redelivery_counts",
        "skipped_entries",
        "skipped_messages",
        "unacked_messages",
    )

    pending: Deliveries

    def __init__(self, subscription: AckedSubscription, cursor: Cursor) -> None:
        self._subscription = subscription
        self._topic = subscription.topic
        self.cursor = cursor
        self.pending = Deliveries()
        self.redelivery_counts = RedeliveryCounts()
        self.generation = 0
        self.messages_acked = 0
        self.unacked_messages = 0
        #: Entries that could not be read or understood and were skipped, and their messages.
        self.skipped_entries = 0
        self.skipped_messages = 0
        self.last_acked_ms = 0
        self.last_mark_delete_ms = 0
        self._marked = cursor.mark_delete
        #: The mark-delete position in the record taken last: no trim point may be durable ahead of it.
        self.recorded_mark = cursor.mark_delete
        #: The oldest unacknowledged entry when last asked for, and its receive time.
        self._oldest: tuple[int, int] = (-1, -1)

    # -- statistics ---------------------------------------------------------------------------------------------

    @property
    def backlog_messages(self) -> int:
        """Unacknowledged messages, exactly; batch indexes acknowledged one by one count one by one."""
        return self._topic.log.total_messages - self.cursor.acked_messages

    @property
    def backlog_bytes(self) -> int:
        """Bytes of the entries not acknowledged in full."""
        return self._topic.log.total_bytes - self.cursor.acked_bytes

    def oldest_unacked_receive_ms(self) -> int:
        """Broker receive time (wall-clock ms) of the oldest unacknowledged entry, -1 if there is none."""
        offset = max(self.cursor.first_unacked(), self._topic.log.first_offset)
        if offset >= self._topic.log.end_offset:
            return -1
        if self._oldest[0] != offset:
            received = received_from(self._topic.log, offset)
            if received is None:
                return -1
            self._oldest = (offset, received)
        return self._oldest[1]

    def oldest_unacked_age_ms(self) -> int:
        """Age of the oldest unacknowledged entry by the broker's receive time, ms; -1 if there is none."""
        received = self.oldest_unacked_receive_ms()
        return -1 if received < 0 else max(0, self._topic.host.clock.now_ms() - received)

    def unacked_bits(self, offset: int, messages: int) -> int:
        """Return a bit for each unacknowledged message of the entry, bit 0 for a single message."""
        if self.cursor.is_acked(offset):
            return 0
        remaining = self.cursor.partial.get(offset)
        return (1 << messages) - 1 if remaining is None else remaining

    def _unacked_in(self, offset: int, messages: int) -> int:
        remaining = self.cursor.partial.get(offset)
        return messages if remaining is None else remaining.bit_count()

    def clock_moved(self, ms: int) -> None:
        """The broker's clock was moved by ``ms``."""
        self._oldest = (-1, -1)
        if self.last_mark_delete_ms:
            self.last_mark_delete_ms += ms

    # -- deliveries taken back ---------------------------------------------------------------------------------

    def take_back(self, consumer: Consumer, offsets: list[int] | None) -> list[tuple[int, int]]:
        """Take entries (all, or ``offsets``) from ``consumer``; return their offsets and key hashes, in order."""
        pending = self.pending
        taken: list[tuple[int, int]] = []
        for offset in list(consumer.held) if offsets is None else sorted(offsets):
            delivery = pending.get(offset)
            if delivery is not None and delivery.consumer is consumer:
                pending.settle(offset)
                messages = self._unacked_in(offset, delivery.messages)
                consumer.unacked -= messages
                self.unacked_messages -= messages
                taken.append((offset, delivery.key_hash))
        return taken

    def reset(self, mark_delete: int, total_messages: int, total_bytes: int) -> None:
        """Move the cursor to ``mark_delete`` by hand: nothing counts as delivered any more."""
        self.cursor.reset(mark_delete, total_messages, total_bytes)
        self.redelivery_counts.forget_all()
        self.forget_deliveries()

    def forget_deliveries(self) -> None:
        """Treat everything that consumers hold as not delivered."""
        self.pending.forget_all()
        self.unacked_messages = 0

    # -- acknowledgment ----------------------------------------------------------------------------------------

    def acknowledge(self, consumer: Consumer | None, ids: Iterable[AckId], done: Done | None) -> None:
        """Acknowledge single entries or batch indexes. ``done`` is called when that is durable.

        Ids of entries that are gone or were never stored are ignored, as a repeated ack is.
        """
        topic = self._topic
        unknown: list[tuple[int, int | None]] = []
        for ledger_id, entry_id, remaining in ids:
            offset = topic.log.offset_of(ledger_id, entry_id)
            if offset is None:
                view = self._subscription.view
                if view is not None:
                    view.acknowledge_trimmed(ledger_id, entry_id, remaining)
                continue
            delivery = self.pending.get(offset)
            if delivery is not None:
                self.acknowledge_entry(offset, delivery.messages, delivery.size, remaining)
                continue
            entry = topic.log.tail.get(offset)
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
            lost = lost_range(self._topic.log, offset, headers)
            if lost is not None:
                # A consumer that got it before it was lost is done with it; it cannot be delivered again.
                headers = self._pass_over(generation, offset, offset, lost[1]) or []
            if isinstance(headers, Exception):
                self._ack_unknown(unknown, done, PersistenceError(f"cannot read entry header: {headers}"))
                return
            if generation == self.generation and not self._subscription.closed:
                for entry in headers:
                    self.acknowledge_entry(entry.offset, entry.messages, entry.size, remaining)
            self._ack_unknown(unknown, done, refusal)

        self._topic.log.read_headers(offset, offset, found)

    def _pass_over(self, generation: int, first: int, last: int, reason: str) -> PersistenceError | None:
        """Skip lost entries, unless the cursor was moved since ``generation``; return why that failed."""
        if generation == self.generation and not self._subscription.closed:
            try:
                skip_range(self._subscription, first, last, reason)
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
        subscription = self._subscription
        dispatcher = subscription.dispatcher
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
                if dispatcher is not None:
                    dispatcher.acked(offset, delivery.key_hash)
        elif whole and dispatcher is not None:
            dispatcher.gone(offset)
        if whole:
            if self.redelivery_counts:
                self.redelivery_counts.forget(offset)
            if subscription.view is not None:
                subscription.view.entry_acknowledged(offset)

    def acknowledge_cumulative(self, consumer: Consumer, up_to: AckId, done: Done | None) -> None:
        """Acknowledge everything up to and including ``up_to``, of which the entry -1 is before the first of a ledger.

        Refused on Shared and Key_Shared, and beyond the last entry there is: nobody can have received that.
        """
        refusal = self._cumulative_refusal(up_to)
        if refusal is not None:
            if done is not None:
                done(refusal)
            return
        consumer.last_acked_ms = self.last_acked_ms = self._topic.host.clock.now_ms()
        view = self._subscription.view
        if view is not None:
            view.acknowledge_trimmed_up_to(*up_to)
        offset = self._topic.log.offset_at_or_after(up_to.ledger_id, up_to.entry_id)
        if self._topic.log.offset_of(up_to.ledger_id, up_to.entry_id) is None:
            # Trimmed meanwhile: everything below it that exists.
            self.acknowledge_up_to(offset - 1, done)
        elif up_to.remaining:
            self.acknowledge_up_to(offset - 1, done, then=partial(self.acknowledge, consumer, [up_to], done))
        else:
            self.acknowledge_up_to(offset, done)

    def _cumulative_refusal(self, up_to: AckId) -> BrokerError | None:
        sub_type = self._subscription.sub_type
        if sub_type in PARALLEL:
            return NotAllowed(f"Cumulative acknowledgment is not allowed on a {sub_type.label} subscription")
        if (up_to.ledger_id, up_to.entry_id) > self._topic.log.last_position():
            return PreconditionFailed(
                f"{up_to.ledger_id}:{up_to.entry_id} is not the id of a message of {self._topic.name}"
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
        last = min(offset, self._topic.log.end_offset - 1)
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
        subscription = self._subscription
        arrived = partial(self.acked, done) if then is None else then
        if offset <= cursor.mark_delete or offset < first:
            arrived()
            return
        generation = self.generation
        contiguous = cursor.is_contiguous()
        begin = offset if contiguous else max(first, cursor.mark_delete + 1, self._topic.log.first_offset)

        def found(headers: list[EntryCounts] | Exception) -> None:
            lost = lost_range(self._topic.log, begin, headers)
            if lost is not None and generation == self.generation and not subscription.closed:
                before = cursor.acked_messages
                failure = self._pass_over(generation, begin, min(lost[0], offset), lost[1])
                if failure is not None:
                    self._stop_acknowledging(str(failure), failed)
                    return
                if counted is not None:
                    counted(cursor.acked_messages - before)
                # If the last entry to be acknowledged is lost, the others are not acknowledged yet.
                self._acknowledge_from(first if contiguous else lost[0] + 1, offset, done, counted, failed, then)
                return
            if isinstance(headers, Exception) or not headers:
                self._stop_acknowledging(f"cannot read entry headers: {headers or 'none is stored'}", failed)
                return
            if generation != self.generation or subscription.closed:
                self.acked(done)
                return
            before = cursor.acked_messages
            if contiguous and cursor.is_contiguous():
                reached = headers[-1]
                self._drop_pending(reached.offset)
                self.messages_acked += cursor.advance(reached.offset, reached.total_messages, reached.total_bytes)
                if subscription.view is not None:
                    subscription.view.acknowledged_up_to(reached.offset)
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
            self._topic.log.read_headers(begin, offset, found)

    def _stop_acknowledging(self, reason: str, failed: Callable[[BrokerError], None] | None) -> None:
        """Report why the rest is not acknowledged. Acknowledgments of earlier steps stay."""
        self.acked(None)
        if failed is not None:
            failed(PersistenceError(reason))

    def _known_header(self, offset: int) -> EntryCounts | None:
        held = self.pending.get(offset)
        if held is not None:
            return EntryCounts(offset, held.messages, held.size, held.total_messages, held.total_bytes)
        entry = self._topic.log.tail.get(offset)
        if entry is not None:
            return EntryCounts(offset, entry.messages, len(entry.frame), entry.total_messages, entry.total_bytes)
        return None

    def _drop_pending(self, up_to: int) -> None:
        """Settle the deliveries that a cumulative move acknowledges."""
        self.redelivery_counts.forget_up_to(up_to)
        subscription = self._subscription
        dispatcher = subscription.dispatcher
        for offset, delivery in self.pending.take_up_to(up_to, subscription.consumers):
            messages = self._unacked_in(offset, delivery.messages)
            consumer = delivery.consumer
            consumer.unacked -= messages
            self.unacked_messages -= messages
            consumer.messages_acked += messages
            if dispatcher is not None:
                dispatcher.acked(offset, delivery.key_hash)
        if dispatcher is not None:
            dispatcher.gone_up_to(up_to)

    def acked(self, done: Done | None, now_ms: int | None = None) -> None:
        """After any change of the cursor: persist it, notify trimming, and dispatch, as the ack may allow more."""
        subscription = self._subscription
        if not subscription.closed:
            topic = self._topic
            cursor = self.cursor
            if cursor.estimated:
                correct_counts(topic.log, cursor, self.pending)
            if topic.terminated:
                subscription.notify_end()
            if cursor.mark_delete != self._marked:
                self._marked = cursor.mark_delete
                if self.redelivery_counts:
                    self.redelivery_counts.forget_up_to(self._marked)
                self.last_mark_delete_ms = topic.host.clock.now_ms() if now_ms is None else now_ms
            topic.cursor_moved(subscription, done)
            subscription.notify()
        elif done is not None:
            done(None)

    def count_skipped(self, entries: int, messages: int) -> None:
        self.skipped_entries += entries
        self.skipped_messages += messages

    def clear_backlog(self, done: Done) -> None:
        """Acknowledge everything there is now."""
        view = self._subscription.view
        if view is not None:
            view.clear()
        self.acknowledge_up_to(self._topic.log.end_offset - 1, done)

    def skip(self, messages: int, done: Done) -> None:
        """Acknowledge the oldest ``messages`` unacknowledged messages; of a batch its first ones if not all."""
        topic = self._topic
        generation = self.generation
        first = max(self.cursor.first_unacked(), topic.log.first_offset)
        if messages <= 0 or first >= topic.log.end_offset:
            self.acked(done)
            return

        def found(headers: list[EntryCounts] | Exception) -> None:
            left = messages
            lost = lost_range(topic.log, first, headers)
            if lost is not None:
                # They are the oldest messages, and nobody gets any of them.
                before = self.cursor.acked_messages
                headers = self._pass_over(generation, first, *lost) or []
                left = max(0, messages - (self.cursor.acked_messages - before))
                if left and generation == self.generation and self.cursor.is_acked(first):
                    self.skip(left, done)
                    return
            if isinstance(headers, Exception):
                # Entries that the steps before it have skipped stay skipped.
                self.acked(None)
                done(PersistenceError(f"cannot read entry headers: {headers}"))
                return
            if generation == self.generation and not self._subscription.closed:
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

        topic.log.read_headers(first, topic.log.end_offset - 1, found)

    def acknowledge_trimmed(self, offset: int, total_messages: int, total_bytes: int) -> None:
        """Entries up to ``offset`` were trimmed although this cursor, not a durable one, had not passed them."""
        cursor = self.cursor
        self._drop_pending(offset)
        if cursor.is_contiguous():
            cursor.advance(offset, total_messages, total_bytes)
        else:
            # A reader's acks are cumulative in practice; holes beyond the trim point count as unread again.
            cursor.reset(offset, total_messages, total_bytes)
