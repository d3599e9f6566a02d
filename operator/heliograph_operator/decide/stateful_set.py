"""The StatefulSet of a BrokerCluster: the pods of its brokers and their data volumes."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any, Final

from heliograph_api.resources.model import BrokerCluster
from heliograph_api.resources.settings import OPERATORS
from heliograph_api.values.sizes import format_size

from heliograph_operator.objects.kinds import API_VERSION, GROUP, Body

Manifest = dict[str, Any]

BROKER_PORT: Final = 6650
HTTP_PORT: Final = 8080
#: The user of the images, which owns the broker's data directory.
_USER: Final = 10001
#: For every pod and container that the operator creates.
POD_SECURITY: Final[Manifest] = {
    "runAsNonRoot": True,
    "runAsUser": _USER,
    "runAsGroup": _USER,
    "fsGroup": _USER,
    # To change the owner of every file at every start would take minutes on a large volume.
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
}
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
_OWN_VARIABLES: Final = frozenset(f"HELIOGRAPH_{name.upper()}" for name in OPERATORS) | {"POD_NAME"}


@dataclass(frozen=True, slots=True)
class Site:
    """Defaults for all BrokerClusters: the image of brokers, and the DNS domain of the Kubernetes cluster."""

    broker_image: str
    cluster_domain: str = "cluster.local"


def name_problem(name: str) -> str | None:
    """Return why a BrokerCluster cannot have this name, or None. Names of Services are more restricted."""
    if len(name) > MAX_NAME_LENGTH or not _NAME.fullmatch(name):
        return (
            f"metadata.name: {name!r} cannot be a Service's and a StatefulSet's name; valid: lower-case letters,"
            f" digits and -, a letter first, at most {MAX_NAME_LENGTH} characters"
        )
    return None


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
    """Return the metadata of an object whose owner is the BrokerCluster ``body``."""
    own = body["metadata"]
    owner = {
        "apiVersion": API_VERSION,
        "kind": body["kind"],
        "name": own["name"],
        "uid": own["uid"],
        "controller": True,
        # A foreground deletion of the BrokerCluster waits for its brokers.
        "blockOwnerDeletion": True,
    }
    return {
        "name": name,
        "namespace": own["namespace"],
        "labels": labels(own["name"]) | more.pop("labels", {}),
        "ownerReferences": [owner],
        **more,
    }


def settings(cluster: BrokerCluster) -> dict[str, str]:
    """Return the broker's settings as environment variables."""
    return {f"HELIOGRAPH_{name.upper()}": _as_variable(value) for name, value in sorted(cluster.spec.config.items())}


def _as_variable(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def stateful_set(cluster: BrokerCluster, body: Body, site: Site, *, storage: str | None = None) -> Manifest:
    """Return the StatefulSet. ``storage`` is the size in the spec of the current one, where it is immutable."""
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
                "whenDeleted": "Retain" if spec.storage.retain_on_delete else "Delete",
                # A cluster scaled to 0 is stopped; its messages are still wanted.
                "whenScaled": "Retain",
            },
            "template": _pod(cluster, body, site),
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


def _pod(cluster: BrokerCluster, body: Body, site: Site) -> Manifest:
    spec = cluster.spec
    name = body["metadata"]["name"]
    pod: dict[str, Any] = {
        "serviceAccountName": f"{name}-brokers",
        "automountServiceAccountToken": False,
        # The variables of a Service named heliograph would be read as settings.
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": spec.termination_grace_period_seconds,
        "securityContext": POD_SECURITY,
        "containers": [_container(cluster, body, site)],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
    }
    optional = {
        "imagePullSecrets": [{"name": secret.name} for secret in spec.image_pull_secrets],
        "nodeSelector": spec.node_selector,
        "tolerations": spec.tolerations,
        "affinity": spec.affinity,
        "topologySpreadConstraints": spec.topology_spread_constraints,
        "priorityClassName": spec.priority_class_name,
    }
    return {
        "metadata": {
            "labels": {**spec.pod_labels, **labels(name)},
            "annotations": {**spec.pod_annotations, CONFIG_HASH: digest(settings(cluster))},
        },
        "spec": pod | {field: value for field, value in optional.items() if value},
    }


def _container(cluster: BrokerCluster, body: Body, site: Site) -> Manifest:
    spec = cluster.spec
    name, namespace = body["metadata"]["name"], body["metadata"]["namespace"]
    advertised = f"$(POD_NAME).{name}-brokers.{namespace}.svc.{site.cluster_domain}"
    theirs = [
        variable.model_dump(by_alias=True, exclude_none=True)
        for variable in spec.env
        if variable.name not in _OWN_VARIABLES
    ]
    container: dict[str, Any] = {
        "name": "broker",
        "image": spec.image or site.broker_image,
        "args": ["standalone", "--bind", "0.0.0.0", "--data-dir", "/data"],
        "envFrom": [{"configMapRef": {"name": name}}],
        "env": [
            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "HELIOGRAPH_ADVERTISED_HOST", "value": advertised},
            *theirs,
        ],
        "ports": [
            {"name": "pulsar", "containerPort": BROKER_PORT, "protocol": "TCP"},
            {"name": "http", "containerPort": HTTP_PORT, "protocol": "TCP"},
        ],
        "securityContext": CONTAINER_SECURITY,
        # A broker that recovers a large volume is slow, not dead: it has ten minutes to start.
        "startupProbe": _probe("/health/live", period=2, failures=300),
        "livenessProbe": _probe("/health/live", period=10, failures=6),
        "readinessProbe": _probe("/health/ready", period=2, failures=3),
        "volumeMounts": [{"name": VOLUME, "mountPath": "/data"}, {"name": "tmp", "mountPath": "/tmp"}],
    }
    if spec.resources:
        container["resources"] = spec.resources
    if spec.image_pull_policy is not None:
        container["imagePullPolicy"] = spec.image_pull_policy
    return container


def _probe(path: str, *, period: int, failures: int) -> Manifest:
    return {
        "httpGet": {"path": path, "port": "http"},
        "periodSeconds": period,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }


def digest(value: Any) -> str:
    """Return a short hash of ``value`` (JSON)."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
