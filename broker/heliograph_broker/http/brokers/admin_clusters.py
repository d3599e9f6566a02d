"""Routes of the one cluster, which is this broker: /admin/v2/clusters. Other clusters cannot be added."""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web

from heliograph_broker.http.base.context import CONFIG, ENDPOINTS, as_json
from heliograph_broker.http.base.errors import ApiError
from heliograph_broker.http.base.operations import Refusal, operation
from heliograph_broker.messaging.base.errors import Conflict

_PATH = "/admin/v2/clusters/{cluster}"
_ALONE = "this broker is a cluster of its own"


class ClusterDocument(msgspec.Struct, rename="camel"):
    """Pulsar's ClusterData: where clients and other clusters reach this one."""

    service_url: str
    broker_service_url: str
    broker_client_tls_enabled: bool = False
    tls_allow_insecure_connection: bool = False
    broker_client_tls_enabled_with_key_store: bool = False
    broker_client_tls_trust_store_type: str = "JKS"
    broker_client_tls_key_store_type: str = "JKS"
    broker_client_ssl_factory_plugin: str = "org.apache.pulsar.common.util.DefaultPulsarSslFactory"


def check_cluster(request: web.Request) -> None:
    """Check the path's cluster. Raises :class:`ApiError` 404 unless it is this one."""
    if request.match_info["cluster"] != request.app[CONFIG].cluster_name:
        raise ApiError(404, "Cluster does not exist")


@operation("List the clusters: only this one.", answers={200: list[str]})
async def list_clusters(request: web.Request) -> web.Response:
    return as_json([request.app[CONFIG].cluster_name])


@operation("Get the addresses of a cluster.", answers={200: ClusterDocument})
async def get_cluster(request: web.Request) -> web.Response:
    check_cluster(request)
    endpoints = request.app[ENDPOINTS]
    return as_json(ClusterDocument(endpoints.http_url, endpoints.broker_url))


@operation(f"Add a cluster: refused, as {_ALONE}.", body=Any, answers={405: Refusal})
async def create_cluster(request: web.Request) -> web.Response:
    if request.match_info["cluster"] == request.app[CONFIG].cluster_name:
        raise Conflict("Cluster already exists")
    raise ApiError(405, f"Other clusters cannot be added: {_ALONE}")


@operation(
    "Change the addresses of a cluster: refused, as they come from the broker's settings.",
    body=Any,
    answers={405: Refusal},
)
async def update_cluster(request: web.Request) -> web.Response:
    check_cluster(request)
    raise ApiError(
        405, "The addresses of the cluster cannot be changed: they come from the settings this broker was started with"
    )


@operation(f"Delete a cluster: refused, as {_ALONE}.", answers={405: Refusal})
async def delete_cluster(request: web.Request) -> web.Response:
    check_cluster(request)
    raise ApiError(405, f"The cluster cannot be deleted: {_ALONE}")


@operation("Get the peer clusters: none.", answers={200: list[str]})
async def get_peers(request: web.Request) -> web.Response:
    check_cluster(request)
    return as_json([])


@operation("Get the failure domains: none.", answers={200: dict[str, Any]})
async def get_failure_domains(request: web.Request) -> web.Response:
    check_cluster(request)
    return as_json({})


@operation("Get the namespace isolation policies: none.", answers={200: dict[str, Any]})
async def get_isolation_policies(request: web.Request) -> web.Response:
    check_cluster(request)
    return as_json({})


def routes() -> list[web.RouteDef]:
    return [
        web.get("/admin/v2/clusters", list_clusters),
        web.get(_PATH, get_cluster),
        web.put(_PATH, create_cluster),
        web.post(_PATH, update_cluster),
        web.delete(_PATH, delete_cluster),
        web.get(f"{_PATH}/peers", get_peers),
        web.get(f"{_PATH}/failureDomains", get_failure_domains),
        web.get(f"{_PATH}/namespaceIsolationPolicies", get_isolation_policies),
    ]
