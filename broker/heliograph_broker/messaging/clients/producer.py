"""Producers of a topic: names, epochs and access modes (PIP-68: exclusive producers)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from heliograph_api.protocol import wire_pb2 as wire

from heliograph_broker.messaging.base.errors import ProducerBusy, ProducerFenced
from heliograph_broker.messaging.clients.access_mode import AccessMode
from heliograph_broker.messaging.clients.client_topic import ClientTopic

from .client_info import UNKNOWN_CLIENT, ClientInfo

if TYPE_CHECKING:
    from collections.abc import Callable

    from heliograph_broker.messaging.base.errors import BrokerError
    from heliograph_broker.messaging.base.log_host import LogHost
    from heliograph_broker.messaging.messages.entry_rules import EntryRules


#: sequence id, highest sequence id, ledger id and entry id of an entry that is durable
Receipt = tuple[int, int, int, int]


class ProducerSink(Protocol):
    """The connection of a producer. Every method only queues bytes; none blocks."""

    def send_receipts(self, producer: Producer, receipts: list[Receipt]) -> None:
        """Send a SEND_RECEIPT for each: the entries are durable."""

    def send_publish_error(self, producer_id: int, sequence_id: int, error: BrokerError) -> None:
        """Send SEND_ERROR: the entry was not stored."""

    def hold_publishing(self, reason: object, ms: int) -> None:
        """Take nothing from the client for ``ms``, or until :meth:`release_publishing` for the same reason."""

    def release_publishing(self, reason: object) -> None:
        """Producers held for ``reason`` may continue."""

    def send_producer_ready(self, producer: Producer) -> None:
        """Tell a producer that waited for exclusive access that it has it now."""

    def send_close_producer(self, producer: Producer) -> None:
        """Ask the client to reconnect this producer (CLOSE_PRODUCER) and forget it."""


class PublishTarget(ClientTopic):
    """A topic, persistent or not, as its producers know it."""

    __slots__ = ()

    host: LogHost
    producer_registry: ProducerRegistry
    #: The policies' limits for each entry of a client, None without.
    entry_rules: EntryRules | None
    closed: bool

    @property
    def producers(self) -> dict[str, Producer]:
        """The producers that may publish now, by name."""
        return self.producer_registry.connected

    def publish(
        self,
        producer: Producer,
        sequence_id: int,
        highest_sequence_id: int,
        metadata: wire.MessageMetadata,
        frame: bytes,
    ) -> None:
        """Take an entry; the producer gets its receipt, or a named error.

        The rules applied here hold for dead letters, too: the topic is not terminated, the TTL is valid, the backlog
        quota has room, the entry is no duplicate. Rules for clients alone (size, delay, encryption, the number of
        messages) are applied where their entries arrive.
        """
        raise NotImplementedError

    def never_fits(self, size: int) -> str | None:
        """Return why an entry of ``size`` bytes would be refused even if nothing were stored, None if it would not."""
        return None

    def wait_for_room(self, waiter: object, resume: Callable[[], None], size: int) -> None:
        """Call ``resume``, once for each ``waiter``, when a backlog quota that refused ``size`` bytes has room."""

    def refuse(self, producer: Producer, sequence_id: int, error: BrokerError) -> None:
        """Tell a producer that an entry is not stored; stored entries have their receipts first."""
        producer.sink.send_publish_error(producer.producer_id, sequence_id, error)

    def last_sequence_id(self, producer_name: str) -> int:
        """Return the highest sequence id that is known to be stored of a producer, -1 if none is."""
        return -1

    def count_throttled(self) -> None:
        """Count that the topic's publish rate held back its producers."""
        raise NotImplementedError


class Producer:
    """Identity and counters of one producer on one topic."""

    __slots__ = (
        "access_mode",
        "bytes_in",
        "chunks_in",
        "client",
        "epoch",
        "generated_name",
        "msg_in",
        "name",
        "producer_id",
        "request_id",
        "sink",
        "topic",
    )

    def __init__(
        self,
        topic: PublishTarget,
        sink: ProducerSink,
        producer_id: int,
        name: str,
        *,
        generated_name: bool = False,
        epoch: int = 0,
        access_mode: AccessMode = AccessMode.SHARED,
        client: ClientInfo = UNKNOWN_CLIENT,
        request_id: int = 0,
    ) -> None:
        self.topic = topic
        self.sink = sink
        self.producer_id = producer_id
        self.name = name
        self.generated_name = generated_name
        self.epoch = epoch
        self.access_mode = access_mode
        self.client = client
        self.request_id = request_id
        self.msg_in = 0
        self.bytes_in = 0
        self.chunks_in = 0

    def counters(self) -> tuple[int, ...]:
        """Return messages in, bytes in and chunks in, since it connected."""
        return self.msg_in, self.bytes_in, self.chunks_in


