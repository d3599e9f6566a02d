"""Creates, changes and deletes tenants and namespaces."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import msgspec
from heliograph_api.values.names import TopicName

from heliograph_broker.messaging.base import records
from heliograph_broker.messaging.base.errors import Conflict, NotAllowed, PreconditionFailed, TenantNotFound
from heliograph_broker.messaging.base.names import check_new_name, check_properties

from .tenant_limits import check_namespaces

if TYPE_CHECKING:
    from heliograph_api.policies.policies import Policies

    from heliograph_broker.messaging.base.records import NamespaceRecord, TenantRecord

    from .partitioned_topics import PartitionedTopics
    from .parts import BrokerParts
    from .topics import Topics


class Tenants:
    """The tenants of a broker."""

    __slots__ = ("_broker", "_directory", "_tenants")

    def __init__(self, broker: BrokerParts) -> None:
        self._broker = broker
        self._directory = broker.directory
        self._tenants = broker.directory.tenants

    def create(self, name: str, record: TenantRecord) -> None:
        if name in self._tenants:
            raise Conflict("Tenant already exist")
        self._check(record)
        check_new_name("tenant", name)
        self._store(name, record)

    def update(self, name: str, record: TenantRecord) -> None:
        if name not in self._tenants:
            raise TenantNotFound("Tenant does not exist")
        self._check(record)
        self._store(name, record)
        self._broker.policies.changed(lambda topic: topic.name.tenant == name)

    def _check(self, record: TenantRecord) -> None:
        if any(cluster != self._broker.config.cluster_name for cluster in record.allowed_clusters):
            raise PreconditionFailed("Clusters do not exist")

    def _store(self, name: str, record: TenantRecord) -> None:
        self._broker.records.put(records.TENANT + name.encode(), records.encode(record))
        self._tenants[name] = record
        self._directory.rights_version += 1

    def delete(self, name: str) -> None:
        if name not in self._tenants:
            raise TenantNotFound("Tenant does not exist")
        if any(namespace.startswith(f"{name}/") for namespace in self._broker.directory.namespaces):
            raise NotAllowed("The tenant still has active namespaces")
        del self._tenants[name]
        self._directory.rights_version += 1
        self._broker.records.delete(records.TENANT + name.encode())


class Namespaces:
    """The namespaces of a broker. One that is deleted takes its topics along."""

    __slots__ = ("_broker", "_directory", "_partitioned", "_topics")

    def __init__(self, broker: BrokerParts, topics: Topics, partitioned: PartitionedTopics) -> None:
        self._broker = broker
        self._directory = broker.directory
        self._topics = topics
        self._partitioned = partitioned

    def create(self, name: str, record: NamespaceRecord) -> None:
        tenant = name.partition("/")[0]
        if tenant not in self._directory.tenants:
            raise TenantNotFound("Tenant does not exist")
        if name in self._directory.namespaces:
            raise Conflict("Namespace already exists")
        check_new_name("namespace", name)
        check_properties(record.properties)
        check_namespaces(self._broker, tenant)
        if not record.replication_clusters:
            record.replication_clusters = [self._broker.config.cluster_name]
        self._store(name, record)
        self._broker.policies.forget_namespace(name)

    def delete(self, name: str, force: bool = False) -> None:
        directory = self._directory
        directory.namespace(name)
        topics = directory.topics_by_namespace.get(name, {})
        partitioned = [base for base in directory.partitioned if TopicName.parse(base).namespace_name == name]
        if (topics or partitioned) and not force:
            hidden = [one for one in (*partitioned, *topics) if TopicName.parse(one).is_system]
            named = f": it has the system topics {', '.join(hidden)}" if hidden else ""
            raise NotAllowed(f"Cannot delete non empty namespace{named}")
        for base in partitioned:
            self._partitioned.delete(TopicName.parse(base), force=True)
        for topic in list(topics.values()):
            self._topics.delete(topic.name, force=True)
        self._broker.schemas.delete_namespace(name)
        del directory.namespaces[name]
        directory.rights_version += 1
        self._broker.policies.forget_namespace(name)
        directory.topics_by_namespace.pop(name, None)
        self._broker.records.delete(records.NAMESPACE + name.encode())

    def _store(self, name: str, record: NamespaceRecord) -> None:
        self._broker.records.put(records.NAMESPACE + name.encode(), records.encode(record))
        self._directory.namespaces[name] = record
        self._directory.rights_version += 1

    def set_policies(self, name: str, policies: Policies) -> None:
        self._store(name, msgspec.structs.replace(self._directory.namespace(name), policies=policies))
        self._broker.policies.changed(lambda topic: topic.name.namespace_name == name)

    def set_bundles(self, name: str, bundles: int) -> None:
        """Cut its topics' hashes into another number of equal parts."""
        self._store(name, msgspec.structs.replace(self._directory.namespace(name), bundles=bundles, splits=[]))

    def split_bundle(self, name: str, at: Collection[int]) -> None:
        """Let bundles begin at these hashes, too."""
        record = self._directory.namespace(name)
        self._store(name, msgspec.structs.replace(record, splits=sorted({*record.splits, *at})))

    def set_replication_clusters(self, name: str, clusters: list[str]) -> None:
        self._store(name, msgspec.structs.replace(self._directory.namespace(name), replication_clusters=clusters))

    def set_properties(self, name: str, properties: dict[str, str]) -> None:
        check_properties(properties)
        self._store(name, msgspec.structs.replace(self._directory.namespace(name), properties=properties))
