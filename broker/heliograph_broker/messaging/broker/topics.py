"""Creates and deletes topics: those that are not partitioned, and single partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heliograph_broker.messaging.base import records
from heliograph_broker.messaging.base.errors import Conflict, NotAllowed, PreconditionFailed, TopicNotFound
from heliograph_broker.messaging.base.names import check_properties
from heliograph_broker.messaging.schemas.schema_registry import schema_key
from heliograph_broker.messaging.topic.non_persistent import NonPersistentTopic
from heliograph_broker.messaging.topic.topic import Topic

from .admission import auto_topic_creation, check_domain, check_new_topic_name, check_new_topics
from .partition_growth import PartitionGrowth
from .tenant_limits import check_topics

if TYPE_CHECKING:
    from heliograph_api.values.names import TopicName

    from heliograph_broker.messaging.topic.directory import AnyTopic

    from .parts import BrokerParts


class Topics:
    """See the module. The broker's objects are in its directory."""

    __slots__ = ("_broker", "_directory", "growth")

    def __init__(self, broker: BrokerParts) -> None:
        self._broker = broker
        self._directory = broker.directory
        self.growth = PartitionGrowth(broker.directory, broker.records, lambda name: self.add(name, {}))

    def may_auto_create(self, name: TopicName) -> bool:
        """Whether a client that names a missing topic gets it: by the switch, and never an odd partition."""
        if name.partition >= 0:
            return name.partition < self._directory.partitions_of(name.base)
        if str(name) in self._directory.partitioned:
            return False
        return auto_topic_creation(self._broker.config, self._broker.policies, name).allow

    def get_or_create(self, name: TopicName, *, create: bool = True) -> AnyTopic:
        """Return a topic, created if the rules of automatic creation allow it.

        Raises :class:`NamespaceNotFound`, :class:`TopicNotFound`, :class:`NotAllowed` for a partitioned name,
        :class:`PreconditionFailed` for a domain that is switched off, or :class:`ReservedName`.
        """
        directory = self._directory
        check_domain(self._broker.config, name)
        topic = directory.topics.get(str(name))
        if topic is not None:
            return topic
        directory.namespace(name.namespace_name)
        if str(name) in directory.partitioned:
            raise NotAllowed(f"Topic {name} is partitioned: use its partitions {name.with_partition(0)} and on")
        partitions = directory.partitions_of(name.base)
        if name.partition >= 0 and name.partition >= partitions:
            raise TopicNotFound(f"Topic {name} not found: {name.base} has {partitions} partitions")
        if directory.is_to_come(name):
            # Somebody created it already.
            return self.growth.add_partition(name)
        if not create or not self.may_auto_create(name):
            raise TopicNotFound(f"Topic {name} not found")
        if name.partition < 0:
            check_new_topic_name(self._broker.config, name)
            check_new_topics(directory, self._broker.policies, name, 1, partitioned=False)
        check_topics(self._broker, name.tenant)
        return self.add(name, {})

    def create(self, name: TopicName, properties: dict[str, str] | None = None) -> AnyTopic:
        """Create a topic that is not partitioned.

        Raises :class:`Conflict`, :class:`NamespaceNotFound`, :class:`ReservedName` or :class:`PreconditionFailed`.
        """
        directory = self._directory
        directory.namespace(name.namespace_name)
        if directory.exists(name) or directory.is_to_come(name):
            self.redeclared(name)
            raise Conflict("This topic already exists")
        check_new_topic_name(self._broker.config, name)
        if name.partition >= 0 and name.partition >= directory.partitions_of(name.base):
            raise PreconditionFailed(
                f"'{name.local}' is the name of a partition: create '{name.base}' with partitions instead"
            )
        check_new_topics(directory, self._broker.policies, name, 1, partitioned=False)
        check_topics(self._broker, name.tenant)
        return self.add(name, properties or {})

    def add(self, name: TopicName, properties: dict[str, str]) -> AnyTopic:
        """Create a topic that is admitted."""
        check_properties(properties)
        broker = self._broker
        topic: AnyTopic
        if name.is_persistent:
            record = records.TopicRecord(created_ms=broker.clock.now_ms(), properties=properties, chunked=False)
            persistent = topic = Topic(broker, name, record)
            persistent.records.commit(persistent)
        else:
            topic = NonPersistentTopic(broker, name)
            topic.properties = properties
        self._directory.add(topic)
        broker.applied.configure(topic)
        if topic.persistent and not name.is_system:
            broker.watches.created(name.namespace_name, str(name))
        return topic

    def redeclared(self, name: TopicName) -> None:
        """Restart the time of disuse of a topic that somebody declared again."""
        base = name.base
        names = [base.with_partition(index) for index in range(self._directory.partitions_of(base))] or [name]
        for one in names:
            topic = self._directory.topics.get(str(one))
            if topic is not None:
                topic.used()

    def unload(self, name: TopicName) -> None:
        """Ask every client of a topic to reconnect; their acknowledgments are written with the next group."""
        topic = self._directory.get_topic(name)
        self._broker.record_writer.flush()
        topic.disconnect_clients()

    def delete(self, name: TopicName, force: bool = False) -> None:
        """Delete a topic with its data and subscriptions.

        One with connected clients is refused unless ``force``, which disconnects them.
        """
        broker = self._broker
        topic = self._directory.get_topic(name)
        if not force:
            check_no_clients(topic)
        if topic.limits.publish_limit is not None:
            topic.limits.publish_limit.release()
        topic.close()
        topic.delete()
        broker.inactivity.forget(topic)
        self._directory.remove(topic)
        if topic.persistent:
            broker.housekeeping.forget(topic)
            broker.delayed_topics.forget(topic)
        if name.partition < 0:
            broker.schemas.delete(schema_key(name))
        broker.watches.deleted(name.namespace_name, str(name))


def check_no_clients(topic: AnyTopic) -> None:
    """Check that no client is connected to ``topic``. Raises :class:`PreconditionFailed`."""
    if topic.producers:
        raise PreconditionFailed(f"Topic {topic.name} has {len(topic.producers)} connected producers")
    if any(subscription.consumers for subscription in topic.subscriptions.values()):
        raise PreconditionFailed(f"Topic {topic.name} has active subscriptions with connected consumers")
