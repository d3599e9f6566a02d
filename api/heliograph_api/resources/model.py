"""The resources a person applies: BrokerCluster, Tenant, Topic and the other kinds of ``heliograph.dev/v1alpha1``.

One model for all: manifests are validated by it, and the custom resource definitions are generated from it (by
:mod:`.crds`), its docstrings with it: they are what ``kubectl explain`` and ``docs/resources.md`` say.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, PrivateAttr, model_validator

from heliograph_api.policies.grants import WILDCARD
from heliograph_api.policies.policy_field import manifest_name
from heliograph_api.policies.policy_table import POLICY_FIELDS, Policies
from heliograph_api.policies.policy_values import MAX_PARTITIONS, MAX_SUBSCRIPTION_POLICIES
from heliograph_api.values.names import (
    MAX_SUBSCRIPTION_NAME_BYTES,
    MAX_TOPIC_NAME_BYTES,
    InvalidName,
    TopicName,
    check_local,
    check_subscription,
)
from heliograph_api.values.quoting import quoted

from .archive_spec import SUBSCRIPTION, ArchiveSpec
from .backup_spec import MAX_BACKUP_NAME, MAX_SCHEDULE_NAME, BackupSpec, ScheduledBackupSpec
from .cel import SIZE, InSchema, Rule
from .cluster_spec import BrokerClusterSpec
from .connection_spec import BrokerConnectionSpec
from .fields import (
    MAX_SUBSCRIPTIONS,
    PARTITION,
    UNFIT,
    AdoptionPolicy,
    Contradiction,
    DeletionPolicy,
    Model,
    Part,
    SubscriptionText,
    Unique,
    WhenUnreachable,
    unique,
)
from .metadata import Metadata
from .permission_spec import (
    MAX_PERMISSIONS,
    NamespacePermissionSpec,
    TopicPermissionSpec,
)
from .references import ClusterReference, ResourceReference
from .schema_spec import SchemaSpec
from .specs import LimitsSpec, NamespacePolicySpec, PolicySpec, SubscriptionPolicySpec
from .subscription_spec import SubscriptionSpec
from .unchanged import cluster_unchanged, name_unchanged, unchanged
from .user_spec import UserSpec

API_VERSION = "heliograph.dev/v1alpha1"
# The rules for a topic's own name are the same in every namespace.
_STANDS_IN = "tenant/namespace"
_PERSISTENT_ONLY = "is for persistent topics only; valid: leave it out, or persistent: true"
_MANY_TOPICS = (
    "stands for all topics that begin so, in permissions; valid: the permissions in spec.permissions of the Namespace"
)
_LONG_NAME = "is too long, for its Jobs have longer ones; valid: at most"


def _keeps_nothing(field: str, unset: str = "") -> Rule:
    allowed = f" || {unset}" if unset else ""
    return Rule(f"self.persistent || !has(self.{field}){allowed}", _PERSISTENT_ONLY, f".{field}")


def _for_stored() -> Iterator[Rule]:
    """Yield a rule for each policy that is of no meaning where nothing is stored."""
    names = {}
    for field, row in POLICY_FIELDS.items():
        if row.for_stored:
            names[manifest_name(field, row).partition(".")[0]] = row
    for name, row in names.items():
        if row.idle_value is None:
            yield _keeps_nothing(name)
        elif row.idle_value is False:
            yield _keeps_nothing(name, f"!self.{name}")
        else:
            yield _keeps_nothing(name, SIZE.where(f"self.{name}", "v == 0"))


def _each_once(specs: list[SubscriptionPolicySpec]) -> list[SubscriptionPolicySpec]:
    """Check subscriptions. Raises :class:`ValueError` if one is there twice."""
    unique([spec.name for spec in specs])
    return specs


class TenantSpec(Model):
    """A tenant: the owner of namespaces, with limits for their policies."""

    cel_rules: ClassVar[tuple[Rule, ...]] = (cluster_unchanged(),)

    name: Part | None = None
    """The tenant's name in the broker; `metadata.name` if left out. Cannot be changed."""
    cluster_ref: ClusterReference | None = None
    """BrokerCluster of the tenant; default: the one it has been on, else the only one in the Kubernetes namespace, else
    the one named default. A BrokerConnection has to be named. Cannot be changed once it is set. A broker without the
    operator ignores it."""
    admin_roles: Unique[str] = Field(default_factory=list)
    """Roles that may administer the tenant."""
    allowed_clusters: Unique[str] = Field(default_factory=list)
    """Names of the clusters it may use; default: the broker's own."""
    limits: LimitsSpec = LimitsSpec()
    """Limits of the policies of its namespaces and topics; the lower value wins."""
    deletion_policy: DeletionPolicy | None = None
    """Deletion of the resource deletes the tenant in the broker (Delete), deletes it if it has no namespaces
    (DeleteIfEmpty), or keeps it (Retain).
    Default: Delete; Retain for a tenant that existed before the resource."""
    adoption_policy: AdoptionPolicy = "Review"
    """Treatment of a tenant that existed before the resource and has settings that the resource does not name: it is
    not changed until they are named (Review), or they are removed (Replace)."""
    deletion_when_unreachable: WhenUnreachable = "Wait"
    """A deletion whose broker does not answer waits for it (Wait), or ends after ten minutes (the operator's
    --deletion-wait) and leaves the data (Orphan)."""


