"""The spec of a BrokerCluster: its pods, volumes, settings, and default policies."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from .archive_consent_spec import ArchivesSpec
from .authentication_spec import ClusterAuthenticationSpec
from .backup_spec import BootstrapSpec
from .cel import SIZE, InSchema, Rule, where_both
from .cluster_tls_spec import ClusterTlsSpec
from .fields import Contradiction, DeletionPolicy, Model, Reference, Size, named_once
from .listener_spec import ListenerSpec
from .network_spec import NetworkPolicySpec
from .pod_spec import Opaque, PodDisruptionBudgetSpec, PodTemplateSpec
from .references import MAX_CONSENTS, Consent
from .rollout_spec import MaintenanceWindows
from .settings import SettingsSchema, check_settings
from .specs import LimitsSpec, NamespacePolicySpec

DEFAULT_STORAGE: Final = 10 * 1024**3

_BY_CERTIFICATE: Final = "(^|,) *tls *(,|$)"
_NO_AUTHORITIES: Final = "tls needs authorities of clients' certificates; valid: spec.tls with enabled and clientCA"
_TWO_FILES: Final = "is the file of authentication.oidc.ca, too; valid: one of them"
_NO_SIZE = "a volume has a size; valid: above 0, and not infinite"
_BY_NAME = InSchema({"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]})


def _one_broker(count: int) -> int:
    if count > 1:
        raise ValueError(f"{count} brokers are not supported yet; valid: 0 or 1")
    return count


def _size_of_a_volume(size: int) -> int:
    if size <= 0:
        raise ValueError(_NO_SIZE)
    return size


class EnvVar(Model):
    """An environment variable, as in a container of a pod."""

    model_config = ConfigDict(extra="allow")

    name: str = Field(min_length=1)
    """Name of the variable. A HELIOGRAPH_ variable that the operator sets itself is ignored."""


class StorageSpec(Model):
    """The volume of each broker."""

    cel_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            where_both(SIZE, "self.size", SIZE, "oldSelf.size", "v >= other"),
            "a volume cannot shrink; valid: the size it has, or more",
            ".size",
        ),
        Rule(
            "has(self.storageClassName) == has(oldSelf.storageClassName)"
            " && (!has(self.storageClassName) || self.storageClassName == oldSelf.storageClassName)",
            "cannot be changed: a volume stays in its StorageClass",
            ".storageClassName",
        ),
    )

    size: Annotated[Size, AfterValidator(_size_of_a_volume), Rule(SIZE.where("self", "v > 0"), _NO_SIZE)]
    """Size of the volume, such as 100Gi. Can grow if the StorageClass allows it; cannot shrink."""
    storage_class_name: str | None = Field(default=None, max_length=253)
    """StorageClass of the volume; default: that of the Kubernetes cluster. Cannot be changed."""
    retain_on_delete: bool = True
    """Whether the volumes with all messages are kept when the BrokerCluster is deleted."""


class BrokerClusterSpec(Model):
    """A StatefulSet of brokers with default policies and limits for all topics on it."""

    cel_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            f"!has(self.config) || !has(self.config.auth) || !self.config.auth.matches('{_BY_CERTIFICATE}')"
            " || (has(self.tls) && has(self.tls.enabled) && self.tls.enabled && has(self.tls.clientCA))",
            _NO_AUTHORITIES,
            ".config.auth",
        ),
        Rule(
            "!has(self.config) || !has(self.config.oidc_ca) || self.config.oidc_ca == '' || !has(self.authentication)"
            " || !has(self.authentication.oidc) || !has(self.authentication.oidc.ca)",
            _TWO_FILES,
            ".config.oidc_ca",
        ),
    )

    replicas: Annotated[
        int,
        Field(ge=0),
        AfterValidator(_one_broker),
        InSchema({"format": "int32"}),
        Rule("self <= 1", "more than one broker is not supported yet; valid: 0 or 1"),
    ] = 1
    """Number of brokers: 1, or 0 to stop it. More than one is not supported yet."""
    image: str | None = Field(default=None, min_length=1)
    """Container image of the broker, by tag or by digest (`repository@sha256:…`); default: the operator's setting,
    which may change with the operator. A change restarts the pods."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    """When the image is pulled, as in a container of a pod."""
    image_pull_secrets: Annotated[list[Reference], AfterValidator(named_once), _BY_NAME] = Field(default_factory=list)
    """Secrets the image is pulled with."""
    storage: StorageSpec = StorageSpec(size=DEFAULT_STORAGE)
    """Volume of each broker; 10Gi of the default StorageClass if left out."""
    bootstrap: BootstrapSpec = Field(default_factory=BootstrapSpec)
    """Data that new brokers begin with; default: none."""
    config: Annotated[dict[str, Any], AfterValidator(check_settings), SettingsSchema()] = Field(default_factory=dict)
    """Settings of the broker process by name. A change restarts the pods."""
    env: Annotated[list[EnvVar], AfterValidator(named_once), _BY_NAME] = Field(default_factory=list)
    """More environment variables of the broker's container, as in a pod."""
    resources: Opaque = Field(default_factory=dict)
    """Requests and limits of the broker's container (cpu, memory), as in a pod; default: requests of 100m and 512Mi, a
    memory limit of 2Gi. A change restarts the pods."""
    node_selector: dict[str, str] = Field(default_factory=dict)
    """Node labels required to run a broker, as in a pod."""
    tolerations: list[Opaque] = Field(default_factory=list)
    """Taints of nodes a broker tolerates, as in a pod."""
    affinity: Opaque = Field(default_factory=dict)
    """Affinity of the broker's pods, as in a pod."""
    topology_spread_constraints: list[Opaque] = Field(default_factory=list)
    """Topology spread constraints of the broker's pods, as in a pod."""
    pod_annotations: dict[str, str] = Field(default_factory=dict)
    """Annotations of the broker's pods."""
    pod_labels: dict[str, str] = Field(default_factory=dict)
    """Additional labels of the broker's pods; those of the operator cannot be replaced."""
    priority_class_name: str | None = Field(default=None, min_length=1)
    """PriorityClass of the broker's pods."""
    pod_disruption_budget: PodDisruptionBudgetSpec = PodDisruptionBudgetSpec()
    """Number of brokers that may be evicted at a time, for example when nodes are drained."""
    pod_template: PodTemplateSpec = Field(default_factory=PodTemplateSpec)
    """Whatever else the pods need, merged into the pod template last. A change restarts the pods."""
    maintenance_windows: MaintenanceWindows = Field(default_factory=list)
    """Times in which the brokers may be replaced because the operator or its default image changed; left out: always. A
    change of this resource replaces them at once."""
    preflight: bool = True
    """Whether a new image is asked, before a broker runs it, if it reads the format of the brokers' volumes."""
    termination_grace_period_seconds: int = Field(default=60, ge=0, le=2**31 - 1)
    """Seconds a broker has to drain its connections before it is killed."""
    service_type: Literal["ClusterIP", "NodePort", "LoadBalancer"] = "ClusterIP"
    """Type of the Service clients connect to, which has the binary protocol (port 6650, with TLS 6651) and nothing
    else. Lookups through it answer addresses in the pods' network; `listeners` are for clients that do not reach
    these."""
    service_annotations: dict[str, str] = Field(default_factory=dict)
    """Annotations of the Service clients connect to."""
    admin_service_type: Literal["ClusterIP", "NodePort", "LoadBalancer"] = "ClusterIP"
    """Type of the Service of the admin API and backups. Its clients may read and delete everything."""
    admin_service_annotations: dict[str, str] = Field(default_factory=dict)
    """Annotations of the Service of the admin API."""
    listeners: Annotated[list[ListenerSpec], Field(max_length=10), AfterValidator(named_once), _BY_NAME] = Field(
        default_factory=list
    )
    """Ways to the brokers for clients of other networks. A change restarts the pods."""
    network_policy: NetworkPolicySpec = Field(default_factory=NetworkPolicySpec)
    """Peers that may connect to the brokers."""
    authentication: ClusterAuthenticationSpec = Field(default_factory=ClusterAuthenticationSpec)
    """Authentication and authorization of clients; default: every client may do everything."""
    tls: ClusterTlsSpec = Field(default_factory=ClusterTlsSpec)
    """TLS of the brokers; default: none."""
    consents: Annotated[list[Consent], Field(max_length=MAX_CONSENTS)] = Field(default_factory=list)
    """Resources of other Kubernetes namespaces that may be on these brokers; default: none. Those of its own may."""
    archives: ArchivesSpec = Field(default_factory=ArchivesSpec)
    """Consent to archives of Topics: they run pods."""
    broker_defaults: NamespacePolicySpec = NamespacePolicySpec()
    """Default policies of topics; those of a topic or its namespace take precedence."""
    limits: LimitsSpec = LimitsSpec()
    """Limits of the policies of tenants, namespaces and topics; the lower value wins."""
    deletion_policy: DeletionPolicy = "Delete"
    """Deletion of the resource deletes the brokers (Delete), deletes them if no Tenant is left on them (DeleteIfEmpty),
    or keeps them running (Retain). `storage.retainOnDelete` decides about the volumes."""

    @model_validator(mode="after")
    def _knows_whom_certificates_are_by(self) -> Self:
        by_certificate = re.search(_BY_CERTIFICATE, str(self.config.get("auth", "")))
        if by_certificate and not (self.tls.enabled and self.tls.client_ca is not None):
            raise Contradiction([("config.auth", _NO_AUTHORITIES)])
        return self

    @model_validator(mode="after")
    def _knows_one_file_of_issuers_authorities(self) -> Self:
        if self.config.get("oidc_ca") and self.authentication.oidc.ca is not None:
            raise Contradiction([("config.oidc_ca", _TWO_FILES)])
        return self
