"""Producers: what they send."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.support.entries import seal

from . import entries
from .action import Action
from .model import Message, TopicModel

if TYPE_CHECKING:
    from .client import SimulatedClient
    from .world import World

#: Makes a message by its number, topic, producer's name, sequence id and publish time (wall-clock ms).
MakeMessage = Callable[[int, TopicModel, str, int, int, random.Random], Message]


def do_produce(world: World, client: SimulatedClient, number: int, rng: random.Random) -> None:
    if client.connect():
        publish(world, client, world.topic(number), rng, rng.choice([1, 2, 3, 6, 15]))


def publish(world: World, client: SimulatedClient, topic: TopicModel, rng: random.Random, count: int) -> None:
    """Send so many entries of all sorts."""
    for _ in range(count):
        send(world, client, topic, rng, entries.make_message)


def send(world: World, client: SimulatedClient, topic: TopicModel, rng: random.Random, make: MakeMessage) -> None:
    """Send the next message of the client's producer on ``topic``."""
    producer = client.open_producer(topic)
    number = len(world.messages.messages) + 1
    message = make(number, topic, producer.name, producer.next_sequence, world.machine.clock.now_ms(), rng)
    producer.next_sequence += message.count
    world.messages.add(message)
    client.produce(producer, message)


def publish_plain(
    world: World, client: SimulatedClient, topic: TopicModel, rng: random.Random, count: int, size: int
) -> list[Message]:
    """Send so many messages of ``size`` bytes and with a key, one by one; return them."""
    producer = client.open_producer(topic)
    sent = []
    for _ in range(count):
        number = len(world.messages.messages) + 1
        key = rng.choice(entries.KEYS)
        metadata = entries.metadata_of(number, producer.name, producer.next_sequence, world.machine.clock.now_ms())
        metadata.partition_key = key
        frame = seal(metadata.SerializeToString(), bytes(size))
        message = Message(number, topic, frame, producer.next_sequence, key=key)
        producer.next_sequence += 1
        world.messages.add(message)
        client.produce(producer, message)
        sent.append(message)
    return sent


ACTIONS: dict[str, Action] = {
    "produce": do_produce,
}