class NamespaceSpec(NamespacePolicySpec):
    """A namespace, with default policies of its topics."""

    cel_rules: ClassVar[tuple[Rule, ...]] = (unchanged("tenantRef"), cluster_unchanged())

    tenant_ref: ResourceReference
    """The Tenant it belongs to. Cannot be changed."""
    name: Part | None = None
    """The namespace's own name in the broker, without its tenant's; `metadata.name` if left out. Cannot be changed."""
    cluster_ref: ClusterReference | None = None
    """BrokerCluster of the namespace; default: its Tenant's. Names the one that is meant if the tenant has no resource.
    Cannot be changed once it is set. A broker without the operator ignores it."""
    bundles: int = Field(default=4, ge=1, le=1024)
    """Number of bundles: ranges of topic-name hashes that are assigned to brokers."""
    permissions: Annotated[list[NamespacePermissionSpec], Field(max_length=MAX_PERMISSIONS)] | None = None
    """Permissions on the namespace, on topics with a prefix, and on subscriptions, for roles that no User has. They are
    all that there are: others are removed, except those of Users. Left out: permissions are left alone. Without
    authorization they have no effect."""
    deletion_policy: DeletionPolicy | None = None
    """Deletion of the resource deletes the namespace in the broker with its topics (Delete), deletes it if it has no
    topics (DeleteIfEmpty), or keeps it (Retain).
    Default: Delete; Retain for a namespace that existed before the resource."""
    adoption_policy: AdoptionPolicy = "Review"
    """Treatment of a namespace that existed before the resource and has settings that the resource does not name: it is
    not changed until they are named (Review), or they are removed (Replace)."""
    deletion_when_unreachable: WhenUnreachable = "Wait"
    """A deletion whose broker does not answer waits for it (Wait), or ends after ten minutes (the operator's
    --deletion-wait) and leaves the data (Orphan)."""


