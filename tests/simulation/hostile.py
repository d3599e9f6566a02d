"""Requests that no client sends, and entries that cannot be parsed and are stored all the same."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from heliograph_api.protocol import wire_pb2 as wire
from heliograph_broker.messaging.base.errors import BrokerError
from heliograph_broker.messaging.base.records import TenantRecord
from heliograph_broker.messaging.clients.producer import Producer, Receipt

from tests.support.entries import TTL_PROPERTY, batch_payload, make_message, seal, text_field

from . import consuming, entries, expectations, producing
from .action import Action
from .model import NOWHERE, SHARED, Message, TopicModel, Violation

if TYPE_CHECKING:
    from .client import SimulatedClient
    from .world import World


#: More than the largest batch has messages for.
_TOO_MANY_WORDS = 20_000


def hostile_message(
    number: int, topic: TopicModel, producer: str, sequence_id: int, now_ms: int, rng: random.Random
) -> Message:
    """Return a message that no client makes: a broker may refuse it, or take it, and neither may harm others."""
    frame, count = _hostile_frame(number, producer, sequence_id, now_ms, rng)
    return Message(number, topic, frame, sequence_id, count=count, hostile=True)


def _hostile_frame(number: int, producer: str, sequence_id: int, now_ms: int, rng: random.Random) -> tuple[bytes, int]:
    metadata = entries.metadata_of(number, producer, sequence_id, now_ms)
    match rng.randrange(5):
        case 0:
            # A key that is not text, of a batch of a million that is not there.
            metadata.num_messages_in_batch = 1_000_000
            return seal(metadata.SerializeToString() + text_field(6, b"\xff\xfe"), b"x"), 1
        case 1:
            # A time to live that is good for the batch and bad inside of it.
            metadata.num_messages_in_batch = 2
            metadata.properties.add(key=TTL_PROPERTY, value="200")
            metadata.deliver_at_time = now_ms + 300
            payload = batch_payload([make_message(b"1", ttl="soon"), make_message(b"2", ttl="-5")])
            return seal(metadata.SerializeToString(), payload), 2
        case 2:
            # A property that is not text.
            return seal(
                metadata.SerializeToString() + text_field(4, text_field(1, b"\xff") + text_field(2, b"\xfe")), b"x"
            ), 1
        case 3:
            # More messages announced than there are.
            metadata.num_messages_in_batch = 50
            return seal(metadata.SerializeToString(), batch_payload([make_message(b"1"), make_message(b"2")])), 50
        case _:
            # Not a batch at all.
            metadata.num_messages_in_batch = 3
            metadata.properties.add(key=TTL_PROPERTY, value="300")
            return seal(metadata.SerializeToString(), rng.randbytes(20)), 3


class _Nobody:
    """The sink of a producer that came from an older version."""

    def send_receipts(self, producer: Producer, receipts: list[Receipt]) -> None:
        """Nobody waits for it."""

    def send_publish_error(self, producer_id: int, sequence_id: int, error: BrokerError) -> None:
        """Nobody waits for it."""

    def hold_publishing(self, reason: object, ms: int) -> None:
        """It has nothing more to say."""

    def release_publishing(self, reason: object) -> None:
        """It has nothing more to say."""

    def send_producer_ready(self, producer: Producer) -> None:
        """It does not wait."""

    def send_close_producer(self, producer: Producer) -> None:
        """It is closed."""


def smuggle(world: World, topic: TopicModel, rng: random.Random) -> None:
    """Store an entry whose bytes are hostile although its metadata passed: as an older version, or bit rot, left it."""
    stored = world.stored(topic)
    if stored is None or stored.terminated:
        return
    number = len(world.messages.messages) + 1
    now_ms = world.machine.clock.now_ms()
    frame, count = _hostile_frame(number, "old", number, now_ms, rng)
    if rng.random() < 0.3:
        frame = rng.randbytes(30)
    metadata = entries.metadata_of(number, "old", number, now_ms)
    if count > 1:
        metadata.num_messages_in_batch = count
    ttl_ms = -1
    if rng.random() < 0.6:
        ttl_ms = 200
        metadata.properties.add(key=TTL_PROPERTY, value=str(ttl_ms))
    if rng.random() < 0.4:
        metadata.deliver_at_time = now_ms + 300
    message = Message(number, topic, frame, number, count=count, ttl_ms=ttl_ms, hostile=True)
    message.times_sent = 1
    message.wall_ms = now_ms
    message.earliest_ms = expectations.earliest_ms(world)
    message.passed_ms = world.machine.clock.passed_ms
    world.messages.add(message)
    producer = Producer(stored, _Nobody(), 0, "old")
    try:
        stored.publish(producer, number, 0, metadata, frame)
    except ValueError:
        # A broker that opens the batch at once finds it out at once.
        message.refused = True


def do_hostile_send(world: World, client: SimulatedClient, number: int, rng: random.Random) -> None:
    if client.connect():
        producing.send(world, client, world.topic(number), rng, hostile_message)


def do_hostile_acknowledge(world: World, client: SimulatedClient, number: int, rng: random.Random) -> None:
    consumer = consuming.open_consumer(world, client, rng)
    if consumer is None:
        return
    command = wire.BaseCommand(type=wire.BaseCommand.ACK)
    request = command.ack
    request.consumer_id = consumer.number
    request.ack_type = rng.choice([wire.CommandAck.Individual, wire.CommandAck.Cumulative])
    one = request.message_id.add()
    one.ledgerId, one.entryId = rng.choice([(0, 0), (1, NOWHERE), (1 << 62, 3), (1, 1 << 40)])
    if rng.random() < 0.5:
        one.ack_set.extend([-1] * rng.choice([1, 3, _TOO_MANY_WORDS]))
    with_receipt = rng.random() < 0.5
    if with_receipt:
        request.request_id = client.next_id()
    if request.ack_type == wire.CommandAck.Cumulative:
        # It may be after everything there is.
        consumer.subscription.excuse_all()
    if not with_receipt:
        client.send(command)
        return
    words = len(one.ack_set)

    def answered(answer: wire.BaseCommand | None) -> None:
        if answer is not None and words == _TOO_MANY_WORDS and not answer.ackResponse.HasField("error"):
            raise Violation("more acknowledged than there can be", f"an ack_set of {words} words was taken")

    client.request(command, answered)


def do_poison(world: World, client: SimulatedClient, number: int, rng: random.Random) -> None:
    smuggle(world, world.topic(number), rng)


def do_oversized_names(world: World, client: SimulatedClient, number: int, rng: random.Random) -> None:
    name = "x" * rng.choice([300, 600, 2000])
    broker = world.machine.broker
    if rng.random() < 0.6:
        world.confirm(
            lambda: broker.tenants.create(name, TenantRecord(allowed_clusters=["standalone"])),
            lambda: world.tenants.add(name),
        )
    elif client.connect():
        topic = TopicModel(f"persistent://public/default/{name}")
        consuming.subscribe(world, client, topic, rng.choice(["s", name]), SHARED, 1)


ACTIONS: dict[str, Action] = {
    "hostile_send": do_hostile_send,
    "hostile_acknowledge": do_hostile_acknowledge,
    "poison": do_poison,
    "oversized_names": do_oversized_names,
}
