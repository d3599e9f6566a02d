"""A SUBSCRIBE or PRODUCER that is refused, whatever the reason, leaves nothing behind: in memory or on the disk."""

from __future__ import annotations

import errno
import gc
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from heliograph_api.policies.policies import AutoTopicCreation, Policies
from heliograph_api.protocol import wire_pb2 as wire
from heliograph_api.values.names import TopicName
from heliograph_broker.messaging.base import records
from heliograph_broker.messaging.base.errors import PersistenceError
from heliograph_broker.messaging.clients.consumer import Consumer
from heliograph_broker.messaging.clients.producer import Producer
from heliograph_broker.messaging.delivery.subscription import Subscription
from heliograph_broker.messaging.log.record_set import RecordSet
from heliograph_broker.messaging.schemas.schema_registry import SchemaRegistry
from heliograph_broker.messaging.topic.non_persistent import NonPersistentSubscription, NonPersistentTopic
from heliograph_broker.messaging.topic.topic import Topic

from tests.support.core import Core
from tests.support.failing_metadata import failing_metadata
from tests.support.virtual_connection import FarSide, VirtualServer
from tests.support.wire_client import Type


def no_space() -> OSError:
    """An error of its own each time: one that was raised keeps what it passed."""
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


NAMESPACE = "public/default"
EXISTING = "persistent://public/default/there"
NEW = {
    "persistent": "persistent://public/default/new",
    "non-persistent": "non-persistent://public/default/new",
    "missing partition": "persistent://public/default/parts-partition-1",
}
KINDS = (Topic, NonPersistentTopic, Subscription, NonPersistentSubscription, Consumer, Producer, RecordSet)

KEY_SHARED = wire.CommandSubscribe.Key_Shared
SHARED = wire.CommandSubscribe.Shared
EXCLUSIVE = wire.CommandSubscribe.Exclusive
STRING = wire.Schema(name="s", type=wire.Schema.String, schema_data=b"")
AVRO = wire.Schema(name="a", type=wire.Schema.Avro, schema_data=b'{"type":"record","name":"R","fields":[]}')
LARGE = [wire.KeyValue(key="k", value="v" * 70_000)]


