"""Producers and consumers opened on the core, without a connection: all that belongs to one, or nothing."""

from __future__ import annotations

import errno
import os

import pytest
from heliograph_api.policies.policies import BacklogQuota, Policies
from heliograph_api.protocol import wire_pb2 as wire
from heliograph_api.values.names import TopicName
from heliograph_broker.messaging.base.errors import (
    BrokerError,
    ConsumerBusy,
    IncompatibleSchema,
    NotAllowed,
    PersistenceError,
    ProducerBusy,
    SubscriptionNotFound,
    TopicNotFound,
)
from heliograph_broker.messaging.base.records import SchemaRecord
from heliograph_broker.messaging.clients.access_mode import AccessMode
from heliograph_broker.messaging.clients.client_info import ClientInfo
from heliograph_broker.messaging.clients.subscription_type import SubscriptionType
from heliograph_broker.messaging.policies.backlog_quota import QuotaState
from heliograph_broker.messaging.schemas.schema_registry import schema_key
from heliograph_broker.usecases.client_properties import MAX_PROPERTIES
from heliograph_broker.usecases.consumers import ConsumerRequest, OpenedConsumer, subscribe
from heliograph_broker.usecases.positions import EARLIEST, MessagePosition, Start
from heliograph_broker.usecases.producers import OpenedProducer, ProducerRequest, open_producer

from tests.support.core import Client, Core
from tests.support.failing_metadata import failing_metadata

NAME = TopicName.parse("t")
LATEST = MessagePosition((1 << 63) - 1, (1 << 63) - 1)
STRING = SchemaRecord("s", wire.Schema.String, b"")
INT = SchemaRecord("s", wire.Schema.Int32, b"")
LARGE = {"k": "v" * MAX_PROPERTIES}


def produce(core: Core, sink: Client | None = None, **options: object) -> OpenedProducer:
    request = ProducerRequest(NAME, 1, **options)  # type: ignore[arg-type]
    opened = open_producer(core.broker, sink or Client(), request)
    assert isinstance(opened, OpenedProducer)
    return opened


def consume(core: Core, sink: Client | None = None, **options: object) -> OpenedConsumer:
    kind = options.pop("subscription_type", SubscriptionType.EXCLUSIVE)
    request = ConsumerRequest(NAME, "s", kind, 1, **options)  # type: ignore[arg-type]
    opened = subscribe(core.broker, sink or Client(), request, lambda: None)
    assert opened is not None
    return opened


def durable(core: Core, opened: OpenedProducer | OpenedConsumer) -> list[BrokerError | None]:
    notified: list[BrokerError | None] = []
    opened.creation.when_durable(notified.append)
    core.commit()
    return notified


def nothing_is_there(core: Core) -> bool:
    key = schema_key(NAME)
    return not (
        core.broker.directory.exists(NAME) or core.broker.directory.unconfirmed or core.broker.schemas.latest(key)
    )


# -- producers -------------------------------------------------------------------------------------------------------


def test_a_producer_comes_with_its_topic_its_schema_and_its_subscription(core: Core) -> None:
    opened = produce(core, schema=STRING, initial_subscription="s")
    assert durable(core, opened) == [None]
    assert (opened.ready, opened.schema_version) == (True, 0)
    assert opened.producer.name
    assert opened.producer.generated_name
    core.crash()
    assert list(core.topic().subscriptions) == ["s"]
    assert core.broker.schemas.latest(schema_key(NAME)) is not None
    assert not core.broker.directory.unconfirmed


@pytest.mark.parametrize(
    ("options", "policies", "error"),
    [
        ({"client": ClientInfo(metadata=LARGE)}, Policies(), NotAllowed),
        ({"schema": SchemaRecord("s", wire.Schema.String, b"", LARGE)}, Policies(), NotAllowed),
        ({"schema": STRING}, Policies(auto_update_schema=False), IncompatibleSchema),
        ({"schema": STRING, "initial_subscription": "a\0b"}, Policies(), BrokerError),
        # Nothing would ever acknowledge there, and no backlog quota counts it.
        ({"initial_subscription": "__compaction"}, Policies(), NotAllowed),
        (
            {"schema": STRING, "initial_subscription": "s"},
            Policies(auto_subscription_creation=False),
            NotAllowed,
        ),
    ],
)
def test_a_producer_that_is_refused_leaves_nothing(
    core: Core, options: dict[str, object], policies: Policies, error: type[BrokerError]
) -> None:
    core.broker.namespaces.set_policies("public/default", policies)
    with pytest.raises(error):
        produce(core, **options)  # type: ignore[arg-type]
    assert nothing_is_there(core)


