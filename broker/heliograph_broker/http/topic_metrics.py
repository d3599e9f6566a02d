"""The families of topic and subscription metrics: name, type, and how their lines are written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from heliograph_broker.messaging.broker import AnyTopic, Broker
from heliograph_broker.messaging.subscription import Subscription
from heliograph_broker.messaging.topic import Topic

from .rates import AnySubscription, RateSampler
from .stats import blocked, delayed_messages, in_replay, oldest_backlog_age_s, quota_limits


def escape(value: str) -> str:
    """Return a label's value as both formats quote it."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class Scrape:
    """One scrape: the broker, its rates, and the labels of each topic, made once."""

    def __init__(self, broker: Broker, rates: RateSampler) -> None:
        self.broker = broker
        self.rates = rates
        self.cluster = f'cluster="{escape(broker.config.cluster_name)}"'
        self._labels: dict[str, str] = {}

    def labels(self, topic: AnyTopic) -> str:
        """Return the topic's labels without braces."""
        name = str(topic.name)
        labels = self._labels.get(name)
        if labels is None:
            labels = self._labels[name] = (
                f'{self.cluster},namespace="{escape(topic.name.namespace_name)}",topic="{escape(name)}"'
            )
        return labels


class Family(NamedTuple):
    """A metric family; ``write`` appends the lines of one topic."""

    name: str
    kind: str
    write: Callable[[Scrape, AnyTopic, list[str]], None]


Value = int | float
Lines = tuple[str, str, list[str]]


def _of_topic(name: str, value: Callable[[Scrape, AnyTopic], Value], kind: str = "gauge") -> Family:
    def write(scrape: Scrape, topic: AnyTopic, lines: list[str]) -> None:
        lines.append(f"{name}{{{scrape.labels(topic)}}} {value(scrape, topic)}\n")

    return Family(name, kind, write)


def _of_persistent(name: str, value: Callable[[Scrape, Topic], Value], kind: str = "gauge") -> Family:
    def write(scrape: Scrape, topic: AnyTopic, lines: list[str]) -> None:
        if isinstance(topic, Topic):
            lines.append(f"{name}{{{scrape.labels(topic)}}} {value(scrape, topic)}\n")

    return Family(name, kind, write)


def _of_subscription(name: str, value: Callable[[Scrape, AnySubscription], Value], kind: str = "gauge") -> Family:
    def write(scrape: Scrape, topic: AnyTopic, lines: list[str]) -> None:
        for subscription in topic.subscriptions.values():
            labels = f'{scrape.labels(topic)},subscription="{escape(subscription.name)}"'
            lines.append(f"{name}{{{labels}}} {value(scrape, subscription)}\n")

    return Family(name, kind, write)


def _of_cursor(name: str, value: Callable[[Subscription], Value], kind: str = "gauge") -> Family:
    """A figure that only a subscription with a cursor has; any other says 0."""
    return _of_subscription(name, lambda _, sub: value(sub) if isinstance(sub, Subscription) else 0, kind)


def _rate(index: int) -> Callable[[Scrape, AnySubscription], Value]:
    return lambda scrape, subscription: round(scrape.rates.rates(subscription)[index], 3)


def _rate_out(scrape: Scrape, topic: AnyTopic, index: int) -> float:
    return round(sum(scrape.rates.rates(sub)[index] for sub in topic.subscriptions.values()), 3)


def backlog(topic: AnyTopic) -> int:
    """Return the messages durable subscriptions have not acknowledged, each subscription's own counted."""
    return sum(subscription.backlog_messages for subscription in topic.subscriptions.values() if subscription.durable)


def _consumers(topic: AnyTopic) -> int:
    return sum(len(subscription.consumers) for subscription in topic.subscriptions.values())