@pytest.fixture(scope="module", autouse=True)
def _only_objects_made_here() -> Iterator[None]:
    """Let the collector pass over what there was before, which would take most of the time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[VirtualServer]:
    core = Core(tmp_path / "data")
    broker = core.broker
    broker.topics.create(TopicName.parse(EXISTING))
    core.topic(EXISTING).create_subscription("reads")
    base = TopicName.parse(NEW["missing partition"]).base
    broker.partitioned.create(base, 2)
    broker.topics.delete(base.with_partition(1))
    core.advance(1000)
    yield VirtualServer(core)
    core.close()


class Case(NamedTuple):
    """A request with these fields is refused, with ``error``, where these policies hold."""

    error: int
    fields: Mapping[str, Any]
    policies: Policies = Policies()
    #: Refused on persistent topics only.
    persistent: bool = False


SUBSCRIBE: dict[str, Case] = {
    "max consumers": Case(wire.ConsumerBusy, {"topic": EXISTING}, Policies(max_consumers=1)),
    "subscription type": Case(wire.NotAllowedError, {}, Policies(subscription_types=["Shared"])),
    "max subscriptions": Case(wire.NotAllowedError, {"topic": EXISTING}, Policies(max_subscriptions=1)),
    "automatic subscriptions": Case(
        wire.SubscriptionNotFound, {}, Policies(auto_subscription_creation=False), persistent=True
    ),
    "consumer metadata": Case(wire.NotAllowedError, {"metadata": LARGE}),
    "subscription properties": Case(wire.NotAllowedError, {"subscription_properties": LARGE}, persistent=True),
    "no name": Case(wire.NotAllowedError, {"subscription": ""}),
    "name with NUL": Case(wire.NotAllowedError, {"subscription": "a\0b"}),
    "long name": Case(wire.NotAllowedError, {"subscription": "s" * 1000}),
    "the compaction's name": Case(wire.NotAllowedError, {"subscription": "__compaction"}),
    "compacted and shared": Case(wire.NotAllowedError, {"read_compacted": True, "subType": SHARED}),
    "overlapping ranges": Case(
        wire.ConsumerAssignError,
        {
            "subType": KEY_SHARED,
            "keySharedMeta": wire.KeySharedMeta(
                keySharedMode=wire.STICKY,
                hashRanges=[wire.IntRange(start=0, end=9), wire.IntRange(start=9, end=12)],
            ),
        },
        persistent=True,
    ),
    "schema": Case(wire.IncompatibleSchema, {"schema": STRING}, Policies(auto_update_schema=False)),
    "schema properties": Case(
        wire.NotAllowedError,
        {"schema": wire.Schema(name="s", type=wire.Schema.String, schema_data=b"", properties=LARGE)},
    ),
}
PRODUCER: dict[str, Case] = {
    "max producers": Case(wire.ProducerBusy, {"topic": EXISTING}, Policies(max_producers=1)),
    "encryption": Case(wire.MetadataError, {}, Policies(encryption_required=True)),
    "long name": Case(wire.NotAllowedError, {"producer_name": "p" * 2000}),
    "metadata": Case(wire.NotAllowedError, {"metadata": LARGE}),
    "schema": Case(wire.IncompatibleSchema, {"schema": STRING}, Policies(auto_update_schema=False)),
    "initial subscription": Case(
        wire.NotAllowedError,
        {"initial_subscription_name": "i", "schema": STRING},
        Policies(auto_subscription_creation=False),
        persistent=True,
    ),
    "max subscriptions": Case(
        wire.NotAllowedError,
        {"initial_subscription_name": "i", "schema": STRING, "topic": EXISTING},
        Policies(max_subscriptions=1),
        persistent=True,
    ),
    "initial name with NUL": Case(
        wire.NotAllowedError, {"initial_subscription_name": "a\0b", "schema": STRING}, persistent=True
    ),
    "fenced": Case(
        wire.ProducerFenced,
        {
            "producer_access_mode": wire.ProducerAccessMode.Exclusive,
            "topic_epoch": 0,
            "initial_subscription_name": "i",
            "schema": STRING,
            "topic": EXISTING,
        },
        persistent=True,
    ),
    "name taken": Case(
        wire.ProducerBusy,
        {"producer_name": "taken", "initial_subscription_name": "i", "schema": STRING, "topic": EXISTING},
        persistent=True,
    ),
}


def subscribe(client: FarSide, topic: str, **fields: Any) -> Any:
    asked = {"subscription": "s", "subType": EXCLUSIVE, "consumer_id": 1, "topic": topic} | fields
    return client.request(Type.SUBSCRIBE, **asked)


def produce(client: FarSide, topic: str, **fields: Any) -> Any:
    asked = {"producer_name": "p", "user_provided_producer_name": True, "producer_id": 1, "topic": topic} | fields
    return client.request(Type.PRODUCER, **asked)


def sizes(thing: Any, path: str, found: dict[str, int], seen: set[int]) -> None:
    """Collect how much is in every container that can be reached from ``thing`` within the broker's core."""
    if id(thing) in seen:
        return
    seen.add(id(thing))
    if isinstance(thing, dict | list | set | tuple) or type(thing).__name__ == "deque":
        found[path] = len(thing)
        for key, value in thing.items() if isinstance(thing, dict) else enumerate(thing):
            sizes(value, f"{path}[{key}]", found, seen)
    elif type(thing).__module__.startswith("heliograph_broker.messaging"):
        names = set(getattr(thing, "__dict__", {}))
        for kind in type(thing).__mro__:
            names.update(getattr(kind, "__slots__", ()))
        for name in sorted(names):
            if hasattr(thing, name):
                sizes(getattr(thing, name), f"{path}.{name}", found, seen)


