"""Namespaces: /admin/v2/namespaces. Their policies are in :mod:`.policy_routes` and its neighbours."""

from __future__ import annotations

from aiohttp import web

from heliograph_broker.http.base.access import is_on, tenant_of_path, tenant_of_query
from heliograph_broker.http.base.context import BROKER, accepted, as_json, body_as, flag, namespace_of, tenant_of
from heliograph_broker.http.base.errors import ApiError
from heliograph_broker.http.base.operations import Parameter, operation
from heliograph_broker.http.base.warning_header import warn
from heliograph_broker.http.policies.kept_settings import ANTI_AFFINITY, kept_value
from heliograph_broker.http.policies.policy_routes import NAMESPACE_PATH, require_letters
from heliograph_broker.http.topics.admin_topics import SYSTEM
from heliograph_broker.messaging.base.errors import PreconditionFailed, TenantNotFound
from heliograph_broker.security.authorization.needs import Need

from .namespace_document import (
    BundlesDocument,
    NamespaceDocument,
    bundles_document,
    kept_names,
    namespace_document,
    namespace_record,
)

_MODES = ("PERSISTENT", "NON_PERSISTENT", "ALL")
_FORCE = Parameter("force", bool, "Delete its topics and messages, too; clients are disconnected.")
_TENANT = Parameter("tenant", str, "The tenant.", required=True)
_MODE = Parameter("mode", str, "Domain of the topics; default: all.", choices=_MODES)


@operation("List the namespaces of a tenant.", answers={200: list[str]}, needs=Need.ADMIN)
async def list_namespaces(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    tenant = tenant_of(request)
    if tenant not in broker.directory.tenants:
        raise TenantNotFound("Tenant does not exist")
    return as_json(sorted(name for name in broker.directory.namespaces if name.startswith(f"{tenant}/")))


@operation("Get the settings of a namespace, under Pulsar's names.", answers={200: NamespaceDocument}, needs=Need.ADMIN)
async def get_namespace(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    return as_json(namespace_document(broker.directory.namespace(namespace_of(request)), broker.config))


@operation(
    "Create a namespace, with policies or without.",
    body=NamespaceDocument,
    example='{"retention_policies": {"retentionTimeInMinutes": 60, "retentionSizeInMB": 512}}',
    needs=Need.ADMIN,
    on=tenant_of_path,
)
async def create_namespace(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    name = namespace_of(request)
    document = await body_as(request, NamespaceDocument) or NamespaceDocument()
    record = namespace_record(broker, document)
    require_letters(request, record.policies)
    broker.namespaces.create(name, record)
    if kept := kept_names(document, authorized=is_on(request)):
        warn(request, f"kept and shown, but without effect here: {', '.join(kept)}")
    return await accepted(broker)


@operation(
    "Get the bundles of a namespace: ranges of the hashes of its topics' names.",
    answers={200: BundlesDocument},
    needs=Need.LOOKUP,
)
async def get_bundles(request: web.Request) -> web.Response:
    return as_json(bundles_document(request.app[BROKER].directory.namespace(namespace_of(request))))


@operation(
    "Delete a namespace without topics; with force, delete its topics, too.",
    query=(_FORCE,),
    needs=Need.ADMIN,
    on=tenant_of_path,
)
async def delete_namespace(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    broker.namespaces.delete(namespace_of(request), force=flag(request, "force"))
    return await accepted(broker)


@operation(
    "List the topics of a namespace, each partition by its name.",
    query=(_MODE, SYSTEM),
    answers={200: list[str]},
    needs=Need.LOOKUP,
)
async def list_topics(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    namespace = namespace_of(request)
    broker.directory.namespace(namespace)
    mode = request.query.get("mode", "PERSISTENT").upper()
    if mode not in _MODES:
        raise ApiError(400, f"mode should be one of {', '.join(_MODES)}, not '{mode}'")
    return as_json(broker.directory.list_topics(namespace, mode, system=flag(request, SYSTEM.name)))


@operation(
    "List the namespaces of a tenant in an anti-affinity group, which has no effect here.",
    query=(_TENANT,),
    answers={200: list[str]},
    needs=Need.ADMIN,
    on=tenant_of_query,
)
async def list_anti_affinity(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    cluster, group = request.match_info["cluster"], request.match_info["group"]
    if cluster != broker.config.cluster_name:
        raise PreconditionFailed(f"Cluster {cluster} does not exist.")
    tenant = request.query.get("tenant", "")
    if not tenant:
        raise ApiError(400, "Tenant should not be null")
    return as_json(
        sorted(
            name
            for name, record in broker.directory.namespaces.items()
            if name.startswith(f"{tenant}/") and kept_value(record.policies, ANTI_AFFINITY) == group
        )
    )


def routes() -> list[web.RouteDef]:
    return [
        web.get("/admin/v2/namespaces/{tenant}", list_namespaces),
        web.get(NAMESPACE_PATH, get_namespace),
        web.put(NAMESPACE_PATH, create_namespace),
        web.delete(NAMESPACE_PATH, delete_namespace),
        web.get(f"{NAMESPACE_PATH}/topics", list_topics),
        web.get(f"{NAMESPACE_PATH}/bundles", get_bundles),
        web.get("/admin/v2/namespaces/{cluster}/antiAffinity/{group}", list_anti_affinity),
    ]
