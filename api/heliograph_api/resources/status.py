"""What the operator reports in ``status``. Nobody writes it by hand, and a broker that runs by itself has none."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, WithJsonSchema
from pydantic.alias_generators import to_camel

from .cel import InSchema


class StatusModel(BaseModel):
    """camelCase; what is not known yet is left out."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, use_attribute_docstrings=True)


Count = Annotated[int, Field(ge=0), InSchema({"format": "int64"})]
Pods = Annotated[int, Field(ge=0), InSchema({"format": "int32"})]
SizeShown = Annotated[str | int, WithJsonSchema({"x-kubernetes-int-or-string": True})]
"""Bytes for people to read, rounded down: ``1.2Mi``."""


class Condition(StatusModel):
    """One thing that is so, or not, with the reason."""

    type: Annotated[str, Field(min_length=1, max_length=316)]
    """What it is about: Ready, PoliciesApplied, QuotaExceeded, Archived, Progressing."""
    status: Literal["True", "False", "Unknown"]
    """Whether it is so."""
    reason: Annotated[str, Field(max_length=1024)]
    """Why, in one word for programs."""
    message: Annotated[str, Field(max_length=32768)] = ""
    """Why, for people."""
    last_transition_time: AwareDatetime
    """When `status` became what it is."""
    observed_generation: Count | None = None
    """The generation of the spec it is about."""


class BacklogStatus(StatusModel):
    """What is not acknowledged yet."""

    messages: Count | None = None
    """Messages the slowest subscription of a topic is behind; of partitions, and of several topics, the sum."""
    bytes: SizeShown | None = None
    """Bytes it is behind, likewise, rounded: 1.2Mi."""
    oldest_age: str | None = None
    """Age of the oldest message that is not acknowledged, when the status was written, rounded: 42s."""
    oldest_time: AwareDatetime | None = None
    """When the broker received that message; its age right now follows from it."""


class StorageStatus(StatusModel):
    """What is stored."""

    bytes: SizeShown | None = None
    """Bytes stored, rounded: 1.2Mi."""


class Status(StatusModel):
    """What the statuses of all kinds have."""

    observed_generation: Count | None = None
    """The generation of the spec this is about; if it is not `metadata.generation`, the operator is not there yet."""
    conditions: Annotated[
        list[Condition], InSchema({"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]})
    ] = Field(default_factory=list)
    """What is so, or not, with reasons; `kubectl wait --for=condition=Ready` waits for one."""


class BrokerClusterStatus(Status):
    """Where the brokers are."""

    replicas: Pods | None = None
    """Pods there are."""
    ready_replicas: Pods | None = None
    """Pods whose broker is ready."""
    selector: str | None = None
    """Labels of the pods, for the scale subresource."""
    version: str | None = None
    """Version of the broker that runs."""
    endpoints: Endpoints | None = None
    """Where clients connect to."""


class Endpoints(StatusModel):
    """Addresses inside the Kubernetes cluster."""

    broker: str | None = None
    """URL for clients: pulsar://…"""
    http: str | None = None
    """URL of the admin API and the metrics."""


class NamedStatus(Status):
    """What the statuses of all that is in a broker have."""

    name: str | None = None
    """Full name in the broker."""
    backlog: BacklogStatus | None = None
    """What is not acknowledged yet."""
    storage: StorageStatus | None = None
    """What is stored."""


class TenantStatus(NamedStatus):
    """What the tenant holds."""

    namespaces: Count | None = None
    """Namespaces it has."""
    topics: Count | None = None
    """Topics they have."""


class NamespaceStatus(NamedStatus):
    """What the namespace holds."""

    topics: Count | None = None
    """Topics it has."""


class ArchiveStatus(StatusModel):
    """How far the archive is, and what became of its last run."""

    last_run_time: AwareDatetime | None = None
    """When the last run began."""
    last_success_time: AwareDatetime | None = None
    """When the last run that did all it had to was done."""
    rows: Count | None = None
    """Messages that the last run added to the files."""
    lag: Count | None = None
    """Messages of the topic that are not in the files yet: the backlog of the subscription heliograph-archive."""
    running: bool | None = None
    """Whether a run is under way."""
    message: str | None = None
    """What the last run ended with, if it failed."""


class TopicStatus(NamedStatus):
    """What the topic holds."""

    partitions: Count | None = None
    """Partitions it has; 0: it is not partitioned."""
    subscriptions: Count | None = None
    """Subscriptions it has."""
    quota_used: str | None = None
    """How much of the backlog quota is used, by size or by age, whichever is more: 15%."""
    quota_used_percent: Annotated[int, Field(ge=0), InSchema({"format": "int32"})] | None = None
    """The same as a number."""
    archive: ArchiveStatus | None = None
    """The archive, if the spec has one."""


BrokerClusterStatus.model_rebuild()
