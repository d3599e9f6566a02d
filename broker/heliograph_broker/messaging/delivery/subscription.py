"""A subscription: a cursor, its consumers, and the dispatcher of the type they agreed on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from pyroaring import BitMap64

from heliograph_broker.clock import monotonic_ms
from heliograph_broker.messaging.base import records
from heliograph_broker.messaging.base.errors import BrokerError, ConsumerBusy, Done, NotAllowed, PersistenceError
from heliograph_broker.messaging.base.names import COMPACTION
from heliograph_broker.messaging.clients.consumer import AckId, Consumer
from heliograph_broker.messaging.clients.subscription_type import PARALLEL, SubscriptionType
from heliograph_broker.messaging.log.cursor import Cursor
from heliograph_broker.messaging.log.damaged import received_from
from heliograph_broker.messaging.log.retention import first_received_after
from heliograph_broker.messaging.log.skipping import skip_range
from heliograph_broker.messaging.policies.timing import note_delayed

from .compacted_view import CompactedView
from .dispatch_key_shared import KeySharedDispatcher
from .dispatch_shared import SharedDispatcher
from .dispatch_single import SingleActiveDispatcher
from .dispatcher import DispatchedSubscription, Dispatcher

if TYPE_CHECKING:
    from heliograph_broker.messaging.acknowledgment.stored_topic import StoredTopic
    from heliograph_broker.storage.base.entry import Entry

__all__ = ["AckId", "Subscription"]


class Subscription(DispatchedSubscription):
    """Delivers a topic's entries to its consumers and records, exactly, what they acknowledged.

    The type belongs to the connected consumers: with none it is undefined (None). A durable subscription's cursor
    is written to the store with the next group after an ack that wants a receipt, else within
    :data:`~heliograph_broker.messaging.log.record_set.FLUSH_MS`.
    """

    __slots__ = (
        "_oldest",
        "_seeks_under_way",
        "_waiting_for_seek",
        "created_ms",
        "dispatcher",
        "last_consumed_flow_ms",
        "last_used_ms",
        "max_unacked_messages",
        "max_unacked_per_consumer",
        "properties",
        "recorded_mark",
        "unacked_limit",
        "view",
    )

    def __init__(
        self,
        topic: StoredTopic,
        name: str,
        cursor: Cursor,
        *,
        durable: bool = True,
        properties: dict[str, str] | None = None,
        created_ms: int = 0,
    ) -> None:
        self.topic = topic
        record_key = records.cursor_key(str(topic.name), name)
        super().__init__(name, record_key, cursor, durable=durable, counts_for_backlog=name != COMPACTION)
        #: The mark-delete position in the record taken last: no trim point may be durable ahead of it.
        self.recorded_mark = cursor.mark_delete
        self.properties = properties or {}
        self.created_ms = created_ms
        self.dispatcher: Dispatcher | None = None
        self.max_unacked_per_consumer = topic.host.config.max_unacked_per_consumer
        self.max_unacked_messages = topic.host.config.max_unacked_per_subscription
        #: The part of the first that applies to the type its consumers have now, 0 for no limit.
        self.unacked_limit = 0
        self.last_consumed_flow_ms = 0
        self._seeks_under_way = 0
        self._waiting_for_seek: list[Callable[[], None]] = []
        self._oldest: tuple[int, int] = (-1, -1)
        #: Its position in the compacted view, once a consumer asked for that.
        self.view: CompactedView | None = None
        #: When a consumer last came or left or somebody moved it by hand, or it was restored or created; monotonic.
        self.last_used_ms = monotonic_ms(topic.host.clock)

    # -- statistics ---------------------------------------------------------------------------------------------

    @property
    def type(self) -> str | None:
        """Pulsar's name of the subscription type, None while no consumer is connected."""
        return None if self.sub_type is None else self.sub_type.label

    @property
    def consumers(self) -> list[Consumer]:
        dispatcher = self.dispatcher
        if isinstance(dispatcher, SingleActiveDispatcher | SharedDispatcher | KeySharedDispatcher):
            return dispatcher.consumers
        return []

    @property
    def backlog_messages(self) -> int:
        """Unacknowledged messages, exactly; batch indexes acknowledged one by one count one by one."""
        return self.topic.total_messages - self.cursor.acked_messages

    @property
    def backlog_bytes(self) -> int:
        """Bytes of the entries not acknowledged in full."""
        return self.topic.total_bytes - self.cursor.acked_bytes

    @property
    def expiring(self) -> bool:
        return self.expiry.running

    def letters_have_room(self) -> None:
        self.expiry.letters_have_room()

    def limit_unacked(self, per_consumer: int, per_subscription: int) -> None:
        """Set how many messages may be unacknowledged (0: any number): with Shared and Key_Shared, as in Pulsar.

        In order and by one consumer, a job that acknowledges once at its end has to get everything first.
        """
        self.max_unacked_per_consumer = per_consumer
        self.max_unacked_messages = per_subscription
        self._apply_unacked_limit()

    def _apply_unacked_limit(self) -> None:
        self.unacked_limit = self.max_unacked_per_consumer if self.sub_type in PARALLEL else 0

    @property
    def may_deliver(self) -> bool:
        """Whether consumers hold few enough messages to get more; Exclusive and Failover have no limit."""
        limit = self.max_unacked_messages
        return limit <= 0 or self.unacked_messages < limit or self.sub_type not in PARALLEL

    def oldest_unacked_receive_ms(self) -> int:
        """Broker receive time (wall-clock ms) of the oldest unacknowledged entry, -1 if there is none."""
        offset = max(self.cursor.first_unacked(), self.topic.first_offset)
        if offset >= self.topic.end_offset:
            return -1
        if self._oldest[0] != offset:
            received = received_from(self.topic, offset)
            if received is None:
                return -1
            self._oldest = (offset, received)
        return self._oldest[1]

    def clock_moved(self, ms: int) -> None:
        """The broker's clock was moved by ``ms``."""
        self._oldest = (-1, -1)
        self.expiry.restart()
        if self.last_mark_delete_ms:
            self.last_mark_delete_ms += ms

    def oldest_unacked_age_ms(self) -> int:
        """Age of the oldest unacknowledged entry by the broker's receive time, ms; -1 if there is none."""
        received = self.oldest_unacked_receive_ms()
        return -1 if received < 0 else max(0, self.topic.host.clock.now_ms() - received)

    # -- consumers -------------------------------------------------------------------------------------------

    def check_durability(self, *, durable: bool) -> None:
        """Whether who asks for a subscription of this name, durable or not, may have this one, as in Pulsar.

        A reader would move a durable cursor that others rely on, and a durable subscription must not end with a
        reader's last consumer. Raises :class:`NotAllowed`.
        """
        if durable != self.durable:
            which = "Durable" if self.durable else "NonDurable"
            raise NotAllowed(f"{which} subscription with the same name already exists: '{self.name}'")

    def add_consumer(self, consumer: Consumer, sub_type: SubscriptionType, *, sticky: bool = False) -> None:
        """Attach ``consumer``. Raises :class:`ConsumerBusy` or :class:`ConsumerAssignError`."""
        dispatcher = self.dispatcher
        if dispatcher is None or not self.consumers:
            dispatcher = self._make_dispatcher(sub_type, sticky, consumer.allow_out_of_order)
        elif self.sub_type is not sub_type:
            raise ConsumerBusy(
                f"Subscription is of different type. Active subscription type of '{self.type}' is different than the "
                f"connecting consumer's type '{sub_type.label}'."
            )
        elif isinstance(dispatcher, KeySharedDispatcher) and (
            dispatcher.sticky != sticky or dispatcher.allow_out_of_order != consumer.allow_out_of_order
        ):
            raise ConsumerBusy(f"Subscription '{self.name}' has a different Key_Shared policy")
        view = self.view
        if consumer.read_compacted and view is None:
            self.view = CompactedView(self)
        try:
            dispatcher.add(consumer)
        except BrokerError:
            self.view = view
            raise
        self.used()
        self.dispatcher = dispatcher
        self.sub_type = sub_type
        self._apply_unacked_limit()
        self.notify_end()

    def _make_dispatcher(self, sub_type: SubscriptionType, sticky: bool, allow_out_of_order: bool) -> Dispatcher:
        self.pending.forget_all()
        self.unacked_messages = 0
        if sub_type is SubscriptionType.SHARED:
            return SharedDispatcher(self)
        if sub_type is SubscriptionType.KEY_SHARED:
            return KeySharedDispatcher(self, sticky=sticky, allow_out_of_order=allow_out_of_order)
        return SingleActiveDispatcher(self, failover=sub_type is SubscriptionType.FAILOVER)

    def remove_consumer(self, consumer: Consumer, *, returns: bool = False) -> None:
        """Detach ``consumer``; what it holds goes to the others.

        A subscription that is not durable ends with its last consumer, unless that ``returns`` at once (seek).
        """
        if self.dispatcher is None or consumer not in self.consumers:
            return
        self.used()
        self.dispatcher.remove(consumer)
        if not self.consumers:
            self.dispatcher.rewind()
            self.dispatcher = None
            self.sub_type = None
            self.pending.forget_all()
            self.unacked_messages = 0
            self.expiry.give_back_all()
            if not self.durable and not returns:
                self.topic.drop_subscription(self)

    def skip_damaged(self, first: int, last: int, reason: str) -> None:
        skip_range(self, first, last, reason)

    def persist_cursor(self, done: Done | None) -> None:
        self.topic.cursor_moved(self, done)

    def used(self) -> None:
        """Note that somebody uses the subscription, and with it the topic."""
        self.topic.used()
        self.last_used_ms = self.topic.last_used_ms

    def disconnect_all(self, *, keep: bool = False) -> None:
        """Ask every consumer to reconnect; ``keep`` a subscription that is not durable for them."""
        for consumer in list(self.consumers):
            consumer.sink.send_close_consumer(consumer)
            self.remove_consumer(consumer, returns=keep)

    def flow(self, consumer: Consumer, permits: int) -> None:
        """The client can take ``permits`` more messages."""
        consumer.permits += permits
        now = self.topic.host.clock.now_ms()
        consumer.last_flow_ms = now
        self.last_consumed_flow_ms = now
        if not consumer.first_flow_ms:
            consumer.first_flow_ms = now
        self.notify()

    def notify(self) -> None:
        """Something changed that may allow a delivery."""
        if self.dispatcher is not None:
            self.dispatcher.notify()

    def withholds(self, entry: Entry) -> bool:
        """Whether an entry about to be delivered has expired. Readers see what is stored, expired or not."""
        return self.durable and self.expiry.withholds(entry, self.topic.host.clock.now_ms())

    def offer_again(self, offsets: BitMap64) -> None:
        """Deliver entries after all that :meth:`withholds` kept back."""
        if self.dispatcher is not None:
            self.dispatcher.replay.update(offsets)

    def delays_over(self, due: BitMap64) -> None:
        """The time of delayed entries has come."""
        if self.dispatcher is not None:
            self.dispatcher.delays_over(due)

    def must_wait(self, entry: Entry) -> bool:
        """Whether a delayed entry is not deliverable yet."""
        topic = self.topic
        if not topic.delayed_delivery or entry.deliver_at_ms <= topic.host.clock.now_ms():
            return False
        # Usually the topic knows; not while it still looks for such entries after a start.
        note_delayed(topic, entry.offset, entry.deliver_at_ms)
        return True

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
                self.expiry.give_back(offset)
        return taken

    def forget_deliveries(self, consumer: Consumer) -> None:
        """Treat what the (only) active consumer holds as not delivered."""
        self.pending.forget_all()
        self.expiry.give_back_all()
        consumer.unacked = 0
        self.unacked_messages = 0

    def redeliver(self, consumer: Consumer, positions: Iterable[tuple[int, int]] | None, epoch: int | None) -> None:
        """REDELIVER_UNACKNOWLEDGED_MESSAGES: all of ``consumer``'s, or the given (ledger id, entry id)s."""
        if self.dispatcher is None:
            return
        if epoch is not None:
            consumer.epoch = epoch
        offsets: list[int] | None = None
        if positions is not None:
            found = (self.topic.offset_of(ledger_id, entry_id) for ledger_id, entry_id in positions)
            offsets = [offset for offset in found if offset is not None]
        self.dispatcher.redeliver(consumer, offsets)

    def notify_end(self) -> None:
        """Tell consumers that have acknowledged everything of a terminated topic that nothing more will come."""
        if self.topic.terminated and self.backlog_messages == 0:
            for consumer in self.consumers:
                if not consumer.knows_end:
                    consumer.knows_end = True
                    consumer.sink.send_end_of_topic(consumer)

    def expire_older_than(self, age_ms: int, done: Done) -> None:
        """Let everything expire that the broker received more than ``age_ms`` ago."""
        now_ms = self.topic.host.clock.now_ms()
        first = max(self.cursor.first_unacked(), self.topic.first_offset)
        self._expire_below(first_received_after(self.topic, first, now_ms - age_ms - 1), done)

    def expire_up_to(self, ledger_id: int, entry_id: int, done: Done) -> None:
        """Let everything expire up to and including a position."""
        self._expire_below(self.topic.offset_at_or_after(ledger_id, entry_id + 1), done)

    def _expire_below(self, offset: int, done: Done) -> None:
        if self.dead_letter_topic is None:
            self.acknowledge_up_to(offset - 1, done, counted=self.count_expired)
            return
        offsets = BitMap64()
        offsets.add_range(self.cursor.first_unacked(), max(offset, self.cursor.first_unacked()))
        self.expiry.force(offsets, self.topic.host.clock.now_ms(), done)

    # -- moving by hand ----------------------------------------------------------------------------------------

    def seek(self, offset: int, remaining: int | None, done: Done) -> None:
        """Make ``offset`` the first unacknowledged entry; ``remaining`` are the batch indexes of it still to deliver.

        Connected consumers are asked to reconnect first, so that nothing of the old position reaches them later.
        """
        topic = self.topic
        offset = min(max(offset, topic.first_offset), topic.end_offset)
        self.last_used_ms = monotonic_ms(topic.host.clock)
        self._seeks_under_way += 1
        # A reader that seeks by time subscribes again without saying where: its cursor must outlive the reconnection.
        self.disconnect_all(keep=True)
        if not self.durable:
            topic.watch_inactivity()
        self.generation += 1
        if self.view is not None:
            self.view.owe(-1)
        generation = self.generation

        def finished(error: BrokerError | None) -> None:
            self._seeks_under_way -= 1
            self.last_used_ms = monotonic_ms(topic.host.clock)
            done(error)
            if not self._seeks_under_way:
                waiting, self._waiting_for_seek = self._waiting_for_seek, []
                for callback in waiting:
                    callback()

        def apply(result: tuple[int, int] | Exception) -> None:
            if isinstance(result, Exception):
                finished(PersistenceError(f"cannot read entry header: {result}"))
                return
            if generation == self.generation and not self.closed:
                if offset < topic.first_offset:
                    # Trimmed meanwhile: behind the trim point a cursor would never move on.
                    self.cursor.reset(topic.first_offset - 1, topic.trimmed_messages, topic.trimmed_bytes)
                else:
                    self.cursor.reset(offset - 1, *result)
                self.expiry.restart()
                topic.moved_back()
                self.redelivery_counts.forget_all()
                self.pending.forget_all()
                self.unacked_messages = 0
                if self.dispatcher is not None:
                    self.dispatcher.rewind()
                if remaining is not None:
                    self.acknowledge(None, [AckId(*topic.position(offset), remaining)], finished)
                    return
            self.topic.cursor_moved(self, finished)
            self.notify()

        topic.totals_before(offset, apply)

    @property
    def seeking(self) -> bool:
        """Whether a seek is under way."""
        return self._seeks_under_way > 0

    def waits_for_seek(self, callback: Callable[[], None]) -> bool:
        """Whether a seek is under way, and if so call ``callback`` when it is done.

        A consumer that came back earlier would drop the first messages from the new position: clients empty their
        queues when the seek is confirmed.
        """
        if self._seeks_under_way:
            self._waiting_for_seek.append(callback)
            return True
        return False

    # -- persistence -------------------------------------------------------------------------------------------

    def encode_record(self, version: int) -> bytes:
        """Return what is kept of a durable subscription."""
        record = self.cursor.to_record(self.properties, self.created_ms)
        self.recorded_mark = self.cursor.mark_delete
        if self.view is not None:
            record.owed_from = self.view.owed_from
        record.version = version
        return records.encode(record)
