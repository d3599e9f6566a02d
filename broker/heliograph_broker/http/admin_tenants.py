"""Tenants: /admin/v2/tenants."""

from __future__ import annotations

import msgspec
from aiohttp import web

from heliograph_broker.messaging.errors import PreconditionFailed, TenantNotFound
from heliograph_broker.messaging.records import TenantRecord
from heliograph_broker.resources.policies import Policies

from .context import BROKER, accepted, as_json, body_as, flag, tenant_of


class TenantInfo(msgspec.Struct, rename="camel"):
    """Pulsar's TenantInfo."""

    admin_roles: list[str] | None = None
    allowed_clusters: list[str] | None = None


async def list_tenants(request: web.Request) -> web.Response:
    return as_json(sorted(request.app[BROKER].tenants))


async def get_tenant(request: web.Request) -> web.Response:
    record = request.app[BROKER].tenants.get(tenant_of(request))
    if record is None:
        raise TenantNotFound("Tenant does not exist")
    return as_json({"adminRoles": record.admin_roles, "allowedClusters": record.allowed_clusters})


async def _record(request: web.Request, limits: Policies) -> TenantRecord:
    info = await body_as(request, TenantInfo)
    if info is None or not info.allowed_clusters:
        raise PreconditionFailed("Clusters can not be empty")
    return TenantRecord(admin_roles=info.admin_roles or [], allowed_clusters=info.allowed_clusters, limits=limits)


async def create_tenant(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    name = tenant_of(request)
    broker.create_tenant(name, await _record(request, Policies()))
    return await accepted(broker)


async def update_tenant(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    name = tenant_of(request)
    existing = broker.tenants.get(name)
    if existing is None:
        raise TenantNotFound("Tenant does not exist")
    # Limits are not part of Pulsar's TenantInfo: an update through this API leaves them.
    broker.update_tenant(name, await _record(request, existing.limits))
    return await accepted(broker)


async def delete_tenant(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    name = tenant_of(request)
    if flag(request, "force"):
        for namespace in [known for known in broker.namespaces if known.startswith(f"{name}/")]:
            broker.delete_namespace(namespace, force=True)
    broker.delete_tenant(name)
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
