"""The ``status`` of each kind, as the operator reports it. A broker without the operator has none."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, WithJsonSchema
from pydantic.alias_generators import to_camel

from .cel import InSchema


class StatusModel(BaseModel):
    """A part of a status: camelCase; unknown values are left out."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, use_attribute_docstrings=True)


Count = Annotated[int, Field(ge=0), InSchema({"format": "int64"})]
Pods = Annotated[int, Field(ge=0), InSchema({"format": "int32"})]
SizeShown = Annotated[str | int, WithJsonSchema({"x-kubernetes-int-or-string": True})]
"""Bytes for people to read, rounded down: ``1.2Mi``."""


class Condition(StatusModel):
    """A condition: whether something is the case, with the reason."""

    type: Annotated[str, Field(min_length=1, max_length=316)]
    """Type of the condition: Ready, PoliciesApplied, QuotaExceeded, Archived, Adopted, Progressing, Restored,
    CredentialsIssued, Expiring, TLSReady."""
    status: Literal["True", "False", "Unknown"]
    """Whether it is the case."""
    reason: Annotated[str, Field(max_length=1024)]
    """Reason, as one word for programs."""
    message: Annotated[str, Field(max_length=32768)] = ""
    """Reason, for people."""
    last_transition_time: AwareDatetime
    """When `status` last changed."""
    observed_generation: Count | None = None
    """Generation of the spec that the condition describes."""


class BacklogStatus(StatusModel):
    """Unacknowledged messages."""

    messages: Count | None = None
    """Messages in the backlog of the slowest subscription of a topic; for partitions and several topics, the sum."""
    bytes: SizeShown | None = None
    """Bytes in that backlog, rounded: 1.2Mi."""
    oldest_age: str | None = None
    """Age of the oldest unacknowledged message when the status was written, rounded: 42s."""
    oldest_time: AwareDatetime | None = None
    """When the broker received that message."""


class StorageStatus(StatusModel):
    """Stored messages."""

    bytes: SizeShown | None = None
    """Bytes stored, rounded: 1.2Mi."""


