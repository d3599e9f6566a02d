"""Acknowledgements: individual and cumulative ones, of batches as a whole or in part, with and without receipts."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from heliograph_api.protocol import wire_pb2 as wire

from . import chunking, consuming, entries
from .action import Action
from .model import EXCLUSIVE, FAILOVER, ConsumerModel, Message, Position

if TYPE_CHECKING:
    from .client import SimulatedClient
    from .world import World


def do_acknowledge(world: World, client: SimulatedClient, number: int, rng: random.Random) -> None:
    consumer = consuming.open_consumer(world, client, rng)
    if consumer is None:
        return
    held = [each for each in consumer.inbox if each[0].number in consumer.hand]
    if not held:
        return
    receipt = rng.random() < 0.3
    cumulative = consumer.kind in (EXCLUSIVE, FAILOVER) and rng.random() < 0.4
    if cumulative:
        up_to = chunking.whole(held, [rng.choice(held)])
        if up_to:
            acknowledge_up_to(world, client, consumer, up_to[-1], receipt)
        return
    some = held if rng.random() < 0.4 else rng.sample(held, rng.randint(1, min(5, len(held))))
    bits = [each[2] if rng.random() < 0.8 else each[2] & rng.getrandbits(20) for each in some]
    parts = [(*each, of_it) for each, of_it in zip(some, bits, strict=True) if each[0].chunked is None]
    wholes = [(*each, each[2]) for each in chunking.whole(held, some) if each[0].chunked is not None]
    acknowledge(world, client, consumer, parts + wholes, receipt)


def acknowledge(
    world: World,
    client: SimulatedClient,
    consumer: ConsumerModel,
    some: list[tuple[Message, Position, int, int]],
    receipt: bool,
) -> None:
    """Acknowledge of each message some bits."""
    subscription = consumer.subscription
    command = wire.BaseCommand(type=wire.BaseCommand.ACK)
    request = command.ack
    request.consumer_id = consumer.number
    request.ack_type = wire.CommandAck.Individual
    given: list[tuple[int, int]] = []
    for message, position, came, bits in some:
        if not bits:
            continue
        one = request.message_id.add()
        one.ledgerId, one.entryId = position
        if bits != came and not world.acknowledges_parts:
            # The broker takes no part of a batch: the consumer keeps all of it.
            one.ack_set.extend(entries.words_of(came & ~bits))
            continue
        done = subscription.maybe_acked.get(message.number, 0) | bits
        subscription.maybe_acked[message.number] = done
        if message.count > 1 and done != message.whole:
            left = message.whole & ~done
            one.ack_set.extend(entries.words_of(left))
            given.append((message.number, bits))
        else:
            given.append((message.number, message.whole))
        left = consumer.hand.get(message.number, 0) & ~bits
        if left:
            consumer.hand[message.number] = left
        else:
            consumer.hand.pop(message.number, None)
    if not request.message_id:
        return
    generation = subscription.generation

    def answered(answer: wire.BaseCommand | None) -> None:
        if answer is None or answer.ackResponse.HasField("error") or generation != subscription.generation:
            return
        for number, bits in given:
            subscription.surely_acked[number] = subscription.surely_acked.get(number, 0) | bits

    _send_ack(world, client, command, receipt, answered)


def acknowledge_up_to(
    world: World, client: SimulatedClient, consumer: ConsumerModel, up_to: tuple[Message, Position, int], receipt: bool
) -> None:
    subscription = consumer.subscription
    command = wire.BaseCommand(type=wire.BaseCommand.ACK)
    request = command.ack
    request.consumer_id = consumer.number
    request.ack_type = wire.CommandAck.Cumulative
    position = up_to[1]
    one = request.message_id.add()
    one.ledgerId, one.entryId = position
    subscription.maybe_up_to = max(subscription.maybe_up_to, position)
    for message, at, _ in consumer.inbox:
        if at <= position:
            consumer.hand.pop(message.number, None)
    generation = subscription.generation

    def answered(answer: wire.BaseCommand | None) -> None:
        if answer is None or answer.ackResponse.HasField("error") or generation != subscription.generation:
            return
        subscription.surely_up_to = max(subscription.surely_up_to, position)

    _send_ack(world, client, command, receipt, answered)


def _send_ack(
    world: World,
    client: SimulatedClient,
    command: wire.BaseCommand,
    receipt: bool,
    answered: Callable[[wire.BaseCommand | None], None],
) -> None:
    if receipt:
        command.ack.request_id = client.next_id()
        client.request(command, answered)
    else:
        client.send(command)


ACTIONS: dict[str, Action] = {
    "acknowledge": do_acknowledge,
}
