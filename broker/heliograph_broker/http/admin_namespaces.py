"""Namespaces and their policies: /admin/v2/namespaces."""

from __future__ import annotations

import msgspec
from aiohttp import web

from heliograph_broker.messaging.broker import Broker
from heliograph_broker.messaging.errors import PreconditionFailed, TenantNotFound
from heliograph_broker.messaging.records import NamespaceRecord
from heliograph_broker.resources.policies import Policies

from . import namespace_policies as documents
from .context import BROKER, accepted, as_json, body_as, flag, namespace_of, required_body, tenant_of
from .errors import ApiError

_MAX_BUNDLES = 4096
_MODES = ("PERSISTENT", "NON_PERSISTENT", "ALL")
_QUOTA_EXAMPLE = '{"limitSize": 10485760, "policy": "producer_exception"}'


class BundlesDocument(msgspec.Struct):
    """Pulsar's BundlesData; boundaries always cut the range evenly here."""

    num_bundles: int = msgspec.field(default=4, name="numBundles")


class NamespaceDocument(msgspec.Struct):
    """What of Pulsar's Policies a namespace can be created with."""

    bundles: BundlesDocument | None = None
    replication_clusters: list[str] | None = None
    retention_policies: documents.RetentionDocument | None = None
    backlog_quota_map: dict[str, documents.QuotaDocument] = {}
    message_ttl_in_seconds: int | None = None
    deduplication: bool | None = msgspec.field(default=None, name="deduplicationEnabled")


