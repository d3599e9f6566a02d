"""A broker's core on the real store, without sockets and on virtual time: what unit and property tests drive."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from heliograph_api.broker_config import BrokerConfig
from heliograph_api.policies.policies import Policies, Retention
from heliograph_api.protocol import wire_pb2 as wire
from heliograph_api.values.names import TopicName
from heliograph_broker.clock import VirtualClock
from heliograph_broker.messaging.base.errors import BrokerError
from heliograph_broker.messaging.broker.broker import Broker
from heliograph_broker.messaging.clients.access_mode import AccessMode
from heliograph_broker.messaging.clients.consumer import Consumer
from heliograph_broker.messaging.clients.producer import Producer, Receipt
from heliograph_broker.messaging.clients.subscription_type import SubscriptionType
from heliograph_broker.messaging.delivery.subscription import Subscription
from heliograph_broker.messaging.topic.topic import Topic
from heliograph_broker.storage.base.entry import Entry
from heliograph_broker.storage.store import InlineScheduler, LedgerStore

from .entries import Message, make_batch, make_frame


class Client:
    """The far side of a connection: records what the core sends, never answers by itself."""

    def __init__(self) -> None:
        self.writable = True
        self.unwritable_since_ms = 0
        self.held_until_ms = 0
        self.receipts: list[tuple[int, int, int]] = []
        self.errors: list[tuple[int, BrokerError]] = []
        self.messages: list[tuple[Consumer, Entry, int, int | None]] = []
        self.active: dict[int, bool] = {}
        self.closed_consumers: list[int] = []
        self.closed_producers: list[int] = []
        self.ready_producers: list[int] = []
        #: Why nothing may be published now, and for how long (ms) that was announced.
        self.holds: dict[object, int] = {}

    def send_receipts(self, producer: Producer, receipts: list[Receipt]) -> None:
        self.receipts += [(sequence_id, ledger_id, entry_id) for sequence_id, _, ledger_id, entry_id in receipts]

    def send_publish_error(self, producer_id: int, sequence_id: int, error: BrokerError) -> None:
        self.errors.append((sequence_id, error))

    def hold_publishing(self, reason: object, ms: int) -> None:
        self.holds[reason] = ms

    def release_publishing(self, reason: object) -> None:
        self.holds.pop(reason, None)

    def send_producer_ready(self, producer: Producer) -> None:
        self.ready_producers.append(producer.producer_id)

    def send_close_producer(self, producer: Producer) -> None:
        self.closed_producers.append(producer.producer_id)

    def send_message(self, consumer: Consumer, entry: Entry, redelivery_count: int, remaining: int | None) -> None:
        self.messages.append((consumer, entry, redelivery_count, remaining))

    def send_active_change(self, consumer: Consumer, active: bool) -> None:
        self.active[consumer.consumer_id] = active

    def send_close_consumer(self, consumer: Consumer) -> None:
        self.closed_consumers.append(consumer.consumer_id)

    def send_end_of_topic(self, consumer: Consumer) -> None:
        raise AssertionError("no topic here is terminated")

    def take(self) -> list[tuple[Consumer, Entry, int, int | None]]:
        """Return and forget the messages that came since the last call."""
        taken, self.messages = self.messages, []
        return taken

    def take_offsets(self) -> list[int]:
        """Return the offsets of the messages that :meth:`take` returns."""
        return [entry.offset for _, entry, _, _ in self.take()]


class Core:
    """A broker on a data directory; :meth:`restart` closes and opens it again."""

    def __init__(self, directory: Path, clock: VirtualClock | None = None, **settings: object) -> None:
        self.clock = clock or VirtualClock()
        self.directory = directory
        self.config = BrokerConfig(data_dir=str(directory), disk_reserve_bytes=0, **settings)  # type: ignore[arg-type]
        self._open()

    def _open(self) -> None:
        self.store = LedgerStore.open(
            self.directory,
            self.clock,
            scheduler=InlineScheduler(),
            disk_reserve_bytes=0,
            segment_bytes=self.config.segment_bytes,
        )
        self.broker = Broker(self.store, self.clock, self.config, random.Random(7))
        self.broker.load()
        self.store.writer.commit()

    def restart(self) -> None:
        """Stop in good order and start again."""
        self.broker.record_writer.flush()
        self.store.writer.commit()
        self.close()
        self._open()

    def crash(self) -> None:
        """Lose what was not committed, and start again."""
        self.close()
        self._open()

    def close(self) -> None:
        """End as a crash does: what was not committed is lost."""
        self.store.close(drain=False)

    def keep_nothing(self) -> None:
        """Delete at once what no backlog holds, where a test sets no other retention."""
        self.broker.policies.set_broker(Policies(retention=Retention(0, 0)), Policies())
        self.commit()

    def topic(self, name: str = "t") -> Topic:
        topic = self.broker.topics.get_or_create(TopicName.parse(name))
        assert isinstance(topic, Topic)
        return topic

    def producer(
        self,
        topic: Topic,
        client: Client | None = None,
        name: str = "p",
        *,
        epoch: int = 0,
        access_mode: AccessMode = AccessMode.SHARED,
    ) -> Producer:
        producer = Producer(
            topic, client or Client(), len(topic.producers) + 1, name, epoch=epoch, access_mode=access_mode
        )
        topic.producer_registry.add(producer, None)
        return producer

    def publish(self, producer: Producer, payload: bytes = b"x", **options: object) -> None:
        """Publish one entry; it is durable after :meth:`commit`."""
        self.publish_entry(producer, *make_frame(payload, **({"producer": producer.name} | options)))  # type: ignore[arg-type]

    def publish_entry(self, producer: Producer, metadata: wire.MessageMetadata, frame: bytes) -> None:
        """Publish an entry as a connection hands it over; it is durable after :meth:`commit`."""
        producer.topic.publish(producer, metadata.sequence_id, metadata.highest_sequence_id, metadata, frame)

    def producer_of(self, topic: Topic) -> Producer:
        """Return the topic's first producer, or a new one if it has none."""
        return next(iter(topic.producers.values()), None) or self.producer(topic)

    def publish_all(self, to: Topic | Producer, *payloads: bytes | str, count: int = 1, **options: object) -> Producer:
        """Publish an entry for each payload, ``count`` times, and make them durable.

        They come from the producer that :meth:`producer_of` returns for a topic, which is returned. ``options`` are
        those of :func:`~tests.support.entries.make_frame`.
        """
        producer = to if isinstance(to, Producer) else self.producer_of(to)
        for payload in (payloads or (b"x",)) * count:
            self.publish(producer, payload.encode() if isinstance(payload, str) else payload, **options)
        self.commit()
        return producer

    def publish_batch(self, to: Topic | Producer, *messages: bytes | Message, **options: object) -> None:
        """Publish messages as one entry and make it durable; ``options`` are those of the builder of batches."""
        producer = to if isinstance(to, Producer) else self.producer_of(to)
        self.publish_entry(producer, *make_batch(*messages, **({"producer": producer.name} | options)))  # type: ignore[arg-type]
        self.commit()

    def read_all(self, topic: Topic) -> list[Entry]:
        """Return the entries that the topic's ledgers have, as a reader gets them."""
        found: list[Entry] = []

        def keep(result: list[Entry] | Exception) -> None:
            assert not isinstance(result, Exception), result
            assert result, "nothing was read"
            found.extend(result)

        while (offset := found[-1].offset + 1 if found else topic.log.first_offset) < topic.log.end_offset:
            topic.log.read(offset, 1000, 1 << 20, keep)
        return found

    def consumer(
        self,
        subscription: Subscription,
        sub_type: SubscriptionType,
        client: Client,
        *,
        consumer_id: int = 1,
        name: str = "c",
        permits: int = 0,
        **options: int,
    ) -> Consumer:
        consumer = Consumer(subscription, client, consumer_id, name, **options)  # type: ignore[arg-type]
        subscription.add_consumer(consumer, sub_type)
        if permits:
            subscription.flow(consumer, permits)
        return consumer

    def commit(self) -> None:
        self.store.writer.commit()

    @contextmanager
    def full_disk(self) -> Iterator[None]:
        """While it is entered, the store refuses entries and still takes metadata, as on a disk at its reserve."""
        space = self.store.space
        reserve, space._reserve = space._reserve, 1 << 62
        try:
            yield
        finally:
            space._reserve = reserve

    def advance(self, ms: int) -> None:
        """Let time pass and the broker's ticks see it."""
        self.clock.advance_ms(ms)
        while self.broker.ticks.run():
            self.store.writer.commit()
        self.store.writer.commit()
