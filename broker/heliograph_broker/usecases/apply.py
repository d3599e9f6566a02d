"""Applies resources to the broker: creates missing objects, configures those that differ, leaves the rest alone.

Everything is checked against the broker and against each other before anything is changed. Applying never
deletes: a resource that is left out stays as it is.
"""

from __future__ import annotations

from collections import ChainMap, Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec
from heliograph_api.manifests.manifest_error import ManifestError
from heliograph_api.manifests.plan import Existing, Step, plan
from heliograph_api.policies.grants import (
    Actions,
    IsOthers,
    actions_on_topic,
    auth_policies,
    keep_grants,
    with_namespace_grants,
    with_stated,
    with_topic_grants,
)
from heliograph_api.policies.policies import MAX_PARTITIONS, Policies, resolve
from heliograph_api.policies.policy_values import MAX_SUBSCRIPTION_POLICIES
from heliograph_api.resources.metadata import OTHER_ROLES, OTHER_SUBSCRIPTIONS
from heliograph_api.resources.model import (
    AnyResource,
    BrokerCluster,
    BrokerConnection,
    Namespace,
    Subscription,
    Tenant,
    Topic,
)
from heliograph_api.resources.permission_spec import namespace_grants, topic_actions
from heliograph_api.values.names import SubscriptionName, TopicName

from heliograph_broker.messaging.base.errors import BrokerError, PreconditionFailed
from heliograph_broker.messaging.base.names import COMPACTION, check_properties
from heliograph_broker.messaging.base.records import NamespaceRecord, TenantRecord
from heliograph_broker.messaging.broker.admission import check_new_topic_name, count_topics
from heliograph_broker.messaging.broker.broker import Broker
from heliograph_broker.messaging.broker.tenant_limits import namespaces_over, subscriptions_over, topics_over
from heliograph_broker.messaging.broker.topic_properties import set_topic_properties, topic_properties
from heliograph_broker.messaging.delivery.subscription import Subscription as DurableSubscription

from .apply_results import CONFIGURED, CREATED, UNCHANGED, Applied
from .schemas import schema_change
from .subscriptions import create_subscription

Change = Callable[[], object]


