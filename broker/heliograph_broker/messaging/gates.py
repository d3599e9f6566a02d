"""What stands between a topic and its clients, made what the topic's effective policies say.

One place calls every policy's own module, when a topic or subscription comes into being and when policies change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import admission, deduplication, rate_limits
from .topic import Topic

if TYPE_CHECKING:
    from .broker import AnyTopic, Broker
    from .subscription import Subscription


def configure(broker: Broker, topic: AnyTopic) -> None:
    """Apply ``topic.effective``, at once, also to the clients that are connected."""
    policies = topic.effective
    admission.configure(topic, policies)
    rate_limits.configure(topic, policies)
    if isinstance(topic, Topic):
        rate_limits.configure_dispatch(topic, policies)
        deduplication.configure(topic, policies, broker.snapshots)
        for subscription in list(topic.subscriptions.values()):
            admission.configure_unacked(broker, subscription)
    broker.inactivity.configured(topic)


def configure_subscription(broker: Broker, subscription: Subscription) -> None:
    """Apply to a new subscription what its topic's policies say."""
    rate_limits.configure_subscription(subscription, subscription.topic.effective)
    admission.configure_unacked(broker, subscription)