class Status(StatusModel):
    """Status fields of all kinds."""

    observed_generation: Count | None = None
    """Generation of the spec that the status describes; if it differs from `metadata.generation`, the operator has not
    reconciled the spec yet."""
    conditions: Annotated[
        list[Condition], InSchema({"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]})
    ] = Field(default_factory=list)
    """Conditions with their reasons; `kubectl wait --for=condition=Ready` waits for one."""


class BrokerClusterStatus(Status):
    """Addresses and number of the brokers."""

    replicas: Pods | None = None
    """Number of pods."""
    ready_replicas: Pods | None = None
    """Number of ready pods."""
    updated_replicas: Pods | None = None
    """Number of pods of the newest pod template."""
    selector: str | None = None
    """Label selector of the pods, for the scale subresource."""
    version: str | None = None
    """Version of the running broker."""
    store_format: str | None = None
    """Format of the broker's data directory, such as heliograph 3."""
    rollout: RolloutStatus | None = None
    """A new pod template that is not applied yet; the condition Progressing says why."""
    endpoints: Endpoints | None = None
    """Address for clients."""
    addresses: list[str] | None = None
    """Addresses and names of the load balancer for clients, if serviceType is LoadBalancer."""
    listeners: list[ListenerStatus] | None = None
    """Addresses of the listeners."""
    tls: TlsStatus | None = None
    """The brokers' certificate, if they have TLS; the condition TLSReady says whether it can be used."""
    restore: RestoreStatus | None = None
    """The backup that the brokers began with; the condition Restored has what happens before."""


class TlsStatus(StatusModel):
    """The certificate of the brokers."""

    secret: str | None = None
    """Secret that the brokers mount."""
    authorities: str | None = None
    """ConfigMap with the certificates that clients trust, in its entry ca.crt."""
    expires: AwareDatetime | None = None
    """When the certificate expires."""
    renewed: AwareDatetime | None = None
    """When the operator replaces it, if it makes the certificates."""


class RestoreStatus(StatusModel):
    """The backup that was restored into the volume of a new broker."""

    url: str | None = None
    """URL of the place in which it is stored."""
    name: str | None = None
    """Its name in the store."""
    point_in_time: AwareDatetime | None = None
    """When the broker that it is of began it: everything with a receipt from before is in it."""
    size: SizeShown | None = None
    """Bytes of the backup, rounded: 1.2Mi."""
    restored_time: AwareDatetime | None = None
    """When the restore ended."""


class BrokerConnectionStatus(Status):
    """Brokers that it was established with: those in which its resources have their objects."""

    product: Literal["Heliograph", "Apache Pulsar"] | None = None
    """Product of the brokers."""
    version: str | None = None
    """Version that they report."""
    store_id: str | None = None
    """Id of their store, if they are Heliograph's. A copy of the store has the same."""
    endpoints: Endpoints | None = None
    """Addresses that the spec had when they last answered there."""


class ListenerStatus(StatusModel):
    """Addresses of a listener."""

    name: str
    """Name of the listener."""
    type: str | None = None
    """Type of its Service."""
    urls: list[str] = Field(default_factory=list)
    """URLs that lookups answer, one for each broker; empty while an address is missing."""
    addresses: list[str] = Field(default_factory=list)
    """Addresses and names of its load balancer."""
    node_port: Annotated[int, InSchema({"format": "int32"})] | None = None
    """Port of the nodes."""


class RolloutStatus(StatusModel):
    """A new pod template that is not applied yet."""

    image: str | None = None
    """Image of the broker in it."""
    next_window: AwareDatetime | None = None
    """When the next maintenance window opens, if it waits for that."""


class Endpoints(StatusModel):
    """Addresses; those of a BrokerCluster are inside the Kubernetes cluster."""

    broker: str | None = None
    """URL for clients: pulsar://…, or pulsar+ssl://… if there is no port without TLS."""
    broker_tls: str | None = None
    """URL for clients with TLS: pulsar+ssl://…"""
    http: str | None = None
    """URL of the admin API and of lookups by HTTP: http://…, or https://… if there is no port without TLS."""
    https: str | None = None
    """The same with TLS: https://…"""
    metrics: str | None = None
    """URL of the metrics."""


class NamedStatus(Status):
    """Status fields of Tenant, Namespace and Topic."""

    name: str | None = None
    """Full name in the broker."""
    backlog: BacklogStatus | None = None
    """Unacknowledged messages."""
    storage: StorageStatus | None = None
    """Stored messages."""


class TenantStatus(NamedStatus):
    """Status of a Tenant."""

    namespaces: Count | None = None
    """Number of namespaces."""
    topics: Count | None = None
    """Number of topics in them."""


class NamespaceStatus(NamedStatus):
    """Status of a Namespace."""

    topics: Count | None = None
    """Number of topics."""


class ArchiveStatus(StatusModel):
    """State of the archive and its last run."""

    last_run_time: AwareDatetime | None = None
    """Start of the last run."""
    last_success_time: AwareDatetime | None = None
    """End of the last successful run."""
    rows: Count | None = None
    """Messages added to the files by the last run."""
    lag: Count | None = None
    """Messages that are not in the files yet: the backlog of the subscription heliograph-archive."""
    running: bool | None = None
    """Whether a run is active."""
    message: str | None = None
    """Error of the last run, if it failed."""


class TopicStatus(NamedStatus):
    """Status of a Topic."""

    partitions: Count | None = None
    """Number of partitions; 0: the topic is not partitioned."""
    subscriptions: Count | None = None
    """Number of subscriptions."""
    quota_used: str | None = None
    """Used share of the backlog quota by size or age, whichever is larger: 15%."""
    quota_used_percent: Annotated[int, Field(ge=0), InSchema({"format": "int32"})] | None = None
    """Used share of the backlog quota, as a number of percent."""
    archive: ArchiveStatus | None = None
    """State of the archive, if the spec has one."""


class SubscriptionStatus(Status):
    """Status of a Subscription."""

    name: str | None = None
    """Full name in the broker: that of the topic, with /subscription/ and the name, URL-encoded."""
    backlog: BacklogStatus | None = None
    """Messages it has not acknowledged, over all partitions."""
    consumers: Count | None = None
    """Number of connected consumers."""


class BackupStatus(Status):
    """Status of a Backup."""

    phase: Literal["Waiting", "Running", "Succeeded", "Failed"] | None = None
    """Waiting: not begun yet. A Backup that Succeeded or Failed never runs a second time."""
    start_time: AwareDatetime | None = None
    """When its Job was created."""
    completion_time: AwareDatetime | None = None
    """When its Job ended."""
    url: str | None = None
    """URL of the place in which it is stored."""
    name: str | None = None
    """Its name in the store, once it is stored: that of the resource, and the first characters of its uid."""
    size: SizeShown | None = None
    """Bytes of the backup, rounded: 1.2Mi."""
    size_bytes: Count | None = None
    """Bytes of the backup."""
    topics: Count | None = None
    """Number of topics in it."""
    point_in_time: AwareDatetime | None = None
    """When the broker began it: everything with a receipt from before is in it."""
    verified_time: AwareDatetime | None = None
    """When it was restored into scratch space and found to be complete."""
    damaged: Count | None = None
    """Damages in the broker's store when the backup was made; the log of its Job names them."""
    version: str | None = None
    """Version of the broker."""


class ScheduledBackupStatus(Status):
    """Status of a ScheduledBackup."""

    last_schedule_time: AwareDatetime | None = None
    """The time of the schedule for which a Backup was created last."""
    last_backup: str | None = None
    """The Backup that was created last."""
    last_success_time: AwareDatetime | None = None
    """When the last successful Backup ended."""
    last_success: str | None = None
    """The last successful Backup."""
    next_time: AwareDatetime | None = None
    """The next time of the schedule."""
    backups: Count | None = None
    """Number of successful Backups."""


class CredentialsStatus(StatusModel):
    """The Secret with the credentials."""

    name: str
    """Name of the Secret."""


class UserStatus(Status):
    """Status of a User."""

    role: str | None = None
    """Name of the role in the broker."""
    credentials: CredentialsStatus | None = None
    """The Secret with the token."""
    token_issued: AwareDatetime | None = None
    """When the token was issued."""
    token_expires: AwareDatetime | None = None
    """When the token expires."""
    connections: Count | None = None
    """Open connections of the role to the brokers' binary ports."""
    last_seen: AwareDatetime | None = None
    """When a client of the role was there last, to the minute; while one is connected, up to ten minutes ago."""
    denied_last_hour: Count | None = None
    """Requests in the last hour that the role had no right to, or that were above its limits."""
    counted_since: AwareDatetime | None = None
    """When the broker started, which counts since then only."""
    not_in_effect: list[str] | None = None
    """Parts of the spec that are not in effect, each with the reason."""


BrokerClusterStatus.model_rebuild()
BrokerConnectionStatus.model_rebuild()
