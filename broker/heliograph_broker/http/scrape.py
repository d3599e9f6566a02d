"""One scrape: the rows of figures of every topic looked at, and their sums by namespace and over the broker."""

from __future__ import annotations

from collections.abc import Sequence

from heliograph_broker.messaging.broker import AnyTopic, Broker

from .exposition import Value, labels
from .rates import RateSampler
from .topic_columns import TopicLook
from .topic_metrics import SUBSCRIPTION_COLUMNS, TOPIC_COLUMNS

#: Labels with the closing brace left off, and the values in the order of the columns; one of each a row.
Rows = tuple[list[str], list[list[Value | None]]]


class Sums:
    """What the columns of topics and subscriptions come to over many of them, by the column's ``whole``."""

    __slots__ = ("subscriptions", "topics", "topics_count")

    def __init__(self) -> None:
        self.topics: list[Value | None] = [None] * len(TOPIC_COLUMNS)
        self.subscriptions: list[Value | None] = [0] * len(SUBSCRIPTION_COLUMNS)
        self.topics_count = 0

    def of(self, name: str, more: str = "") -> Value:
        """Return a sum by the name of its family; 0 without topics."""
        of_topics = _TOPIC_INDEX.get((name, more))
        value = self.topics[of_topics] if of_topics is not None else self.subscriptions[_OTHER_INDEX[name, more]]
        return value if value is not None else 0


_TOPIC_INDEX = {(column.name, column.more): index for index, column in enumerate(TOPIC_COLUMNS)}
_OTHER_INDEX = {(column.name, column.more): index for index, column in enumerate(SUBSCRIPTION_COLUMNS)}
_SUMMED = tuple(index for index, column in enumerate(TOPIC_COLUMNS) if column.whole == "sum")
_LARGEST = tuple(index for index, column in enumerate(TOPIC_COLUMNS) if column.whole == "max")
_SUMMED_OF_SUBSCRIPTIONS = tuple(index for index, column in enumerate(SUBSCRIPTION_COLUMNS) if column.whole == "sum")


class Scrape:
    """See the module. What is kept beyond the sums depends on the broker's ``metrics_level``."""

    def __init__(self, broker: Broker, rates: RateSampler) -> None:
        self.cluster = broker.config.cluster_name
        self.level = broker.config.metrics_level
        self.totals = Sums()
        self.namespaces = {name: Sums() for name in broker.namespaces}
        self.topics: Rows = ([], [])
        self.subscriptions: Rows = ([], [])
        self._rates = rates

    def look(self, topic: AnyTopic) -> None:
        """Take the figures of ``topic`` as they are now."""
        look = TopicLook(topic, self._rates)
        row = [column.read(look) for column in TOPIC_COLUMNS]
        of_subscriptions: list[list[Value | None]] = [
            [column.read(each) for column in SUBSCRIPTION_COLUMNS] for each in look.looks
        ]
        namespace = topic.name.namespace_name
        for sums in (self.totals, self.namespaces.setdefault(namespace, Sums())):
            _add(sums, row, of_subscriptions)
        if self.level != "topic":
            return
        own = labels(cluster=self.cluster, namespace=namespace, topic=str(topic.name))[:-1]
        self.topics[0].append(own)
        self.topics[1].append(row)
        for each, values in zip(look.looks, of_subscriptions, strict=True):
            self.subscriptions[0].append(f"{own},{labels(subscription=each.subscription.name)[1:-1]}")
            self.subscriptions[1].append(values)


def _add(sums: Sums, row: Sequence[Value | None], of_subscriptions: Sequence[Sequence[Value | None]]) -> None:
    sums.topics_count += 1
    topics = sums.topics
    for index in _SUMMED:
        value = row[index]
        if value is not None:
            topics[index] = value + (topics[index] or 0)
    for index in _LARGEST:
        value = row[index]
        largest = topics[index]
        if value is not None and (largest is None or value > largest):
            topics[index] = value
    for values in of_subscriptions:
        for index in _SUMMED_OF_SUBSCRIPTIONS:
            sums.subscriptions[index] = (values[index] or 0) + (sums.subscriptions[index] or 0)
