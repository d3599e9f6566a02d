"""Properties and clusters of namespaces."""

from __future__ import annotations

from aiohttp import web

from heliograph_broker.http.base.context import (
    BROKER,
    accepted,
    as_json,
    as_text,
    body_as,
    namespace_of,
)
from heliograph_broker.http.base.operations import Refusal, operation
from heliograph_broker.http.policies.kept_settings import check_clusters
from heliograph_broker.http.policies.policy_routes import NAMESPACE_PATH
from heliograph_broker.security.authorization.needs import Need

_CLUSTERS_EXAMPLE = '["standalone"]'


# -- properties ----------------------------------------------------------------------------------------------------


@operation("Get the properties of a namespace.", answers={200: dict[str, str]}, needs=Need.ADMIN)
async def get_properties(request: web.Request) -> web.Response:
    return as_json(request.app[BROKER].directory.namespace(namespace_of(request)).properties)


@operation(
    "Add to the namespace's properties, or replace some.",
    body=dict[str, str],
    example='{"owner": "payments-team"}',
    needs=Need.ADMIN,
)
async def put_properties(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    namespace = namespace_of(request)
    broker.directory.namespace(namespace)
    added = await body_as(request, dict[str, str]) or {}
    broker.namespaces.set_properties(namespace, broker.directory.namespace(namespace).properties | added)
    return await accepted(broker)


@operation("Remove all of the namespace's properties.", needs=Need.ADMIN)
async def clear_properties(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    broker.namespaces.set_properties(namespace_of(request), {})
    return await accepted(broker)


@operation("Get one property of the namespace.", answers={200: str, 204: None}, needs=Need.ADMIN)
async def get_property(request: web.Request) -> web.Response:
    value = request.app[BROKER].directory.namespace(namespace_of(request)).properties.get(request.match_info["key"])
    return web.Response(status=204) if value is None else as_text(value)


@operation("Set one of the namespace's properties.", needs=Need.ADMIN)
async def put_property(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    namespace = namespace_of(request)
    added = {request.match_info["key"]: request.match_info["value"]}
    broker.namespaces.set_properties(namespace, broker.directory.namespace(namespace).properties | added)
    return await accepted(broker)


@operation(
    "Remove one of the namespace's properties. Returns its last value.", answers={200: str, 204: None}, needs=Need.ADMIN
)
async def remove_property(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    namespace = namespace_of(request)
    properties = dict(broker.directory.namespace(namespace).properties)
    value = properties.pop(request.match_info["key"], None)
    if value is None:
        return web.Response(status=204)
    broker.namespaces.set_properties(namespace, properties)
    await accepted(broker)
    return as_text(value)


# -- clusters ------------------------------------------------------------------------------------------------------


@operation("Get the clusters the namespace is replicated to: this one.", answers={200: list[str]}, needs=Need.ADMIN)
async def get_replication(request: web.Request) -> web.Response:
    return as_json(request.app[BROKER].directory.namespace(namespace_of(request)).replication_clusters)


@operation(
    "Set the namespace's clusters; valid: this one.",
    body=list[str],
    example=_CLUSTERS_EXAMPLE,
    body_required=True,
    answers={204: None, 403: Refusal},
    needs=Need.ADMIN,
)
async def set_replication(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    namespace = namespace_of(request)
    broker.directory.namespace(namespace)
    clusters = await body_as(request, list[str]) or []
    check_clusters(clusters, broker.config)
    broker.namespaces.set_replication_clusters(namespace, list(dict.fromkeys(clusters)))
    return await accepted(broker)


def routes() -> list[web.RouteDef]:
    return [
        web.get(f"{NAMESPACE_PATH}/properties", get_properties),
        web.put(f"{NAMESPACE_PATH}/properties", put_properties),
        web.delete(f"{NAMESPACE_PATH}/properties", clear_properties),
        web.get(f"{NAMESPACE_PATH}/property/{{key}}", get_property),
        web.put(f"{NAMESPACE_PATH}/property/{{key}}/{{value}}", put_property),
        web.delete(f"{NAMESPACE_PATH}/property/{{key}}", remove_property),
        web.get(f"{NAMESPACE_PATH}/replication", get_replication),
        web.post(f"{NAMESPACE_PATH}/replication", set_replication),
    ]
