"""Explains why a subscription of any kind of topic delivers nothing now, and why a topic takes no messages."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from heliograph_broker.clock import monotonic_ms
from heliograph_broker.messaging.clients.subscription_type import SubscriptionType
from heliograph_broker.messaging.delivery import explanation
from heliograph_broker.messaging.delivery.delivery_reasons import DeliveryReason, Explanation
from heliograph_broker.messaging.policies.backlog_quota import EVICT, EXCEPTION, HOLD

if TYPE_CHECKING:
    from heliograph_broker.messaging.clients.consumer import Consumer

    from .directory import AnySubscription, AnyTopic
    from .non_persistent import NonPersistentSubscription
    from .topic import Topic


class PublishReason(StrEnum):
    """Why a topic takes no messages now, by its name in the REST API."""

    #: Nothing: it takes messages.
    NONE = "none"
    #: The backlog is at its quota: producers are held, or refused.
    BACKLOG_QUOTA = "backlogQuota"
    PUBLISH_RATE = "publishRate"
    TERMINATED = "terminated"
    #: The disk has no room above the reserve.
    DISK_FULL = "diskFull"


_ENDS = {
    PublishReason.NONE: "",
    PublishReason.BACKLOG_QUOTA: (
        "the slowest subscription acknowledges messages or is deleted, messages expire, or the quota is raised"
    ),
    PublishReason.PUBLISH_RATE: "time passes, or the publish rate is raised",
    PublishReason.TERMINATED: "nothing: a terminated topic stays so; create another topic",
    PublishReason.DISK_FULL: "the disk gets room: messages are deleted, or it grows",
}

_DONE = {HOLD: "held until it has room", EXCEPTION: "refused"}


class PublishExplanation(NamedTuple):
    """A reason in detail; times are wall-clock ms, 0 where none is known."""

    reason: PublishReason
    since_ms: int = 0
    text: str = "the topic takes messages"
    until_ms: int = 0

    @property
    def ends(self) -> str:
        """The event that would end it, as the rest of a sentence."""
        return _ENDS[self.reason]


def explain_publishing(topic: AnyTopic) -> PublishExplanation:
    """Return why ``topic`` takes no messages now."""
    if topic.persistent:
        found = _stored(topic)
        if found is not None:
            return found
    limit = topic.limits.publish_limit
    clock = topic.host.clock
    now_ms = monotonic_ms(clock)
    if limit is not None and (free_ms := limit.rate.free_at(now_ms)) > now_ms:
        return PublishExplanation(
            PublishReason.PUBLISH_RATE,
            topic.statistics.last_publish_ms,
            "the publish rate of the topic is reached: nothing is read from the connections of its producers",
            clock.now_ms() + free_ms - now_ms,
        )
    return PublishExplanation(PublishReason.NONE)


def _stored(topic: Topic) -> PublishExplanation | None:
    last_ms = topic.statistics.last_publish_ms
    if topic.terminated:
        return PublishExplanation(PublishReason.TERMINATED, last_ms, "the topic was terminated: it takes no messages")
    if topic.host.store.space.full:
        return PublishExplanation(PublishReason.DISK_FULL, last_ms, "the disk is full: new messages are refused")
    quota = topic.quota
    for exceeded, action, limit in (
        (quota.size_exceeded, quota.size_action, f"{quota.size_limit} bytes"),
        (quota.age_exceeded, quota.age_action, f"an age of {quota.age_limit_ms} ms"),
    ):
        if exceeded and action != EVICT:
            text = f"the backlog is at its quota of {limit}: producers are {_DONE[action]}"
            if quota.held_producers:
                text += f", {quota.held_producers} now"
            return PublishExplanation(PublishReason.BACKLOG_QUOTA, last_ms, text)
    return None


def explain_delivery(subscription: AnySubscription) -> Explanation:
    """Return why ``subscription`` delivers nothing now."""
    return explanation.explain(subscription) if subscription.persistent else _unstored(subscription)


def explain_consumer(subscription: AnySubscription, consumer: Consumer, of_all: Explanation) -> Explanation:
    """Return why ``consumer`` gets nothing now; ``of_all`` is why its subscription delivers nothing."""
    if subscription.persistent:
        return explanation.explain_consumer(subscription, consumer, of_all)
    if subscription.active is not None and subscription.active is not consumer:
        active = subscription.active
        text = f"consumer '{active.name}' is the active one and gets every message"
        return Explanation(DeliveryReason.STANDBY, consumer.client.connected_ms, text, active)
    return explanation.consumer_hold(consumer) or of_all


def _unstored(subscription: NonPersistentSubscription) -> Explanation:
    """As :func:`explain_delivery`: what could not be sent at once was dropped, and nothing waits."""
    consumers = subscription.consumers
    if not consumers:
        return Explanation(DeliveryReason.NO_CONSUMER, subscription.topic.created_ms, "no consumer is connected")
    if subscription.sub_type is SubscriptionType.KEY_SHARED:
        # Each has keys of its own: those of one without room are dropped.
        hold = next((hold for each in consumers if (hold := explanation.consumer_hold(each)) is not None), None)
    elif subscription.active is not None:
        hold = explanation.consumer_hold(subscription.active)
    else:
        hold = explanation.hold_of_all(consumers)
    if hold is None:
        text = "every message published now is sent at once: the topic is non-persistent and keeps none"
        return Explanation(DeliveryReason.ALL_ACKNOWLEDGED, subscription.sent.last_consumed_ms, text)
    text = f"messages for it are dropped, {subscription.dropped} so far, as the topic is non-persistent: {hold.text}"
    return hold._replace(text=text)