class _Changes:
    """Checks every step of a plan against the broker and collects the changes."""

    def __init__(self, broker: Broker, steps: Iterable[Step]) -> None:
        self._broker = broker
        #: By topics, the subscriptions that resources of their own describe.
        self._described: dict[str, set[str]] = {}
        for step in steps:
            if isinstance(step.resource, Subscription):
                name = SubscriptionName.parse(step.name)
                self._described.setdefault(str(name.topic), set()).add(name.local)
        self.problems: list[str] = []
        self._clusters: list[str] = []
        self.applied: list[Applied] = []
        self.changes: list[Change] = []
        #: The policies once everything is applied: broker's defaults, limits by tenant ("": the broker's), namespaces'.
        self._defaults = broker.policies.defaults
        self._limits: dict[str, Policies] = {"": broker.policies.limits}
        self._namespaces: dict[str, Policies] = {}
        self._new_topics: Counter[str] = Counter()
        #: Namespaces, topics and subscriptions that tenants will have more.
        self._more: dict[str, Counter[str]] = {"namespaces": Counter(), "topics": Counter(), "subscriptions": Counter()}
        #: Own policies of topics that are applied, those that are partitioned, and all subscriptions declared on each.
        self._topics: dict[str, Policies] = {}
        self._partitioned: set[str] = set()
        self._declared: dict[str, set[str]] = {}
        #: By topics, the subscriptions that will have policies of their own.
        self._with_policies: dict[str, set[str]] = {}

    def _refuse(self, resource: AnyResource, reason: str) -> None:
        self.problems.append(f"{resource.kind} {resource.metadata.name}: {reason}")

    def _do(self, kind: str, name: str, action: str, changes: Sequence[Change], note: str = "") -> None:
        self.applied.append(Applied(kind, name, action, note))
        self.changes.extend(changes)

    def cluster(self, resource: BrokerCluster) -> None:
        """Apply the policies of a BrokerCluster to this broker; its pods are the operator's."""
        broker = self._broker
        defaults, limits = resource.spec.broker_defaults.policies(), resource.spec.limits.policies()
        name = resource.metadata.name
        if self._clusters:
            self._refuse(resource, f"a broker belongs to one cluster, and {self._clusters[0]} is applied with it")
            return
        self._clusters.append(name)
        self._defaults, self._limits[""] = defaults, limits
        if (broker.policies.broker_defaults, broker.policies.limits) == (defaults, limits):
            self._do("BrokerCluster", name, UNCHANGED, [])
        else:
            self._do("BrokerCluster", name, CONFIGURED, [lambda: broker.policies.set_broker(defaults, limits)])

    def connection(self, resource: BrokerConnection) -> None:
        """Leave a BrokerConnection to the operator."""
        note = "the operator connects to other brokers, a broker does not"
        self._do("BrokerConnection", resource.metadata.name, UNCHANGED, [], note)

    def tenant(self, name: str, resource: Tenant) -> None:
        broker = self._broker
        clusters = resource.spec.allowed_clusters or [broker.config.cluster_name]
        unknown = [cluster for cluster in clusters if cluster != broker.config.cluster_name]
        if unknown:
            self._refuse(
                resource,
                f"spec.allowedClusters: {unknown[0]} does not exist; valid: {broker.config.cluster_name}",
            )
            return
        wanted = TenantRecord(resource.spec.admin_roles, clusters, resource.spec.limits.policies())
        self._limits[name] = wanted.limits
        existing = broker.directory.tenants.get(name)
        if existing is None:
            self._do("Tenant", name, CREATED, [lambda: broker.tenants.create(name, wanted)])
        elif existing != wanted:
            self._do("Tenant", name, CONFIGURED, [lambda: broker.tenants.update(name, wanted)])
        else:
            self._do("Tenant", name, UNCHANGED, [])

    def namespace(self, name: str, resource: Namespace) -> None:
        broker = self._broker
        existing = broker.directory.namespaces.get(name)
        policies = _with_kept(resource.spec.policies(), existing.policies if existing is not None else None)
        if resource.spec.permissions is not None:
            stated = namespace_grants(resource.spec.permissions, name)
            keep_grants(policies, with_namespace_grants(auth_policies(policies), stated, _other_roles(resource)))
        self._namespaces[name] = policies
        if existing is None:
            if not self._allowed(resource, name.partition("/")[0], "namespaces", 1, namespaces_over):
                return
            record = NamespaceRecord(policies=policies, bundles=resource.spec.bundles)
            self._do("Namespace", name, CREATED, [lambda: broker.namespaces.create(name, record)])
            return
        changes: list[Change] = []
        if existing.policies != policies:
            changes.append(lambda: broker.namespaces.set_policies(name, policies))
        if existing.bundles != (bundles := resource.spec.bundles):
            changes.append(lambda: broker.namespaces.set_bundles(name, bundles))
        self._do("Namespace", name, CONFIGURED if changes else UNCHANGED, changes)

    def topic(self, name: TopicName, resource: Topic) -> None:
        existing = self._broker.policies.of_topic(name)
        policies = _with_kept(resource.spec.policies(), existing)
        others = self._described.get(str(name), set()) | _other_subscriptions(resource)
        _keep_others(policies, existing, others - resource.spec.named_subscriptions)
        wanted = policies if policies != Policies() else None
        self._topics[str(name)] = policies
        if partitions := resource.spec.partitions:
            self._partitioned.add(str(name))
        self._declared.setdefault(str(name), set()).update(resource.spec.all_subscriptions)
        if partitions > MAX_PARTITIONS:
            self._refuse(resource, f"spec.partitions: {partitions} is more than {MAX_PARTITIONS}")
            return
        broker = self._broker
        # Those that are to come are admitted: they are not asked for again.
        there = sum(str(part) in broker.directory.topics for part in broker.topics.growth.completed(name))
        effective = self._effective(name, wanted)
        if not self._fits(name, resource, effective, max(0, max(partitions, 1) - there)):
            return
        try:
            schema = schema_change(broker, name, resource.spec.schema_, effective.schema_compatibility)
        except BrokerError as error:
            self._refuse(resource, f"spec.schema: {error}")
            return
        if broker.directory.exists(name):
            self._configure_topic(name, resource, wanted, schema)
        else:
            self._create_topic(name, resource, wanted, schema)

    def subscription(self, name: SubscriptionName, resource: Subscription) -> None:
        """Create a subscription that does not exist, at its position; set properties and policies that differ."""
        broker, topic, local = self._broker, name.topic, name.local
        spec = resource.spec
        parts = [broker.directory.topics.get(str(part)) for part in broker.topics.growth.completed(topic)]
        there = [part.subscriptions[local] for part in parts if part is not None and local in part.subscriptions]
        if any(each.persistent and not each.durable for each in there):
            self._refuse(resource, f"a reader is connected to {topic} as '{local}'")
            return
        start = spec.start
        if start.message_id is not None and (str(topic) in self._partitioned or broker.directory.partitions_of(topic)):
            self._refuse(
                resource,
                "spec.position: a message id is of one partition; valid: earliest, latest or a time",
            )
            return
        try:
            check_properties(spec.properties)
        except BrokerError as error:
            self._refuse(resource, f"spec.properties: {error}")
            return
        own = broker.policies.of_topic(topic)
        declared = self._declared.setdefault(str(topic), set())
        declared.add(local)
        limit = self._effective(topic, self._topics.get(str(topic), own)).max_subscriptions
        for existing in [part.subscriptions for part in parts if part is not None] or [{}]:
            names = {*existing, *declared} - {COMPACTION}
            if limit is not None and len(names) > max(limit, len(existing)):
                self._refuse(resource, f"there would be {len(names)} subscriptions, maxSubscriptions is {limit}")
                return
        wanted = spec.policies()
        by_name = (own.subscription_policies if own is not None else None) or {}
        of_topic = self._topics.get(str(topic), own)
        there_are = (of_topic.subscription_policies if of_topic is not None else None) or {}
        with_policies = self._with_policies.setdefault(str(topic), set(there_are))
        if wanted == Policies():
            with_policies.discard(local)
        elif len(with_policies | {local}) > MAX_SUBSCRIPTION_POLICIES:
            self._refuse(
                resource,
                f"{topic} would have policies of {len(with_policies) + 1} subscriptions; valid: at most"
                f" {MAX_SUBSCRIPTION_POLICIES}",
            )
            return
        else:
            with_policies.add(local)
        changes: list[Change] = []
        # Policies first: a message must not expire by those of the topic in between.
        if by_name.get(local, Policies()) != wanted:
            changes.append(lambda: self._set_subscription_policies(name, wanted))
        if missing := max(1, len(parts)) - len(there):
            if not self._allowed(resource, topic.tenant, "subscriptions", missing, subscriptions_over):
                return
            changes.append(
                lambda: create_subscription(
                    broker,
                    topic,
                    local,
                    position=start.where,
                    start_id=start.message_id,
                    published_ms=start.published_ms,
                    properties=spec.properties,
                )
            )
        if any(each.persistent and each.properties != spec.properties for each in there):
            changes.append(lambda: self._set_subscription_properties(name, spec.properties))
        action = CREATED if not there else CONFIGURED if changes else UNCHANGED
        self._do("Subscription", str(name), action, changes)

    def _set_subscription_policies(self, name: SubscriptionName, wanted: Policies) -> None:
        policies = msgspec.structs.replace(self._broker.policies.of_topic(name.topic) or Policies())
        by_name = {key: value for key, value in (policies.subscription_policies or {}).items() if key != name.local}
        if wanted != Policies():
            by_name[name.local] = wanted
        policies.subscription_policies = by_name or None
        self._broker.policies.set_topic(name.topic, policies)

    def _set_subscription_properties(self, name: SubscriptionName, properties: Mapping[str, str]) -> None:
        for part in self._broker.directory.concrete_names(name.topic):
            subscription = self._broker.directory.get_topic(part).subscriptions[name.local]
            if isinstance(subscription, DurableSubscription) and subscription.properties != properties:
                subscription.properties = dict(properties)
                subscription.topic.records.commit(subscription)

    def _effective(self, name: TopicName, wanted: Policies | None) -> Policies:
        """Return the policies that will hold for the topic."""
        broker = self._broker
        namespace, tenant = name.namespace_name, name.tenant
        record, owner = broker.directory.namespaces.get(namespace), broker.directory.tenants.get(tenant)
        return resolve(
            wanted,
            self._namespaces.get(namespace, record.policies if record is not None else None),
            self._defaults,
            [self._limits.get(tenant, owner.limits if owner is not None else Policies()), self._limits[""]],
        )

    def _fits(self, name: TopicName, resource: Topic, effective: Policies, more: int) -> bool:
        """Whether the maxima that will hold allow ``more`` concrete topics, and the topic's subscriptions."""
        broker = self._broker
        namespace = name.namespace_name
        limit = effective.max_topics
        if limit is not None and more and name.is_persistent:
            count = count_topics(broker.directory, namespace) + self._new_topics[namespace]
            if count + more > limit:
                self._refuse(
                    resource,
                    f"Exceed maximum number of topics in namespace. {namespace} would have {count + more} of {limit}",
                )
                return False
            self._new_topics[namespace] += more
        limit = effective.max_subscriptions
        parts = [broker.directory.topics.get(str(part)) for part in self._broker.directory.concrete_names(name)]
        wanted = set(resource.spec.all_subscriptions)
        subscriptions = sum(len(wanted - part.subscriptions.keys()) for part in parts if part is not None)
        there = {each for part in parts if part is not None for each in part.subscriptions}
        subscriptions += more * len(wanted | there)
        if not self._allowed(resource, name.tenant, "topics", more, topics_over):
            return False
        if not self._allowed(resource, name.tenant, "subscriptions", subscriptions, subscriptions_over):
            return False
        for part in parts:
            if part is None:
                continue
            for sub in resource.spec.all_subscriptions:
                taken = part.subscriptions.get(sub)
                if taken is not None and taken.persistent and not taken.durable:
                    self._refuse(resource, f"spec.subscriptions: a reader is connected to {part.name} as '{sub}'")
                    return False
        for existing in [part.subscriptions for part in parts if part is not None] or [{}]:
            names = {*existing, *resource.spec.all_subscriptions} - {COMPACTION}
            if limit is not None and len(names) > max(limit, len(existing)):
                self._refuse(resource, f"spec.subscriptions: there would be {len(names)}, maxSubscriptions is {limit}")
                return False
        return True

    def _allowed(
        self, resource: AnyResource, tenant: str, what: str, more: int, over: Callable[[Broker, str, int], str]
    ) -> bool:
        """Whether a tenant may have so many more, beside those of the resources before."""
        count = self._more[what]
        if reason := over(self._broker, tenant, count[tenant] + more) if more else "":
            self._refuse(resource, reason)
            return False
        count[tenant] += more
        return True

    def _create_topic(
        self, name: TopicName, resource: Topic, wanted: Policies | None, schema: Sequence[Change]
    ) -> None:
        broker = self._broker
        try:
            check_new_topic_name(broker.config, name)
        except BrokerError as error:
            self._refuse(resource, str(error))
            return
        partitions = resource.spec.partitions
        properties = resource.spec.properties
        changes: list[Change] = []
        if partitions:
            changes.append(lambda: broker.partitioned.create(name, partitions, properties))
        else:
            changes.append(lambda: _ignore_result(broker.topics.create(name, properties)))
        if wanted is not None:
            changes.append(lambda: broker.policies.set_topic(name, wanted))
        changes.append(lambda: self._add_subscriptions(name, resource.spec.all_subscriptions))
        changes += schema
        changes += self._topic_grants(name, resource)
        self._do("Topic", str(name), CREATED, changes, _note(resource))

    def _configure_topic(
        self, name: TopicName, resource: Topic, wanted: Policies | None, schema: Sequence[Change]
    ) -> None:
        broker = self._broker
        partitions = resource.spec.partitions
        existing = broker.directory.partitions_of(name)
        if partitions < existing:
            self._refuse(
                resource,
                f"spec.partitions: {name} has {existing} and cannot have fewer; valid: {existing} or more",
            )
            return
        if partitions and not existing:
            self._refuse(
                resource,
                f"spec.partitions: {name} exists and is not partitioned; valid: 0, or another name",
            )
            return
        # A topic that is declared again counts as used, whether it changes or not.
        changes: list[Change] = [lambda: broker.topics.redeclared(name)]
        if broker.directory.missing_partitions(name):
            changes.append(lambda: broker.partitioned.create_missing(name))
        if partitions > existing:
            changes.append(lambda: broker.partitioned.extend(name, partitions))
        if topic_properties(broker, name) != resource.spec.properties:
            changes.append(lambda: set_topic_properties(broker, name, resource.spec.properties))
        if (broker.policies.of_topic(name) or Policies()) != (wanted or Policies()):
            changes.append(lambda: broker.policies.set_topic(name, wanted or Policies()))
        if self._missing_subscriptions(name, resource.spec.all_subscriptions):
            changes.append(lambda: self._add_subscriptions(name, resource.spec.all_subscriptions))
        changes += schema
        changes += self._topic_grants(name, resource)
        self._do("Topic", str(name), CONFIGURED if len(changes) > 1 else UNCHANGED, changes, _note(resource))

    def _topic_grants(self, name: TopicName, resource: Topic) -> list[Change]:
        """Return the change that makes the grants on a topic those of the resource, if it states any and they differ.

        They are in the record of its namespace, which may be another one by the time of the change.
        """
        if resource.spec.permissions is None:
            return []
        broker, namespace, topic = self._broker, name.namespace_name, str(name.base)
        stated, is_others = topic_actions(resource.spec.permissions), _other_roles(resource)

        def wanted(there: Policies) -> Actions:
            return with_stated(actions_on_topic(there, topic), stated, is_others)

        def change() -> None:
            policies = msgspec.structs.replace(broker.directory.namespace(namespace).policies)
            keep_grants(policies, with_topic_grants(auth_policies(policies), topic, wanted(policies)))
            broker.namespaces.set_policies(namespace, policies)

        # A resource of the namespace that is applied, too, states nothing about single topics.
        record = broker.directory.namespaces.get(namespace)
        there = record.policies if record is not None else Policies()
        return [change] if wanted(there) != actions_on_topic(there, topic) else []

    def _missing_subscriptions(self, name: TopicName, subscriptions: Sequence[str]) -> bool:
        topics = [self._broker.directory.topics.get(str(part)) for part in self._broker.directory.concrete_names(name)]
        return any(topic is None or sub not in topic.subscriptions for topic in topics for sub in subscriptions)

    def _add_subscriptions(self, name: TopicName, subscriptions: Sequence[str]) -> None:
        if not subscriptions:
            return
        for part in self._broker.topics.growth.completed(name):
            topic = self._broker.directory.get_topic(part)
            for sub in subscriptions:
                if sub not in topic.subscriptions:
                    topic.create_subscription(sub)


