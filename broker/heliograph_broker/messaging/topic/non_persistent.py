"""Non-persistent topics: an entry goes to consumers that have permits at that moment, and is then forgotten."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Literal

from heliograph_api.values.names import TopicName

from heliograph_broker.clock import monotonic_ms
from heliograph_broker.messaging.base.errors import (
    BrokerError,
    Conflict,
    ConsumerBusy,
    Done,
    NotAllowed,
)
from heliograph_broker.messaging.base.names import check_name
from heliograph_broker.messaging.clients.active_consumer import choose_active
from heliograph_broker.messaging.clients.consumer import AckId, AckTarget, Consumer, SubscriptionBase
from heliograph_broker.messaging.clients.key_selector import KeySelector, check_mode, selector_for
from heliograph_broker.messaging.clients.producer import Producer, ProducerRegistry
from heliograph_broker.messaging.clients.sent_counts import SentCounts
from heliograph_broker.messaging.clients.subscription_type import PARALLEL, SINGLE_ACTIVE, SubscriptionType
from heliograph_broker.messaging.messages.key_hash import WHOLE, dispatch_hash, sticky_hash
from heliograph_broker.storage.base.entry import Entry

from .base_topic import BaseTopic
from .topic_statistics import TopicStatistics

if TYPE_CHECKING:
    from heliograph_api.protocol import wire_pb2 as wire

    from heliograph_broker.messaging.base.log_host import LogHost


class _NoAcknowledgments(AckTarget):
    """The acknowledgments of subscriptions that keep nothing: they mean nothing, and there is no backlog."""

    __slots__ = ()

    backlog_messages = 0
    backlog_bytes = 0
    unacked_messages = 0
    last_mark_delete_ms = 0

    def oldest_unacked_age_ms(self) -> int:
        return -1

    def acknowledge(self, consumer: Consumer | None, ids: Iterable[AckId], done: Done | None) -> None:
        if done is not None:
            done(None)

    def acknowledge_cumulative(self, consumer: Consumer, up_to: AckId, done: Done | None) -> None:
        error: BrokerError | None = None
        subscription = consumer.subscription
        if subscription.sub_type in PARALLEL:
            error = NotAllowed(f"Cumulative acknowledgment is not allowed on a {subscription.type} subscription")
        if done is not None:
            done(error)


class NonPersistentSubscription(SubscriptionBase):
    """Delivery without a cursor: no backlog, acks mean nothing, what finds no permit is dropped and counted."""

    __slots__ = (
        "_selector",
        "_sticky",
        "_turn",
        "active",
        "consumers",
        "dropped",
        "name",
        "sent",
        "sub_type",
        "topic",
        "unacked_limit",
    )

    topic: NonPersistentTopic
    persistent: Literal[False] = False
    durable = False
    #: It keeps nothing, but its consumers use the topic.
    counts_for_backlog = True
    may_deliver = True
    dispatcher = None
    acks = _NoAcknowledgments()
    dispatch_gate = None

    def __init__(self, topic: NonPersistentTopic, name: str) -> None:
        self.topic = topic
        self.name = name
        self.consumers: list[Consumer] = []
        self.sub_type: SubscriptionType | None = None
        self.active: Consumer | None = None
        #: Nothing is acknowledged, so nothing counts.
        self.unacked_limit = 0
        self.sent = SentCounts()
        self.dropped = 0
        self._turn = 0
        self._selector: KeySelector | None = None
        self._sticky = False

    def waits_for_seek(self, callback: Callable[[], None]) -> bool:
        """Whether a seek is under way, which never is."""
        return False

    def check_durability(self, *, durable: bool) -> None:
        """Accept readers and consumers alike."""

    def counters(self) -> tuple[int, ...]:
        """As :meth:`.subscription.Subscription.counters`."""
        return self.sent.msg_out, self.sent.bytes_out, 0, 0, 0, self.dropped, 0

    @property
    def type(self) -> str | None:
        return None if self.sub_type is None else self.sub_type.label

    def add_consumer(self, consumer: Consumer, sub_type: SubscriptionType) -> None:
        """Attach ``consumer``. Raises :class:`ConsumerBusy` or :class:`ConsumerAssignError`."""
        selector = self._selector
        if not self.consumers:
            selector = None
            if sub_type is SubscriptionType.KEY_SHARED:
                hashing = self.topic.host.config.subscription_key_shared_use_consistent_hashing
                selector = selector_for(consumer.key_shared, consistent_hashing=hashing)
        elif self.sub_type is not sub_type:
            raise ConsumerBusy(f"Subscription '{self.name}' is of type {self.type}")
        elif sub_type is SubscriptionType.EXCLUSIVE:
            raise ConsumerBusy("Exclusive consumer is already connected")
        elif selector is not None:
            check_mode(consumer, sticky=self._sticky)
        if selector is not None:
            selector.add(consumer)
        self.sub_type = sub_type
        self._selector = selector
        self._sticky = consumer.key_shared.sticky
        self.consumers.append(consumer)
        self.topic.used()
        if not self._elect() and sub_type is SubscriptionType.FAILOVER:
            consumer.active = False
            consumer.sink.send_active_change(consumer, False)

    def remove_consumer(self, consumer: Consumer) -> None:
        """Detach ``consumer``; a subscription without consumers ends."""
        if consumer not in self.consumers:
            return
        self.consumers.remove(consumer)
        self.topic.used()
        if self._selector is not None:
            self._selector.remove(consumer)
        self._elect()
        if not self.consumers:
            self.sub_type = None
            self.topic.subscriptions.pop(self.name, None)
            self.topic.subscriptions_changed_ms = self.topic.last_used_ms

    def _elect(self) -> bool:
        """Make the right consumer the active one, where one gets all; return whether that changed anything."""
        single = self.sub_type in SINGLE_ACTIVE
        chosen = choose_active(self.consumers, self.topic.name.partition) if single else None
        if chosen is self.active:
            return False
        self.active = chosen
        if self.sub_type is SubscriptionType.FAILOVER:
            for consumer in self.consumers:
                consumer.active = consumer is chosen
                consumer.sink.send_active_change(consumer, consumer.active)
        return True

    def disconnect_all(self) -> None:
        for consumer in list(self.consumers):
            consumer.sink.send_close_consumer(consumer)
            self.remove_consumer(consumer)

    def flow(self, consumer: Consumer, permits: int) -> None:
        consumer.permits += permits

    def notify(self) -> None:
        """Do nothing: no message waits here."""

    def offer(self, entry: Entry) -> None:
        """Send ``entry`` to the consumer it is for, or drop it."""
        consumer = self._choose(entry)
        if consumer is None or not consumer.ready:
            self.dropped += entry.messages
            return
        consumer.permits -= entry.messages
        consumer.msg_out += entry.messages
        consumer.bytes_out += len(entry.frame)
        consumer.last_consumed_ms = self.sent.last_consumed_ms = entry.receive_ms
        self.sent.msg_out += entry.messages
        self.sent.bytes_out += len(entry.frame)
        consumer.sink.send_message(consumer, entry, 0, None)

    def _choose(self, entry: Entry) -> Consumer | None:
        if self._selector is not None:
            key_hash = entry.key_hash
            if key_hash < WHOLE:
                config = self.topic.host.config
                key_hash = dispatch_hash(entry, spread_keyless=config.subscription_key_shared_spread_keyless)
            return self._selector.select(key_hash)
        if self.sub_type is SubscriptionType.SHARED:
            for _ in range(len(self.consumers)):
                self._turn = (self._turn + 1) % len(self.consumers)
                if self.consumers[self._turn].ready:
                    return self.consumers[self._turn]
            return None
        return self.active

    def redeliver(self, consumer: Consumer, positions: Iterable[tuple[int, int]] | None, epoch: int | None) -> None:
        """Do nothing: no message is kept that could be redelivered."""
        if epoch is not None:
            consumer.epoch = epoch

    def seek(self, offset: int, remaining: int | None, done: Done) -> None:
        done(NotAllowed("Seek is not possible on a non-persistent topic"))


class NonPersistentTopic(BaseTopic[NonPersistentSubscription]):
    """A topic that lives in memory only. See the module."""

    __slots__ = ("_entry_id",)

    persistent: Literal[False] = False
    terminated = False
    deduplication = None

    def __init__(self, host: LogHost, name: TopicName) -> None:
        self.host = host
        super().__init__(name, host.clock.now_ms(), TopicStatistics())
        self._entry_id = 0

    def publish(
        self,
        producer: Producer,
        sequence_id: int,
        highest_sequence_id: int,
        metadata: wire.MessageMetadata,
        frame: bytes,
    ) -> None:
        """Give the receipt at once and hand the entry to every subscription."""
        now = self.host.clock.now_ms()
        messages = metadata.num_messages_in_batch
        statistics = self.statistics
        statistics.msg_in += messages
        statistics.bytes_in += len(frame)
        producer.msg_in += messages
        producer.bytes_in += len(frame)
        statistics.last_publish_ms = now
        entry = Entry(
            0, self._entry_id, now, metadata.publish_time, 0, -1, messages, sticky_hash(metadata), 0, 0, frame
        )
        self._entry_id += 1
        producer.sink.send_receipts(producer, [(sequence_id, highest_sequence_id, -1, -1)])
        for subscription in list(self.subscriptions.values()):
            subscription.offer(entry)
        if self.limits.publish_limit is not None:
            self.limits.publish_limit.published(messages, len(frame))

    def create_subscription(self, name: str) -> NonPersistentSubscription:
        """Create a subscription. Raises :class:`Conflict` if the name is taken."""
        if name in self.subscriptions:
            raise Conflict("Subscription already exists for topic")
        check_name(name)
        subscription = self.subscriptions[name] = NonPersistentSubscription(self, name)
        self.subscriptions_changed_ms = monotonic_ms(self.host.clock)
        return subscription

    def delete_subscription(self, name: str, force: bool = False, done: Done | None = None) -> None:
        self.disconnect_consumers(self.subscription(name), force=force)
        self.subscriptions.pop(name, None)
        if done is not None:
            done(None)

    def close_producers(self) -> None:
        super().close_producers()
        # Nothing is kept of an epoch either.
        self.producer_registry = ProducerRegistry()

    def delete(self) -> None:
        self.subscriptions.clear()
