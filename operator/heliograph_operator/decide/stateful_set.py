"""The StatefulSet of a BrokerCluster: the pods of its brokers and their data volumes."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, replace
from typing import Any, Final

from heliograph_api.resources.model import BrokerCluster
from heliograph_api.resources.settings import OPERATORS
from heliograph_api.values.sizes import format_size

from heliograph_operator.objects.kinds import API_VERSION, BROKER_CLUSTER, GROUP, Body

from .authentication_settings import authentication_mounts, authentication_settings, authentication_volumes
from .cluster_tls import (
    HTTP_PORT_NAME,
    HTTPS_PORT_NAME,
    PULSAR_PORT_NAME,
    PULSAR_TLS_PORT_NAME,
    OpenPorts,
    tls_mounts,
    tls_settings,
    tls_volumes,
    wanted_ports,
)
from .pod_template import Essentials, with_pod_template

Manifest = dict[str, Any]

BROKER_PORT: Final = 6650
HTTP_PORT: Final = 8080
BROKER_TLS_PORT: Final = 6651
HTTPS_PORT: Final = 8443
METRICS_PORT: Final = 8081
#: The user of the images, which owns the broker's data directory.
_USER: Final = 10001
#: The security context of every container that the operator creates.
CONTAINER_SECURITY: Final[Manifest] = {
    "readOnlyRootFilesystem": True,
    "allowPrivilegeEscalation": False,
    "runAsNonRoot": True,
    "capabilities": {"drop": ["ALL"]},
}
VOLUME: Final = "data"
CONFIG_HASH: Final = f"{GROUP}/config"
#: The StatefulSet's controller appends "-<ten digits>" to the name, in a label of at most 63 characters.
MAX_NAME_LENGTH: Final = 52
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?", re.ASCII)
_OWN_VARIABLES: Final = frozenset(f"HELIOGRAPH_{name.upper()}" for name in OPERATORS) | {
    "POD_NAME",
    "POD_ORDINAL",
    "POD_HOST_IP",
}
#: The container of the broker; a pod template may add others.
BROKER: Final = "broker"
#: The container that restores a backup before the broker starts; the pod template may not have one of this name.
RESTORE: Final = "restore"
DATA_PATH: Final = "/data"
_ESSENTIALS: Final = Essentials(
    BROKER,
    RESTORE,
    VOLUME,
    DATA_PATH,
    _OWN_VARIABLES,
    frozenset({PULSAR_PORT_NAME, HTTP_PORT_NAME, PULSAR_TLS_PORT_NAME, HTTPS_PORT_NAME, "metrics"}),
)
#: A broker without requests would be the first to be evicted. docs/install.md says what the memory is for.
DEFAULT_RESOURCES: Final[Manifest] = {
    "requests": {"cpu": "100m", "memory": "512Mi"},
    "limits": {"memory": "2Gi"},
}


@dataclass(frozen=True, slots=True)
class Site:
    """Defaults for all BrokerClusters, and the Kubernetes cluster that they are in."""

    broker_image: str
    cluster_domain: str = "cluster.local"
    #: The Kubernetes namespace of the operator.
    operator_namespace: str = "default"
    fixed_user: bool = True
    """Whether pods run as the user of the images; otherwise as one that the Kubernetes cluster assigns."""


@dataclass(frozen=True, slots=True)
class Advertised:
    """Environment variables and ports (by name) of a broker's container for its listeners."""

    variables: tuple[Manifest, ...]
    ports: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class BeforeStart:
    """A container of the broker's image that has to end before the broker starts, with the data volume."""

    name: str
    arguments: tuple[str, ...]
    variables: tuple[Manifest, ...] = ()
    volumes: tuple[Manifest, ...] = ()
    mounts: tuple[Manifest, ...] = ()


def broker_host(body: Body, site: Site) -> str:
    """Return the name of a broker in the pods' network, with the variable of its container for that of the pod."""
    name, namespace = body["metadata"]["name"], body["metadata"]["namespace"]
    return f"$(POD_NAME).{name}-brokers.{namespace}.svc.{site.cluster_domain}"


def name_problem(name: str) -> str | None:
    """Return why a BrokerCluster cannot have this name, or None. Names of Services are more restricted."""
    if len(name) > MAX_NAME_LENGTH or not _NAME.fullmatch(name):
        return (
            f"metadata.name: {name!r} cannot be a Service's and a StatefulSet's name; valid: lower-case letters,"
            f" digits and -, a letter first, at most {MAX_NAME_LENGTH} characters"
        )
    return None


