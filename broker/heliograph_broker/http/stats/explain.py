"""GET …/explain: why a topic's subscriptions deliver nothing now, and why it takes no messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from aiohttp import web
from msgspec import UNSET, UnsetType

from heliograph_broker.http.base.context import BROKER, as_json, topic_of
from heliograph_broker.http.base.errors import ApiError
from heliograph_broker.http.base.operations import Parameter, operation
from heliograph_broker.http.topics.admin_topics import DOMAIN
from heliograph_broker.messaging.base.errors import SubscriptionNotFound, TopicNotFound
from heliograph_broker.messaging.delivery.delivery_reasons import DeliveryReason, Explanation
from heliograph_broker.messaging.topic.directory import AnySubscription, AnyTopic
from heliograph_broker.messaging.topic.topic_explanation import (
    PublishReason,
    explain_consumer,
    explain_delivery,
    explain_publishing,
)
from heliograph_broker.security.authorization.needs import Need

PATH = f"/heliograph/v1/{DOMAIN}/{{tenant}}/{{namespace}}/{{topic}}"
#: The number of names that an error lists.
_NAMES = 20
_SUBSCRIPTION = Parameter("subscription", str, "Only the subscription of this name.")
_CONSUMER = Parameter("consumer", str, "Only the consumers of this name, and their subscriptions.")


class DeliveryExplanation(msgspec.Struct, rename="camel", kw_only=True):
    """The one reason why nothing is delivered now: its name, what it is in words, and what would end it.

    Timestamps are wall-clock ms of the broker; ``sinceTimestamp`` is 0 if it is not known. ``consumer`` is the one
    that the reason is about, ``messageId`` a message of it (``ledger:entry``).
    """

    reason: DeliveryReason
    since_timestamp: int
    text: str
    ends: str
    until_timestamp: int | UnsetType = UNSET
    consumer: str | UnsetType = UNSET
    message_id: str | UnsetType = UNSET


class ConsumerExplanation(DeliveryExplanation, rename="camel", kw_only=True):
    """Why one consumer gets nothing now."""

    name: str
    address: str
    available_permits: int
    unacked_messages: int


class SubscriptionExplanation(DeliveryExplanation, rename="camel", kw_only=True):
    """Why a subscription delivers nothing now, and each of its consumers."""

    type: str | UnsetType = UNSET
    msg_backlog: int
    unacked_messages: int
    consumers: list[ConsumerExplanation]


class PublishingExplanation(msgspec.Struct, rename="camel", kw_only=True):
    """Why the topic takes no messages now; ``none`` if it takes them."""

    reason: PublishReason
    since_timestamp: int
    text: str
    ends: str
    until_timestamp: int | UnsetType = UNSET


class TopicExplanation(msgspec.Struct, rename="camel", kw_only=True):
    """One topic that is not partitioned, or one partition."""

    topic: str
    publishing: PublishingExplanation
    subscriptions: Mapping[str, SubscriptionExplanation]


def _delivery(found: Explanation) -> dict[str, object]:
    return {
        "reason": found.reason,
        "since_timestamp": found.since_ms,
        "text": found.text,
        "ends": found.ends,
        "until_timestamp": found.until_ms or UNSET,
        "consumer": UNSET if found.consumer is None else found.consumer.name,
        "message_id": UNSET if found.position is None else "{}:{}".format(*found.position),
    }


def _subscription(subscription: AnySubscription, consumer: str | None) -> SubscriptionExplanation:
    # Once for all consumers: it looks at what waits for each of them.
    of_all = explain_delivery(subscription)
    return SubscriptionExplanation(
        **_delivery(of_all),  # type: ignore[arg-type]
        type=subscription.type or UNSET,
        msg_backlog=subscription.acks.backlog_messages,
        unacked_messages=subscription.acks.unacked_messages,
        consumers=[
            ConsumerExplanation(
                **_delivery(explain_consumer(subscription, each, of_all)),  # type: ignore[arg-type]
                name=each.name,
                address=each.client.address,
                available_permits=each.permits,
                unacked_messages=each.unacked,
            )
            for each in subscription.consumers
            if consumer in (None, each.name)
        ],
    )


def topic_explanation(topic: AnyTopic, subscription: str | None, consumer: str | None) -> TopicExplanation:
    """Return why ``topic`` takes no messages, and its subscriptions (only the one, only those of the consumer)."""
    publishing = explain_publishing(topic)
    return TopicExplanation(
        topic=str(topic.name),
        publishing=PublishingExplanation(
            reason=publishing.reason,
            since_timestamp=publishing.since_ms,
            text=publishing.text,
            ends=publishing.ends,
            until_timestamp=publishing.until_ms or UNSET,
        ),
        subscriptions={
            name: _subscription(each, consumer)
            for name, each in topic.subscriptions.items()
            if subscription in (None, name)
            and (consumer is None or any(other.name == consumer for other in each.consumers))
        },
    )


def _names(names: Iterable[str]) -> str:
    """Return some of ``names`` as a list for an error."""
    found = sorted(set(names))
    more = f" and {len(found) - _NAMES} more" if len(found) > _NAMES else ""
    return (", ".join(found[:_NAMES]) + more) or "none"


@operation(
    "Explain why nothing is delivered now: the one reason for each subscription and consumer, and for producers.",
    query=(_SUBSCRIPTION, _CONSUMER),
    answers={200: list[TopicExplanation]},
    needs=Need.LOOKUP,
)
async def explain(request: web.Request) -> web.Response:
    """Answer for each partition of a partitioned topic."""
    directory = request.app[BROKER].directory
    name = topic_of(request)
    found = [directory.topics.get(str(each)) for each in directory.concrete_names(name)]
    topics = [topic for topic in found if topic is not None]
    if not topics:
        raise TopicNotFound(f"Topic {name} not found")
    subscription, consumer = request.query.get("subscription"), request.query.get("consumer")
    if subscription is not None and not any(subscription in topic.subscriptions for topic in topics):
        there = _names(each for topic in topics for each in topic.subscriptions)
        raise SubscriptionNotFound(f"Subscription {subscription} not found; the topic has: {there}")
    answer = [topic_explanation(topic, subscription, consumer) for topic in topics]
    if consumer is not None and not any(each.subscriptions for each in answer):
        there = _names(
            each.name
            for topic in topics
            for key, owner in topic.subscriptions.items()
            for each in owner.consumers
            if subscription in (None, key)
        )
        raise ApiError(404, f"Consumer {consumer} not found; connected are: {there}")
    return as_json(answer)


def routes() -> list[web.RouteDef]:
    return [web.get(f"{PATH}/explain", explain)]
