"""A subscription: a cursor, its consumers, and the dispatcher of the type they agreed on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Literal

from heliograph_broker.clock import monotonic_ms
from heliograph_broker.messaging.acknowledgment.acknowledgment import Acknowledgments
from heliograph_broker.messaging.base import records
from heliograph_broker.messaging.base.errors import BrokerError, ConsumerBusy, Done, NotAllowed, PersistenceError
from heliograph_broker.messaging.base.names import COMPACTION
from heliograph_broker.messaging.clients.consumer import AckId, Consumer, KeySharedPolicy
from heliograph_broker.messaging.clients.key_selector import check_mode
from heliograph_broker.messaging.clients.sent_counts import SentCounts
from heliograph_broker.messaging.clients.subscription_type import PARALLEL, SubscriptionType
from heliograph_broker.messaging.policies.expiry import Expiry
from heliograph_broker.messaging.policies.time_index import note_delayed

from .compacted_view import CompactedView
from .dispatch_key_shared import KeySharedDispatcher
from .dispatch_shared import SharedDispatcher
from .dispatch_single import SingleActiveDispatcher
from .dispatcher import DispatchedSubscription, Dispatcher

if TYPE_CHECKING:
    from pyroaring import BitMap64

    from heliograph_broker.messaging.acknowledgment.stored_topic import StoredTopic
    from heliograph_broker.messaging.log.cursor import Cursor
    from heliograph_broker.messaging.policies.rate_limits import DispatchGate
    from heliograph_broker.storage.base.entry import Entry

__all__ = ["AckId", "Subscription"]


class _Seeks:
    """The seeks of a subscription that are under way, and the callbacks that wait for the last of them."""

    __slots__ = ("under_way", "waiting")

    def __init__(self) -> None:
        self.under_way = 0
        self.waiting: list[Callable[[], None]] = []


class Subscription(DispatchedSubscription):
    """Delivers a topic's entries to its consumers and records their acknowledgments exactly.

    The type belongs to the connected consumers: with none it is undefined (None). A durable subscription's cursor
    is written to the store with the next group after an ack that wants a receipt, else within
    :data:`~heliograph_broker.messaging.log.record_set.FLUSH_MS`.
    """

    __slots__ = (
        "_seeks",
        "acks",
        "closed",
        "counts_for_backlog",
        "created_ms",
        "dispatch_gate",
        "dispatcher",
        "durable",
        "expiry",
        "last_consumed_flow_ms",
        "last_used_ms",
        "max_unacked_messages",
        "max_unacked_per_consumer",
        "name",
        "properties",
        "record_key",
        "sent",
        "sub_type",
        "topic",
        "unacked_limit",
        "view",
    )

    persistent: Literal[True] = True

    acks: Acknowledgments
    dispatcher: Dispatcher | None
    view: CompactedView | None

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
        self.name = name
        self.record_key = records.cursor_key(str(topic.name), name)
        self.durable = durable
        self.counts_for_backlog = name != COMPACTION
        self.closed = False
        self.properties = properties or {}
        self.created_ms = created_ms
        self.acks = Acknowledgments(self, cursor)
        self.expiry = Expiry(self)
        self.sent = SentCounts()
        self.sub_type: SubscriptionType | None = None
        self.dispatcher = None
        self.dispatch_gate: DispatchGate | None = None
        self.view = None
        self.max_unacked_per_consumer = topic.host.config.max_unacked_per_consumer
        self.max_unacked_messages = topic.host.config.max_unacked_per_subscription
        #: The part of the first that applies to the type its consumers have now, 0 for no limit.
        self.unacked_limit = 0
        self.last_consumed_flow_ms = 0
        #: When a consumer last came or left or somebody moved it by hand, or it was restored or created; monotonic.
        self.last_used_ms = monotonic_ms(topic.host.clock)
        self._seeks: _Seeks | None = None

    # -- statistics ---------------------------------------------------------------------------------------------

    def counters(self) -> tuple[int, ...]:
        """Return messages out, bytes out, redelivered, acknowledged, expired, dropped, entries out, since the start."""
        sent = self.sent
        return (
            sent.msg_out,
            sent.bytes_out,
            sent.msg_redelivered,
            self.acks.messages_acked,
            self.expiry.msg_expired,
            0,
            sent.entries_out,
        )

    @property
    def type(self) -> str | None:
        """Pulsar's name of the subscription type, None while no consumer is connected."""
        return None if self.sub_type is None else self.sub_type.label

    @property
    def consumers(self) -> list[Consumer]:
        dispatcher = self.dispatcher
        return [] if dispatcher is None else dispatcher.consumers

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
        return limit <= 0 or self.acks.unacked_messages < limit or self.sub_type not in PARALLEL

    def clock_moved(self, ms: int) -> None:
        """The broker's clock was moved by ``ms``."""
        self.acks.clock_moved(ms)
        self.expiry.restart()

    # -- consumers -------------------------------------------------------------------------------------------

    def check_durability(self, *, durable: bool) -> None:
        """Whether who asks for a subscription of this name, durable or not, may have this one, as in Pulsar.

        A reader would move a durable cursor that others rely on, and a durable subscription must not end with a
        reader's last consumer. Raises :class:`NotAllowed`.
        """
        if durable != self.durable:
            which = "Durable" if self.durable else "NonDurable"
            raise NotAllowed(f"{which} subscription with the same name already exists: '{self.name}'")

    def add_consumer(self, consumer: Consumer, sub_type: SubscriptionType) -> None:
        """Attach ``consumer``. Raises :class:`ConsumerBusy` or :class:`ConsumerAssignError`."""
        dispatcher = self.dispatcher
        if dispatcher is None or not self.consumers:
            dispatcher = self._make_dispatcher(sub_type, consumer.key_shared)
        elif self.sub_type is not sub_type:
            raise ConsumerBusy(
                f"Subscription is of different type. Active subscription type of '{self.type}' is different than the "
                f"connecting consumer's type '{sub_type.label}'."
            )
        elif isinstance(dispatcher, KeySharedDispatcher):
            check_mode(consumer, sticky=dispatcher.sticky)
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

    def _make_dispatcher(self, sub_type: SubscriptionType, policy: KeySharedPolicy) -> Dispatcher:
        self.acks.forget_deliveries()
        if sub_type is SubscriptionType.SHARED:
            return SharedDispatcher(self)
        if sub_type is SubscriptionType.KEY_SHARED:
            return KeySharedDispatcher(self, policy)
        return SingleActiveDispatcher(self, failover=sub_type is SubscriptionType.FAILOVER)

    def remove_consumer(self, consumer: Consumer, *, returns: bool = False) -> None:
        """Detach ``consumer`` and requeue its deliveries.

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
            self.acks.forget_deliveries()
            self.expiry.give_back_all()
            if not self.durable and not returns:
                self.topic.drop_subscription(self)

    def close(self) -> None:
        self.closed = True

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
        """Whether an entry about to be delivered has expired. Readers see all stored messages, expired or not."""
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
        if not topic.timing.delayed_delivery or entry.deliver_at_ms <= topic.host.clock.now_ms():
            return False
        # Usually the topic knows; not while it still looks for such entries after a start.
        note_delayed(topic, entry.offset, entry.deliver_at_ms)
        return True

    # -- deliveries taken back ---------------------------------------------------------------------------------

    def take_back(self, consumer: Consumer, offsets: list[int] | None) -> list[tuple[int, int]]:
        """Take entries (all, or ``offsets``) from ``consumer``; return their offsets and key hashes, in order."""
        taken = self.acks.take_back(consumer, offsets)
        for offset, _ in taken:
            self.expiry.give_back(offset)
        return taken

    def forget_deliveries(self, consumer: Consumer) -> None:
        """Treat the deliveries of the (only) active consumer as not delivered."""
        self.acks.forget_deliveries()
        self.expiry.give_back_all()
        consumer.unacked = 0

    def redeliver(self, consumer: Consumer, positions: Iterable[tuple[int, int]] | None, epoch: int | None) -> None:
        """REDELIVER_UNACKNOWLEDGED_MESSAGES: all of ``consumer``'s, or the given (ledger id, entry id)s."""
        if self.dispatcher is None:
            return
        if epoch is not None:
            consumer.epoch = epoch
        offsets: list[int] | None = None
        if positions is not None:
            found = (self.topic.log.offset_of(ledger_id, entry_id) for ledger_id, entry_id in positions)
            offsets = [offset for offset in found if offset is not None]
        self.dispatcher.redeliver(consumer, offsets)

    def notify_end(self) -> None:
        """Tell consumers that have acknowledged everything of a terminated topic that nothing more will come."""
        if self.topic.terminated and self.acks.backlog_messages == 0:
            for consumer in self.consumers:
                if not consumer.knows_end:
                    consumer.knows_end = True
                    consumer.sink.send_end_of_topic(consumer)

    # -- moving by hand ----------------------------------------------------------------------------------------

    def seek(self, offset: int, remaining: int | None, done: Done) -> None:
        """Make ``offset`` the first unacknowledged entry; ``remaining`` are the batch indexes of it still to deliver.

        Connected consumers are asked to reconnect first, so that nothing of the old position reaches them later.
        """
        topic = self.topic
        acks = self.acks
        offset = min(max(offset, topic.log.first_offset), topic.log.end_offset)
        self.last_used_ms = monotonic_ms(topic.host.clock)
        seeks = self._seeks
        if seeks is None:
            seeks = self._seeks = _Seeks()
        seeks.under_way += 1
        # A reader that seeks by time subscribes again without saying where: its cursor must outlive the reconnection.
        self.disconnect_all(keep=True)
        if not self.durable:
            topic.watch_inactivity()
        acks.generation += 1
        if self.view is not None:
            self.view.owe(-1)
        generation = acks.generation

        def finished(error: BrokerError | None) -> None:
            seeks.under_way -= 1
            self.last_used_ms = monotonic_ms(topic.host.clock)
            done(error)
            if not seeks.under_way:
                if self._seeks is seeks:
                    self._seeks = None
                waiting, seeks.waiting = seeks.waiting, []
                for callback in waiting:
                    callback()

        def apply(result: tuple[int, int] | Exception) -> None:
            if isinstance(result, Exception):
                finished(PersistenceError(f"cannot read entry header: {result}"))
                return
            if generation == acks.generation and not self.closed:
                if offset < topic.log.first_offset:
                    # Trimmed meanwhile: behind the trim point a cursor would never move on.
                    acks.reset(topic.log.first_offset - 1, topic.log.trimmed_messages, topic.log.trimmed_bytes)
                else:
                    acks.reset(offset - 1, *result)
                self.expiry.restart()
                topic.moved_back()
                if self.dispatcher is not None:
                    self.dispatcher.rewind()
                if remaining is not None:
                    acks.acknowledge(None, [AckId(*topic.log.position(offset), remaining)], finished)
                    return
            topic.cursor_moved(self, finished)
            self.notify()

        topic.log.totals_before(offset, apply)

    @property
    def seeking(self) -> bool:
        """Whether a seek is under way."""
        return self._seeks is not None and self._seeks.under_way > 0

    def waits_for_seek(self, callback: Callable[[], None]) -> bool:
        """Whether a seek is under way, and if so call ``callback`` when it is done.

        A consumer that came back earlier would drop the first messages from the new position: clients empty their
        queues when the seek is confirmed.
        """
        if self._seeks is not None and self._seeks.under_way:
            self._seeks.waiting.append(callback)
            return True
        return False

    # -- persistence -------------------------------------------------------------------------------------------

    def encode_record(self, version: int) -> bytes:
        """Return the record of a durable subscription."""
        cursor = self.acks.cursor
        record = cursor.to_record(self.properties, self.created_ms)
        self.acks.recorded_mark = cursor.mark_delete
        if self.view is not None:
            record.owed_from = self.view.owed_from
        record.version = version
        return records.encode(record)
