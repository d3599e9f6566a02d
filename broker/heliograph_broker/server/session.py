"""One client's session: its producers, consumers and watchers, and what the core sends to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import structlog
from heliograph_api.protocol import wire_pb2 as wire

from heliograph_broker.messaging.base.errors import BrokerError, Done, NotAllowed
from heliograph_broker.messaging.broker.topic_list import TopicListWatcher
from heliograph_broker.messaging.clients.access_mode import AccessMode
from heliograph_broker.messaging.clients.consumer import Consumer
from heliograph_broker.messaging.clients.producer import Producer, Receipt
from heliograph_broker.messaging.delivery.subscription import Subscription
from heliograph_broker.messaging.topic.topic import Topic
from heliograph_broker.storage.base.entry import Entry

from .connection import Connection, ConnectionHost
from .error_codes import error_code

log = structlog.get_logger(__name__)

T = TypeVar("T")

#: Time (s) for which messages of a closed producer may still arrive.
_UNDER_WAY_S = 60.0

#: Errors that concern one message, and that sending it again would cause again.
_OF_ONE_MESSAGE = (wire.NotAllowedError, wire.UnknownError)
#: The C++ client, which the Python and Node.js ones are made of, fails a single message for a ChecksumError only.
#: For any other error it reconnects and sends the same message again, without end.
_CPP = "Pulsar-CPP"


class SessionHost(ConnectionHost):
    """The services of the listener that a session uses."""

    def opened(self, session: Session) -> None:
        """The session's connection is made."""
        raise NotImplementedError

    def lost(self, session: Session) -> None:
        """The session's connection is gone."""
        raise NotImplementedError

    def service_url_for(self, session: Session) -> str:
        """Return the URL that the client must use: the advertised one, else the address it connected to."""
        raise NotImplementedError


