"""Tenants: /admin/v2/tenants."""

from __future__ import annotations

import msgspec
from aiohttp import web
from heliograph_api.policies.policies import Policies

from heliograph_broker.http.base.context import BROKER, accepted, as_json, body_as, flag, tenant_of
from heliograph_broker.http.base.operations import Parameter, operation
from heliograph_broker.messaging.base.errors import PreconditionFailed, TenantNotFound
from heliograph_broker.messaging.base.records import TenantRecord
from heliograph_broker.security.authorization.needs import Need

_FORCE = Parameter("force", bool, "Delete its namespaces with their topics and messages, too.")
_EXAMPLE = '{"adminRoles": ["ops"], "allowedClusters": ["standalone"]}'


class TenantInfo(msgspec.Struct, rename="camel"):
    """Pulsar's TenantInfo: who administers the tenant, and the clusters it may use."""

    admin_roles: list[str] | None = None
    allowed_clusters: list[str] | None = None


@operation("List the tenants.", answers={200: list[str]}, needs=Need.SUPERUSER)
async def list_tenants(request: web.Request) -> web.Response:
    return as_json(sorted(request.app[BROKER].directory.tenants))


@operation("Get the admin roles and clusters of a tenant.", answers={200: TenantInfo}, needs=Need.ADMIN)
async def get_tenant(request: web.Request) -> web.Response:
    record = request.app[BROKER].directory.tenants.get(tenant_of(request))
    if record is None:
        raise TenantNotFound("Tenant does not exist")
    return as_json(TenantInfo(record.admin_roles, record.allowed_clusters))


async def _record(request: web.Request, limits: Policies) -> TenantRecord:
    info = await body_as(request, TenantInfo)
    if info is None:
        raise PreconditionFailed("TenantInfo is null")
    if info.allowed_clusters is None:
        raise PreconditionFailed("Clusters cannot be null")
    if not info.allowed_clusters or not all(cluster.strip() for cluster in info.allowed_clusters):
        raise PreconditionFailed("Clusters cannot be empty or blank")
    roles = info.admin_roles or []
    if any(role != role.strip() for role in roles):
        raise PreconditionFailed("AdminRoles contains whitespace in the beginning or end.")
    return TenantRecord(admin_roles=roles, allowed_clusters=info.allowed_clusters, limits=limits)


@operation("Create a tenant.", body=TenantInfo, body_required=True, example=_EXAMPLE, needs=Need.SUPERUSER)
async def create_tenant(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    name = tenant_of(request)
    broker.tenants.create(name, await _record(request, Policies()))
    return await accepted(broker)


@operation(
    "Change the admin roles or clusters of a tenant.",
    body=TenantInfo,
    body_required=True,
    example=_EXAMPLE,
    needs=Need.SUPERUSER,
)
async def update_tenant(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    name = tenant_of(request)
    existing = broker.directory.tenants.get(name)
    if existing is None:
        raise TenantNotFound(f"Tenant {name} not found")
    # Limits are not part of Pulsar's TenantInfo: an update through this API leaves them.
    broker.tenants.update(name, await _record(request, existing.limits))
    return await accepted(broker)


@operation("Delete a tenant that has no namespaces.", query=(_FORCE,), needs=Need.SUPERUSER)
async def delete_tenant(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    name = tenant_of(request)
    force = flag(request, "force")
    if name not in broker.directory.tenants:
        raise TenantNotFound("Tenant doesn't exist")
    if force:
        for namespace in [known for known in broker.directory.namespaces if known.startswith(f"{name}/")]:
            broker.namespaces.delete(namespace, force=True)
    broker.tenants.delete(name)
    return await accepted(broker)


def routes() -> list[web.RouteDef]:
    path = "/admin/v2/tenants/{tenant}"
    return [
        web.get("/admin/v2/tenants", list_tenants),
        web.get(path, get_tenant),
        web.put(path, create_tenant),
        web.post(path, update_tenant),
        web.delete(path, delete_tenant),
    ]
