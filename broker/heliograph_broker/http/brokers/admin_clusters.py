"""Routes of the one cluster, which is this broker: /admin/v2/clusters. Other clusters cannot be added.

Its settings are kept and shown, and have no effect: clients reach the broker where its settings say.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from aiohttp import web
from heliograph_api.values.names import check_part

from heliograph_broker.http.base.context import BROKER, CONFIG, ENDPOINTS, accepted, as_json, body_as, required_body
from heliograph_broker.http.base.errors import ApiError
from heliograph_broker.http.base.operations import Refusal, operation
from heliograph_broker.http.base.warning_header import warn
from heliograph_broker.messaging.base.errors import Conflict, PreconditionFailed
from heliograph_broker.security.authorization.needs import Need

_PATH = "/admin/v2/clusters/{cluster}"
_DOMAIN = f"{_PATH}/failureDomains/{{failuredomain}}"
_ALONE = "this broker is a cluster of its own"
_CLUSTER: Final = "cluster"
_DOMAINS: Final = "failure_domain"
_ADDRESSES = '{"serviceUrl": "http://broker.example.com:8080", "brokerServiceUrl": "pulsar://broker.example.com:6650"}'
_BROKERS = '{"brokers": ["broker.example.com:8080"]}'
#: The schemes of each address.
_SCHEMES: Final = {
    "service_url": "http",
    "service_url_tls": "https",
    "broker_service_url": "pulsar",
    "broker_service_url_tls": "pulsar+ssl",
}


class ClusterDocument(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True):
    """Pulsar's ClusterData: where clients and other clusters reach this one."""

    service_url: str | None = None
    service_url_tls: str | None = None
    broker_service_url: str | None = None
    broker_service_url_tls: str | None = None
    proxy_service_url: str | None = None
    proxy_protocol: str | None = None
    authentication_plugin: str | None = None
    authentication_parameters: str | None = None
    peer_cluster_names: list[str] | None = None
    listener_name: str | None = None
    broker_client_trust_certs_file_path: str | None = None
    broker_client_key_file_path: str | None = None
    broker_client_certificate_file_path: str | None = None
    broker_client_tls_enabled: bool | None = None
    tls_allow_insecure_connection: bool | None = None
    broker_client_tls_enabled_with_key_store: bool | None = None
    broker_client_tls_trust_store_type: str | None = None
    broker_client_tls_trust_store: str | None = None
    broker_client_tls_key_store_type: str | None = None
    broker_client_tls_key_store: str | None = None
    broker_client_ssl_factory_plugin: str | None = None
    broker_client_ssl_factory_plugin_params: str | None = None


class FailureDomainDocument(msgspec.Struct, omit_defaults=True):
    """Pulsar's FailureDomain: brokers, by host and port, that fail together."""

    brokers: list[str] | None = None


def check_cluster(request: web.Request) -> None:
    """Check the path's cluster. Raises :class:`ApiError` 404 unless it is this one."""
    if request.match_info["cluster"] != request.app[CONFIG].cluster_name:
        raise ApiError(404, "Cluster does not exist")


@operation("List the clusters: only this one.", answers={200: list[str]}, needs=Need.IDENTITY)
async def list_clusters(request: web.Request) -> web.Response:
    return as_json([request.app[CONFIG].cluster_name])


@operation("Get the addresses of a cluster.", answers={200: ClusterDocument}, needs=Need.SUPERUSER)
async def get_cluster(request: web.Request) -> web.Response:
    check_cluster(request)
    endpoints = request.app[ENDPOINTS]
    kept = request.app[BROKER].policies.settings.documents(_CLUSTER)
    if kept:
        return as_json(kept[_CLUSTER])
    own = ClusterDocument(
        service_url=endpoints.http_url or None,
        service_url_tls=endpoints.https_url or None,
        broker_service_url=endpoints.broker_url or None,
        broker_service_url_tls=endpoints.broker_tls_url or None,
        broker_client_tls_enabled=False,
        tls_allow_insecure_connection=False,
        broker_client_tls_enabled_with_key_store=False,
        broker_client_tls_trust_store_type="JKS",
        broker_client_tls_key_store_type="JKS",
        broker_client_ssl_factory_plugin="org.apache.pulsar.common.util.DefaultPulsarSslFactory",
    )
    return as_json(own)


@operation(f"Add a cluster: refused, as {_ALONE}.", body=Any, answers={405: Refusal}, needs=Need.SUPERUSER)
async def create_cluster(request: web.Request) -> web.Response:
    if request.match_info["cluster"] == request.app[CONFIG].cluster_name:
        raise Conflict("Cluster already exists")
    raise ApiError(405, f"Other clusters cannot be added: {_ALONE}")


def _check_addresses(document: ClusterDocument) -> None:
    for field, scheme in _SCHEMES.items():
        address = getattr(document, field)
        if address and not all(each.strip().partition("://")[2] for each in address.split(",")):
            raise ApiError(400, f"{field.replace('_', ' ')} should be an address such as {scheme}://host:port")
        if address and not address.startswith(f"{scheme}://"):
            raise ApiError(400, f"{field.replace('_', ' ')} should begin with {scheme}://, not '{address}'")