class ProducerRegistry:
    """The producers that may publish on a topic now, and those that wait.

    ``topic_epoch`` grows each time a producer gets exclusive access; -1 while none ever had it. A producer that
    comes back with an older epoch was fenced by a later one and is refused.
    """

    __slots__ = ("connected", "exclusive", "topic_epoch", "waiting")

    def __init__(self, topic_epoch: int = -1) -> None:
        self.connected: dict[str, Producer] = {}
        self.exclusive: Producer | None = None
        self.waiting: list[Producer] = []
        self.topic_epoch = topic_epoch

    def add(self, producer: Producer, client_topic_epoch: int | None) -> bool:
        """Admit ``producer``; return False if it must wait for exclusive access.

        Raises :class:`ProducerBusy` (name taken, or an exclusive producer is connected) or
        :class:`ProducerFenced` (exclusive access is taken, or the producer's epoch is over).
        """
        if client_topic_epoch is not None and client_topic_epoch < self.topic_epoch:
            raise ProducerFenced(
                f"producer '{producer.name}' has topic epoch {client_topic_epoch}, "
                f"the current one is {self.topic_epoch}"
            )
        predecessor = self._predecessor(producer)
        mode = producer.access_mode
        exclusive = self.exclusive if self.exclusive is not predecessor else None
        others = (
            [other for other in self.connected.values() if other is not predecessor]
            if mode != AccessMode.SHARED
            else []
        )
        if mode == AccessMode.SHARED and (exclusive is not None or self.waiting):
            owner = exclusive or self.waiting[0]
            raise ProducerBusy(f"Topic has an existing exclusive producer: {owner.name}")
        if mode == AccessMode.EXCLUSIVE and (exclusive is not None or others):
            holder = exclusive or others[0]
            raise ProducerFenced(f"Topic has an existing producer: {holder.name}")
        # From here on nothing is refused.
        if predecessor is not None:
            self._replace(predecessor, producer)
        producer.topic.used()
        if mode == AccessMode.SHARED:
            self.connected[producer.name] = producer
            return True
        if mode == AccessMode.EXCLUSIVE_WITH_FENCING:
            for other in [*self.connected.values(), *self.waiting]:
                other.sink.send_close_producer(other)
            self.connected.clear()
            self.waiting.clear()
        elif self.exclusive is not None or self.connected:
            self.waiting.append(producer)
            return False
        self._grant(producer, client_topic_epoch)
        return True

    def _grant(self, producer: Producer, client_topic_epoch: int | None) -> None:
        self.exclusive = producer
        self.connected[producer.name] = producer
        if client_topic_epoch is None:
            self.topic_epoch += 1
        else:
            # A producer that comes back keeps the epoch it was given, also if the topic was recreated meanwhile.
            self.topic_epoch = client_topic_epoch

    def _predecessor(self, producer: Producer) -> Producer | None:
        """Return the older connection of the same producer. Raises :class:`ProducerBusy` if another has its name."""
        old = self.connected.get(producer.name)
        if old is None or _is_same_client(old, producer):
            return old
        if old.generated_name and producer.generated_name and producer.epoch > old.epoch:
            return old
        raise ProducerBusy(f"Producer with name '{producer.name}' is already connected to topic")

    def _replace(self, old: Producer, producer: Producer) -> None:
        """Let a producer that reconnects replace its own older connection."""
        del self.connected[old.name]
        if self.exclusive is old:
            self.exclusive = None
        if not _is_same_client(old, producer):
            old.sink.send_close_producer(old)

    def remove(self, producer: Producer) -> Producer | None:
        """Forget ``producer``; return the one that gets exclusive access in its stead, if one waited."""
        producer.topic.used()
        if producer in self.waiting:
            self.waiting.remove(producer)
            return None
        if self.connected.get(producer.name) is not producer:
            return None
        del self.connected[producer.name]
        if self.exclusive is producer:
            self.exclusive = None
        if self.waiting and not self.connected:
            successor = self.waiting.pop(0)
            self._grant(successor, None)
            return successor
        return None

    def disconnect(self, producer: Producer) -> None:
        """Ask the client of ``producer`` to reconnect it: it sends again, in order, all that has no receipt.

        What it sent before it knows of this is dropped. Exclusive access passes to the producer that waits for it.
        """
        successor = self.remove(producer)
        producer.sink.send_close_producer(producer)
        if successor is not None:
            successor.sink.send_producer_ready(successor)

    def may_publish(self, producer: Producer) -> bool:
        return self.connected.get(producer.name) is producer


def _is_same_client(old: Producer, producer: Producer) -> bool:
    return old.sink is producer.sink and old.producer_id == producer.producer_id