def pod_security(*, fixed_user: bool) -> Manifest:
    """Return the security context of every pod that the operator creates."""
    security: Manifest = {
        "runAsNonRoot": True,
        # To change the owner of every file at every start would take minutes on a large volume.
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    return security | ({"runAsUser": _USER, "runAsGroup": _USER, "fsGroup": _USER} if fixed_user else {})


def selector(name: str) -> dict[str, str]:
    """Return the labels that identify a cluster's brokers. They never change."""
    return {
        "app.kubernetes.io/name": "heliograph",
        "app.kubernetes.io/instance": name,
        "app.kubernetes.io/component": "broker",
    }


def labels(name: str) -> dict[str, str]:
    """Return the labels of all objects of a cluster."""
    return {**selector(name), "app.kubernetes.io/managed-by": "heliograph-operator"}


def as_selector(pairs: dict[str, str]) -> str:
    """Format labels as a selector: ``a=b,c=d``."""
    return ",".join(f"{key}={value}" for key, value in sorted(pairs.items()))


def metadata(body: Body, name: str, **more: Any) -> dict[str, Any]:
    """Return the metadata of an object whose owner is the resource ``body``, most often a BrokerCluster."""
    own = body["metadata"]
    owner: dict[str, Any] = {
        "apiVersion": API_VERSION,
        "kind": body["kind"],
        "name": own["name"],
        "uid": own["uid"],
        "controller": True,
    }
    if body["kind"] == BROKER_CLUSTER.name:
        # A foreground deletion of it waits for its brokers. Some clusters ask who may change its finalizers for that.
        owner["blockOwnerDeletion"] = True
    return {
        "name": name,
        "namespace": own["namespace"],
        "labels": labels(own["name"]) | more.pop("labels", {}),
        "ownerReferences": [owner],
        **more,
    }


def stated_settings(cluster: BrokerCluster) -> dict[str, Any]:
    """Return the broker's settings by name."""
    return cluster.spec.config | authentication_settings(cluster) | tls_settings(cluster.spec.tls)


def settings(cluster: BrokerCluster) -> dict[str, str]:
    """Return the broker's settings as environment variables."""
    stated = stated_settings(cluster)
    return {f"HELIOGRAPH_{name.upper()}": _as_variable(value) for name, value in sorted(stated.items())}


def _as_variable(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def stateful_set(
    cluster: BrokerCluster,
    body: Body,
    site: Site,
    *,
    storage: str | None = None,
    advertised: Advertised | None = None,
    before_start: BeforeStart | None = None,
) -> Manifest:
    """Return the StatefulSet. ``storage`` is the size in the spec of the current one, where it is immutable.

    Raises :class:`.strategic_merge.PatchError` for a ``spec.podTemplate`` that is refused.
    """
    spec = cluster.spec
    name = body["metadata"]["name"]
    claim: dict[str, Any] = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": storage or format_size(spec.storage.size)}},
    }
    if spec.storage.storage_class_name is not None:
        claim["storageClassName"] = spec.storage.storage_class_name
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": metadata(body, name),
        "spec": {
            "replicas": spec.replicas,
            "serviceName": f"{name}-brokers",
            "selector": {"matchLabels": selector(name)},
            # With OrderedReady, a pod that never becomes ready would block the rollout of its own fix.
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "RollingUpdate"},
            "revisionHistoryLimit": 5,
            "persistentVolumeClaimRetentionPolicy": {
                # A StatefulSet may be recreated around its pods. The operator deletes volumes, with a BrokerCluster.
                "whenDeleted": "Retain",
                # A cluster scaled to 0 is stopped; its messages are still wanted.
                "whenScaled": "Retain",
            },
            "template": _pod(cluster, body, site, advertised, before_start),
            "volumeClaimTemplates": [
                {
                    "apiVersion": "v1",
                    "kind": "PersistentVolumeClaim",
                    "metadata": {"name": VOLUME, "labels": selector(name)},
                    "spec": claim,
                }
            ],
        },
    }


