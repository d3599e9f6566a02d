"""Configures the parts between a topic and its clients according to the topic's effective policies.

One place calls every policy's own module, when a topic or subscription comes into being and when policies change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heliograph_broker.messaging.messages.entry_rules import EntryRules
from heliograph_broker.messaging.policies.deduplication import Deduplication
from heliograph_broker.messaging.policies.rate_limits import PublishLimit, SubscribeLimit, limit_for
from heliograph_broker.messaging.policies.rate_limits import configure_subscription as limit_dispatch
from heliograph_broker.messaging.topic.topic import Topic

from .admission import configure_unacked

if TYPE_CHECKING:
    from heliograph_api.policies.policies import Policies

    from heliograph_broker.messaging.delivery.subscription import Subscription
    from heliograph_broker.messaging.policies.rate_limits import ThrottledSubscriptions
    from heliograph_broker.messaging.topic.directory import AnyTopic, Directory

    from .deduplication_snapshots import Snapshots


def configure(broker: Directory, topic: AnyTopic, throttled: ThrottledSubscriptions, snapshots: Snapshots) -> None:
    """Apply ``topic.effective``, at once, also to the clients that are connected."""
    policies = topic.effective
    topic.entry_rules = EntryRules.of(policies)
    _limit_clients(topic, policies)
    if isinstance(topic, Topic):
        topic.dispatch_limit = limit_for(policies.dispatch_rate, topic.dispatch_limit)
        for subscription in list(topic.subscriptions.values()):
            limit_dispatch(subscription, policies, topic.dispatch_limit, throttled)
        _configure_deduplication(topic, policies, snapshots)
        for subscription in list(topic.subscriptions.values()):
            configure_unacked(broker, subscription)


def configure_subscription(
    broker: Directory, topic: Topic, subscription: Subscription, throttled: ThrottledSubscriptions
) -> None:
    """Apply to a new subscription what its topic's policies say."""
    limit_dispatch(subscription, topic.effective, topic.dispatch_limit, throttled)
    configure_unacked(broker, subscription)


def _limit_clients(topic: AnyTopic, policies: Policies) -> None:
    """Set the rates of publishing and subscribing; a rate that is lifted holds nobody back any more."""
    before = topic.publish_limit
    limit = limit_for(policies.publish_rate, before.rate if before is not None else None)
    if limit is None or before is None or limit is not before.rate:
        topic.publish_limit = PublishLimit(topic, limit) if limit is not None else None
        if before is not None:
            before.release()
    rate = policies.subscribe_rate
    if rate is None:
        topic.subscribe_limit = None
    elif topic.subscribe_limit is None or topic.subscribe_limit.rate != rate:
        topic.subscribe_limit = SubscribeLimit(rate)


def _configure_deduplication(topic: Topic, policies: Policies, snapshots: Snapshots) -> None:
    """Switch deduplication of a topic on or off."""
    current = topic.deduplication
    if policies.deduplication and current is None:
        topic.deduplication = Deduplication(topic, snapshots.take(topic.name))
    elif not policies.deduplication and current is not None:
        topic.deduplication = None
        current.close()