FAMILIES: tuple[Family, ...] = (
    _of_topic("pulsar_subscriptions_count", lambda _, topic: len(topic.subscriptions)),
    _of_topic("pulsar_producers_count", lambda _, topic: len(topic.producers)),
    _of_topic("pulsar_consumers_count", lambda _, topic: _consumers(topic)),
    _of_topic("pulsar_msg_backlog", lambda _, topic: backlog(topic)),
    _of_persistent("pulsar_storage_size", lambda _, topic: topic.stored_bytes),
    _of_persistent("pulsar_storage_logical_size", lambda _, topic: topic.stored_bytes),
    _of_persistent("pulsar_storage_offloaded_size", lambda _, topic: 0),
    _of_persistent("pulsar_storage_backlog_size", lambda _, topic: topic.backlog_size()),
    _of_persistent("pulsar_storage_backlog_age_seconds", lambda _, topic: oldest_backlog_age_s(topic)),
    _of_persistent("pulsar_storage_backlog_quota_limit", lambda s, topic: quota_limits(s.broker, topic)[0]),
    _of_persistent("pulsar_storage_backlog_quota_limit_time", lambda s, topic: quota_limits(s.broker, topic)[1]),
    _of_topic("pulsar_rate_in", lambda s, topic: round(s.rates.rates(topic)[0], 3)),
    _of_topic("pulsar_throughput_in", lambda s, topic: round(s.rates.rates(topic)[1], 3)),
    _of_topic("pulsar_rate_out", lambda s, topic: _rate_out(s, topic, 0)),
    _of_topic("pulsar_throughput_out", lambda s, topic: _rate_out(s, topic, 1)),
    _of_topic("pulsar_average_msg_size", lambda _, topic: topic.bytes_in / topic.msg_in if topic.msg_in else 0.0),
    _of_topic("pulsar_in_messages_total", lambda _, topic: topic.msg_in, "counter"),
    _of_topic("pulsar_in_bytes_total", lambda _, topic: topic.bytes_in, "counter"),
    _of_subscription("pulsar_out_messages_total", lambda _, sub: sub.msg_out, "counter"),
    _of_subscription("pulsar_out_bytes_total", lambda _, sub: sub.bytes_out, "counter"),
    _of_subscription("pulsar_subscription_back_log", lambda _, sub: sub.backlog_messages),
    _of_subscription(
        "pulsar_subscription_back_log_no_delayed",
        lambda _, sub: max(0, sub.backlog_messages - delayed_messages(sub)),
    ),
    _of_subscription("heliograph_subscription_backlog_bytes", lambda _, sub: sub.backlog_bytes),
    _of_subscription("pulsar_subscription_delayed", lambda _, sub: delayed_messages(sub)),
    _of_subscription("pulsar_subscription_in_replay", lambda _, sub: in_replay(sub)),
    _of_subscription("pulsar_subscription_unacked_messages", lambda _, sub: sub.unacked_messages),
    _of_subscription("pulsar_subscription_blocked_on_unacked_messages", lambda _, sub: int(blocked(sub))),
    _of_subscription("pulsar_subscription_consumers_count", lambda _, sub: len(sub.consumers)),
    _of_subscription("pulsar_subscription_msg_rate_out", _rate(0)),
    _of_subscription("pulsar_subscription_msg_throughput_out", _rate(1)),
    _of_subscription("pulsar_subscription_msg_rate_redeliver", _rate(2)),
    _of_subscription("pulsar_subscription_msg_ack_rate", _rate(3)),
    _of_subscription("pulsar_subscription_msg_rate_expired", _rate(4)),
    _of_subscription("pulsar_subscription_msg_drop_rate", _rate(5)),
    _of_cursor("pulsar_subscription_total_msg_expired", lambda sub: sub.msg_expired),
    _of_cursor("pulsar_subscription_last_expire_timestamp", lambda sub: sub.last_expire_ms),
    _of_cursor("pulsar_subscription_last_acked_timestamp", lambda sub: sub.last_acked_ms),
    _of_cursor("pulsar_subscription_last_consumed_timestamp", lambda sub: sub.last_consumed_ms),
    _of_cursor("pulsar_subscription_last_consumed_flow_timestamp", lambda sub: sub.last_consumed_flow_ms),
    _of_cursor("pulsar_subscription_last_mark_delete_advanced_timestamp", lambda sub: sub.last_mark_delete_ms),
)


def namespace_families(scrape: Scrape) -> list[Lines]:
    """Return the topics of each namespace."""
    lines = [
        f'pulsar_topics_count{{{scrape.cluster},namespace="{escape(name)}"}} '
        f"{len(scrape.broker.topics_by_namespace.get(name, {}))}\n"
        for name in scrape.broker.namespaces
    ]
    return [("pulsar_topics_count", "gauge", lines)] if lines else []


def broker_families(scrape: Scrape, topics: Sequence[AnyTopic]) -> list[Lines]:
    """Return the sums over all topics."""
    sums: Counter[str] = Counter()
    for topic in topics:
        sums["subscriptions"] += len(topic.subscriptions)
        sums["producers"] += len(topic.producers)
        sums["stored"] += topic.stored_bytes
        for subscription in topic.subscriptions.values():
            sums["consumers"] += len(subscription.consumers)
            if subscription.durable:
                sums["backlog"] += subscription.backlog_messages
    return [
        (name, "gauge", [f"{name}{{{scrape.cluster}}} {value}\n"])
        for name, value in (
            ("pulsar_broker_topics_count", len(topics)),
            ("pulsar_broker_subscriptions_count", sums["subscriptions"]),
            ("pulsar_broker_producers_count", sums["producers"]),
            ("pulsar_broker_consumers_count", sums["consumers"]),
            ("pulsar_broker_msg_backlog", sums["backlog"]),
            ("pulsar_broker_storage_size", sums["stored"]),
            ("pulsar_broker_storage_logical_size", sums["stored"]),
        )
    ]
