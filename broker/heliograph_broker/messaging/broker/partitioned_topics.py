"""Creates, extends and deletes partitioned topics with their partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heliograph_api.policies.policies import MAX_PARTITIONS

from heliograph_broker.messaging.base import records
from heliograph_broker.messaging.base.errors import Conflict, FewerPartitions, PreconditionFailed, TopicNotFound
from heliograph_broker.messaging.base.names import check_properties
from heliograph_broker.messaging.base.records import PartitionedRecord
from heliograph_broker.messaging.schemas.schema_registry import schema_key

from .admission import check_new_topic_name, check_new_topics
from .tenant_limits import check_subscriptions, check_topics
from .topics import check_no_clients

if TYPE_CHECKING:
    from heliograph_api.values.names import TopicName

    from .parts import BrokerParts
    from .topics import Topics


class PartitionedTopics:
    """See the module. Each partition is a topic of its own."""

    __slots__ = ("_broker", "_directory", "_growth", "_topics")

    def __init__(self, broker: BrokerParts, topics: Topics) -> None:
        self._broker = broker
        self._directory = broker.directory
        self._growth = topics.growth
        self._topics = topics

    def create(self, name: TopicName, partitions: int, properties: dict[str, str] | None = None) -> None:
        """Create a partitioned topic and its partitions; if they are many, in turns (:class:`PartitionGrowth`)."""
        self._directory.namespace(name.namespace_name)
        if name.partition >= 0:
            raise PreconditionFailed("Partitioned Topic Name should not contain '-partition-'")
        if self._directory.exists(name):
            self._topics.redeclared(name)
            raise Conflict("This topic already exists")
        check_new_topic_name(self._broker.config, name)
        if not 0 < partitions <= MAX_PARTITIONS:
            raise PreconditionFailed(f"Number of partitions should be between 1 and {MAX_PARTITIONS}, not {partitions}")
        check_new_topics(self._directory, self._broker.policies, name, partitions, partitioned=True)
        check_topics(self._broker, name.tenant, partitions)
        check_properties(properties or {})
        record = PartitionedRecord(partitions, properties or {}, grows_from=0)
        self._broker.records.put(records.PARTITIONED + str(name).encode(), records.encode(record))
        self._directory.partitioned[str(name)] = record
        self._growth.begin(name, range(partitions))

    def extend(self, name: TopicName, partitions: int) -> None:
        """Add partitions, with the subscriptions of the others; they can never be fewer.

        Many are created in turns, as by :meth:`create`.
        """
        self._growth.finish(name)
        record = self._directory.partitioned_topic(name)
        if partitions < record.partitions:
            raise FewerPartitions(
                f"Desired partitions {partitions} can't be less than the current partitions {record.partitions}."
            )
        if partitions > MAX_PARTITIONS:
            raise PreconditionFailed(f"Number of partitions should be at most {MAX_PARTITIONS}, not {partitions}")
        added = range(record.partitions, partitions)
        check_new_topics(self._directory, self._broker.policies, name, len(added), partitioned=True)
        check_topics(self._broker, name.tenant, len(added))
        check_subscriptions(self._broker, name.tenant, len(added) * len(self._growth.durable(name)))
        if record.grows_from is None:
            # Else those that came just now may not be durable yet.
            record.grows_from = record.partitions
        record.added_from, record.partitions = record.partitions, partitions
        self._broker.records.put(records.PARTITIONED + str(name).encode(), records.encode(record))
        self._growth.begin(name, added)

    def create_missing(self, name: TopicName) -> None:
        """Create again the partitions that were deleted one by one.

        Raises :class:`TopicNotFound`, or :class:`NotAllowed` by a limit of the tenant.
        """
        if str(name) not in self._directory.partitioned:
            raise TopicNotFound(f"Topic {name} does not exist")
        self._growth.finish(name)
        missing = self._directory.missing_partitions(name)
        check_topics(self._broker, name.tenant, len(missing))
        check_subscriptions(self._broker, name.tenant, len(missing) * len(self._growth.durable(name)))
        self._growth.create(name, missing)

    def delete(self, name: TopicName, force: bool = False) -> None:
        """Delete a partitioned topic and all its partitions, or nothing."""
        record = self._directory.partitioned_topic(name)
        parts = [self._directory.topics.get(str(name.with_partition(index))) for index in range(record.partitions)]
        if not force:
            for part in parts:
                if part is not None:
                    check_no_clients(part)
        for part in parts:
            if part is not None:
                self._topics.delete(part.name, force=True)
        del self._directory.partitioned[str(name)]
        self._growth.forget(name)
        self._broker.records.delete(records.PARTITIONED + str(name).encode())
        self._broker.schemas.delete(schema_key(name))