def test_a_producer_that_the_disk_refuses_leaves_nothing_once_its_client_is_detached(core: Core) -> None:
    opened = produce(core, schema=STRING, initial_subscription="s")
    notified: list[BrokerError | None] = []

    def done(error: BrokerError | None) -> None:
        notified.append(error)
        opened.producer.topic.producer_registry.remove(opened.producer)

    with failing_metadata(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))):
        opened.creation.when_durable(done)
        core.commit()
    assert [type(error) for error in notified] == [PersistenceError]
    assert nothing_is_there(core)


def test_a_producer_that_waits_for_exclusive_access_is_open_and_not_ready(core: Core) -> None:
    assert produce(core, name="a", access_mode=AccessMode.EXCLUSIVE).ready
    assert not produce(core, name="b", access_mode=AccessMode.WAIT_FOR_EXCLUSIVE).ready
    with pytest.raises(ProducerBusy):
        produce(core, name="c")


def test_a_producer_that_returns_to_a_full_topic_gets_its_quota_to_wait_for(core: Core) -> None:
    quota = BacklogQuota(100, "producer_request_hold")
    core.broker.namespaces.set_policies("public/default", Policies(backlog_quota_size=quota))
    topic = core.topic()
    topic.create_subscription("s")
    other = core.producer(topic, name="other")
    for _ in range(2):
        core.publish_all(other, b"x" * 60)
    opened = open_producer(core.broker, Client(), ProducerRequest(NAME, 2, "p", epoch=1))
    assert isinstance(opened, QuotaState)
    assert opened is topic.quota
    assert "p" not in topic.producers


# -- consumers -------------------------------------------------------------------------------------------------------


def test_a_consumer_comes_with_its_topic_its_subscription_and_its_schema(core: Core) -> None:
    opened = consume(core, schema=STRING, subscription_properties={"owner": "me"})
    assert durable(core, opened) == [None]
    core.crash()
    assert core.topic().subscriptions["s"].properties == {"owner": "me"}
    assert core.broker.schemas.latest(schema_key(NAME)) is not None


@pytest.mark.parametrize(
    ("options", "policies", "error"),
    [
        ({"client": ClientInfo(metadata=LARGE)}, Policies(), NotAllowed),
        ({"subscription_properties": LARGE}, Policies(), NotAllowed),
        ({"schema": STRING}, Policies(auto_update_schema=False), IncompatibleSchema),
        ({"subscription_type": SubscriptionType.SHARED, "read_compacted": True}, Policies(), NotAllowed),
        ({}, Policies(subscription_types=["Shared"]), NotAllowed),
        ({}, Policies(auto_subscription_creation=False), SubscriptionNotFound),
        ({"create_topic": False}, Policies(), TopicNotFound),
    ],
)
def test_a_consumer_that_is_refused_leaves_nothing(
    core: Core, options: dict[str, object], policies: Policies, error: type[BrokerError]
) -> None:
    core.broker.namespaces.set_policies("public/default", policies)
    with pytest.raises(error):
        consume(core, **options)  # type: ignore[arg-type]
    assert nothing_is_there(core)


def test_a_second_exclusive_consumer_is_refused_and_the_subscription_stays(core: Core) -> None:
    consume(core)
    with pytest.raises(ConsumerBusy):
        consume(core, schema=STRING)
    assert len(core.topic().subscriptions["s"].consumers) == 1
    assert core.broker.schemas.latest(schema_key(NAME)) is None


def test_a_consumer_waits_for_a_seek_of_its_subscription(core: Core) -> None:
    consume(core)
    subscription = core.topic().subscriptions["s"]
    subscription.seek(0, None, lambda error: None)
    resumed: list[None] = []
    request = ConsumerRequest(NAME, "s", SubscriptionType.EXCLUSIVE, 1)
    assert subscribe(core.broker, Client(), request, lambda: resumed.append(None)) is None
    core.commit()
    assert resumed == [None]
    assert not subscription.consumers


@pytest.mark.parametrize(
    ("start", "first"),
    [
        (Start(), 3),
        (Start(earliest=True), 0),
        (Start(position=EARLIEST), 0),
        (Start(position=LATEST), 3),
        (Start(position=MessagePosition(0, 1)), 1),
        (Start(earliest=True, rollback_s=10), 2),
        (Start(position=EARLIEST, rollback_s=10), 2),
    ],
)
def test_a_reader_begins_where_it_asks_to(core: Core, start: Start, first: int) -> None:
    producer = core.producer(core.topic())
    for _ in range(3):
        core.clock.advance_ms(8000)
        core.publish(producer, publish_time=core.clock.now_ms())
    core.commit()
    if start.position is not None and start.position.ledger_id == 0:
        start = Start(position=MessagePosition(*core.topic().log.position(1)))
    core.clock.advance_ms(8000)
    client = Client()
    opened = consume(core, client, durable=False, start=start)
    subscription = opened.consumer.subscription
    subscription.flow(opened.consumer, 10)
    assert [entry.offset for _, entry, _, _ in client.take()] == list(range(first, 3))
