"""Opening a producer: admission, its schema, its initial subscription, access; all of it or nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from heliograph_broker.messaging.base.errors import NotAllowed, TopicTerminated
from heliograph_broker.messaging.broker.admission import (
    check_new_subscription,
    check_producer,
    check_schemaless_producer,
    check_subscription_name,
    may_auto_subscribe,
)
from heliograph_broker.messaging.broker.tenant_limits import check_subscriptions
from heliograph_broker.messaging.clients.access_mode import AccessMode
from heliograph_broker.messaging.clients.client_info import UNKNOWN_CLIENT, ClientInfo
from heliograph_broker.messaging.clients.producer import Producer
from heliograph_broker.messaging.schemas.schema_registry import schema_key

from .client_properties import check_client_properties
from .schemas import store_schema
from .unconfirmed import Creation

if TYPE_CHECKING:
    from heliograph_api.values.names import TopicName

    from heliograph_broker.messaging.base.records import SchemaRecord
    from heliograph_broker.messaging.broker.broker import Broker
    from heliograph_broker.messaging.clients.producer import ProducerSink
    from heliograph_broker.messaging.clients.waiting_room import WaitingRoom
    from heliograph_broker.messaging.topic.directory import AnyTopic


@dataclass(frozen=True, slots=True)
class ProducerRequest:
    """A client's request to open a producer."""

    topic: TopicName
    producer_id: int
    #: Empty for one that the broker generates.
    name: str = ""
    #: Whether the client generated ``name``, so that a later connection of its may take it over.
    generated_name: bool = False
    #: Number of times that the producer has connected before.
    epoch: int = 0
    access_mode: AccessMode = AccessMode.SHARED
    #: The epoch that a returning producer with exclusive access holds.
    topic_epoch: int | None = None
    encrypted: bool = False
    schema: SchemaRecord | None = None
    initial_subscription: str = ""
    client: ClientInfo = UNKNOWN_CLIENT
    request_id: int = 0


class OpenedProducer(NamedTuple):
    """A producer that is connected; its client gets the answer once ``creation`` is durable."""

    producer: Producer
    #: False while it waits for exclusive access.
    ready: bool
    schema_version: int | None
    creation: Creation


def open_producer(broker: Broker, sink: ProducerSink, request: ProducerRequest) -> OpenedProducer | WaitingRoom:
    """Connect a producer to its topic, which is created if need be.

    Returns where it has to wait instead if it comes back and there is no room, in the topic's backlog quota or on the
    disk. Raises :class:`BrokerError` if it is refused. Either leaves nothing behind.
    """
    creation = Creation(broker)
    try:
        opened = _open(broker, sink, request, creation)
    except Exception:
        creation.refused()
        raise
    if not isinstance(opened, OpenedProducer):
        creation.refused()
    return opened


def _open(
    broker: Broker, sink: ProducerSink, request: ProducerRequest, creation: Creation
) -> OpenedProducer | WaitingRoom:
    check_client_properties(request.client.metadata, "producer metadata")
    topic = creation.topic(request.topic)
    topic.used()
    if topic.terminated:
        raise TopicTerminated(f"Topic {topic.name} was already terminated")
    check_producer(topic, request.name, encrypted=request.encrypted)
    if topic.persistent and not topic.quota.check_creation(request.name, returning=request.epoch > 0):
        return topic.quota
    if topic.persistent and request.epoch > 0 and broker.disk_waits.needed:
        return broker.disk_waits.room_of(topic)
    version = None
    if request.schema is not None:
        version = store_schema(broker, topic.name, request.schema, creation)
    if version is None:
        has_schema = broker.schemas.latest(schema_key(topic.name)) is not None
        check_schemaless_producer(topic, has_schema=has_schema)
    producer = Producer(
        topic,
        sink,
        request.producer_id,
        request.name or broker.producer_names.generate(),
        generated_name=not request.name or request.generated_name,
        epoch=request.epoch,
        access_mode=request.access_mode,
        client=request.client,
        request_id=request.request_id,
    )
    _create_initial_subscription(broker, topic, request.initial_subscription, creation)
    ready = topic.producer_registry.add(producer, request.topic_epoch)
    if request.access_mode is not AccessMode.SHARED:
        topic.persist()
    return OpenedProducer(producer, ready, version, creation)


def _create_initial_subscription(broker: Broker, topic: AnyTopic, name: str, creation: Creation) -> None:
    """Create the subscription that a producer asks for, if it asks for one that is not there.

    Raises :class:`BrokerError` if it may not be created, or is there and not durable.
    """
    check_subscription_name(name)
    named = topic.subscriptions.get(name)
    if named is not None:
        named.check_durability(durable=True)
    elif name and topic.persistent:
        if not may_auto_subscribe(broker.config, topic):
            raise NotAllowed(
                "Could not create the initial subscription due to the auto subscription creation is not allowed."
            )
        check_new_subscription(topic)
        check_subscriptions(broker, topic.name.tenant)
        creation.subscription(topic.create_subscription(name, "earliest"), created=True)