class Footprint:
    """All there is of topics, subscriptions, schemas and clients, in memory and on the disk."""

    def __init__(self, server: VirtualServer) -> None:
        core = server.core
        core.advance(1000)
        server.loop.run()
        core.advance(11_000)
        gc.collect()
        self.objects = Counter(type(thing).__name__ for thing in gc.get_objects() if isinstance(thing, KINDS))
        self.sizes: dict[str, int] = {}
        sizes(core.broker, "broker", self.sizes, set())
        self.stored = sorted(key for key, _ in core.store.metadata.scan(b""))
        self.schemas = [(key, len(core.broker.schemas.versions(key))) for key in core.broker.schemas.topics()]
        self.stored_schemas = [core.store.metadata.get(key) for key in self.stored if key.startswith(records.SCHEMA)]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Footprint) and vars(self) == vars(other)

    def compare(self, before: Footprint) -> None:
        for name, value in vars(self).items():
            assert value == vars(before)[name], name


@pytest.fixture
def client(server: VirtualServer) -> FarSide:
    client = server.connect()
    holder = server.connect()
    # Once before, so that what a first request sets up for good is there already.
    assert isinstance(subscribe(client, EXISTING, subscription="warm"), wire.CommandSuccess)
    client.request(Type.UNSUBSCRIBE, consumer_id=1)
    produce(client, EXISTING)
    client.request(Type.CLOSE_PRODUCER, producer_id=1)
    produce(holder, EXISTING, producer_name="taken")
    subscribe(holder, EXISTING, subscription="reads")
    return client


def _refuse(
    server: VirtualServer, client: FarSide, ask: Callable[..., Any], topic: str, case: Case, where: str
) -> None:
    broker = server.core.broker
    record = broker.directory.namespace(NAMESPACE)
    before = Footprint(server)
    broker.namespaces.set_policies(NAMESPACE, case.policies)
    answer = ask(client, **{"topic": topic, **case.fields})
    assert isinstance(answer, wire.CommandError), where
    assert answer.error == case.error, answer.message
    broker.namespaces.set_policies(NAMESPACE, record.policies or Policies())
    del answer
    Footprint(server).compare(before)


@pytest.mark.parametrize("where", [*NEW, "existing"])
@pytest.mark.parametrize("reason", SUBSCRIBE)
def test_a_refused_subscribe_leaves_nothing(server: VirtualServer, client: FarSide, reason: str, where: str) -> None:
    case = SUBSCRIBE[reason]
    if case.persistent and where == "non-persistent":
        where = "persistent"
    _refuse(server, client, subscribe, NEW.get(where, EXISTING), case, where)


@pytest.mark.parametrize("where", [*NEW, "existing"])
@pytest.mark.parametrize("reason", PRODUCER)
def test_a_refused_producer_leaves_nothing(server: VirtualServer, client: FarSide, reason: str, where: str) -> None:
    case = PRODUCER[reason]
    if case.persistent and where == "non-persistent":
        where = "persistent"
    _refuse(server, client, produce, NEW.get(where, EXISTING), case, where)


@pytest.mark.parametrize("where", [*NEW, "existing"])
@pytest.mark.parametrize("ask", [subscribe, produce])
def test_one_that_the_disk_did_not_take_leaves_nothing(
    server: VirtualServer, client: FarSide, ask: Callable[..., Any], where: str
) -> None:
    extra: dict[str, Any] = {"schema": AVRO}
    if ask is produce and where != "non-persistent":
        extra |= {"initial_subscription_name": "i"}
    before = Footprint(server)
    with failing_metadata(no_space()):
        answer = ask(client, NEW.get(where, EXISTING), **extra)
        assert answer.error == wire.PersistenceError
    Footprint(server).compare(before)
    server.core.restart()
    assert NEW.get(where) not in server.core.broker.directory.topics


