"""Subscribing: admission, the subscription if it is new, its consumer and the schema it reads; all of it or nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from heliograph_broker.clock import monotonic_ms
from heliograph_broker.messaging.base.errors import NotAllowed, SubscriptionNotFound
from heliograph_broker.messaging.broker.admission import (
    check_consumer,
    check_new_subscription,
    check_subscription_name,
    may_auto_subscribe,
)
from heliograph_broker.messaging.broker.tenant_limits import check_subscriptions
from heliograph_broker.messaging.clients.client_info import UNKNOWN_CLIENT, ClientInfo
from heliograph_broker.messaging.clients.consumer import AUTO_SPLIT, Consumer, KeySharedPolicy
from heliograph_broker.messaging.clients.subscription_type import SINGLE_ACTIVE, SubscriptionType

from .client_properties import check_client_properties
from .positions import Start
from .schemas import store_schema
from .unconfirmed import Creation

if TYPE_CHECKING:
    from collections.abc import Callable

    from heliograph_api.values.names import TopicName

    from heliograph_broker.messaging.base.records import SchemaRecord
    from heliograph_broker.messaging.broker.broker import Broker
    from heliograph_broker.messaging.clients.consumer import ConsumerSink
    from heliograph_broker.messaging.topic.directory import AnySubscription, AnyTopic


_LATEST: Final = Start()


@dataclass(frozen=True, slots=True)
class ConsumerRequest:
    """A client's request to subscribe."""

    topic: TopicName
    subscription: str
    subscription_type: SubscriptionType
    consumer_id: int
    #: Empty for one that the broker generates.
    name: str = ""
    #: Whether a missing topic may be created.
    create_topic: bool = True
    durable: bool = True
    #: The start of a new subscription, and its properties.
    start: Start = _LATEST
    subscription_properties: dict[str, str] = field(default_factory=dict)
    priority: int = 0
    epoch: int = 0
    key_shared: KeySharedPolicy = AUTO_SPLIT
    read_compacted: bool = False
    schema: SchemaRecord | None = None
    client: ClientInfo = UNKNOWN_CLIENT
    host: str = ""


class OpenedConsumer(NamedTuple):
    """A consumer that is attached; its client gets the answer once ``creation`` is durable."""

    consumer: Consumer
    creation: Creation


def subscribe(
    broker: Broker, sink: ConsumerSink, request: ConsumerRequest, resume: Callable[[], None]
) -> OpenedConsumer | None:
    """Attach a consumer to its subscription, which is created if need be, as the topic is.

    Returns None if the subscription is being moved: ``resume`` is called when that is done. Raises
    :class:`BrokerError` if the consumer is refused, which leaves nothing behind.
    """
    creation = Creation(broker)
    try:
        topic = creation.topic(request.topic, create=request.create_topic)
        existing = topic.subscriptions.get(request.subscription)
        if existing is not None and existing.waits_for_seek(resume):
            return None
        return OpenedConsumer(_attach(broker, sink, topic, existing, request, creation), creation)
    except Exception:
        creation.refused()
        raise


def _attach(
    broker: Broker,
    sink: ConsumerSink,
    topic: AnyTopic,
    existing: AnySubscription | None,
    request: ConsumerRequest,
    creation: Creation,
) -> Consumer:
    check_client_properties(request.client.metadata, "consumer metadata")
    check_consumer(topic, request.subscription, request.subscription_type)
    _check_compaction(topic, request)
    if existing is not None:
        existing.check_durability(durable=request.durable)
    if topic.limits.subscribe_limit is not None:
        # A consumer without a name of its own is identified by its id.
        who = request.name or str(request.consumer_id)
        topic.limits.subscribe_limit.subscribing(request.host, who, monotonic_ms(broker.clock))
    if request.schema is not None:
        store_schema(broker, topic.name, request.schema, None, reads_only=True)
    subscription = existing if existing is not None else _create_subscription(broker, topic, request)
    creation.subscription(subscription, created=existing is None)
    consumer = Consumer(
        subscription,
        sink,
        request.consumer_id,
        request.name or broker.producer_names.generate(),
        priority=request.priority,
        epoch=request.epoch,
        key_shared=request.key_shared,
        client=request.client,
    )
    consumer.read_compacted = request.read_compacted
    subscription.add_consumer(consumer, request.subscription_type)
    if request.schema is not None:
        try:
            store_schema(broker, topic.name, request.schema, creation, reads_only=True)
        except Exception:
            subscription.remove_consumer(consumer)
            raise
    if existing is None and subscription.persistent and subscription.view is not None and topic.persistent:
        subscription.view.owe(request.start.owed_from(topic, broker.clock.now_ms()))
    return consumer


def _check_compaction(topic: AnyTopic, request: ConsumerRequest) -> None:
    """Raise :class:`NotAllowed` for a consumer that cannot read the compacted view, or takes the compaction's name."""
    check_subscription_name(request.subscription)
    if not request.read_compacted:
        return
    if not topic.persistent:
        raise NotAllowed("readCompacted only valid on persistent topics")
    if request.subscription_type not in SINGLE_ACTIVE:
        raise NotAllowed("readCompacted only allowed on failover or exclusive subscriptions")


def _create_subscription(broker: Broker, topic: AnyTopic, request: ConsumerRequest) -> AnySubscription:
    """Create the subscription that a consumer names, where that is allowed."""
    if not topic.persistent:
        check_new_subscription(topic)
        check_subscriptions(broker, topic.name.tenant)
        return topic.create_subscription(request.subscription)
    if request.durable and not may_auto_subscribe(broker.config, topic):
        raise SubscriptionNotFound(
            f"Subscription does not exist: {request.subscription} has to be created on {topic.name} first"
        )
    check_new_subscription(topic)
    check_subscriptions(broker, topic.name.tenant)
    start = request.start.offset(topic, broker.clock.now_ms())
    check_client_properties(request.subscription_properties, "subscription properties")
    return topic.create_subscription(
        request.subscription,
        "earliest" if request.start.earliest else "latest",
        durable=request.durable,
        start_offset=start,
        properties=request.subscription_properties,
    )
