"""Producers: what they send."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from . import entries
from .action import Action
from .model import TopicModel

if TYPE_CHECKING:
    from .client import SimulatedClient
    from .world import World


def do_produce(world: World, client: SimulatedClient, number: int, rng: random.Random) -> None:
    if client.connect():
        publish(world, client, world.topic(number), rng, rng.choice([1, 2, 3, 6, 15]))


def publish(world: World, client: SimulatedClient, topic: TopicModel, rng: random.Random, count: int) -> None:
    """Send so many entries of all sorts."""
    producer = client.open_producer(topic)
    for _ in range(count):
        message = entries.make_message(
            len(world.messages.messages) + 1,
            topic,
            producer.name,
            producer.next_sequence,
            world.machine.clock.now_ms(),
            rng,
        )
        producer.next_sequence += message.count
        world.messages.add(message)
        client.produce(producer, message)


ACTIONS: dict[str, Action] = {
    "produce": do_produce,
}
