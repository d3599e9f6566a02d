"""The Kubernetes objects of a BrokerCluster except its StatefulSet: Services, ConfigMap, account and protection."""

from __future__ import annotations

from typing import Any, Final

from heliograph_api.resources.model import BrokerCluster

from heliograph_operator.objects.kinds import GROUP, Body, Kind

from .stateful_set import BROKER_PORT, HTTP_PORT, Manifest, Site, metadata, selector, settings, stateful_set

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


def manifests(cluster: BrokerCluster, body: Body, site: Site, *, storage: str | None = None) -> list[Manifest]:
    """Return all objects of a BrokerCluster. ``storage``: see :func:`.stateful_set.stateful_set`."""
    return [
        service_account(body),
        config_map(cluster, body),
        brokers_service(body),
        client_service(cluster, body),
        network_policy(body),
        disruption_budget(body),
        stateful_set(cluster, body, site, storage=storage),
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
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(body, f"{_name(body)}-brokers", labels={f"{GROUP}/service": "brokers"}),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": selector(_name(body)),
            "ports": _ports(),
        },
    }


def client_service(cluster: BrokerCluster, body: Body) -> Manifest:
    """Return the Service that clients connect to; it forwards to ready brokers."""
    more: dict[str, Any] = {"labels": {f"{GROUP}/service": "clients"}}
    if cluster.spec.service_annotations:
        more["annotations"] = cluster.spec.service_annotations
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(body, _name(body), **more),
        "spec": {"type": cluster.spec.service_type, "selector": selector(_name(body)), "ports": _ports()},
    }


def disruption_budget(body: Body) -> Manifest:
    """Return the budget: one broker at a time may be evicted. Zero would block the drain of every node."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(body, _name(body)),
        "spec": {
            "maxUnavailable": 1,
            "selector": {"matchLabels": selector(_name(body))},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }


def network_policy(body: Body) -> Manifest:
    """Return the policy: anyone may reach a broker's two ports; a broker may reach DNS only."""
    dns = [{"port": 53, "protocol": protocol} for protocol in ("UDP", "TCP")]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(body, _name(body)),
        "spec": {
            "podSelector": {"matchLabels": selector(_name(body))},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"ports": [{"port": port, "protocol": "TCP"} for port in (BROKER_PORT, HTTP_PORT)]}],
            "egress": [{"ports": dns}],
        },
    }


def endpoints(body: Body, site: Site) -> dict[str, str]:
    """Return the URLs of the client Service."""
    host = f"{_name(body)}.{body['metadata']['namespace']}.svc.{site.cluster_domain}"
    return {"broker": f"pulsar://{host}:{BROKER_PORT}", "http": f"http://{host}:{HTTP_PORT}"}


def _ports() -> list[dict[str, Any]]:
    return [
        {"name": "pulsar", "port": BROKER_PORT, "targetPort": "pulsar", "protocol": "TCP"},
        {"name": "http", "port": HTTP_PORT, "targetPort": "http", "protocol": "TCP"},
    ]


def _name(body: Body) -> str:
    name: str = body["metadata"]["name"]
    return name
