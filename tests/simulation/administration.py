"""Operations of administrators: policies, skipping, clearing, expiring, deleting, unloading, compacting."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from heliograph_api.policies.policies import BacklogQuota, Policies, Retention
from heliograph_api.values.names import TopicName
from heliograph_broker.messaging.base.errors import BrokerError
from heliograph_broker.messaging.base.records import NamespaceRecord, TenantRecord

from . import connections, expectations
from .action import Action
from .model import DEAD_LETTERS, SubscriptionModel, TopicModel

if TYPE_CHECKING:
    from .client import SimulatedClient
    from .world import World


def do_set_policies(world: World, client: SimulatedClient, number: int, rng: random.Random) -> None:
    topic = world.topic(number)
    if world.stored(topic) is None:
        return
    policies = _some_policies(world, topic, rng)
    set_policies(world, topic, policies)


def _some_policies(world: World, topic: TopicModel, rng: random.Random) -> Policies:
    policies = Policies()
    if rng.random() < 0.5:
        policies.retention = rng.choice([Retention(0, 0), Retention(-1, -1), Retention(2000, -1), Retention(-1, 4000)])
    if rng.random() < 0.3:
        policies.message_ttl_ms = rng.choice([300, 2000, 20_000])
    if rng.random() < 0.3:
        policies.deduplication = rng.random() < 0.6
    if rng.random() < 0.2:
        policies.delayed_delivery = rng.random() < 0.3
    if rng.random() < 0.2:
        limit = rng.choice([2000, 8000])
        policies.backlog_quota_size = BacklogQuota(
            limit, rng.choice(["producer_exception", "producer_request_hold", "consumer_backlog_eviction"])
        )
        if policies.retention is not None and 0 < policies.retention.size_bytes < limit:
            policies.retention = None
    if rng.random() < 0.3:
        policies.dead_letter_topic = DEAD_LETTERS
    if rng.random() < 0.3:
        policies.ttl_in_batches = rng.random() < 0.5
    if world.varied and rng.random() < 0.3:
        policies.ttl_counts_delay = True
    return policies


def set_policies(world: World, topic: TopicModel, policies: Policies) -> None:
    """Set policies, noting what they cause to be deleted."""
    expectations.note_expired(world)
    topic.policies.append(policies)
    evicts = _evicts(policies)
    topic.evicts = topic.evicts or evicts
    ttl = policies.message_ttl_ms
    if ttl is not None and (topic.ttl_ms < 0 or ttl < topic.ttl_ms):
        topic.ttl_ms = ttl
    topic.deduplicated = topic.deduplicated and policies.deduplication is True

    def confirmed() -> None:
        if policies not in topic.policies:
            return
        del topic.policies[: topic.policies.index(policies)]
        expectations.note_expired(world)
        topic.ttl_ms = -1 if ttl is None else ttl
        topic.evicts = evicts
        if policies.deduplication and not topic.messages:
            topic.deduplicated = True

    name = TopicName.parse(topic.name)
    if not world.confirm(lambda: world.machine.broker.policies.set_topic(name, policies), confirmed):
        topic.policies.remove(policies)


def _some_subscription(world: World, number: int, rng: random.Random) -> SubscriptionModel | None:
    topic = world.topic(number)
    stored = world.stored(topic)
    if stored is None:
        return None
    known = [each for each in topic.owed() if each.name in stored.subscriptions]
    return rng.choice(known) if known else None


def do_skip(world: World, client: SimulatedClient, number: int, rng: random.Random) -> None:
    _by_hand(world, number, rng, lambda sub, done: sub.acks.skip(rng.randint(1, 20), done))


def do_clear(world: World, client: SimulatedClient, number: int, rng: random.Random) -> None:
    _by_hand(world, number, rng, lambda sub, done: sub.acks.clear_backlog(done))


def do_expire(world: World, client: SimulatedClient, number: int, rng: random.Random) -> None:
    _by_hand(world, number, rng, lambda sub, done: sub.expiry.expire_older_than(rng.choice([0, 500]), done))


def _by_hand(world: World, number: int, rng: random.Random, what: Callable[..., None]) -> None:
    model = _some_subscription(world, number, rng)
    if model is None:
        return
    stored = world.stored(model.topic)
    assert stored is not None
    model.excuse_all()
    what(stored.subscriptions[model.name], lambda error: world.trace(f"by hand: {error}"))


def do_unsubscribe(world: World, client: SimulatedClient, number: int, rng: random.Random) -> None:
    model = _some_subscription(world, number, rng)
    if model is None:
        return
    stored = world.stored(model.topic)
    assert stored is not None
    model.unknown = True
    outcome: list[object] = []
    try:
        stored.delete_subscription(model.name, force=True, done=outcome.append)
    except BrokerError as error:
        outcome.append(error)
    topic = model.topic
    _await(world, outcome)
    if outcome == [None]:
        for consumer in list(model.consumers):
            consumer.end()
        if topic.subscriptions.get(model.name) is model:
            del topic.subscriptions[model.name]


def _await(world: World, outcome: list[object]) -> None:
    for _ in range(30):
        if outcome:
            return
        world.advance(50)


def do_delete_topic(world: World, client: SimulatedClient, number: int, rng: random.Random) -> None:
    topic = world.topic(number)
    if world.stored(topic) is None or not topic.confirmed:
        return
    for one in world.clients:
        # Messages on their way to the old topic do not reach the next one of its name.
        connections.do_cut(world, one, number, rng)
    world.give_up(number, topic, gone=False)
    del world.names[number]
    outcome: list[object] = []
    name = TopicName.parse(topic.name)
    world.topics.pop(topic.name)
    unused = f"{topic.name} deleted {len(world.messages.messages)}"
    world.topics[unused] = topic
    gone = False
    try:
        world.machine.broker.topics.delete(name, force=True)
        world.machine.broker.store.writer.after_commit(outcome.append)
        # Nobody uses the name until it is known what became of it.
        _await(world, outcome)
        gone = outcome == [None]
    finally:
        if not gone:
            world.names[number] = world.names.get(number, 0) + 1 + len(world.messages.messages)
        else:
            del world.topics[unused]


def do_unload(world: World, client: SimulatedClient, number: int, rng: random.Random) -> None:
    topic = world.topic(number)
    if world.stored(topic) is not None:
        world.machine.broker.topics.unload(TopicName.parse(topic.name))


def do_compact(world: World, client: SimulatedClient, number: int, rng: random.Random) -> None:
    stored = world.stored(world.topic(number))
    if stored is not None and stored.compaction.status()[0] != "RUNNING":
        stored.compaction.start()


def do_create_namespace(world: World, client: SimulatedClient, number: int, rng: random.Random) -> None:
    tenant = f"tenant{rng.randrange(100)}"
    namespace = f"{tenant}/n{rng.randrange(3)}"
    broker = world.machine.broker
    if tenant not in broker.directory.tenants:
        world.confirm(
            lambda: broker.tenants.create(tenant, TenantRecord(allowed_clusters=["standalone"])),
            lambda: world.tenants.add(tenant),
        )
    if namespace not in broker.directory.namespaces:
        world.confirm(
            lambda: broker.namespaces.create(namespace, NamespaceRecord()), lambda: world.namespaces.add(namespace)
        )


def _evicts(policies: Policies) -> bool:
    quota = policies.backlog_quota_size
    return quota is not None and quota.policy == "consumer_backlog_eviction"


ACTIONS: dict[str, Action] = {
    "set_policies": do_set_policies,
    "skip": do_skip,
    "clear": do_clear,
    "expire": do_expire,
    "unsubscribe": do_unsubscribe,
    "delete_topic": do_delete_topic,
    "unload": do_unload,
    "compact": do_compact,
    "create_namespace": do_create_namespace,
}
