"""Consumers and readers: how they come, ask for messages, give them back, seek and close."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, cast

from heliograph_api.protocol import wire_pb2 as wire

from .action import Action
from .model import (
    EXCLUSIVE,
    FAILOVER,
    KEY_SHARED,
    NOWHERE,
    SHARED,
    ConsumerModel,
    Position,
    SubscriptionModel,
    TopicModel,
)

if TYPE_CHECKING:
    from .client import SimulatedClient
    from .world import World

SUBSCRIPTIONS = ("s0", "s1", "s2")


def do_subscribe(world: World, client: SimulatedClient, number: int, rng: random.Random) -> None:
    if not client.connect():
        return
    kind = rng.choices([EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED], [3, 4, 2, 3])[0]
    subscribe(world, client, world.topic(number), rng.choice(SUBSCRIPTIONS), kind, rng.choice([0, 5, 20, 1000]))


def do_read(world: World, client: SimulatedClient, number: int, rng: random.Random) -> None:
    """A reader, sometimes with the name of a durable subscription."""
    if not client.connect():
        return
    name = rng.choice([f"reader-{client.number}", *SUBSCRIPTIONS])
    topic = world.topic(number)
    where = rng.choice(["earliest", "latest"])
    subscribe(world, client, topic, name, EXCLUSIVE, rng.choice([5, 1000]), durable=False, where=where)


def subscribe(
    world: World,
    client: SimulatedClient,
    topic: TopicModel,
    name: str,
    kind: int,
    permits: int,
    *,
    durable: bool = True,
    where: str = "latest",
) -> ConsumerModel:
    """Send SUBSCRIBE, and FLOW once it is answered."""
    if durable:
        subscription = topic.subscriptions.get(name)
        if subscription is None:
            subscription = topic.subscriptions[name] = SubscriptionModel(topic, name, durable=True)
    else:
        subscription = SubscriptionModel(topic, name, durable=False)
    consumer = ConsumerModel(client.next_id(), client.number, subscription, kind)
    client.consumers[consumer.number] = consumer
    subscription.consumers.append(consumer)
    command = wire.BaseCommand(type=wire.BaseCommand.SUBSCRIBE)
    request = command.subscribe
    request.topic = topic.name
    request.subscription = name
    request.subType = kind  # type: ignore[assignment]
    request.consumer_id = consumer.number
    request.consumer_name = f"c{client.number}-{consumer.number}"
    request.request_id = client.next_id()
    request.durable = durable
    if where == "earliest":
        request.initialPosition = wire.CommandSubscribe.Earliest
        if not durable:
            request.start_message_id.ledgerId = NOWHERE
            request.start_message_id.entryId = NOWHERE

    def answered(answer: wire.BaseCommand | None) -> None:
        if answer is None or answer.type != wire.BaseCommand.SUCCESS:
            client.consumers.pop(consumer.number, None)
            consumer.end()
            return
        topic.confirmed = True
        consumer.open = True
        if not subscription.confirmed:
            subscription.confirmed = True
            subscription.since = len(world.messages.messages)
        if permits:
            flow(world, client, consumer, permits)

    client.request(command, answered)
    return consumer


def flow(world: World, client: SimulatedClient, consumer: ConsumerModel, permits: int) -> None:
    command = wire.BaseCommand(type=wire.BaseCommand.FLOW)
    command.flow.consumer_id = consumer.number
    command.flow.messagePermits = permits
    client.send(command)


def own_consumer(
    world: World, client: SimulatedClient, topic: TopicModel, kind: int, permits: int
) -> ConsumerModel | None:
    """Return a new consumer of a subscription of the situation's own, None if it does not come about."""
    if not client.connect():
        return None
    consumer = subscribe(world, client, topic, f"of-{client.number}", kind, permits)
    world.advance(150)
    return consumer if consumer.open and not consumer.closed else None


def open_consumer(world: World, client: SimulatedClient, rng: random.Random) -> ConsumerModel | None:
    consumers = [consumer for consumer in client.consumers.values() if consumer.open and not consumer.closed]
    if not client.connected or not consumers:
        return None
    return rng.choice(consumers)


def do_flow(world: World, client: SimulatedClient, number: int, rng: random.Random) -> None:
    consumer = open_consumer(world, client, rng)
    if consumer is not None:
        flow(world, client, consumer, rng.choice([1, 3, 50]))


def do_negative_acknowledge(world: World, client: SimulatedClient, number: int, rng: random.Random) -> None:
    consumer = open_consumer(world, client, rng)
    if consumer is None:
        return
    command = wire.BaseCommand(type=wire.BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES)
    request = command.redeliverUnacknowledgedMessages
    request.consumer_id = consumer.number
    if consumer.kind in (EXCLUSIVE, FAILOVER):
        consumer.epoch += 1
        request.consumer_epoch = consumer.epoch
        consumer.reset()
    else:
        held = [each for each in consumer.inbox if each[0].number in consumer.hand]
        if not held:
            return
        for message, position, _ in rng.sample(held, rng.randint(1, len(held))):
            one = request.message_ids.add()
            one.ledgerId, one.entryId = position
            consumer.given_back.add(message.number)
            if message.chunked is not None:
                # The broker takes back all of it.
                consumer.given_back.update(chunk.number for chunk in message.chunked.chunks)
    client.send(command)


def do_close_consumer(world: World, client: SimulatedClient, number: int, rng: random.Random) -> None:
    consumer = open_consumer(world, client, rng)
    if consumer is None:
        return
    command = wire.BaseCommand(type=wire.BaseCommand.CLOSE_CONSUMER)
    command.close_consumer.consumer_id = consumer.number
    command.close_consumer.request_id = client.next_id()
    client.send(command)
    del client.consumers[consumer.number]
    consumer.end()


def do_seek(world: World, client: SimulatedClient, number: int, rng: random.Random) -> None:
    consumer = open_consumer(world, client, rng)
    if consumer is None:
        return
    command = wire.BaseCommand(type=wire.BaseCommand.SEEK)
    command.seek.consumer_id = consumer.number
    command.seek.request_id = client.next_id()
    place = rng.randrange(3)
    if place == 0:
        command.seek.message_publish_time = world.machine.clock.now_ms() - rng.choice([0, 100, 5000])
    else:
        known = [message for message in consumer.subscription.topic.messages if message.positions]
        position = (NOWHERE, NOWHERE)
        if known and place == 1:
            position = cast(Position, rng.choice(known).position)
        command.seek.message_id.ledgerId, command.seek.message_id.entryId = position
    subscription = consumer.subscription
    subscription.moved_by_hand()
    client.request(command, lambda answer: subscription.moved_by_hand())


ACTIONS: dict[str, Action] = {
    "subscribe": do_subscribe,
    "read": do_read,
    "flow": do_flow,
    "negative_acknowledge": do_negative_acknowledge,
    "close_consumer": do_close_consumer,
    "seek": do_seek,
}
