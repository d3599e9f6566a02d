"""Snapshots of a topic and its subscriptions for one scrape, and the columns that read values from them.

A topic is looked at once a scrape and all its values are of that moment; namespaces and the broker are the sums of
what was looked at, so that they agree with their parts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from heliograph_broker.http.base.rates import RateSampler
from heliograph_broker.http.stats.stats import delayed_messages, in_backlog, quota_limits
from heliograph_broker.messaging.delivery.subscription import Subscription
from heliograph_broker.messaging.topic.directory import AnySubscription, AnyTopic

from .exposition import Value


class SubscriptionSnapshot:
    """A subscription at the moment of the scrape."""

    __slots__ = ("age_ms", "cursor", "delayed", "rates", "subscription")

    def __init__(self, subscription: AnySubscription, rates: RateSampler) -> None:
        self.subscription = subscription
        self.cursor = subscription if subscription.persistent else None
        self.rates = rates.rates(subscription)
        self.delayed = delayed_messages(subscription)
        #: Age of the oldest unacknowledged message; -1 without.
        self.age_ms = subscription.acks.oldest_unacked_age_ms()


class TopicSnapshot:
    """A topic at the moment of the scrape; ``oldest_ms`` is the age of its oldest unacknowledged message, or -1."""

    __slots__ = (
        "age_limit_ms",
        "backlogged",
        "by_ledger",
        "kept",
        "limits",
        "minute",
        "oldest_ms",
        "rates",
        "seconds",
        "subscriptions",
        "topic",
    )

    def __init__(self, topic: AnyTopic, rates: RateSampler) -> None:
        self.topic = topic
        self.kept = topic if topic.persistent else None
        self.rates = rates.rates(topic.statistics)
        self.subscriptions = [
            SubscriptionSnapshot(subscription, rates) for subscription in topic.subscriptions.values()
        ]
        self.minute, self.seconds = rates.last_minute(self.kept.log.metrics if self.kept is not None else None)
        #: Messages and bytes that only their ledger keeps.
        self.by_ledger = topic.statistics.kept_by_ledgers()
        #: Quota limits in bytes and seconds, -1 without.
        self.limits, self.age_limit_ms = quota_limits(topic)
        #: The subscriptions whose backlog is that of the topic.
        self.backlogged = [snapshot for snapshot in self.subscriptions if in_backlog(snapshot.subscription)]
        self.oldest_ms = max((snapshot.age_ms for snapshot in self.backlogged), default=-1)

    def sum_rate(self, index: int) -> float:
        return sum(snapshot.rates[index] for snapshot in self.subscriptions)


class Column(NamedTuple):
    """One line a topic: its family, where its value comes from, and what its labels have beyond the topic's.

    ``kind`` as in :func:`~.exposition.header`. ``whole`` says what namespaces and the broker make of it: the sum, the
    largest, or nothing. A value of None is not written. Without ``read`` the value is found otherwise, or always 0.
    """

    name: str
    read: Callable[[TopicSnapshot], Value | None] | None = None
    more: str = ""
    kind: str = "gauge"
    whole: str = "sum"


class SubscriptionColumn(NamedTuple):
    """The same of a subscription; by default namespaces do not show it."""

    name: str
    read: Callable[[SubscriptionSnapshot], Value] | None = None
    more: str = ""
    kind: str = "gauge"
    whole: str = ""


def rounded(value: float) -> float:
    """Round a rate to three decimals, as Pulsar does."""
    return round(value, 3) if value else 0.0


def of_cursor(read: Callable[[Subscription], int]) -> Callable[[SubscriptionSnapshot], int]:
    """Return a value that only a subscription with a cursor has; any other says 0."""
    return lambda snapshot: read(snapshot.cursor) if snapshot.cursor is not None else 0
