"""Messages that are sent in chunks, by several producers at a time, some of which stop in the middle."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from tests.support.entries import seal

from . import entries
from .action import Action
from .model import ChunkedMessage, Message, Position, TopicModel

if TYPE_CHECKING:
    from .client import ProducerModel, SimulatedClient
    from .world import World

#: Number of producers that send at a time.
_SENDERS = (1, 2, 2, 3)
Held = tuple[Message, Position, int]


class _Sending:
    """A producer in the midst of a chunked message."""

    def __init__(self, client: SimulatedClient, topic: TopicModel, rng: random.Random) -> None:
        self.client = client
        self.producer: ProducerModel = client.open_producer(topic)
        self.sequence_id = self.producer.next_sequence
        self.producer.next_sequence += 1
        self.key = rng.choice(entries.KEYS) if rng.random() < 0.5 else None
        name = f"{self.producer.name}-{self.sequence_id}-whole"
        self.message = ChunkedMessage(name, rng.choice([2, 3, 5, 12]))

    def send_next(self, world: World, rng: random.Random) -> bool:
        """Send the next chunk; return whether that was the last one."""
        number = len(world.messages.messages) + 1
        message = self.message
        metadata = entries.metadata_of(number, self.producer.name, self.sequence_id, world.machine.clock.now_ms())
        if self.key is not None:
            metadata.partition_key = self.key
        metadata.uuid = message.name
        metadata.chunk_id = len(message.chunks)
        metadata.num_chunks_from_msg = message.count
        metadata.total_chunk_msg_size = message.count * 100
        frame = seal(metadata.SerializeToString(), rng.randbytes(100))
        chunk = Message(number, self.producer.topic, frame, self.sequence_id, key=self.key, chunked=message)
        world.messages.add(chunk)
        self.client.produce(self.producer, chunk)
        return len(message.chunks) == message.count


def do_produce_chunks(world: World, client: SimulatedClient, number: int, rng: random.Random) -> None:
    """Send chunked messages whose chunks come between one another; a few are never finished."""
    topic = world.topic(number)
    others = [one for one in world.clients[:-1] if one is not client]
    senders = [client, *rng.sample(others, rng.choice(_SENDERS) - 1)]
    sending = [_Sending(one, topic, rng) for one in senders if one.connect()]
    while sending:
        one = rng.choice(sending)
        if one.send_next(world, rng) or rng.random() < 0.03:
            sending.remove(one)
        if rng.random() < 0.2:
            world.advance(rng.choice([0, 1, 20]))


def whole(held: list[Held], some: list[Held]) -> list[Held]:
    """Return ``some`` as a client acknowledges it: chunked messages once it has all their chunks, and all of them."""
    chosen: dict[int, Held] = {}
    for each in some:
        chunked = each[0].chunked
        if chunked is None:
            chosen[each[0].number] = each
            continue
        of_it = [one for one in held if one[0].chunked is chunked]
        if len({one[0].number for one in of_it}) == chunked.count:
            chosen.update((one[0].number, one) for one in of_it)
    return list(chosen.values())


ACTIONS: dict[str, Action] = {"produce_chunks": do_produce_chunks}
