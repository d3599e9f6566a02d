"""Resource groups, and the one of a namespace: kept and shown, without effect, as rates are limited by policies."""

from __future__ import annotations

from typing import Final

import msgspec
from aiohttp import web
from heliograph_api.values.names import check_part

from heliograph_broker.http.base.context import BROKER, accepted, as_json, as_text, namespace_of, required_body
from heliograph_broker.http.base.errors import ApiError
from heliograph_broker.http.base.operations import operation
from heliograph_broker.http.base.warning_header import warn
from heliograph_broker.http.policies.kept_routes import set_for_namespace
from heliograph_broker.http.policies.kept_settings import RESOURCE_GROUP, kept_value
from heliograph_broker.http.policies.policy_documents import Limit, LongLimit
from heliograph_broker.http.policies.policy_routes import NAMESPACE_PATH
from heliograph_broker.messaging.base.errors import PreconditionFailed
from heliograph_broker.messaging.broker.broker import Broker
from heliograph_broker.security.authorization.needs import Need

_PATH: Final = "/admin/v2/resourcegroups"
_WARNING: Final = (
    "resource groups are kept and shown, but have no effect here: publishRate and dispatchRate limit topics"
)
_MISSING: Final = "ResourceGroup does not exist"


class ResourceGroupDocument(msgspec.Struct, rename="camel"):
    """Pulsar's ResourceGroup: rates of all its namespaces together, a second; -1 without limit."""

    publish_rate_in_msgs: Limit | None = None
    publish_rate_in_bytes: LongLimit | None = None
    dispatch_rate_in_msgs: Limit | None = None
    dispatch_rate_in_bytes: LongLimit | None = None


def check_group(broker: Broker, name: str) -> None:
    """Check that a group exists. Raises :class:`PreconditionFailed` in Pulsar's words."""
    if name not in broker.policies.settings.resource_groups:
        raise PreconditionFailed(_MISSING)


def _name(request: web.Request) -> str:
    name = request.match_info["resourcegroup"]
    check_part("resource group", name)
    return name


@operation("List the resource groups.", answers={200: list[str]}, needs=Need.SUPERUSER)
async def list_groups(request: web.Request) -> web.Response:
    return as_json(sorted(request.app[BROKER].policies.settings.resource_groups))


@operation("Get a resource group.", answers={200: ResourceGroupDocument}, needs=Need.SUPERUSER)
async def get_group(request: web.Request) -> web.Response:
    group = request.app[BROKER].policies.settings.resource_groups.get(_name(request))
    if group is None:
        raise ApiError(404, _MISSING)
    return as_json(msgspec.convert(group, ResourceGroupDocument))


@operation(
    "Keep a resource group, or change the rates that are given; it has no effect.",
    body=ResourceGroupDocument,
    body_required=True,
    example='{"publishRateInMsgs": 1000}',
    needs=Need.SUPERUSER,
)
async def put_group(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    name = _name(request)
    document = await required_body(request, ResourceGroupDocument, '{"publishRateInMsgs": 1000}')
    given = {field: value for field, value in msgspec.to_builtins(document).items() if value is not None}
    unlimited = dict.fromkeys(msgspec.to_builtins(ResourceGroupDocument()), -1)
    broker.policies.settings.set_resource_group(
        name, unlimited | broker.policies.settings.resource_groups.get(name, {}) | given
    )
    warn(request, _WARNING)
    return await accepted(broker)


@operation("Delete a resource group that no namespace has.", needs=Need.SUPERUSER)
async def delete_group(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    name = _name(request)
    if name not in broker.policies.settings.resource_groups:
        raise ApiError(404, _MISSING)
    if any(kept_value(each.policies, RESOURCE_GROUP) == name for each in broker.directory.namespaces.values()):
        raise PreconditionFailed("ResourceGroup is in use")
    broker.policies.settings.set_resource_group(name, None)
    return await accepted(broker)


# -- of a namespace ------------------------------------------------------------------------------------------------


@operation("Get the resource group of a namespace.", answers={200: str, 204: None}, needs=Need.ADMIN)
async def get_of_namespace(request: web.Request) -> web.Response:
    name = kept_value(request.app[BROKER].directory.namespace(namespace_of(request)).policies, RESOURCE_GROUP)
    return web.Response(status=204) if name is None else as_text(name)


@operation("Keep the resource group of a namespace; it has no effect.", needs=Need.ADMIN)
async def set_of_namespace(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    namespace = namespace_of(request)
    broker.directory.namespace(namespace)
    check_group(broker, _name(request))
    set_for_namespace(broker, namespace, RESOURCE_GROUP, _name(request))
    warn(request, _WARNING)
    return await accepted(broker)


@operation("Take the namespace out of its resource group.", needs=Need.ADMIN)
async def remove_of_namespace(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    set_for_namespace(broker, namespace_of(request), RESOURCE_GROUP, None)
    return await accepted(broker)


def routes() -> list[web.RouteDef]:
    group = f"{_PATH}/{{resourcegroup}}"
    of_namespace = f"{NAMESPACE_PATH}/resourcegroup"
    return [
        web.get(_PATH, list_groups),
        web.get(group, get_group),
        web.put(group, put_group),
        web.delete(group, delete_group),
        web.get(of_namespace, get_of_namespace),
        web.post(f"{of_namespace}/{{resourcegroup}}", set_of_namespace),
        web.delete(of_namespace, remove_of_namespace),
    ]
