"""One scrape: the rows of values of every topic looked at, and their sums by namespace and over the broker."""

from __future__ import annotations

from collections.abc import Sequence

from heliograph_broker.http.base.rates import RateSampler
from heliograph_broker.messaging.broker.broker import Broker
from heliograph_broker.messaging.topic.directory import AnyTopic

from .exposition import Value, escape, labels
from .topic_columns import Column, SubscriptionColumn, TopicSnapshot
from .topic_metrics import (
    BUCKET_COLUMNS,
    SUBSCRIPTION_COLUMNS,
    TOPIC_COLUMNS,
    ZERO_COLUMNS,
    ZERO_SUBSCRIPTION_COLUMNS,
    buckets,
)

Row = Sequence[Value | None]

_READS = [column.read for column in TOPIC_COLUMNS if column.read is not None]
_SUBSCRIPTION_READS = [column.read for column in SUBSCRIPTION_COLUMNS if column.read is not None]
assert len(_READS) == len(TOPIC_COLUMNS)
assert len(_SUBSCRIPTION_READS) == len(SUBSCRIPTION_COLUMNS)


class Table:
    """Rows of one kind. ``labels`` lack the closing brace; rows have values of ``columns``, ``zeros`` follow."""

    __slots__ = ("columns", "labels", "rows", "zeros")

    def __init__(
        self, columns: Sequence[Column | SubscriptionColumn], zeros: Sequence[Column | SubscriptionColumn]
    ) -> None:
        self.columns = columns
        self.zeros = zeros
        self.labels: list[str] = []
        self.rows: list[Row] = []


class Sums:
    """Aggregates columns of a :class:`Table` for namespaces and the broker: the sum, or the largest; None of none."""

    __slots__ = ("_columns", "_index", "values")

    def __init__(self, table: Table) -> None:
        self._columns = table.columns
        self._index = {(column.name, column.more): index for index, column in enumerate(table.columns)}
        self.values: list[Value | None] = [None] * len(table.columns)

    def add(self, rows: Sequence[Row]) -> None:
        """Take in some rows, at least one."""
        values = self.values
        for index, (column, given) in enumerate(zip(self._columns, zip(*rows, strict=True), strict=True)):
            if not column.whole:
                continue
            known = [value for value in given if value is not None] if None in given else given
            if known:
                before = values[index]
                if column.whole == "max":
                    values[index] = max(known) if before is None else max(before, *known)
                else:
                    values[index] = sum(known) + (before or 0)

    def of(self, name: str, more: str = "") -> Value:
        """Return a sum by the name of its family; 0 without topics."""
        value = self.values[self._index[name, more]]
        return value if value is not None else 0


class Whole:
    """A namespace, or the broker."""

    __slots__ = ("subscriptions", "topics", "topics_count")

    def __init__(self, topics: Table, subscriptions: Table) -> None:
        self.topics = Sums(topics)
        self.subscriptions = Sums(subscriptions)
        self.topics_count = 0


class Scrape:
    """See the module. The rows kept beyond the sums depend on the broker's ``metrics_level``."""

    def __init__(self, broker: Broker, rates: RateSampler) -> None:
        self.cluster = broker.config.cluster_name
        self.level = broker.config.metrics_level
        self.topics = Table((*TOPIC_COLUMNS, *BUCKET_COLUMNS), ZERO_COLUMNS)
        self.subscriptions = Table(SUBSCRIPTION_COLUMNS, ZERO_SUBSCRIPTION_COLUMNS)
        self.namespaces = {name: Whole(self.topics, self.subscriptions) for name in broker.directory.namespaces}
        self._rates = rates

    def read_topics(self, topics: Sequence[AnyTopic]) -> None:
        """Take the values of some topics as they are now."""
        by_namespace: dict[str, tuple[list[Row], list[Row]]] = {}
        for topic in topics:
            if topic.closed:
                continue
            snapshot = TopicSnapshot(topic, self._rates)
            row = (*[read(snapshot) for read in _READS], *buckets(snapshot))
            of_subscriptions = [tuple([read(each) for read in _SUBSCRIPTION_READS]) for each in snapshot.subscriptions]
            rows = by_namespace.setdefault(topic.name.namespace_name, ([], []))
            rows[0].append(row)
            rows[1].extend(of_subscriptions)
            if self.level == "topic":
                self._keep(snapshot, row, of_subscriptions)
        for name, (rows_of_topics, rows_of_subscriptions) in by_namespace.items():
            namespace = self.namespaces.get(name)
            if namespace is None:
                namespace = self.namespaces[name] = Whole(self.topics, self.subscriptions)
            namespace.topics_count += len(rows_of_topics)
            namespace.topics.add(rows_of_topics)
            if rows_of_subscriptions:
                namespace.subscriptions.add(rows_of_subscriptions)

    def broker(self) -> Whole:
        """Return the sum over the namespaces."""
        whole = Whole(self.topics, self.subscriptions)
        parts = self.namespaces.values()
        if parts:
            whole.topics_count = sum(part.topics_count for part in parts)
            whole.topics.add([part.topics.values for part in parts])
            whole.subscriptions.add([part.subscriptions.values for part in parts])
        return whole

    def _keep(self, snapshot: TopicSnapshot, row: Row, of_subscriptions: Sequence[Row]) -> None:
        name = snapshot.topic.name
        own = labels(cluster=self.cluster, namespace=name.namespace_name, topic=str(name))[:-1]
        self.topics.labels.append(own)
        self.topics.rows.append(row)
        for each, values in zip(snapshot.subscriptions, of_subscriptions, strict=True):
            self.subscriptions.labels.append(f'{own},subscription="{escape(each.subscription.name)}"')
            self.subscriptions.rows.append(values)
