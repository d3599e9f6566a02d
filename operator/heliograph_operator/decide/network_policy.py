"""The NetworkPolicy of a BrokerCluster: peers of its brokers, port by port, and what brokers connect to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from heliograph_api.resources.model import BrokerCluster
from heliograph_api.resources.network_spec import Peer

from heliograph_operator.objects.kinds import Body

from .archive_cron_job import CLIENT_LABELS
from .backup_jobs import CLIENT_LABELS as BACKUP_LABELS
from .cluster_tls import reachable_ports
from .listeners import bind_ports
from .stateful_set import (
    BROKER_PORT,
    BROKER_TLS_PORT,
    HTTP_PORT,
    HTTPS_PORT,
    METRICS_PORT,
    Manifest,
    Site,
    metadata,
    selector,
    stated_settings,
)

#: DNS is asked at port 53. Policies see the port of the pod behind its Service, which is 5353 on OpenShift.
_DNS_PORTS: Final = (53, 5353)
#: The label that every Kubernetes namespace has, with its name.
_NAMESPACE_NAME: Final = "kubernetes.io/metadata.name"
_OPERATOR: Final = {"app.kubernetes.io/name": "heliograph", "app.kubernetes.io/component": "operator"}
_PROMETHEUS: Final[Manifest] = {
    "namespaceSelector": {},
    "podSelector": {"matchLabels": {"app.kubernetes.io/name": "prometheus"}},
}


def network_policy(
    cluster: BrokerCluster, body: Body, site: Site, stateful_set: Body | None = None, *, restores: bool = False
) -> Manifest:
    """Return the policy: what is not named in it is refused, in both directions.

    Brokers of ``stateful_set`` keep the ports that they have. While one ``restores`` a backup, it may connect to
    its store, and brokers that accept tokens of issuers may connect to these: to everything by TCP, for policies know
    neither names nor the ports of Services.
    """
    name = body["metadata"]["name"]
    dns = [{"port": port, "protocol": protocol} for port in _DNS_PORTS for protocol in ("UDP", "TCP")]
    egress: list[Manifest] = [{"ports": dns}]
    stated = stated_settings(cluster)
    if restores or stated.get("oidc_issuer") or stated.get("oidc_kubernetes"):
        egress.append({"ports": [{"port": 1, "endPort": 65535, "protocol": "TCP"}]})
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(body, name),
        "spec": {
            "podSelector": {"matchLabels": selector(name)},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": _ingress(cluster, site, stateful_set),
            "egress": egress,
        },
    }


def _ingress(cluster: BrokerCluster, site: Site, stateful_set: Body | None) -> list[dict[str, Any]]:
    stated = cluster.spec.network_policy
    archives = [{"podSelector": {"matchLabels": CLIENT_LABELS}}] if cluster.spec.archives.enabled else []
    backups = {"podSelector": {"matchLabels": BACKUP_LABELS}}
    operator = {
        "namespaceSelector": {"matchLabels": {_NAMESPACE_NAME: site.operator_namespace}},
        "podSelector": {"matchLabels": _OPERATOR},
    }
    clients = None if stated.clients is None else [*archives, *_peers(stated.clients)]
    metrics = [_PROMETHEUS] if stated.metrics is None else _peers(stated.metrics)
    admin = [operator, backups, *archives, *_peers(stated.admin)]
    by_port: dict[int, list[Manifest] | None] = {}
    reachable = reachable_ports(cluster.spec.tls, stateful_set)
    if reachable.plain:
        by_port |= {BROKER_PORT: clients, HTTP_PORT: admin}
    if reachable.encrypted:
        by_port |= {BROKER_TLS_PORT: clients, HTTPS_PORT: admin}
    by_port[METRICS_PORT] = metrics
    ports = bind_ports(cluster, stateful_set)
    for listener in cluster.spec.listeners:
        # Those who come from outside are not known by the labels of a pod, and often not by their addresses either.
        default = clients if listener.type == "ClusterIP" else None
        by_port[ports[listener.name]] = default if listener.clients is None else _peers(listener.clients)
    return [_rule(port, peers) for port, peers in by_port.items() if peers != []]


def _rule(port: int, peers: Sequence[Manifest] | None) -> dict[str, Any]:
    """Return a rule that lets ``peers`` in. Without any it lets in everybody: never give it an empty list."""
    ports = [{"port": port, "protocol": "TCP"}]
    return {"ports": ports} if peers is None else {"from": list(peers), "ports": ports}


def _peers(peers: Sequence[Peer]) -> list[Manifest]:
    return [peer.manifest() for peer in peers]
