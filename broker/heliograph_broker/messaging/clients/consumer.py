"""A consumer attached to a subscription, as the core sees it; its connection is a sink the server provides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from pyroaring import BitMap64

from .client_info import UNKNOWN_CLIENT, ClientInfo
from .client_topic import ClientTopic

if TYPE_CHECKING:
    from heliograph_broker.messaging.base.errors import Done
    from heliograph_broker.messaging.base.log_host import LogHost
    from heliograph_broker.storage.base.entry import Entry

    from .sent_counts import SentCounts
    from .subscription_type import SubscriptionType


class ConsumerSink(Protocol):
    """The connection of a consumer. Every method only queues bytes; none blocks."""

    writable: bool
    #: When it ceased to be writable last, wall-clock ms.
    unwritable_since_ms: int
    #: When the dispatch rate of its role has room again, wall-clock ms; 0: it has.
    held_until_ms: int

    def send_message(self, consumer: Consumer, entry: Entry, redelivery_count: int, remaining: int | None) -> None:
        """Send a MESSAGE; ``remaining`` has a bit for each unacknowledged index of a partly acknowledged batch."""

    def send_active_change(self, consumer: Consumer, active: bool) -> None:
        """Send ACTIVE_CONSUMER_CHANGE."""

    def send_close_consumer(self, consumer: Consumer) -> None:
        """Ask the client to reconnect this consumer (CLOSE_CONSUMER) and forget it."""

    def send_end_of_topic(self, consumer: Consumer) -> None:
        """Send REACHED_END_OF_TOPIC."""


class KeyRange(NamedTuple):
    """Hash slots ``start..end``, both included."""

    start: int
    end: int


class KeySharedPolicy(NamedTuple):
    """The terms on which a consumer shares the keys of a Key_Shared subscription."""

    #: Whether it declares its ``ranges`` itself; else the broker divides the slots.
    sticky: bool = False
    ranges: tuple[KeyRange, ...] = ()
    allow_out_of_order: bool = False


AUTO_SPLIT: Final = KeySharedPolicy()


class AckId(NamedTuple):
    """One message id of an ACK; ``remaining`` are the unacknowledged bits of its batch, None for the whole entry."""

    ledger_id: int
    entry_id: int
    remaining: int | None = None


class ConsumedTopic(ClientTopic):
    """A topic, persistent or not, as its consumers know it."""

    __slots__ = ()

    host: LogHost
    subscriptions: Mapping[str, SubscriptionBase]

    def delete_subscription(self, name: str, force: bool = False, done: Done | None = None) -> None:
        """Delete a subscription. Raises if it is unknown, or has consumers and not ``force``."""
        raise NotImplementedError


class AckTarget:
    """Receives the acknowledgments of a subscription's consumers."""

    __slots__ = ()

    #: When the mark-delete position last moved (wall-clock ms), 0 if it never did.
    last_mark_delete_ms: int

    #: Messages delivered to connected consumers and not acknowledged.
    unacked_messages: int

    @property
    def backlog_messages(self) -> int:
        """Messages that are not acknowledged."""
        raise NotImplementedError

    @property
    def backlog_bytes(self) -> int:
        """Bytes of the entries not acknowledged in full."""
        raise NotImplementedError

    def oldest_unacked_age_ms(self) -> int:
        """Age of the oldest unacknowledged entry by the broker's receive time, ms; -1 if there is none."""
        raise NotImplementedError

    def acknowledge(self, consumer: Consumer | None, ids: Iterable[AckId], done: Done | None) -> None:
        """Acknowledge single entries or batch indexes. ``done`` is called when that is durable."""
        raise NotImplementedError

    def acknowledge_cumulative(self, consumer: Consumer, up_to: AckId, done: Done | None) -> None:
        """Acknowledge everything up to and including ``up_to``."""
        raise NotImplementedError


class Gate:
    """Stops the dispatch of a subscription while a dispatch rate is reached."""

    __slots__ = ()

    closed: bool
    #: When it was closed last, wall-clock ms.
    closed_ms: int

    def free_at(self, now_ms: int) -> int:
        """Return when the rates have room (monotonic ms), ``now_ms`` if they have."""
        raise NotImplementedError

    def hold(self, until_ms: int) -> None:
        """A dispatch rate of the topic is reached: dispatch nothing until then (monotonic ms)."""
        raise NotImplementedError