def _pod(
    cluster: BrokerCluster,
    body: Body,
    site: Site,
    advertised: Advertised | None,
    before_start: BeforeStart | None,
) -> Manifest:
    spec = cluster.spec
    name = body["metadata"]["name"]
    given = advertised or Advertised((), ())
    pod: dict[str, Any] = {
        "serviceAccountName": f"{name}-brokers",
        # Only by its own token can a broker read the keys that sign those of others.
        "automountServiceAccountToken": bool(stated_settings(cluster).get("oidc_kubernetes")),
        # The variables of a Service named heliograph would be read as settings.
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": spec.termination_grace_period_seconds,
        "securityContext": pod_security(fixed_user=site.fixed_user),
        "containers": [_container(cluster, body, site, given)],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
    }
    pod["volumes"] += [*authentication_volumes(cluster, name), *tls_volumes(cluster, name)]
    if before_start is not None:
        pod["initContainers"] = [_init_container(cluster, site, before_start)]
        pod["volumes"] += before_start.volumes
    optional = {
        "imagePullSecrets": [{"name": secret.name} for secret in spec.image_pull_secrets],
        "nodeSelector": spec.node_selector,
        "tolerations": spec.tolerations,
        "affinity": spec.affinity,
        "topologySpreadConstraints": spec.topology_spread_constraints,
        "priorityClassName": spec.priority_class_name,
    }
    template = {
        "metadata": {
            "labels": {**spec.pod_labels, **labels(name)},
            "annotations": {**spec.pod_annotations, CONFIG_HASH: digest(settings(cluster))},
        },
        "spec": pod | {field: value for field, value in optional.items() if value},
    }
    essentials = replace(_ESSENTIALS, ports=_ESSENTIALS.ports | {port for port, _ in given.ports})
    return with_pod_template(template, spec.pod_template.patch(), essentials)


def _container(cluster: BrokerCluster, body: Body, site: Site, advertised: Advertised) -> Manifest:
    spec = cluster.spec
    name, ports = body["metadata"]["name"], wanted_ports(cluster.spec.tls)
    theirs = [
        variable.model_dump(by_alias=True, exclude_none=True)
        for variable in spec.env
        if variable.name not in _OWN_VARIABLES
    ]
    container: dict[str, Any] = {
        "name": BROKER,
        "image": spec.image or site.broker_image,
        "args": ["standalone", "--bind", "*", "--data-dir", DATA_PATH],
        "envFrom": [{"configMapRef": {"name": name}}],
        "env": [
            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "HELIOGRAPH_ADVERTISED_HOST", "value": broker_host(body, site)},
            {"name": "HELIOGRAPH_METRICS_PORT", "value": str(METRICS_PORT)},
            *advertised.variables,
            *theirs,
        ],
        "ports": [
            *({"name": name, "containerPort": port, "protocol": "TCP"} for name, port in container_ports(ports)),
            *({"name": name, "containerPort": port, "protocol": "TCP"} for name, port in advertised.ports),
        ],
        "securityContext": CONTAINER_SECURITY,
        # A broker that reads back a large volume is live and not ready: only its first answer has to come in time.
        "startupProbe": _probe("/health/live", ports, period=2, failures=300),
        "livenessProbe": _probe("/health/live", ports, period=10, failures=6),
        "readinessProbe": _probe("/health/ready", ports, period=2, failures=3),
        "resources": spec.resources or DEFAULT_RESOURCES,
        "volumeMounts": [{"name": VOLUME, "mountPath": DATA_PATH}, {"name": "tmp", "mountPath": "/tmp"}],
    }
    container["volumeMounts"] += [*authentication_mounts(cluster), *tls_mounts(spec.tls)]
    if spec.image_pull_policy is not None:
        container["imagePullPolicy"] = spec.image_pull_policy
    return container


def _init_container(cluster: BrokerCluster, site: Site, before_start: BeforeStart) -> Manifest:
    spec = cluster.spec
    container: Manifest = {
        "name": before_start.name,
        "image": spec.image or site.broker_image,
        "args": list(before_start.arguments),
        "env": list(before_start.variables),
        "securityContext": CONTAINER_SECURITY,
        "resources": spec.resources or DEFAULT_RESOURCES,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": VOLUME, "mountPath": DATA_PATH},
            {"name": "tmp", "mountPath": "/tmp"},
            *before_start.mounts,
        ],
    }
    if spec.image_pull_policy is not None:
        container["imagePullPolicy"] = spec.image_pull_policy
    return container


def container_ports(ports: OpenPorts) -> list[tuple[str, int]]:
    """Return name and number of the ports of a broker, without those of listeners."""
    plain = [(PULSAR_PORT_NAME, BROKER_PORT), (HTTP_PORT_NAME, HTTP_PORT)]
    encrypted = [(PULSAR_TLS_PORT_NAME, BROKER_TLS_PORT), (HTTPS_PORT_NAME, HTTPS_PORT)]
    return [*(plain if ports.plain else ()), *(encrypted if ports.encrypted else ()), ("metrics", METRICS_PORT)]


def _probe(path: str, ports: OpenPorts, *, period: int, failures: int) -> Manifest:
    # The kubelet does not verify certificates.
    get = {"port": HTTP_PORT_NAME} if ports.plain else {"port": HTTPS_PORT_NAME, "scheme": "HTTPS"}
    return {
        "httpGet": {"path": path, **get},
        "periodSeconds": period,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }


def digest(value: Any) -> str:
    """Return a short hash of ``value`` (JSON)."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
