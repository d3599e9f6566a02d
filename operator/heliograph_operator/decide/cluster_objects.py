"""The Kubernetes objects of a BrokerCluster except its StatefulSet: Services, ConfigMap, account and protection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from heliograph_api.resources.model import BrokerCluster

from heliograph_operator.objects.kinds import GROUP, Body, Kind

from .cluster_tls import (
    HTTP_PORT_NAME,
    HTTPS_PORT_NAME,
    PULSAR_PORT_NAME,
    PULSAR_TLS_PORT_NAME,
    OpenPorts,
    bundle_name,
    reachable_ports,
)
from .network_policy import network_policy
from .server_certificate import AUTHORITIES
from .stateful_set import (
    BROKER_PORT,
    BROKER_TLS_PORT,
    HTTP_PORT,
    HTTPS_PORT,
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

#: Label of the Service of the metrics with the scheme of their URL, if that is not http.
SCHEME: Final = f"{GROUP}/scheme"
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

#: Label of the Service of metrics that are for clients with a token only.
NEEDS_TOKEN: Final = f"{GROUP}/needs-token"


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

    ``found`` is its StatefulSet as it is, which keeps the ports that its pods have. ``restores``: brokers may have to
    fetch a backup. ``storage`` and what it raises: see :func:`.stateful_set.stateful_set`.
    """
    ports = reachable_ports(cluster.spec.tls, found)
    return [
        service_account(body),
        config_map(cluster, body),
        brokers_service(body, ports),
        # Before the port leaves the Service for clients, which had it in earlier versions.
        admin_service(cluster, body, ports),
        client_service(cluster, body, ports),
        metrics_service(cluster, body, ports),
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


def brokers_service(body: Body, ports: OpenPorts) -> Manifest:
    """Return the headless Service, which gives every broker a DNS name, ready or not, for clients to reconnect to."""
    return _service(body, f"{_name(body)}-brokers", "brokers", _pulsar(ports), headless=True)


def client_service(cluster: BrokerCluster, body: Body, ports: OpenPorts) -> Manifest:
    """Return the Service that clients connect to, by the binary protocol; it forwards to ready brokers."""
    spec = cluster.spec
    return _service(body, _name(body), "clients", _pulsar(ports), spec.service_type, spec.service_annotations)


def admin_service_name(cluster: str) -> str:
    """Return the name of the Service of the admin API of a BrokerCluster."""
    return f"{cluster}-admin"


def admin_service(cluster: BrokerCluster, body: Body, ports: OpenPorts) -> Manifest:
    """Return the Service of the admin API, backups and lookups by HTTP; it forwards to ready brokers."""
    spec = cluster.spec
    name = admin_service_name(_name(body))
    of_http = _open(ports, (HTTP_PORT_NAME, HTTP_PORT), (HTTPS_PORT_NAME, HTTPS_PORT))
    return _service(body, name, "admin", of_http, spec.admin_service_type, spec.admin_service_annotations)


def metrics_service(cluster: BrokerCluster, body: Body, ports: OpenPorts) -> Manifest:
    """Return the headless Service of the metrics, through which each broker is scraped, ready or not.

    Labels tell Prometheus where no port is without TLS, and that brokers want a token, so that those are scraped apart
    from others.
    """
    of_metrics = [_port("metrics", METRICS_PORT)]
    service = _service(body, f"{_name(body)}-metrics", "metrics", of_metrics, headless=True)
    if not ports.plain:
        service["metadata"]["labels"][SCHEME] = "https"
    if cluster.spec.authentication.enabled:
        service["metadata"]["labels"][NEEDS_TOKEN] = "true"
    return service


def authorities_config_map(body: Body, bundle: str) -> Manifest:
    """Return the certificates that clients trust, in PEM."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(body, bundle_name(_name(body))),
        "data": {AUTHORITIES: bundle},
    }


def _pulsar(ports: OpenPorts) -> list[Manifest]:
    return _open(ports, (PULSAR_PORT_NAME, BROKER_PORT), (PULSAR_TLS_PORT_NAME, BROKER_TLS_PORT))


def _open(ports: OpenPorts, plain: tuple[str, int], encrypted: tuple[str, int]) -> list[Manifest]:
    return [*([_port(*plain)] if ports.plain else ()), *([_port(*encrypted)] if ports.encrypted else ())]


def _port(name: str, number: int) -> Manifest:
    return {"name": name, "port": number, "targetPort": name, "protocol": "TCP"}


def _service(
    body: Body,
    name: str,
    role: str,
    ports: list[Manifest],
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
        "spec": {**kind, "ipFamilyPolicy": "PreferDualStack", "selector": selector(_name(body)), "ports": ports},
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
    found = [(kind, _name(body)) for kind, is_needed in needed.items() if not is_needed]
    had_tls = (body.get("status") or {}).get("tls") is not None
    return [*found, (CONFIG_MAP, bundle_name(_name(body)))] if had_tls and not cluster.spec.tls.enabled else found


def endpoints(body: Body, site: Site, ports: OpenPorts) -> dict[str, str]:
    """Return the URLs of the Services, through which brokers are reached that have these ports.

    Without ports without TLS, their URLs are those with it.
    """
    name, domain = _name(body), f"{body['metadata']['namespace']}.svc.{site.cluster_domain}"
    broker, admin = f"{name}.{domain}", f"{admin_service_name(name)}.{domain}"
    with_tls = {"brokerTls": f"pulsar+ssl://{broker}:{BROKER_TLS_PORT}", "https": f"https://{admin}:{HTTPS_PORT}"}
    return {
        "broker": f"pulsar://{broker}:{BROKER_PORT}" if ports.plain else with_tls["brokerTls"],
        "http": f"http://{admin}:{HTTP_PORT}" if ports.plain else with_tls["https"],
        "metrics": f"{'http' if ports.plain else 'https'}://{name}-metrics.{domain}:{METRICS_PORT}/metrics",
        **(with_tls if ports.encrypted else {}),
    }


def admin_urls(body: Body, site: Site) -> tuple[str, ...]:
    """Return the URLs at which the admin API may be, with and without TLS."""
    found = endpoints(body, site, OpenPorts(plain=True, encrypted=True))
    return found["http"], found["https"]


def _name(body: Body) -> str:
    name: str = body["metadata"]["name"]
    return name