def _with_kept(policies: Policies, existing: Policies | None) -> Policies:
    """Return ``policies`` with the settings that a broker only keeps, which manifests do not have."""
    if existing is not None and existing.kept:
        policies.kept = existing.kept
    return policies


def _other_subscriptions(resource: Topic) -> set[str]:
    """Return the subscriptions that the operator knows to be described by other resources."""
    return _noted(resource, OTHER_SUBSCRIPTIONS)


def _other_roles(resource: Namespace | Topic) -> IsOthers:
    """Return what tells the roles that the operator knows to be those of Users."""
    return _noted(resource, OTHER_ROLES).__contains__


def _noted(resource: AnyResource, annotation: str) -> set[str]:
    """Return the names that the operator has noted."""
    try:
        return set(msgspec.json.decode(resource.metadata.annotations.get(annotation, "[]"), type=list[str]))
    except msgspec.DecodeError:
        # Somebody else's note; a resource without it has no others.
        return set()


def _keep_others(policies: Policies, existing: Policies | None, others: Collection[str]) -> None:
    """Add the policies that ``others``, subscriptions of the topic, have."""
    there = (existing.subscription_policies if existing is not None else None) or {}
    kept = {name: own for name, own in there.items() if name in others}
    if kept:
        policies.subscription_policies = {**(policies.subscription_policies or {}), **kept}


