"""Clients that do not read what the broker writes to them: it must stop writing, and neither wait nor forget."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from heliograph_api.policies.policies import Policies, Retention
from heliograph_api.protocol import wire_pb2 as wire

from . import administration, connections, consuming, producing
from .action import Action
from .model import EXCLUSIVE, FAILOVER, KEY_SHARED, SHARED, ConsumerModel, Message, Violation

if TYPE_CHECKING:
    from .client import SimulatedClient
    from .world import World

#: Bytes that may wait for a client that does not read, beside its kernel's buffers: some write limits.
_UNREAD_BYTES = 6 * 32 * 1024
_REQUESTS = 2000
#: More, in all, than kernels and the broker keep for a client that does not read.
_MESSAGES = 100
_MESSAGE_BYTES = 3000


def unread_answers(world: World, client: SimulatedClient, number: int, rng: random.Random) -> None:
    """A client asks and asks and reads no answer. What waits for it must be bounded."""
    if not client.connect() or client.connection is None:
        return
    world.advance(50)
    connection = client.connection
    if connection.lost:
        return
    connection.reads = False
    for _ in range(_REQUESTS):
        command = wire.BaseCommand(type=wire.BaseCommand.GET_TOPICS_OF_NAMESPACE)
        command.getTopicsOfNamespace.request_id = client.next_id()
        command.getTopicsOfNamespace.namespace = "public/default"
        client.send(command)
    world.advance(100)
    if connection.most_unread > _UNREAD_BYTES:
        raise Violation("answers wait without limit", f"{connection.most_unread} bytes for client {client.number}")
    if rng.random() < 0.5:
        # Its machine is gone, and what waits for it will never be read.
        connections.do_go_silent(world, client, number, rng)
    else:
        client.read_on()


def unread_messages(world: World, client: SimulatedClient, number: int, rng: random.Random) -> None:
    """A consumer asks for more than fits on the way to it and reads nothing. It reads on, or others get it all."""
    topic = world.topic(110 + number)
    kind = rng.choice([EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED])
    consumer = consuming.own_consumer(world, client, topic, kind, 0)
    sender = world.clients[(client.number + 1) % (len(world.clients) - 1)]
    connection = client.connection
    if consumer is None or connection is None or not sender.connect():
        return
    wanted = Policies(message_ttl_ms=-1, retention=Retention(-1, -1), max_unacked_per_consumer=1_000_000)
    wanted.max_unacked_per_subscription = 1_000_000
    administration.set_policies(world, topic, wanted)
    connection.reads = False
    consuming.flow(world, client, consumer, 1000)
    sent = producing.publish_plain(world, sender, topic, rng, _MESSAGES, _MESSAGE_BYTES)
    world.advance(500)
    if connection.most_unread > _UNREAD_BYTES:
        raise Violation("messages wait without limit", f"{connection.most_unread} bytes for client {client.number}")
    reads_on = rng.random() < 0.5
    if reads_on:
        client.read_on()
        world.advance(20)
        client.read_on()
    else:
        connections.do_go_silent(world, client, number, rng)
        client.ended()
        consumer = consuming.subscribe(world, sender, topic, consumer.subscription.name, kind, 1000)
    world.advance(3000)
    _check_all_there(world, consumer, sent)


def _check_all_there(world: World, consumer: ConsumerModel, sent: list[Message]) -> None:
    disk = world.machine.disk
    model = consumer.subscription
    if consumer.closed or disk.failed or disk.reads_failed:
        return
    missing = [message for message in sent if model.owes(message) and message.number not in consumer.hand]
    if missing:
        raise Violation(
            "nothing goes on", f"{len(missing)} of {len(sent)} messages do not come to consumer {consumer.number}"
        )


ACTIONS: dict[str, Action] = {"unread_answers": unread_answers, "unread_messages": unread_messages}
