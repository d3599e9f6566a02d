"""The producers of one client, and the commands sent to them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from heliograph_api.protocol import wire_pb2 as wire

from heliograph_broker.messaging.base.errors import BrokerError
from heliograph_broker.messaging.clients.access_mode import AccessMode

from .error_codes import error_code

if TYPE_CHECKING:
    from heliograph_broker.messaging.clients.producer import Producer, Receipt

    from .connection import Connection

#: Time (s) for which messages of a closed producer may still arrive.
_UNDER_WAY_S = 60.0

#: Memory (bytes) that a producer takes while it waits, beside its request.
_HELD_BYTES = 1024

#: Errors that concern one message, and that sending it again would cause again.
_OF_ONE_MESSAGE = (wire.NotAllowedError, wire.UnknownError)
#: The C++ client, which the Python and Node.js ones are made of, fails a single message for a ChecksumError only.
#: For any other error it reconnects and sends the same message again, without end.
_CPP = "Pulsar-CPP"


class SessionProducers:
    """A :class:`ProducerSink`: the producers of one session, and the connection that answers them."""

    __slots__ = ("_broker", "_connection", "_encoder", "_output", "closed", "held", "held_bytes", "open")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._broker = connection.broker
        self._output = connection.output
        self._encoder = connection.output.encoder
        self.open: dict[int, Producer] = {}
        #: Closed producers and when they were closed (monotonic, s): their late messages are dropped without an error.
        self.closed: dict[int, float] = {}
        #: Producers that wait for room in the topic's backlog quota or on the disk: the bytes that each takes
        #: meanwhile, and functions that cancel this.
        self.held: dict[int, tuple[int, Callable[[], None]]] = {}
        self.held_bytes = 0

    def answer(self, producer: Producer, request_id: int, schema_version: bytes | None, *, ready: bool) -> None:
        """Answer a PRODUCER request; one that waits for exclusive access is answered again when it is ``ready``."""
        topic = producer.topic
        exclusive = ready and producer.access_mode != AccessMode.SHARED
        self._output.write(
            self._encoder.producer_success(
                request_id,
                producer.name,
                topic.last_sequence_id(producer.name),
                schema_version or b"",
                topic.producer_registry.topic_epoch if exclusive else None,
                ready=ready,
            )
        )

    def send_receipts(self, producer: Producer, receipts: list[Receipt]) -> None:
        self._output.write(self._encoder.receipts(producer.producer_id, receipts))

    def send_publish_error(self, producer_id: int, sequence_id: int, error: BrokerError) -> None:
        code = error_code(error)
        if code in _OF_ONE_MESSAGE and self._connection.client_version.startswith(_CPP):
            code = wire.ChecksumError
        self._output.write(self._encoder.send_error(producer_id, sequence_id, code, str(error)))

    def hold_publishing(self, reason: object, ms: int) -> None:
        self._connection.hold(reason, ms)

    def release_publishing(self, reason: object) -> None:
        self._connection.release(reason)

    def send_producer_ready(self, producer: Producer) -> None:
        """Send the second PRODUCER_SUCCESS to a producer that waited for exclusive access, once that is durable."""
        topic = producer.topic
        topic.persist()

        def committed(error: BrokerError | None) -> None:
            if self.open.get(producer.producer_id) is not producer:
                return
            if error is None:
                self.answer(producer, producer.request_id, None, ready=True)
            else:
                # It has the access all the same, and nobody else gets it: a client that never hears of it blocks the
                # topic.
                topic.persist(partial(committed, None))

        self._broker.when_durable(topic, committed)

    def send_close_producer(self, producer: Producer) -> None:
        if self.open.get(producer.producer_id) is producer:
            del self.open[producer.producer_id]
            self.remember_closed(producer.producer_id)
            self._output.write(self._encoder.close_producer(producer.producer_id))

    def remember_closed(self, producer_id: int) -> None:
        """Remember a closed producer for as long as messages that it sent before may arrive."""
        now = self._broker.clock.monotonic()
        closed = self.closed
        closed[producer_id] = now
        while closed and next(iter(closed.values())) < now - _UNDER_WAY_S:
            del closed[next(iter(closed))]

    def hold(self, producer_id: int, request_bytes: int, give_up: Callable[[], None]) -> None:
        """Note that a producer waits for room, with its request of so many bytes; ``give_up`` cancels this."""
        size = request_bytes + _HELD_BYTES
        self.held[producer_id] = size, give_up
        self.held_bytes += size

    def resumed(self, producer_id: int) -> None:
        """Note that a producer does not wait any more."""
        self.held_bytes -= self.held.pop(producer_id)[0]

    def stop_holding(self, producer_id: int) -> None:
        """Stop waiting for room: the client closed the producer or requests it again."""
        if producer_id in self.held:
            give_up = self.held[producer_id][1]
            self.resumed(producer_id)
            give_up()

    def forget(self, producer: Producer) -> None:
        """Remove the producer; exclusive access may pass to the next one."""
        self.open.pop(producer.producer_id, None)
        successor = producer.topic.producer_registry.remove(producer)
        if successor is not None:
            successor.sink.send_producer_ready(successor)