async def list_namespaces(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    tenant = tenant_of(request)
    if tenant not in broker.tenants:
        raise TenantNotFound("Tenant does not exist")
    return as_json(sorted(name for name in broker.namespaces if name.startswith(f"{tenant}/")))


async def get_namespace(request: web.Request) -> web.Response:
    return as_json(documents.policies_document(request.app[BROKER].namespace(namespace_of(request))))


async def create_namespace(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    name = namespace_of(request)
    document = await body_as(request, NamespaceDocument) or NamespaceDocument()
    record = NamespaceRecord()
    if document.bundles is not None and document.bundles.num_bundles != 0:
        record.bundles = document.bundles.num_bundles
        if not 0 < record.bundles <= _MAX_BUNDLES:
            raise PreconditionFailed(f"Invalid number of bundles: 1 to {_MAX_BUNDLES}, not {record.bundles}")
    if document.replication_clusters:
        if any(cluster != broker.config.cluster_name for cluster in document.replication_clusters):
            raise PreconditionFailed("Clusters do not exist")
        record.replication_clusters = document.replication_clusters
    policies = record.policies
    policies.deduplication = document.deduplication
    if document.retention_policies is not None:
        policies.retention = documents.retention_from(document.retention_policies)
    for kind, quota in document.backlog_quota_map.items():
        _put_quota(policies, _quota_type(kind), quota)
    if document.message_ttl_in_seconds is not None:
        policies.message_ttl_ms = documents.ttl_from(document.message_ttl_in_seconds)
    _check_quota(policies)
    broker.create_namespace(name, record)
    return await accepted(broker)


async def delete_namespace(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    broker.delete_namespace(namespace_of(request), force=flag(request, "force"))
    return await accepted(broker)


async def list_topics(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    namespace = namespace_of(request)
    broker.namespace(namespace)
    mode = request.query.get("mode", "PERSISTENT").upper()
    if mode not in _MODES:
        raise ApiError(400, f"mode should be one of {', '.join(_MODES)}, not '{mode}'")
    return as_json(broker.list_topics(namespace, mode))


def _policies(broker: Broker, namespace: str) -> Policies:
    """Return a copy to change: nothing holds before the core has taken it."""
    return msgspec.structs.replace(broker.namespace(namespace).policies)


async def get_retention(request: web.Request) -> web.Response:
    retention = request.app[BROKER].namespace(namespace_of(request)).policies.retention
    return web.Response(status=204) if retention is None else as_json(documents.retention_document(retention))


async def set_retention(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    namespace = namespace_of(request)
    broker.namespace(namespace)
    document = await required_body(
        request, documents.RetentionDocument, '{"retentionTimeInMinutes": 60, "retentionSizeInMB": 512}'
    )
    policies = _policies(broker, namespace)
    policies.retention = documents.retention_from(document)
    if not documents.quota_fits(policies):
        raise PreconditionFailed("Retention Quota must exceed configured backlog quota for namespace.")
    broker.set_namespace_policies(namespace, policies)
    return await accepted(broker)


async def remove_retention(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    namespace = namespace_of(request)
    policies = _policies(broker, namespace)
    policies.retention = None
    broker.set_namespace_policies(namespace, policies)
    return await accepted(broker)


def _quota_type(text: str) -> str:
    if text not in (documents.SIZE_QUOTA, documents.AGE_QUOTA):
        raise ApiError(400, f"backlogQuotaType should be {documents.SIZE_QUOTA} or {documents.AGE_QUOTA}, not '{text}'")
    return text


def _put_quota(policies: Policies, kind: str, document: documents.QuotaDocument) -> None:
    quota = documents.quota_from(kind, document)
    if kind == documents.SIZE_QUOTA:
        policies.backlog_quota_size = quota
    else:
        policies.backlog_quota_age = quota


def _check_quota(policies: Policies) -> None:
    if not documents.quota_fits(policies):
        raise PreconditionFailed(
            "Backlog Quota exceeds configured retention quota for namespace. Please increase retention quota and retry"
        )


async def get_quotas(request: web.Request) -> web.Response:
    return as_json(documents.quota_map(request.app[BROKER].namespace(namespace_of(request)).policies))


async def set_quota(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    namespace = namespace_of(request)
    broker.namespace(namespace)
    kind = _quota_type(request.query.get("backlogQuotaType", documents.SIZE_QUOTA))
    document = await required_body(request, documents.QuotaDocument, _QUOTA_EXAMPLE)
    policies = _policies(broker, namespace)
    _put_quota(policies, kind, document)
    _check_quota(policies)
    broker.set_namespace_policies(namespace, policies)
    return await accepted(broker)


async def remove_quota(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    namespace = namespace_of(request)
    policies = _policies(broker, namespace)
    if _quota_type(request.query.get("backlogQuotaType", documents.SIZE_QUOTA)) == documents.SIZE_QUOTA:
        policies.backlog_quota_size = None
    else:
        policies.backlog_quota_age = None
    broker.set_namespace_policies(namespace, policies)
    return await accepted(broker)


async def get_ttl(request: web.Request) -> web.Response:
    ttl_ms = request.app[BROKER].namespace(namespace_of(request)).policies.message_ttl_ms
    return web.Response(status=204) if ttl_ms is None else as_json(-(-ttl_ms // 1000))


async def set_ttl(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    namespace = namespace_of(request)
    broker.namespace(namespace)
    seconds = await required_body(request, int, "3600 (seconds)")
    policies = _policies(broker, namespace)
    policies.message_ttl_ms = documents.ttl_from(seconds)
    broker.set_namespace_policies(namespace, policies)
    return await accepted(broker)


async def remove_ttl(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    namespace = namespace_of(request)
    policies = _policies(broker, namespace)
    policies.message_ttl_ms = None
    broker.set_namespace_policies(namespace, policies)
    return await accepted(broker)


def routes() -> list[web.RouteDef]:
    path = "/admin/v2/namespaces/{tenant}/{namespace}"
    return [
        web.get("/admin/v2/namespaces/{tenant}", list_namespaces),
        web.get(path, get_namespace),
        web.put(path, create_namespace),
        web.delete(path, delete_namespace),
        web.get(f"{path}/topics", list_topics),
        web.get(f"{path}/retention", get_retention),
        web.post(f"{path}/retention", set_retention),
        web.delete(f"{path}/retention", remove_retention),
        web.get(f"{path}/backlogQuotaMap", get_quotas),
        web.post(f"{path}/backlogQuota", set_quota),
        web.delete(f"{path}/backlogQuota", remove_quota),
        web.get(f"{path}/messageTTL", get_ttl),
        web.post(f"{path}/messageTTL", set_ttl),
        web.delete(f"{path}/messageTTL", remove_ttl),
    ]
