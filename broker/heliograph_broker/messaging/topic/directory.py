"""The names a broker knows: tenants, namespaces, partitioned topics and topics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heliograph_api.values.names import TopicName

from heliograph_broker.messaging.base.errors import NamespaceNotFound, TopicNotFound
from heliograph_broker.messaging.delivery.subscription import Subscription
from heliograph_broker.messaging.policies.dead_letter import LetterTopics

from .non_persistent import NonPersistentSubscription, NonPersistentTopic
from .topic import Topic

if TYPE_CHECKING:
    from heliograph_broker.messaging.base.records import NamespaceRecord, PartitionedRecord, TenantRecord

AnyTopic = Topic | NonPersistentTopic
AnySubscription = Subscription | NonPersistentSubscription


class Directory(LetterTopics):
    """Finds the broker's objects by name. Creating and deleting is the business of other parts of the broker."""

    __slots__ = (
        "growing",
        "namespaces",
        "partitioned",
        "rights_version",
        "tenants",
        "topics",
        "topics_by_namespace",
        "unconfirmed",
    )

    def __init__(self) -> None:
        self.tenants: dict[str, TenantRecord] = {}
        self.namespaces: dict[str, NamespaceRecord] = {}
        #: Grows with every change of a tenant or namespace: what roles may do can be another then.
        self.rights_version = 0
        #: The partitioned topics by full name.
        self.partitioned: dict[str, PartitionedRecord] = {}
        #: The partitions that are still to be created, by full name, see ``partition_growth``.
        self.growing: dict[str, range] = {}
        #: Every concrete topic by full name, and the same by namespace.
        self.topics: dict[str, AnyTopic] = {}
        self.topics_by_namespace: dict[str, dict[str, AnyTopic]] = {}
        #: Topics and subscriptions that no client knows of yet, see ``usecases.unconfirmed``.
        self.unconfirmed: set[object] = set()

    def namespace(self, name: str) -> NamespaceRecord:
        """Return a namespace. Raises :class:`NamespaceNotFound`."""
        record = self.namespaces.get(name)
        if record is None:
            raise NamespaceNotFound("Namespace does not exist")
        return record

    def get_topic(self, name: TopicName) -> AnyTopic:
        """Return a topic. Raises :class:`TopicNotFound`."""
        topic = self.topics.get(str(name))
        if topic is None:
            raise TopicNotFound(f"Topic {name} not found")
        return topic

    def partitions_of(self, name: TopicName) -> int:
        """Return the number of partitions, 0 for a topic that is not partitioned or does not exist."""
        record = self.partitioned.get(str(name))
        return record.partitions if record is not None else 0

    def partitioned_topic(self, name: TopicName) -> PartitionedRecord:
        """Return a partitioned topic. Raises :class:`TopicNotFound`."""
        record = self.partitioned.get(str(name))
        if record is None:
            raise TopicNotFound(f"Topic {name} not found or not partitioned")
        return record

    def exists(self, name: TopicName) -> bool:
        return str(name) in self.topics or str(name) in self.partitioned

    def concrete_names(self, name: TopicName) -> list[TopicName]:
        """Return the names of all partitions of a partitioned topic, else ``name`` itself, whether or not it exists."""
        return [name.with_partition(index) for index in range(self.partitions_of(name))] or [name]

    def to_come(self, prefix: str) -> int:
        """Return how many partitions are still to be created of topics whose names begin with ``prefix``."""
        return sum(len(indexes) for name, indexes in self.growing.items() if name.startswith(prefix))

    def is_to_come(self, name: TopicName) -> bool:
        """Return whether this is a partition that is still to be created, and counts for limits already."""
        return name.partition in self.growing.get(str(name.base), ())

    def missing_partitions(self, name: TopicName) -> list[int]:
        """Return the numbers of the partitions that were deleted one by one."""
        indexes = range(self.partitions_of(name))
        return [index for index in indexes if str(name.with_partition(index)) not in self.topics]

    def list_topics(self, namespace: str, mode: str = "PERSISTENT", *, system: bool = False) -> list[str]:
        """Return the concrete topics (partitions each by name) of a namespace, sorted; system topics only if asked."""
        topics = self.topics_by_namespace.get(namespace, {})
        return sorted(
            name
            for name, topic in topics.items()
            if (mode == "ALL" or topic.persistent == (mode == "PERSISTENT")) and (system or not topic.name.is_system)
        )

    def list_partitioned(self, prefix: str, *, system: bool = False) -> list[str]:
        """Return the partitioned topics whose names begin with ``prefix``, sorted; system topics only if asked."""
        names = (name for name in self.partitioned if name.startswith(prefix))
        return sorted(name for name in names if system or not TopicName.parse(name).is_system)

    def add(self, topic: AnyTopic) -> None:
        full_name = str(topic.name)
        self.topics[full_name] = topic
        self.topics_by_namespace.setdefault(topic.name.namespace_name, {})[full_name] = topic

    def remove(self, topic: AnyTopic) -> None:
        full_name = str(topic.name)
        del self.topics[full_name]
        self.topics_by_namespace[topic.name.namespace_name].pop(full_name, None)
