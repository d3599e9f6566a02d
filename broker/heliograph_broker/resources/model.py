"""The resources a person applies: BrokerCluster, Tenant, Namespace and Topic of ``heliograph.dev/v1alpha1``.

One model for all: manifests are validated by it, and the custom resource definitions are to be generated from it.
Fields are described, for the people who write them, in ``docs/manifests.md``.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, PrivateAttr, model_validator

from .fields import Contradiction, DeletionPolicy, Model, Part, Reference, Size, unique
from .names import InvalidName, TopicName, check_local, check_subscription
from .quoting import quoted
from .specs import MAX_PARTITIONS, LimitsSpec, NamespacePolicySpec, PolicySpec

API_VERSION = "heliograph.dev/v1alpha1"
# The rules for a topic's own name are the same in every namespace.
_STANDS_IN = "tenant/namespace"
_OBJECT_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", re.ASCII)


def _object_name(text: str) -> str:
    if len(text) > 253 or not _OBJECT_NAME.fullmatch(text):
        raise ValueError(
            f"{quoted(text)} is not a name of an object in Kubernetes; valid: small letters, digits, - and ."
            " (a letter or digit at both ends), at most 253; a name in the broker that has others goes in spec.name"
        )
    return text


def _subscription(text: str) -> str:
    check_subscription(text)
    return text


Subscription = Annotated[str, AfterValidator(_subscription)]


class Metadata(Model):
    """Kubernetes' metadata: ``name`` and ``namespace`` tell resources apart, the rest does not concern a broker."""

    name: Annotated[str, AfterValidator(_object_name)]
    namespace: Annotated[str, AfterValidator(_object_name)] = "default"
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    # What `kubectl get -o yaml` adds.
    uid: Any = None
    resource_version: Any = None
    generation: Any = None
    creation_timestamp: Any = None
    deletion_timestamp: Any = None
    deletion_grace_period_seconds: Any = None
    managed_fields: Any = None
    finalizers: Any = None
    owner_references: Any = None


class TenantSpec(Model):
    """``name`` is the tenant's (default: ``metadata.name``); ``limits`` cap the policies of everything below it."""

    name: Part | None = None
    cluster_ref: Reference | None = None
    admin_roles: Annotated[list[str], AfterValidator(unique)] = Field(default_factory=list)
    allowed_clusters: Annotated[list[str], AfterValidator(unique)] = Field(default_factory=list)
    limits: LimitsSpec = LimitsSpec()
    deletion_policy: DeletionPolicy = "Delete"


class NamespaceSpec(NamespacePolicySpec):
    """``name`` is the namespace's own (default: ``metadata.name``); policies hold for its topics that set none."""

    tenant_ref: Reference
    name: Part | None = None
    bundles: int = Field(default=4, ge=1, le=1024)
    deletion_policy: DeletionPolicy = "Delete"


class TopicSpec(PolicySpec):
    """``name`` is the topic's own (default: ``metadata.name``); ``partitions`` 0 is one that is not partitioned."""

    namespace_ref: Reference
    name: str | None = None
    persistent: bool = True
    partitions: int = Field(default=0, ge=0, le=MAX_PARTITIONS)
    subscriptions: Annotated[list[Subscription], AfterValidator(unique)] = Field(default_factory=list)
    properties: dict[str, str] = Field(default_factory=dict)
    deletion_policy: DeletionPolicy = "Delete"

    @model_validator(mode="after")
    def _only_persistent_topics_keep_anything(self) -> Self:
        if self.persistent:
            return self
        kept = {
            "retention": self.retention,
            "backlogQuota": self.backlog_quota,
            "messageTTL": self.message_ttl,
            "deadLetterTopic": self.dead_letter_topic,
            "ttlInBatches": self.ttl_in_batches or None,
            "deduplication": self.deduplication or None,
            "compactionThreshold": self.compaction_threshold or None,
            "subscriptionExpiration": self.subscription_expiration,
            "subscriptions": self.subscriptions or None,
        }
        found = [(field, "is for persistent topics only") for field, value in kept.items() if value is not None]
        if found:
            raise Contradiction([(field, f"{text}; valid: leave it out, or persistent: true") for field, text in found])
        return self


class StorageSpec(Model):
    """The volume of each broker: its size, and the StorageClass it comes from (default: the cluster's)."""

    size: Size
    storage_class_name: str | None = None


class BrokerClusterSpec(Model):
    """A StatefulSet of brokers, the policies it starts from and the limits nothing on it exceeds."""

    replicas: int = Field(default=1, ge=0, le=1000)
    image: str | None = Field(default=None, min_length=1)
    storage: StorageSpec | None = None
    broker_defaults: NamespacePolicySpec = NamespacePolicySpec()
    limits: LimitsSpec = LimitsSpec()


class Resource(Model):
    """What all kinds share. ``status`` is the operator's and is not looked at."""

    api_version: Literal["heliograph.dev/v1alpha1"]
    metadata: Metadata
    status: Any = None
    _source: str = PrivateAttr(default="")

    @property
    def source(self) -> str:
        """Where it was read, for messages: ``topics.yaml: document 2 (Topic orders)``."""
        return self._source

    def read_from(self, source: str) -> Self:
        """Remember where it was read."""
        self._source = source
        return self


class BrokerCluster(Resource):
    kind: Literal["BrokerCluster"]
    spec: BrokerClusterSpec = BrokerClusterSpec()


class Tenant(Resource):
    kind: Literal["Tenant"]
    spec: TenantSpec = TenantSpec()

    @property
    def tenant(self) -> str:
        """The tenant's name in the broker."""
        return self.spec.name or self.metadata.name


class Namespace(Resource):
    kind: Literal["Namespace"]
    spec: NamespaceSpec

    @property
    def local_name(self) -> str:
        """The namespace's own name in the broker, without its tenant's."""
        return self.spec.name or self.metadata.name


class Topic(Resource):
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


AnyResource = BrokerCluster | Tenant | Namespace | Topic
Kind = type[BrokerCluster] | type[Tenant] | type[Namespace] | type[Topic]
KINDS: dict[str, Kind] = {"BrokerCluster": BrokerCluster, "Tenant": Tenant, "Namespace": Namespace, "Topic": Topic}
"""The kinds by name, parents first."""

__all__ = [
    "API_VERSION",
    "KINDS",
    "AnyResource",
    "BrokerCluster",
    "Kind",
    "LimitsSpec",
    "Namespace",
    "PolicySpec",
    "Resource",
    "Tenant",
    "Topic",
]
