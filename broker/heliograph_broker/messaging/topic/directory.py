"""The broker, as admission and the other parts that look after its topics know it: names, policies, deletion."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heliograph_broker.messaging.base.errors import TopicNotFound
from heliograph_broker.messaging.policies.dead_letter import LetterTopics

from .non_persistent import NonPersistentTopic
from .topic import Topic

if TYPE_CHECKING:
    from heliograph_api.policies.policies import Policies
    from heliograph_api.values.names import TopicName

    from heliograph_broker.clock import Clock
    from heliograph_broker.messaging.base.containment import Containment
    from heliograph_broker.messaging.base.records import NamespaceRecord, PartitionedRecord
    from heliograph_broker.messaging.log.record_set import BrokerRecords
    from heliograph_broker.storage.store import LedgerStore

AnyTopic = Topic | NonPersistentTopic


class Directory(LetterTopics):
    """See the module."""

    store: LedgerStore
    clock: Clock
    containment: Containment
    #: The durable state that belongs to no topic.
    records: BrokerRecords
    #: Every concrete topic by full name, and the same by namespace.
    topics: dict[str, AnyTopic]
    topics_by_namespace: dict[str, dict[str, AnyTopic]]
    #: The partitioned topics by full name.
    partitioned: dict[str, PartitionedRecord]
    namespaces: dict[str, NamespaceRecord]
    #: What holds where no level says anything.
    broker_policies: Policies

    def get_topic(self, name: TopicName) -> AnyTopic:
        """Raises :class:`TopicNotFound`."""
        topic = self.topics.get(str(name))
        if topic is None:
            raise TopicNotFound(f"Topic {name} not found")
        return topic

    def partitions_of(self, name: TopicName) -> int:
        """Return the number of partitions, 0 for a topic that is not partitioned or does not exist."""
        record = self.partitioned.get(str(name))
        return record.partitions if record is not None else 0

    def exists(self, name: TopicName) -> bool:
        return str(name) in self.topics or str(name) in self.partitioned

    def concrete_names(self, name: TopicName) -> list[TopicName]:
        """Return the names of all partitions of a partitioned topic, else ``name`` itself, whether or not it exists."""
        return [name.with_partition(index) for index in range(self.partitions_of(name))] or [name]

    def missing_partitions(self, name: TopicName) -> list[int]:
        """Return the numbers of the partitions that were deleted one by one."""
        indexes = range(self.partitions_of(name))
        return [index for index in indexes if str(name.with_partition(index)) not in self.topics]

    def list_topics(self, namespace: str, mode: str = "PERSISTENT") -> list[str]:
        """Return the concrete topics (partitions each by name) of a namespace, sorted."""
        topics = self.topics_by_namespace.get(namespace, {})
        return sorted(
            name for name, topic in topics.items() if mode == "ALL" or topic.persistent == (mode == "PERSISTENT")
        )

    def topic_policies(self, name: TopicName) -> Policies | None:
        """Return what is set at the topic itself (for a partition: at its partitioned topic)."""
        raise NotImplementedError

    def effective_policies(self, name: TopicName) -> Policies:
        """Return what holds for a topic: topic, else namespace, else broker, capped by tenant and broker."""
        raise NotImplementedError

    def configure_waiting(self, topic: AnyTopic) -> None:
        """Apply the policies of a topic that were changed and wait for their turn; nothing is left to do then."""
        raise NotImplementedError

    def create_topic(self, name: TopicName, properties: dict[str, str] | None = None) -> AnyTopic:
        """Create a topic that is not partitioned. Raises :class:`Conflict` or :class:`NamespaceNotFound`."""
        raise NotImplementedError

    def delete_topic(self, name: TopicName, force: bool = False) -> None:
        """Delete a topic with its data and subscriptions."""
        raise NotImplementedError

    def delete_partitioned_topic(self, name: TopicName, force: bool = False) -> None:
        """Delete a partitioned topic and all its partitions, or nothing."""
        raise NotImplementedError
