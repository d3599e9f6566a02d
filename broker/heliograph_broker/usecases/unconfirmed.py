"""Tracks objects that requests of clients create by the way, as long as no client knows of them.

A SUBSCRIBE or PRODUCER may create its topic, a subscription and a version of the topic's schema. If it is refused, at
once or because the disk did not take what it changed, it leaves none of them behind, unless somebody else has come to
use them: then the outcome of that one decides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from heliograph_api.values.names import TopicName

    from heliograph_broker.messaging.base.errors import BrokerError, Done
    from heliograph_broker.messaging.broker.broker import Broker
    from heliograph_broker.messaging.topic.directory import AnySubscription, AnyTopic


class Creation:
    """The objects that one request uses, and creates in part. It ends with :meth:`confirmed` or :meth:`refused`."""

    __slots__ = ("_base", "_broker", "_schema", "_subscription", "_topic")

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        #: The partitioned topic.
        self._base: TopicName | None = None
        self._topic: AnyTopic | None = None
        self._subscription: AnySubscription | None = None
        self._schema: tuple[str, int] | None = None

    def topic(self, name: TopicName, *, create: bool = True) -> AnyTopic:
        """Return the topic, created if need be; raises as :meth:`~.topics.Topics.get_or_create`."""
        known = str(name) in self._broker.directory.topics
        self._topic = topic = self._broker.topics.get_or_create(name, create=create)
        self.uses(name.base)
        if not known:
            self._broker.directory.unconfirmed.add(topic)
        return topic

    def uses(self, base: TopicName) -> None:
        """Note the partitioned topic that the request uses, if there is one of this name."""
        self._base = base

    def partitioned_topic(self, name: TopicName, partitions: int) -> None:
        """Create a partitioned topic; raises as :meth:`~.partitioned_topics.PartitionedTopics.create`."""
        self._broker.partitioned.create(name, partitions)
        self._broker.directory.unconfirmed.add(str(name))

    def subscription(self, subscription: AnySubscription, *, created: bool) -> None:
        """Note that the request uses ``subscription``, or has ``created`` it."""
        self._subscription = subscription
        if created:
            self._broker.directory.unconfirmed.add(subscription)

    def schema(self, key: str, version: int) -> None:
        """Note the version of a schema that :meth:`~.schema_registry.SchemaRegistry.claim` gave the request."""
        self._schema = (key, version)

    def when_durable(self, done: Done) -> None:
        """Call ``done`` once the changes of the request are durable, or with the error.

        After an error ``done`` detaches the request's own client; then the objects that it created are removed.
        """

        def settle(error: BrokerError | None) -> None:
            if error is None:
                self.confirmed()
                done(None)
                return
            try:
                done(error)
            finally:
                self.refused()

        self._broker.when_durable(self._topic, settle)

    def confirmed(self) -> None:
        """Keep everything: it is durable, and the client gets its answer."""
        self._broker.directory.unconfirmed.difference_update((self._topic, self._subscription, str(self._base)))
        if self._schema is not None:
            self._broker.schemas.confirmed(*self._schema)

    def refused(self) -> None:
        """Remove objects that no client knows of and nobody else uses. The request's own client is detached already."""
        unconfirmed = self._broker.directory.unconfirmed
        subscription = self._subscription
        if subscription is not None and subscription in unconfirmed and not subscription.consumers:
            unconfirmed.discard(subscription)
            topic = subscription.topic
            if topic.subscriptions.get(subscription.name) is subscription:
                topic.delete_subscription(subscription.name)
        if self._schema is not None:
            self._broker.schemas.refused(*self._schema)
        used = self._topic
        if used is not None and used in unconfirmed and (used.closed or _is_unused(used)):
            unconfirmed.discard(used)
            if not used.closed:
                self._broker.topics.delete(used.name, force=True)
        if self._base is not None and str(self._base) in unconfirmed:
            self._refuse_partitioned(self._base)

    def _refuse_partitioned(self, base: TopicName) -> None:
        broker = self._broker
        record = broker.directory.partitioned.get(str(base))
        if record is not None:
            parts = [broker.directory.topics.get(str(base.with_partition(index))) for index in range(record.partitions)]
            if record.policies is not None or not all(part is None or _is_unused(part) for part in parts):
                return
            broker.partitioned.delete(base, force=True)
        broker.directory.unconfirmed.discard(str(base))


def _is_unused(topic: AnyTopic) -> bool:
    """Whether a topic is as it was created, and has no clients."""
    registry = topic.producer_registry
    if registry.connected or registry.waiting or topic.subscriptions or topic.policies is not None:
        return False
    return topic.statistics.empty