class TopicSpec(PolicySpec):
    """A topic and its policies."""

    cel_rules: ClassVar[tuple[Rule, ...]] = (
        *_for_stored(),
        _keeps_nothing("subscriptions", "size(self.subscriptions) == 0"),
        _keeps_nothing("subscriptionPolicies", "size(self.subscriptionPolicies) == 0"),
        _keeps_nothing("archive"),
        unchanged("namespaceRef"),
        cluster_unchanged(),
        unchanged("persistent"),
        Rule("!has(self.permissions) || !has(self.name) || !self.name.endsWith('*')", _MANY_TOPICS, ".name"),
        Rule(
            "self.partitions >= oldSelf.partitions",
            "partitions cannot be decreased; valid: the present number or more",
            ".partitions",
        ),
        Rule(
            "oldSelf.partitions > 0 || self.partitions == 0",
            "a topic without partitions cannot become partitioned; valid: 0, or a new resource",
            ".partitions",
        ),
    )

    namespace_ref: ResourceReference
    """The Namespace it belongs to. Cannot be changed."""
    name: (
        Annotated[
            str,
            Rule("self != ''", "is empty; valid: a name, or leave it out"),
            Rule(
                f"!self.matches('{UNFIT}')",
                "not a topic's name: it begins or ends with white space, or has characters that cannot be printed",
            ),
            Rule(
                f"!self.matches('(?s:.){PARTITION}')",
                "the name of a partition; valid: the topic's, with spec.partitions",
            ),
            InSchema({"maxLength": MAX_TOPIC_NAME_BYTES}),
        ]
        | None
    ) = None
    """The topic's own name in the broker, without its namespace's; `metadata.name` if left out. Cannot be changed."""
    cluster_ref: ClusterReference | None = None
    """BrokerCluster of the topic; default: its Namespace's. Names the one that is meant if the namespace, such as
    public/default, has no resource. Cannot be changed once it is set. A broker without the operator ignores it."""
    persistent: bool = True
    """A non-persistent topic stores no messages, so retention, backlogQuota, messageTTL, deadLetterTopic,
    ttlInBatches, ttlCountsDelay, deduplication, compactionThreshold, subscriptionExpiration, subscriptions,
    subscriptionPolicies and archive are refused on it. Cannot be changed."""
    partitions: int = Field(default=0, ge=0, le=MAX_PARTITIONS)
    """Number of partitions; 0: the topic is not partitioned, which cannot be changed. Can be increased only."""
    subscriptions: Annotated[Unique[SubscriptionText], Field(max_length=MAX_SUBSCRIPTIONS)] = Field(
        default_factory=list
    )
    """Subscriptions created with the topic, so that no message is missed before the first consumer connects."""
    subscription_policies: Annotated[
        list[SubscriptionPolicySpec],
        AfterValidator(_each_once),
        Field(max_length=MAX_SUBSCRIPTION_POLICIES),
        InSchema({"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}),
    ] = Field(default_factory=list)
    """Policies of single subscriptions, by their names. They apply whenever a subscription of the name exists: they do
    not create it, and they stay when it is deleted."""
    properties: dict[str, str] = Field(default_factory=dict)
    """Properties of the topic: texts by name."""
    schema_: SchemaSpec | None = Field(default=None, alias="schema")
    """Schema that the topic has, beside the versions that clients bring along: it is stored if no version is the same.
    One that `schemaCompatibility` forbids after the stored versions is refused. A schema that is left out, or removed,
    changes nothing."""
    permissions: Annotated[list[TopicPermissionSpec], Field(max_length=MAX_PERMISSIONS)] | None = None
    """Permissions on the topic, beside those on its namespace, for roles that no User has. They are all that there are
    on this topic: others are removed, except those of Users. Left out: permissions are left alone. Without
    authorization they have no effect."""
    archive: ArchiveSpec | None = None
    """Files to which a CronJob writes each message once. The subscription `heliograph-archive` keeps messages that are
    not in the files yet, and they count for the backlog quota. A broker without the operator creates the subscription
    but runs no jobs.
    """
    deletion_policy: DeletionPolicy | None = None
    """Deletion of the resource deletes the topic in the broker with its messages (Delete), deletes it if it stores no
    message (DeleteIfEmpty), or keeps it (Retain).
    Default: Delete; Retain for a topic that existed before the resource."""
    adoption_policy: AdoptionPolicy = "Review"
    """Treatment of a topic that existed before the resource and has settings that the resource does not name: it is
    not changed until they are named (Review), or they are removed (Replace)."""
    deletion_when_unreachable: WhenUnreachable = "Wait"
    """A deletion whose broker does not answer waits for it (Wait), or ends after ten minutes (the operator's
    --deletion-wait) and leaves the data (Orphan)."""

    def policies(self) -> Policies:
        """Return the policies in the core's units (ms, bytes), those of single subscriptions among them."""
        policies = super().policies()
        own = {spec.name: spec.policies() for spec in self.subscription_policies}
        # One that sets nothing says no more than one that is left out.
        policies.subscription_policies = {name: set_ for name, set_ in own.items() if set_ != Policies()} or None
        return policies

    @property
    def all_subscriptions(self) -> list[str]:
        """The subscriptions made with the topic, that of its archive among them."""
        more = [SUBSCRIPTION] if self.archive is not None and SUBSCRIPTION not in self.subscriptions else []
        return [*self.subscriptions, *more]

    @property
    def named_subscriptions(self) -> frozenset[str]:
        """The subscriptions that the topic creates, or sets policies of."""
        return frozenset([*self.all_subscriptions, *(spec.name for spec in self.subscription_policies)])

    @model_validator(mode="after")
    def _has_permissions_of_its_own(self) -> Self:
        if self.permissions is not None and self.name is not None and self.name.endswith(WILDCARD):
            raise Contradiction([("name", f"{quoted(self.name)} {_MANY_TOPICS}")])
        return self

    @model_validator(mode="after")
    def _only_persistent_topics_keep_anything(self) -> Self:
        if self.persistent:
            return self
        kept = self.fields_for_stored
        if self.subscriptions:
            kept.append("subscriptions")
        if self.subscription_policies:
            kept.append("subscriptionPolicies")
        if self.archive is not None:
            kept.append("archive")
        found = [(field, _PERSISTENT_ONLY) for field in kept]
        if found:
            raise Contradiction(found)
        return self


class Resource(Model):
    """The fields that all kinds share. ``status`` is the operator's and is not looked at."""

    api_version: Literal["heliograph.dev/v1alpha1"]
    metadata: Metadata
    status: Any = None
    _source: str = PrivateAttr(default="")

    @property
    def source(self) -> str:
        """The place it was read from, for messages: ``topics.yaml: document 2 (Topic orders)``."""
        return self._source

    def read_from(self, source: str) -> Self:
        """Remember where it was read."""
        self._source = source
        return self


class BrokerCluster(Resource):
    """Brokers and their storage: the operator maintains a StatefulSet and its Services."""

    kind: Literal["BrokerCluster"]
    spec: BrokerClusterSpec = BrokerClusterSpec()


class BrokerConnection(Resource):
    """A connection to brokers that this operator did not make, such as Apache Pulsar's, to manage what is in them."""

    kind: Literal["BrokerConnection"]
    spec: BrokerConnectionSpec


class Tenant(Resource):
    """A tenant of a broker: the owner of Namespaces, with limits for all of them."""

    cel_rules: ClassVar[tuple[Rule, ...]] = (name_unchanged(),)

    kind: Literal["Tenant"]
    spec: TenantSpec = TenantSpec()

    @property
    def tenant(self) -> str:
        """The tenant's name in the broker."""
        return self.spec.name or self.metadata.name


class Namespace(Resource):
    """A namespace of a Tenant: it holds Topics and their default policies."""

    cel_rules: ClassVar[tuple[Rule, ...]] = (name_unchanged(),)

    kind: Literal["Namespace"]
    spec: NamespaceSpec

    @property
    def local_name(self) -> str:
        """The namespace's own name in the broker, without its tenant's."""
        return self.spec.name or self.metadata.name


class Topic(Resource):
    """A topic of a Namespace, with its partitions, subscriptions and policies."""

    cel_rules: ClassVar[tuple[Rule, ...]] = (
        name_unchanged(),
        Rule(
            f"has(self.spec.name) || !self.metadata.name.matches('{PARTITION}')",
            "the name of a partition; valid: the topic's, with spec.partitions",
            ".metadata.name",
        ),
        Rule(
            "size(bytes(has(self.spec.name) ? self.spec.name : self.metadata.name)) <= (self.spec.persistent ?"
            f" {MAX_TOPIC_NAME_BYTES - len(f'persistent://{_STANDS_IN}/')}"
            f" : {MAX_TOPIC_NAME_BYTES - len(f'non-persistent://{_STANDS_IN}/')})",
            f"the topic's name is too long; valid: at most {MAX_TOPIC_NAME_BYTES} bytes with tenant and namespace",
            ".spec.name",
        ),
    )

    kind: Literal["Topic"]
    spec: TopicSpec

    @property
    def local_name(self) -> str:
        """The topic's own name in the broker."""
        return self.spec.name if self.spec.name is not None else self.metadata.name

    def topic_name(self, namespace: str) -> TopicName:
        """Return the full name in ``tenant/namespace``. Raises :class:`InvalidName`."""
        domain = "persistent" if self.spec.persistent else "non-persistent"
        tenant, _, local = namespace.partition("/")
        return TopicName.of(domain, tenant, local, self.local_name)

    @model_validator(mode="after")
    def _is_a_topic_and_no_partition(self) -> Self:
        field = "metadata.name" if self.spec.name is None else "spec.name"
        try:
            check_local("topic", self.local_name)
            name = self.topic_name(_STANDS_IN)
        except InvalidName as error:
            raise Contradiction([(field, str(error))]) from None
        if name.partition >= 0:
            raise Contradiction(
                [
                    (
                        field,
                        f"{quoted(self.local_name)} is the name of a partition;"
                        f" valid: {quoted(name.base.local)} with spec.partitions",
                    )
                ]
            )
        return self


class Subscription(Resource):
    """A subscription of a Topic: where it begins, its properties and its policies."""

    cel_rules: ClassVar[tuple[Rule, ...]] = (
        name_unchanged(),
        Rule(
            f"has(self.spec.name) || size(self.metadata.name) <= {MAX_SUBSCRIPTION_NAME_BYTES}",
            f"the name is too long for a subscription; valid: at most {MAX_SUBSCRIPTION_NAME_BYTES} bytes",
            ".metadata.name",
        ),
    )

    kind: Literal["Subscription"]
    spec: SubscriptionSpec

    @property
    def local_name(self) -> str:
        """The subscription's name in the broker, without its topic's."""
        return self.spec.name or self.metadata.name

    @model_validator(mode="after")
    def _has_the_name_of_a_subscription(self) -> Self:
        try:
            check_subscription(self.local_name)
        except InvalidName as error:
            raise Contradiction([("metadata.name", str(error))]) from None
        return self


def _short_name(most: int) -> Rule:
    return Rule(f"size(self.metadata.name) <= {most}", f"{_LONG_NAME} {most} characters", ".metadata.name")


def _is_short(name: str, most: int) -> None:
    if len(name) > most:
        raise Contradiction([("metadata.name", f"{quoted(name)} {_LONG_NAME} {most} characters")])


class Backup(Resource):
    """One backup of a BrokerCluster in a store: the operator runs a Job for it, once."""

    cel_rules: ClassVar[tuple[Rule, ...]] = (
        *(unchanged(field, ".spec") for field in ("clusterRef", "destination", "verify", "activeDeadlineSeconds")),
        _short_name(MAX_BACKUP_NAME),
    )

    kind: Literal["Backup"]
    spec: BackupSpec

    @model_validator(mode="after")
    def _has_a_short_name(self) -> Self:
        _is_short(self.metadata.name, MAX_BACKUP_NAME)
        return self


class ScheduledBackup(Resource):
    """Backups of a BrokerCluster on a schedule: the operator creates a Backup each time, and deletes old ones."""

    cel_rules: ClassVar[tuple[Rule, ...]] = (_short_name(MAX_SCHEDULE_NAME),)

    kind: Literal["ScheduledBackup"]
    spec: ScheduledBackupSpec

    @model_validator(mode="after")
    def _has_a_short_name(self) -> Self:
        _is_short(self.metadata.name, MAX_SCHEDULE_NAME)
        return self


class User(Resource):
    """A role of clients: how they prove it, and what it may do on the brokers of a BrokerCluster."""

    kind: Literal["User"]
    spec: UserSpec

    def role(self, namespace: str) -> str:
        """Return the name of the role; ``namespace`` is the Kubernetes namespace of the User."""
        return self.spec.role or f"{namespace}/{self.metadata.name}"


OfBroker = Tenant | Namespace | Topic | Subscription
"""A resource that stands for an object of a broker."""
AnyResource = BrokerCluster | BrokerConnection | OfBroker
"""The resources that a broker can apply."""
Kind = type[BrokerCluster] | type[BrokerConnection] | type[Tenant] | type[Namespace] | type[Topic] | type[Subscription]
BROKER_KINDS: dict[str, Kind] = {
    "BrokerCluster": BrokerCluster,
    "BrokerConnection": BrokerConnection,
    "Tenant": Tenant,
    "Namespace": Namespace,
    "Topic": Topic,
    "Subscription": Subscription,
}
"""The kinds that a broker can apply, by name, parents first."""
OperatorResource = AnyResource | Backup | ScheduledBackup | User
OperatorKind = Kind | type[Backup] | type[ScheduledBackup] | type[User]
KINDS: dict[str, OperatorKind] = {**BROKER_KINDS, "Backup": Backup, "ScheduledBackup": ScheduledBackup, "User": User}
"""All kinds by name, parents first."""

__all__ = [
    "API_VERSION",
    "BROKER_KINDS",
    "KINDS",
    "AnyResource",
    "Backup",
    "BrokerCluster",
    "BrokerConnection",
    "Kind",
    "LimitsSpec",
    "Namespace",
    "OfBroker",
    "OperatorKind",
    "OperatorResource",
    "PolicySpec",
    "Resource",
    "ScheduledBackup",
    "Subscription",
    "Tenant",
    "Topic",
    "User",
]
