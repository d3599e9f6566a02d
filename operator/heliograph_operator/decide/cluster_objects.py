"""The Kubernetes objects of a BrokerCluster except its StatefulSet: Services, ConfigMap, account and protection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from heliograph_api.resources.model import BrokerCluster

from heliograph_operator.objects.kinds import GROUP, Body, Kind

from .network_policy import network_policy
from .stateful_set import (
    BROKER_PORT,
    HTTP_PORT,
    METRICS_PORT,
    Advertised,
    BeforeStart,
    Manifest,
    Site,
    metadata,
    selector,
    settings,
    stateful_set,
)

STATEFUL_SET: Final = Kind("StatefulSet", "statefulsets", "apps/v1")
SERVICE: Final = Kind("Service", "services", "v1")
CONFIG_MAP: Final = Kind("ConfigMap", "configmaps", "v1")
SERVICE_ACCOUNT: Final = Kind("ServiceAccount", "serviceaccounts", "v1")
DISRUPTION_BUDGET: Final = Kind("PodDisruptionBudget", "poddisruptionbudgets", "policy/v1")
NETWORK_POLICY: Final = Kind("NetworkPolicy", "networkpolicies", "networking.k8s.io/v1")
POD: Final = Kind("Pod", "pods", "v1")
VOLUME_CLAIM: Final = Kind("PersistentVolumeClaim", "persistentvolumeclaims", "v1")

OWNED: Final = {
    kind.name: kind for kind in (SERVICE_ACCOUNT, CONFIG_MAP, SERVICE, NETWORK_POLICY, DISRUPTION_BUDGET, STATEFUL_SET)
}
"""The kinds of a cluster's objects, in the order they are applied: a pod needs its account and settings."""

_PULSAR: Final = {"name": "pulsar", "port": BROKER_PORT, "targetPort": "pulsar", "protocol": "TCP"}
_HTTP: Final = {"name": "http", "port": HTTP_PORT, "targetPort": "http", "protocol": "TCP"}
_METRICS: Final = {"name": "metrics", "port": METRICS_PORT, "targetPort": "metrics", "protocol": "TCP"}


def manifests(
    cluster: BrokerCluster,
    body: Body,
    site: Site,
    *,
    storage: str | None = None,
    advertised: Advertised | None = None,
    found: Body | None = None,
    before_start: BeforeStart | None = None,
    restores: bool = False,
) -> list[Manifest]:
    """Return all objects of a BrokerCluster but the Services of listeners, of which ``advertised`` has the addresses.

    ``found`` is its StatefulSet as it is, of which listeners keep their ports. ``restores``: brokers may have to fetch
    a backup. ``storage`` and what it raises: see :func:`.stateful_set.stateful_set`.
    """
    return [
        service_account(body),
        config_map(cluster, body),
        brokers_service(body),
        # Before the port leaves the Service for clients, which had it in earlier versions.
        admin_service(cluster, body),
        client_service(cluster, body),
        metrics_service(body),
        *(
            [network_policy(cluster, body, site, found, restores=restores)]
            if cluster.spec.network_policy.enabled
            else []
        ),
        *([disruption_budget(cluster, body)] if cluster.spec.pod_disruption_budget.enabled else []),
        stateful_set(cluster, body, site, storage=storage, advertised=advertised, before_start=before_start),
    ]


def service_account(body: Body) -> Manifest:
    """Return the account of the brokers, without permissions and without a token in any pod."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        # Every Kubernetes namespace has an account named default, which is a common name of clusters, too.
        "metadata": metadata(body, f"{_name(body)}-brokers"),
        "automountServiceAccountToken": False,
    }


def config_map(cluster: BrokerCluster, body: Body) -> Manifest:
    """Return the broker's settings. Pods read them at their start; a hash in the pod template rolls out a change."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(body, _name(body)),
        "data": settings(cluster),
    }


def brokers_service(body: Body) -> Manifest:
    """Return the headless Service, which gives every broker a DNS name, ready or not, for clients to reconnect to."""
    return _service(body, f"{_name(body)}-brokers", "brokers", _PULSAR, headless=True)


def client_service(cluster: BrokerCluster, body: Body) -> Manifest:
    """Return the Service that clients connect to, by the binary protocol; it forwards to ready brokers."""
    spec = cluster.spec
    return _service(body, _name(body), "clients", _PULSAR, spec.service_type, spec.service_annotations)


def admin_service_name(cluster: str) -> str:
    """Return the name of the Service of the admin API of a BrokerCluster."""
    return f"{cluster}-admin"


def admin_service(cluster: BrokerCluster, body: Body) -> Manifest:
    """Return the Service of the admin API, backups and lookups by HTTP; it forwards to ready brokers."""
    spec = cluster.spec
    name = admin_service_name(_name(body))
    return _service(body, name, "admin", _HTTP, spec.admin_service_type, spec.admin_service_annotations)


def metrics_service(body: Body) -> Manifest:
    """Return the headless Service of the metrics, through which each broker is scraped, ready or not."""
    return _service(body, f"{_name(body)}-metrics", "metrics", _METRICS, headless=True)


def _service(
    body: Body,
    name: str,
    role: str,
    port: dict[str, Any],
    service_type: str = "",
    annotations: Mapping[str, str] | None = None,
    *,
    headless: bool = False,
) -> Manifest:
    more: dict[str, Any] = {"labels": {f"{GROUP}/service": role}}
    if annotations:
        more["annotations"] = dict(annotations)
    kind = {"clusterIP": "None", "publishNotReadyAddresses": True} if headless else {"type": service_type}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(body, name, **more),
        # IPv4, IPv6 or both, as the Kubernetes cluster has them.
        "spec": {**kind, "ipFamilyPolicy": "PreferDualStack", "selector": selector(_name(body)), "ports": [port]},
    }


def disruption_budget(cluster: BrokerCluster, body: Body) -> Manifest:
    """Return the budget: how many brokers may be evicted at a time. Zero blocks the drain of their nodes."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(body, _name(body)),
        "spec": {
            "maxUnavailable": cluster.spec.pod_disruption_budget.max_unavailable,
            "selector": {"matchLabels": selector(_name(body))},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }


def unwanted(cluster: BrokerCluster, body: Body) -> list[tuple[Kind, str]]:
    """Return kind and name of the objects that the BrokerCluster does without; it may have had them before."""
    needed = {
        NETWORK_POLICY: cluster.spec.network_policy.enabled,
        DISRUPTION_BUDGET: cluster.spec.pod_disruption_budget.enabled,
    }
    return [(kind, _name(body)) for kind, is_needed in needed.items() if not is_needed]


def endpoints(body: Body, site: Site) -> dict[str, str]:
    """Return the URLs of the Services."""
    name, domain = _name(body), f"{body['metadata']['namespace']}.svc.{site.cluster_domain}"
    return {
        "broker": f"pulsar://{name}.{domain}:{BROKER_PORT}",
        "http": f"http://{admin_service_name(name)}.{domain}:{HTTP_PORT}",
        "metrics": f"http://{name}-metrics.{domain}:{METRICS_PORT}/metrics",
    }


def _name(body: Body) -> str:
    name: str = body["metadata"]["name"]
    return name