@operation(
    "Keep addresses of this cluster to be shown; clients still reach the broker where its settings say.",
    body=ClusterDocument,
    body_required=True,
    example=_ADDRESSES,
    needs=Need.SUPERUSER,
)
async def update_cluster(request: web.Request) -> web.Response:
    check_cluster(request)
    broker = request.app[BROKER]
    document = await required_body(request, ClusterDocument, _ADDRESSES)
    _check_addresses(document)
    _check_peers(request, document.peer_cluster_names or [])
    flags = ("brokerClientTlsEnabled", "tlsAllowInsecureConnection", "brokerClientTlsEnabledWithKeyStore")
    broker.policies.settings.keep_document(
        _CLUSTER, _CLUSTER, dict.fromkeys(flags, False) | msgspec.to_builtins(document)
    )
    warn(
        request, "the cluster's data is kept and shown, but has no effect here: the broker's settings have its address"
    )
    return await accepted(broker)


@operation(f"Delete a cluster: refused, as {_ALONE}.", answers={405: Refusal}, needs=Need.SUPERUSER)
async def delete_cluster(request: web.Request) -> web.Response:
    check_cluster(request)
    raise ApiError(405, f"The cluster cannot be deleted: {_ALONE}")


@operation("Get the migration of the cluster: there is none.", answers={404: Refusal}, needs=Need.SUPERUSER)
async def get_migration(request: web.Request) -> web.Response:
    check_cluster(request)
    raise ApiError(404, f"No migration of the cluster is set: {_ALONE}")


# -- peers ---------------------------------------------------------------------------------------------------------


@operation("Get the peer clusters: none.", needs=Need.SUPERUSER)
async def get_peers(request: web.Request) -> web.Response:
    check_cluster(request)
    return web.Response(status=204)


def _check_peers(request: web.Request, peers: list[str]) -> None:
    for peer in peers:
        if peer == request.app[CONFIG].cluster_name:
            raise PreconditionFailed(f"{peer} itself can't be part of peer-list")
        raise PreconditionFailed(f"Peer cluster {peer} does not exist: there are no peer clusters, as {_ALONE}")


@operation(
    "Set the peer clusters: only an empty list, as there is no other cluster.",
    body=list[str],
    example="[]",
    needs=Need.SUPERUSER,
)
async def set_peers(request: web.Request) -> web.Response:
    check_cluster(request)
    _check_peers(request, await body_as(request, list[str]) or [])
    return web.Response(status=204)


# -- failure domains -----------------------------------------------------------------------------------------------


def _domain(request: web.Request) -> str:
    """Return the name of a domain that is kept. Raises :class:`ApiError` 404."""
    check_cluster(request)
    name = request.match_info["failuredomain"]
    if name not in request.app[BROKER].policies.settings.documents(_DOMAINS):
        raise ApiError(404, f"Domain {name} for cluster {request.match_info['cluster']} does not exist")
    return name


@operation("Get the failure domains by name.", answers={200: dict[str, FailureDomainDocument]}, needs=Need.SUPERUSER)
async def get_failure_domains(request: web.Request) -> web.Response:
    check_cluster(request)
    return as_json(request.app[BROKER].policies.settings.documents(_DOMAINS))


@operation("Get a failure domain.", answers={200: FailureDomainDocument}, needs=Need.SUPERUSER)
async def get_failure_domain(request: web.Request) -> web.Response:
    return as_json(request.app[BROKER].policies.settings.documents(_DOMAINS)[_domain(request)])


@operation(
    "Keep a failure domain, or replace it; it has no effect, as one broker serves all namespaces.",
    body=FailureDomainDocument,
    body_required=True,
    example=_BROKERS,
    needs=Need.SUPERUSER,
)
async def set_failure_domain(request: web.Request) -> web.Response:
    check_cluster(request)
    broker = request.app[BROKER]
    name = request.match_info["failuredomain"]
    check_part("failure domain", name)
    document = await required_body(request, FailureDomainDocument, _BROKERS)
    for other, kept in broker.policies.settings.documents(_DOMAINS).items():
        shared = set(document.brokers or ()) & set(kept.get("brokers", ()))
        if other != name and shared:
            raise Conflict(f"[{', '.join(sorted(shared))}] already exists in {other}")
    broker.policies.settings.keep_document(_DOMAINS, name, msgspec.to_builtins(document))
    warn(request, "failure domains are kept and shown, but have no effect here: one broker serves all namespaces")
    return await accepted(broker)


@operation("Delete a failure domain.", needs=Need.SUPERUSER)
async def delete_failure_domain(request: web.Request) -> web.Response:
    request.app[BROKER].policies.settings.keep_document(_DOMAINS, _domain(request), None)
    return await accepted(request.app[BROKER])


def routes() -> list[web.RouteDef]:
    return [
        web.get("/admin/v2/clusters", list_clusters),
        web.get(_PATH, get_cluster),
        web.put(_PATH, create_cluster),
        web.post(_PATH, update_cluster),
        web.delete(_PATH, delete_cluster),
        web.get(f"{_PATH}/migrate", get_migration),
        web.get(f"{_PATH}/peers", get_peers),
        web.post(f"{_PATH}/peers", set_peers),
        web.get(f"{_PATH}/failureDomains", get_failure_domains),
        web.get(_DOMAIN, get_failure_domain),
        web.post(_DOMAIN, set_failure_domain),
        web.delete(_DOMAIN, delete_failure_domain),
    ]
