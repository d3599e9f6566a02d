"""Configures topics, and the parts between them and their clients, according to the effective policies.

One place calls every policy's own module, when a topic or subscription comes into being and when policies change.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from heliograph_broker.messaging.messages.entry_rules import EntryRules
from heliograph_broker.messaging.policies.deduplication import Deduplication
from heliograph_broker.messaging.policies.rate_limits import (
    PublishLimit,
    SubscribeLimit,
    ThrottledSubscriptions,
    configured_gate,
    limit_for,
)
from heliograph_broker.messaging.topic.topic import Topic

if TYPE_CHECKING:
    from heliograph_api.broker_config import BrokerConfig
    from heliograph_api.policies.policies import Policies
    from heliograph_api.values.names import TopicName

    from heliograph_broker.clock import Clock
    from heliograph_broker.messaging.base.containment import Containment
    from heliograph_broker.messaging.delivery.subscription import Subscription
    from heliograph_broker.messaging.topic.directory import AnyTopic, Directory

    from .deduplication_snapshots import Snapshots
    from .policy_levels import Concerned, PolicyLevels

#: Topics that a change of policies reaches in one go; the others follow with the next ticks.
CONFIGURED_AT_ONCE = 50


def _ignore(_: AnyTopic) -> None:
    """Nobody observes configured topics."""


class AppliedPolicies:
    """See the module. Topics that a change concerns are configured a few at a time, so that traffic goes on."""

    __slots__ = (
        "_config",
        "_containment",
        "_directory",
        "_levels",
        "_waiting",
        "observer",
        "snapshots",
        "throttled",
    )

    def __init__(
        self,
        levels: PolicyLevels,
        directory: Directory,
        snapshots: Snapshots,
        config: BrokerConfig,
        clock: Clock,
        containment: Containment,
    ) -> None:
        self._levels = levels
        self._directory = directory
        self._config = config
        self._containment = containment
        self.snapshots = snapshots
        self.throttled = ThrottledSubscriptions(clock)
        #: Topics that are still to be notified of changed policies: thousands of them at once would hold up traffic.
        self._waiting: dict[AnyTopic, None] = {}
        #: Called with each topic that was configured.
        self.observer: Callable[[AnyTopic], None] = _ignore
        levels.observer = self.changed

    def changed(self, concerned: Concerned) -> None:
        """Configure the topics concerned, some of them at once."""
        for topic in self._directory.topics.values():
            if concerned(topic):
                self._waiting[topic] = None
        self.run()

    def run(self) -> bool:
        """Configure some of the topics that wait for changed policies; return whether more wait."""
        waiting = self._waiting
        for topic in list(islice(waiting, CONFIGURED_AT_ONCE)):
            # One of them may have had others configured, the partitions of its topic.
            self.configure_waiting(topic)
        return bool(waiting)

    def configure_waiting(self, topic: AnyTopic) -> None:
        """Apply the policies of a topic that were changed and wait for their turn; nothing is left to do then."""
        waiting = self._waiting
        if topic not in waiting:
            return
        del waiting[topic]
        if not topic.closed:
            self._containment.attempt(
                topic, "configure", partial(self.configure, topic), partial(waiting.setdefault, topic)
            )

    def configure(self, topic: AnyTopic) -> None:
        """Apply what holds for a topic, at once, also to the clients that are connected."""
        policies = self._levels.effective(topic.name)
        topic.configure(policies)
        topic.entry_rules = EntryRules.of(policies)
        _limit_clients(topic, policies)
        if topic.persistent:
            topic.limits.dispatch_limit = limit_for(policies.dispatch_rate, topic.limits.dispatch_limit)
            for subscription in list(topic.subscriptions.values()):
                subscription.dispatch_gate = configured_gate(
                    subscription, policies, topic.limits.dispatch_limit, self.throttled
                )
            self._configure_deduplication(topic, policies)
            for subscription in list(topic.subscriptions.values()):
                self._configure_unacked(subscription)
                # Messages withheld as expired, or over a limit, may be delivered now.
                subscription.notify()
        self.observer(topic)

    def configure_subscription(self, topic: Topic, subscription: Subscription) -> None:
        """Apply to a new subscription what its topic's policies say."""
        subscription.dispatch_gate = configured_gate(
            subscription, topic.effective, topic.limits.dispatch_limit, self.throttled
        )
        self._configure_unacked(subscription)

    def _configure_deduplication(self, topic: Topic, policies: Policies) -> None:
        """Switch deduplication of a topic on or off."""
        current = topic.deduplication
        if policies.deduplication and current is None:
            topic.deduplication = Deduplication(topic.log, self.snapshots.take(topic.name))
        elif not policies.deduplication and current is not None:
            topic.deduplication = None
            topic.disconnect(current.close())

    def _configure_unacked(self, subscription: Subscription) -> None:
        """Set how much consumers may hold unacknowledged, 0 for no limit."""
        topic = subscription.topic
        per_consumer = self._unacked(topic.name, topic.effective, "max_unacked_per_consumer")
        per_subscription = self._unacked(topic.name, topic.effective, "max_unacked_per_subscription")
        if (subscription.max_unacked_per_consumer, subscription.max_unacked_messages) != (
            per_consumer,
            per_subscription,
        ):
            subscription.limit_unacked(per_consumer, per_subscription)

    def _unacked(self, name: TopicName, effective: Policies, field: str) -> int:
        """Return an effective maximum, 0 for none: a policy of 0 says so, else the broker's setting counts."""
        maximum: int | None = getattr(effective, field)
        if maximum is not None:
            return maximum
        namespace = self._directory.namespaces.get(name.namespace_name)
        below = namespace.policies if namespace is not None else None
        levels = (self._levels.of_topic(name), below, self._levels.defaults)
        if any(level is not None and getattr(level, field) is not None for level in levels):
            return 0
        setting: int = getattr(self._config, field)
        return setting


def _limit_clients(topic: AnyTopic, policies: Policies) -> None:
    """Set the rates of publishing and subscribing; a rate that is lifted holds nobody back any more."""
    before = topic.limits.publish_limit
    limit = limit_for(policies.publish_rate, before.rate if before is not None else None)
    if limit is None or before is None or limit is not before.rate:
        topic.limits.publish_limit = PublishLimit(topic, limit) if limit is not None else None
        if before is not None:
            before.release()
    rate = policies.subscribe_rate
    if rate is None:
        topic.limits.subscribe_limit = None
    elif topic.limits.subscribe_limit is None or topic.limits.subscribe_limit.rate != rate:
        topic.limits.subscribe_limit = SubscribeLimit(rate)