def test_one_whose_schema_the_store_does_not_take_leaves_nothing(
    server: VirtualServer, client: FarSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Footprint(server)

    def refuse(*_: object, **__: object) -> int:
        raise PersistenceError("the record is too large")

    with monkeypatch.context() as patch:
        patch.setattr(SchemaRegistry, "add", refuse)
        for ask in (subscribe, produce):
            for topic in (*NEW.values(), EXISTING):
                answer = ask(client, topic, schema=AVRO)
                assert answer.error == wire.PersistenceError
    Footprint(server).compare(before)


def test_what_another_one_uses_by_then_stays(server: VirtualServer) -> None:
    """Refused by the disk, while the answer to somebody who joined them is under way: theirs is stored."""
    core = server.core
    first, second = server.connect(), server.connect()
    fields: dict[str, Any] = {"topic": NEW["persistent"], "subscription": "s", "subType": SHARED, "schema": AVRO}
    with failing_metadata(no_space()):
        first.send(Type.SUBSCRIBE, request_id=1, consumer_id=1, **fields)
        # While the first one's group is being written.
        core.store.writer.after_commit(lambda _: second.send(Type.SUBSCRIBE, request_id=2, consumer_id=2, **fields))
        core.store.writer._seal()
    core.commit()
    assert [frame.body.error for frame in first.take()] == [wire.PersistenceError]
    (answer,) = second.take()
    assert isinstance(answer.body, wire.CommandSuccess)
    core.crash()
    assert "s" in core.topic(NEW["persistent"]).subscriptions
    assert len(core.broker.schemas.versions(NEW["persistent"])) == 1


def test_what_several_would_have_used_goes_with_the_last_of_them(server: VirtualServer, client: FarSide) -> None:
    core = server.core
    others = [server.connect() for _ in range(3)]
    before = Footprint(server)
    with failing_metadata(no_space()):
        for number, other in enumerate(others):
            fields: dict[str, Any] = {
                "topic": NEW["persistent"],
                "subscription": "s",
                "subType": SHARED,
                "schema": AVRO,
            }
            other.send(Type.SUBSCRIBE, request_id=number, consumer_id=number, **fields)
        core.commit()
    for other in others:
        assert [frame.body.error for frame in other.take()] == [wire.PersistenceError]
    Footprint(server).compare(before)


def test_a_refused_schema_leaves_no_topic(server: VirtualServer, client: FarSide) -> None:
    before = Footprint(server)
    server.core.broker.namespaces.set_policies(NAMESPACE, Policies(auto_update_schema=False))
    answer = client.request(Type.GET_OR_CREATE_SCHEMA, topic=NEW["persistent"], schema=AVRO)
    assert answer.error_code == wire.IncompatibleSchema
    server.core.broker.namespaces.set_policies(NAMESPACE, Policies())
    with failing_metadata(no_space()):
        answer = client.request(Type.GET_OR_CREATE_SCHEMA, topic=NEW["persistent"], schema=AVRO)
        assert answer.error_code == wire.PersistenceError
    Footprint(server).compare(before)


def test_partitions_the_disk_did_not_take_are_neither_confirmed_nor_kept(
    server: VirtualServer, client: FarSide
) -> None:
    core = server.core
    before = Footprint(server)
    core.broker.namespaces.set_policies(NAMESPACE, Policies(auto_topic_creation=AutoTopicCreation(True, 3)))
    core.commit()
    with failing_metadata(no_space()):
        answer = client.request(Type.PARTITIONED_METADATA, topic=NEW["persistent"])
        assert (answer.response, answer.error) == (
            wire.CommandPartitionedTopicMetadataResponse.Failed,
            wire.PersistenceError,
        )
    core.broker.namespaces.set_policies(NAMESPACE, Policies())
    Footprint(server).compare(before)
