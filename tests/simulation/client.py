"""A client on one connection at a time: it sends given commands, and remembers the answers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from heliograph_api.protocol import wire_pb2 as wire

from tests.support.wire_client import take_frames

from . import expectations
from .deliveries import check_delivery, given_back_before
from .model import NOWHERE, ConsumerModel, Message, TopicModel, Violation
from .network import Connection
from .wire_frames import command_frame

if TYPE_CHECKING:
    from .world import World

Answer = Callable[[wire.BaseCommand | None], None]


class ProducerModel:
    """A producer of a name and topic, over all its connections."""

    def __init__(self, number: int, name: str, topic: TopicModel) -> None:
        self.number = number
        self.name = name
        self.topic = topic
        self.next_sequence = 0
        self.open = False
        self.opening = False
        #: How often it was opened before; the broker gets this number.
        self.epoch = 0
        #: Sent on this connection, or to be sent as soon as it is open, and not answered yet.
        self.waiting: deque[Message] = deque()


class SimulatedClient:
    """Commands go out by methods; what comes in is recorded when the broker writes it."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.connection: Connection | None = None
        self.producers: dict[str, ProducerModel] = {}
        self.consumers: dict[int, ConsumerModel] = {}
        self._answers: dict[int, Answer] = {}
        self._next_id = 1
        self._received = bytearray()
        #: Deliveries that the broker wrote and the client has not read, as it reads nothing.
        self._unread: list[tuple[ConsumerModel, tuple[Message, tuple[int, int], int]]] = []
        self._pings = 0

    @property
    def connected(self) -> bool:
        return self.connection is not None and not self.connection.lost

    def connect(self) -> bool:
        """Open a connection unless there is one; return whether there is."""
        if self.connected:
            return True
        self.ended()
        self._received = bytearray()
        try:
            self.connection = Connection(
                self.world.machine.loop, ("10.0.0." + str(self.number), 40000 + self._next_id), self._written
            )
        except ConnectionRefusedError:
            return False
        command = wire.BaseCommand(type=wire.BaseCommand.CONNECT)
        command.connect.client_version = "Simulated"
        command.connect.protocol_version = wire.v20
        self.send(command)
        return True

    def ended(self) -> None:
        """The connection is gone: pending requests get no answer, everything held goes back."""
        self.connection = None
        answers, self._answers = self._answers, {}
        for answer in answers.values():
            answer(None)
        for consumer in self.consumers.values():
            consumer.end()
        self.consumers.clear()
        self._unread.clear()
        for producer in self.producers.values():
            producer.open = producer.opening = False

    def send(self, command: wire.BaseCommand, entry: bytes = b"") -> None:
        if self.connection is not None:
            self.connection.send(command_frame(command, entry))

    def request(self, command: wire.BaseCommand, answer: Answer) -> int:
        """Send a request whose id the caller writes with the number returned by :meth:`next_id`."""
        self._answers[self._next_id - 1] = answer
        self.send(command)
        return self._next_id - 1

    def next_id(self) -> int:
        self._next_id += 1
        return self._next_id - 1

    # -- producing -----------------------------------------------------------------------------------------------

    def open_producer(self, topic: TopicModel) -> ProducerModel:
        """Return the producer of a topic, opened or about to be."""
        producer = self.producers.get(topic.name)
        if producer is None or producer.topic is not topic:
            producer = ProducerModel(self.next_id(), f"p{self.number}", topic)
            self.producers[topic.name] = producer
        if producer.open or producer.opening:
            return producer
        producer.opening = True
        command = wire.BaseCommand(type=wire.BaseCommand.PRODUCER)
        request = command.producer
        request.topic = topic.name
        request.producer_id = producer.number
        request.producer_name = producer.name
        request.user_provided_producer_name = True
        request.epoch = producer.epoch
        producer.epoch += 1
        request.request_id = self.next_id()
        opened = producer

        def answered(answer: wire.BaseCommand | None) -> None:
            opened.opening = False
            if answer is None or answer.type != wire.BaseCommand.PRODUCER_SUCCESS:
                return
            opened.open = True
            topic.confirmed = True
            for message in opened.waiting:
                self._send_message(opened, message)

        self.request(command, answered)
        return producer

    def produce(self, producer: ProducerModel, message: Message) -> None:
        """Send a message now, or when the producer is open."""
        producer.waiting.append(message)
        if producer.open:
            self._send_message(producer, message)

    def _send_message(self, producer: ProducerModel, message: Message) -> None:
        if not message.times_sent:
            message.wall_ms = self.world.machine.clock.now_ms()
            message.earliest_ms = expectations.earliest_ms(self.world)
            message.passed_ms = self.world.machine.clock.passed_ms
        message.times_sent += 1
        command = wire.BaseCommand(type=wire.BaseCommand.SEND)
        command.send.producer_id = producer.number
        command.send.sequence_id = message.sequence_id
        command.send.num_messages = message.count
        self.send(command, message.frame)

    # -- what the broker writes ----------------------------------------------------------------------------------

    def _written(self, data: bytes) -> None:
        self._received += data
        for command, entry in take_frames(self._received):
            self.world.trace(f"c{self.number} < {_shown(command)}")
            try:
                self._take(command, entry)
            except Violation as violation:
                # The broker, which called, must not be the one to catch it.
                self.world.found.append(violation)

    def _take(self, command: wire.BaseCommand, entry: bytes) -> None:
        kind = command.type
        if kind == wire.BaseCommand.MESSAGE:
            self._message(command.message, entry)
        elif kind == wire.BaseCommand.SEND_RECEIPT:
            self._receipt(command.send_receipt)
        elif kind == wire.BaseCommand.SEND_ERROR:
            producer = self._producer(command.send_error.producer_id)
            # As official clients do it sends again what could not be stored, once its producer is open again.
            if producer is not None and command.send_error.error != wire.PersistenceError:
                for message in list(producer.waiting):
                    if message.sequence_id == command.send_error.sequence_id:
                        message.refused = True
                        producer.waiting.remove(message)
                        # All chunks of a message have its sequence id, and each has an answer.
                        break
        elif kind == wire.BaseCommand.CLOSE_PRODUCER:
            producer = self._producer(command.close_producer.producer_id)
            if producer is not None:
                producer.open = False
        elif kind == wire.BaseCommand.CLOSE_CONSUMER:
            consumer = self.consumers.pop(command.close_consumer.consumer_id, None)
            if consumer is not None:
                consumer.end()
        elif kind == wire.BaseCommand.ACTIVE_CONSUMER_CHANGE:
            consumer = self.consumers.get(command.active_consumer_change.consumer_id)
            if consumer is not None:
                consumer.active = command.active_consumer_change.is_active
                consumer.reset()
        elif kind == wire.BaseCommand.PING:
            if self.connection is not None and self.connection.reads and not self.connection.silent:
                command = wire.BaseCommand(type=wire.BaseCommand.PONG)
                command.pong.SetInParent()
                self.send(command)
        else:
            self._answered(command)

    def _answered(self, command: wire.BaseCommand) -> None:
        for field, value in command.ListFields():
            if field.name != "type" and hasattr(value, "request_id"):
                answer = self._answers.pop(value.request_id, None)
                if answer is not None:
                    answer(command)

    def _producer(self, number: int) -> ProducerModel | None:
        return next((each for each in self.producers.values() if each.number == number), None)

    def _receipt(self, receipt: wire.CommandSendReceipt) -> None:
        producer = self._producer(receipt.producer_id)
        if producer is None:
            return
        first = producer.waiting[0] if producer.waiting else None
        for message in list(producer.waiting):
            if message.sequence_id == receipt.sequence_id:
                if message is not first:
                    raise Violation("overtaken", f"{message!r} has its receipt, and {first!r} of its producer has none")
                producer.waiting.remove(message)
                message.receipted = True
                if receipt.message_id.ledgerId != NOWHERE:
                    position = (receipt.message_id.ledgerId, receipt.message_id.entryId)
                    self.world.messages.stored_at(message, position, producer.name)
                return

    def _message(self, delivery: wire.CommandMessage, entry: bytes) -> None:
        consumer = self.consumers.get(delivery.consumer_id)
        if consumer is None or delivery.consumer_epoch < consumer.epoch:
            return
        position = (delivery.message_id.ledgerId, delivery.message_id.entryId)
        message = self.world.identify(consumer, entry, position)
        if message is None:
            return
        bits = message.whole
        if delivery.ack_set:
            bits &= sum((word & NOWHERE) << (64 * index) for index, word in enumerate(delivery.ack_set))
        self.world.messages.stored_at(message, position, "")
        if self.world.expired_noted_ms != self.world.machine.clock.passed_ms:
            expectations.note_expired(self.world)
        holder = check_delivery(consumer, message, position, bits, self.world.machine.clock.passed_ms)
        if holder is not None:
            self.world.suspect(holder, consumer, message)
        consumer.hand[message.number] = bits
        if not given_back_before(consumer, message):
            consumer.given_back.discard(message.number)
        consumer.subscription.delivered.add(message.number)
        delivered = (message, position, bits)
        if self.connection is not None and self.connection.reads:
            consumer.inbox.append(delivered)
        else:
            self._unread.append((consumer, delivered))

    def ended_consumer(self, consumer: ConsumerModel) -> None:
        """Close a consumer."""
        if self.consumers.pop(consumer.number, None) is None:
            return
        command = wire.BaseCommand(type=wire.BaseCommand.CLOSE_CONSUMER)
        command.close_consumer.consumer_id = consumer.number
        command.close_consumer.request_id = self.next_id()
        self.send(command)
        consumer.end()

    def acknowledge_letters(self, consumer: ConsumerModel) -> None:
        """Acknowledge all dead letters that came."""
        if not consumer.unacknowledged:
            return
        command = wire.BaseCommand(type=wire.BaseCommand.ACK)
        command.ack.consumer_id = consumer.number
        command.ack.ack_type = wire.CommandAck.Individual
        for ledger_id, entry_id in consumer.unacknowledged:
            one = command.ack.message_id.add()
            one.ledgerId, one.entryId = ledger_id, entry_id
        consumer.unacknowledged.clear()
        self.send(command)

    def read_on(self) -> None:
        """Read again, first what came meanwhile."""
        if self.connection is None:
            return
        for consumer, delivered in self._unread:
            if not consumer.closed and delivered[0].number in consumer.hand:
                consumer.inbox.append(delivered)
        self._unread.clear()
        self.connection.read_on()


def _shown(command: wire.BaseCommand) -> str:
    name = wire.BaseCommand.Type.Name(command.type)
    if command.type == wire.BaseCommand.MESSAGE:
        position = command.message.message_id
        return f"{name} {command.message.consumer_id} {position.ledgerId & 0xFFFFFF}:{position.entryId}"
    if command.type == wire.BaseCommand.SEND_RECEIPT:
        position = command.send_receipt.message_id
        return f"{name} {command.send_receipt.sequence_id} {position.ledgerId & 0xFFFFFF}:{position.entryId}"
    if command.type == wire.BaseCommand.ERROR:
        return f"{name} {command.error.message}"
    if command.type == wire.BaseCommand.SEND_ERROR:
        return f"{name} {command.send_error.sequence_id} {command.send_error.message}"
    return name