def _note(resource: Topic) -> str:
    """Return what of the resource a broker leaves to others."""
    if resource.spec.archive is None:
        return ""
    return (
        "spec.archive: a broker runs no jobs, so its subscription waits for the operator's, or for `heliograph-spark"
        f" archive --path {resource.spec.archive.path}`"
    )


def _ignore_result(_: object) -> None:
    """Turn a call that returns something into a :data:`Change`."""


def apply_resources(broker: Broker, resources: Sequence[AnyResource]) -> list[Applied]:
    """Apply ``resources``, parents first; return what became of each, in that order.

    Raises :class:`PreconditionFailed`, one line for each thing that is wrong, with nothing changed. The
    changes are durable when a ``store.writer.after_commit`` that is asked for now says so.
    """
    try:
        directory = broker.directory
        topics: Mapping[str, object] = ChainMap(directory.partitioned, directory.topics)  # type: ignore[arg-type]
        steps = plan(resources, Existing(directory.tenants, directory.namespaces, topics))
    except ManifestError as error:
        raise PreconditionFailed(str(error)) from error
    changes = _Changes(broker, steps)
    for step in steps:
        resource = step.resource
        if isinstance(resource, Tenant):
            changes.tenant(step.name, resource)
        elif isinstance(resource, Namespace):
            changes.namespace(step.name, resource)
        elif isinstance(resource, Topic):
            changes.topic(TopicName.parse(step.name), resource)
        elif isinstance(resource, Subscription):
            changes.subscription(SubscriptionName.parse(step.name), resource)
        elif isinstance(resource, BrokerCluster):
            changes.cluster(resource)
        else:
            changes.connection(resource)
    if changes.problems:
        raise PreconditionFailed("\n".join(changes.problems))
    for change in changes.changes:
        change()
    return changes.applied