class Session(Connection):
    """Also the sink of its producers and consumers (see ``ProducerSink`` and ``ConsumerSink``)."""

    listener: SessionHost

    def __init__(self, listener: SessionHost, ended: Callable[[], None] | None = None) -> None:
        super().__init__(listener, ended)
        self.producers: dict[int, Producer] = {}
        self.consumers: dict[int, Consumer] = {}
        #: Subscriptions that are not durable, kept over a seek for the reader (by consumer id) that is to come back.
        self.sought_readers: dict[int, Subscription] = {}
        self.watchers: dict[int, TopicListWatcher] = {}
        #: Closed producers and when they were closed (monotonic, s): their late messages are dropped without an error.
        self.closed_producers: dict[int, float] = {}
        #: Producers that wait for room in the topic's backlog quota, and functions that cancel this.
        self.held_producers: dict[int, Callable[[], None]] = {}
        self.protocol_version = 0
        self.client_version = ""

    def opened(self) -> None:
        self.listener.opened(self)

    def lost(self) -> None:
        self.listener.lost(self)

    def may_dispatch(self) -> None:
        for consumer in list(self.consumers.values()):
            consumer.subscription.notify()

    def give_up(self) -> None:
        while self.watchers:
            self.broker.watches.end(self.watchers.popitem()[1])
        for producer_id in list(self.held_producers):
            self._give_up(self.stop_holding, producer_id)
        for producer in list(self.producers.values()):
            self._give_up(self.forget_producer, producer)
        while self.consumers:
            _, consumer = self.consumers.popitem()
            self._give_up(consumer.subscription.remove_consumer, consumer)
        for consumer_id in list(self.sought_readers):
            self._give_up(self.stays_away, consumer_id)

    def _give_up(self, action: Callable[[T], object], what: T) -> None:
        try:
            action(what)
        except Exception:
            # A defect of the broker in one topic must not prevent the cleanup in others.
            log.exception("cleanup after a closed connection failed", client=self.address)

    # -- answers ---------------------------------------------------------------------------------------------

    def refuse(self, request_id: int, error: BrokerError) -> None:
        """Answer a request with the ERROR of a refusal."""
        self.send_error(request_id, error_code(error), str(error))

    def succeed(self, request_id: int) -> None:
        self.write(self.encoder.success(request_id))

    def answer_to(self, request_id: int) -> Done:
        """Return a callback that answers a request with SUCCESS, or with ERROR if it is given one."""

        def answer(error: BrokerError | None) -> None:
            if error is not None:
                self.refuse(request_id, error)
            else:
                self.succeed(request_id)

        return answer

    def answer_producer(
        self, producer: Producer, request_id: int, schema_version: bytes | None, *, ready: bool
    ) -> None:
        """Answer a PRODUCER request; one that waits for exclusive access is answered again when it is ``ready``."""
        topic = producer.topic
        exclusive = ready and producer.access_mode != AccessMode.SHARED
        self.write(
            self.encoder.producer_success(
                request_id,
                producer.name,
                topic.last_sequence_id(producer.name),
                schema_version or b"",
                topic.producer_registry.topic_epoch if exclusive else None,
                ready=ready,
            )
        )

    # -- sink of producers -----------------------------------------------------------------------------------

    def send_receipts(self, producer: Producer, receipts: list[Receipt]) -> None:
        self.write(self.encoder.receipts(producer.producer_id, receipts))

    def send_publish_error(self, producer_id: int, sequence_id: int, error: BrokerError) -> None:
        code = error_code(error)
        if code in _OF_ONE_MESSAGE and self.client_version.startswith(_CPP):
            code = wire.ChecksumError
        self.write(self.encoder.send_error(producer_id, sequence_id, code, str(error)))

    def hold_publishing(self, reason: object, ms: int) -> None:
        self.hold(reason, ms)

    def release_publishing(self, reason: object) -> None:
        self.release(reason)

    def send_producer_ready(self, producer: Producer) -> None:
        """Send the second PRODUCER_SUCCESS to a producer that waited for exclusive access, once that is durable."""
        topic = producer.topic
        if isinstance(topic, Topic):
            topic.records.commit(topic)

        def committed(error: BrokerError | None) -> None:
            if error is None and self.producers.get(producer.producer_id) is producer:
                self.answer_producer(producer, producer.request_id, None, ready=True)

        self.broker.when_durable(topic, committed)

    def send_close_producer(self, producer: Producer) -> None:
        if self.producers.get(producer.producer_id) is producer:
            del self.producers[producer.producer_id]
            self.producer_closed(producer.producer_id)
            self.write(self.encoder.close_producer(producer.producer_id))

    def producer_closed(self, producer_id: int) -> None:
        """Remember a closed producer for as long as messages that it sent before may arrive."""
        now = self.broker.clock.monotonic()
        closed = self.closed_producers
        closed[producer_id] = now
        while closed and next(iter(closed.values())) < now - _UNDER_WAY_S:
            del closed[next(iter(closed))]

    def stop_holding(self, producer_id: int) -> None:
        """Stop waiting for room: the client closed the producer or requests it again."""
        give_up = self.held_producers.pop(producer_id, None)
        if give_up is not None:
            give_up()

    def forget_producer(self, producer: Producer) -> None:
        """Remove the producer; exclusive access may pass to the next one."""
        self.producers.pop(producer.producer_id, None)
        successor = producer.topic.producer_registry.remove(producer)
        if successor is not None:
            successor.sink.send_producer_ready(successor)

    # -- sink of consumers -----------------------------------------------------------------------------------

    def send_message(self, consumer: Consumer, entry: Entry, redelivery_count: int, remaining: int | None) -> None:
        frame = entry.frame
        self._out.append(
            self.encoder.message_head(
                consumer.consumer_id,
                entry.ledger_id,
                entry.entry_id,
                consumer.subscription.topic.name.partition,
                redelivery_count,
                consumer.epoch,
                remaining,
                len(frame),
            )
        )
        self.write(frame)

    def send_active_change(self, consumer: Consumer, active: bool) -> None:
        self.write(self.encoder.active_consumer_change(consumer.consumer_id, active=active))

    def send_close_consumer(self, consumer: Consumer) -> None:
        if self.consumers.get(consumer.consumer_id) is consumer:
            del self.consumers[consumer.consumer_id]
            self.write(self.encoder.close_consumer(consumer.consumer_id))

    def send_end_of_topic(self, consumer: Consumer) -> None:
        self.write(self.encoder.end_of_topic(consumer.consumer_id))

    def check_handles(self) -> None:
        """Raise :class:`NotAllowed` if the connection may not have one more producer, consumer or watcher."""
        most = self.broker.config.max_handles_per_connection
        handles = len(self.producers) + len(self.held_producers) + len(self.watchers)
        if 0 < most <= handles + len(self.consumers) + len(self.sought_readers):
            raise NotAllowed(
                f"Reached the maximum number of producers, consumers and topic watchers on a connection: {most} "
                "(max_handles_per_connection)"
            )

    def stays_away(self, consumer_id: int) -> None:
        """Delete the subscription kept for a reader that did not return after a seek, unless others use it."""
        subscription = self.sought_readers.pop(consumer_id, None)
        if subscription is not None and not subscription.consumers and not subscription.closed:
            subscription.topic.drop_subscription(subscription)