class SubscriptionBase:
    """A subscription, of a persistent topic or not, as its consumers and their connections know it."""

    __slots__ = ()

    name: str
    durable: bool
    topic: ConsumedTopic
    #: Whether it has a cursor, and what its consumers hold comes again.
    persistent: bool
    acks: AckTarget
    sent: SentCounts
    #: The type its consumers agreed on, None while none is connected.
    sub_type: SubscriptionType | None
    #: Limit of unacknowledged messages per consumer, 0 for none.
    unacked_limit: int
    #: The dispatch rates it is under, None if it never was under any.
    dispatch_gate: Gate | None

    @property
    def type(self) -> str | None:
        """Pulsar's name of the subscription type, None while no consumer is connected."""
        raise NotImplementedError

    @property
    def consumers(self) -> list[Consumer]:
        """The consumers that are connected."""
        raise NotImplementedError

    def add_consumer(self, consumer: Consumer, sub_type: SubscriptionType) -> None:
        """Attach ``consumer``. Raises :class:`ConsumerBusy` or :class:`ConsumerAssignError`."""
        raise NotImplementedError

    def remove_consumer(self, consumer: Consumer) -> None:
        """Detach ``consumer`` and requeue its deliveries."""
        raise NotImplementedError

    def disconnect_all(self) -> None:
        """Ask every consumer to reconnect."""
        raise NotImplementedError

    def flow(self, consumer: Consumer, permits: int) -> None:
        """The client can take ``permits`` more messages."""
        raise NotImplementedError

    def notify(self) -> None:
        """Something changed that may allow a delivery."""
        raise NotImplementedError

    def redeliver(self, consumer: Consumer, positions: Iterable[tuple[int, int]] | None, epoch: int | None) -> None:
        """Deliver again what ``consumer`` holds: all of it, or the given (ledger id, entry id)s."""
        raise NotImplementedError

    def seek(self, offset: int, remaining: int | None, done: Done) -> None:
        """Make ``offset`` the first unacknowledged entry."""
        raise NotImplementedError


class Consumer:
    """Permits, counters and identity of one consumer.

    ``permits`` are messages the client is ready to take (it may go negative by the rest of a batch);
    ``unacked`` are messages delivered to it and not acknowledged.
    """

    __slots__ = (
        "active",
        "bytes_out",
        "client",
        "consumer_id",
        "entries_out",
        "epoch",
        "first_flow_ms",
        "first_sent_ms",
        "held",
        "key_shared",
        "knows_end",
        "last_acked_ms",
        "last_consumed_ms",
        "last_flow_ms",
        "messages_acked",
        "msg_out",
        "msg_redelivered",
        "name",
        "permits",
        "priority",
        "read_compacted",
        "sink",
        "subscription",
        "unacked",
    )

    def __init__(
        self,
        subscription: SubscriptionBase,
        sink: ConsumerSink,
        consumer_id: int,
        name: str,
        *,
        priority: int = 0,
        epoch: int = 0,
        key_shared: KeySharedPolicy = AUTO_SPLIT,
        client: ClientInfo = UNKNOWN_CLIENT,
    ) -> None:
        self.subscription = subscription
        self.sink = sink
        self.consumer_id = consumer_id
        self.name = name
        self.priority = priority
        self.epoch = epoch
        self.key_shared = key_shared
        self.client = client
        self.active = True
        self.read_compacted = False
        self.knows_end = False
        #: Offsets of the entries it holds unacknowledged.
        self.held = BitMap64()
        self.permits = 0
        self.unacked = 0
        self.msg_out = 0
        self.bytes_out = 0
        self.entries_out = 0
        self.msg_redelivered = 0
        self.messages_acked = 0
        self.first_flow_ms = 0
        self.first_sent_ms = 0
        self.last_flow_ms = 0
        self.last_acked_ms = 0
        self.last_consumed_ms = 0

    def counters(self) -> tuple[int, ...]:
        """Return messages out, bytes out, redelivered and acknowledged, since it connected."""
        return self.msg_out, self.bytes_out, self.msg_redelivered, self.messages_acked

    @property
    def blocked_on_unacked(self) -> bool:
        """Whether the consumer holds so many unacknowledged messages that it gets no more until it acknowledges."""
        limit = self.subscription.unacked_limit
        return 0 < limit <= self.unacked

    @property
    def ready(self) -> bool:
        """Whether a message may be sent to it now."""
        if self.permits <= 0 or not self.sink.writable:
            return False
        subscription = self.subscription
        gate = subscription.dispatch_gate
        if gate is not None and gate.closed:
            return False
        limit = subscription.unacked_limit
        return not 0 < limit <= self.unacked
