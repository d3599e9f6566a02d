"""Properties, permissions and clusters of namespaces, and the latter two of topics."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from heliograph_broker.http.base.context import (
    BROKER,
    accepted,
    as_json,
    as_text,
    flag,
    namespace_of,
    required_body,
    topic_of,
)
from heliograph_broker.http.base.errors import ApiError
from heliograph_broker.http.base.operations import Refusal, operation
from heliograph_broker.http.policies.policy_routes import APPLIED, GLOBAL, NAMESPACE_PATH, policy_topic
from heliograph_broker.http.topics.admin_topics import TOPIC_PATH
from heliograph_broker.messaging.base.errors import PreconditionFailed, TopicNotFound
from heliograph_broker.messaging.broker.broker import Broker

_CLUSTERS_EXAMPLE = '["standalone"]'
_Permissions = dict[str, list[str]]


# -- properties ----------------------------------------------------------------------------------------------------


@operation("Get the properties of a namespace.", answers={200: dict[str, str]})
async def get_properties(request: web.Request) -> web.Response:
    return as_json(request.app[BROKER].directory.namespace(namespace_of(request)).properties)


@operation("Add to the namespace's properties, or replace some.", body=dict[str, str], body_required=True)
async def put_properties(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    namespace = namespace_of(request)
    broker.directory.namespace(namespace)
    added = await required_body(request, dict[str, str], '{"owner": "payments-team"}')
    broker.namespaces.set_properties(namespace, broker.directory.namespace(namespace).properties | added)
    return await accepted(broker)


@operation("Remove all of the namespace's properties.")
async def clear_properties(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    broker.namespaces.set_properties(namespace_of(request), {})
    return await accepted(broker)


@operation("Get one property of the namespace.", answers={200: str, 204: None})
async def get_property(request: web.Request) -> web.Response:
    value = request.app[BROKER].directory.namespace(namespace_of(request)).properties.get(request.match_info["key"])
    return web.Response(status=204) if value is None else as_text(value)


@operation("Set one of the namespace's properties.")
async def put_property(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    namespace = namespace_of(request)
    added = {request.match_info["key"]: request.match_info["value"]}
    broker.namespaces.set_properties(namespace, broker.directory.namespace(namespace).properties | added)
    return await accepted(broker)


@operation("Remove one of the namespace's properties. Returns its last value.", answers={200: str, 204: None})
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


# -- permissions ---------------------------------------------------------------------------------------------------


@operation(
    "Get the permissions on a namespace: always empty, as there is no authorization.", answers={200: _Permissions}
)
async def get_permissions(request: web.Request) -> web.Response:
    request.app[BROKER].directory.namespace(namespace_of(request))
    return as_json({})


@operation("Get the permissions on a topic: always empty, as there is no authorization.", answers={200: _Permissions})
async def get_topic_permissions(request: web.Request) -> web.Response:
    name = topic_of(request)
    if not request.app[BROKER].directory.exists(name):
        raise TopicNotFound(f"Topic {name} not found")
    return as_json({})


@operation("Grant or revoke permissions: refused, as there is no authorization.", answers={412: Refusal})
async def refuse_permission(request: web.Request) -> web.Response:
    request.app[BROKER].directory.namespace(namespace_of(request))
    raise PreconditionFailed("Authorization is not enabled: every client has all permissions")


# -- clusters ------------------------------------------------------------------------------------------------------


def _check_clusters(broker: Broker, clusters: list[str]) -> None:
    """Check clusters. Raises :class:`PreconditionFailed`, or as Pulsar :class:`ApiError` 403 for an unknown one."""
    if not clusters:
        raise PreconditionFailed("ClusterIds should not be null or empty")
    for cluster in clusters:
        if cluster != broker.config.cluster_name:
            raise ApiError(403, f"Invalid cluster id: {cluster}")


@operation("Get the clusters the namespace is replicated to: this one.", answers={200: list[str]})
async def get_replication(request: web.Request) -> web.Response:
    return as_json(request.app[BROKER].directory.namespace(namespace_of(request)).replication_clusters)


@operation(
    "Set the namespace's clusters; valid: this one.",
    body=list[str],
    example=_CLUSTERS_EXAMPLE,
    body_required=True,
    answers={204: None, 403: Refusal},
)
async def set_replication(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    broker.directory.namespace(namespace_of(request))
    _check_clusters(broker, await required_body(request, list[str], _CLUSTERS_EXAMPLE))
    return await accepted(broker)


_OWN_CLUSTERS: dict[int, Any] = {200: list[str], 204: None}


@operation("Get the clusters set at the topic: none.", query=(APPLIED, GLOBAL), answers=_OWN_CLUSTERS)
async def get_topic_replication(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    name = policy_topic(request)
    if flag(request, "applied"):
        return as_json(broker.directory.namespace(name.namespace_name).replication_clusters)
    return web.Response(status=204)


@operation(
    "Set the topic's clusters; valid: this one.",
    body=list[str],
    example=_CLUSTERS_EXAMPLE,
    body_required=True,
    answers={204: None, 403: Refusal},
)
async def set_topic_replication(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    policy_topic(request)
    _check_clusters(broker, await required_body(request, list[str], _CLUSTERS_EXAMPLE))
    return await accepted(broker)


@operation("Remove the topic's clusters, so that the namespace's apply.")
async def remove_topic_replication(request: web.Request) -> web.Response:
    policy_topic(request)
    return web.Response(status=204)


def routes() -> list[web.RouteDef]:
    permissions = f"{NAMESPACE_PATH}/permissions"
    return [
        web.get(f"{NAMESPACE_PATH}/properties", get_properties),
        web.put(f"{NAMESPACE_PATH}/properties", put_properties),
        web.delete(f"{NAMESPACE_PATH}/properties", clear_properties),
        web.get(f"{NAMESPACE_PATH}/property/{{key}}", get_property),
        web.put(f"{NAMESPACE_PATH}/property/{{key}}/{{value}}", put_property),
        web.delete(f"{NAMESPACE_PATH}/property/{{key}}", remove_property),
        web.get(permissions, get_permissions),
        web.get(f"{permissions}/subscription", get_permissions),
        web.post(f"{permissions}/{{role}}", refuse_permission),
        web.delete(f"{permissions}/{{role}}", refuse_permission),
        web.post(f"{permissions}/subscription/{{subscription}}", refuse_permission),
        web.delete(f"{permissions}/{{subscription}}/{{role}}", refuse_permission),
        web.get(f"{TOPIC_PATH}/permissions", get_topic_permissions),
        web.post(f"{TOPIC_PATH}/permissions/{{role}}", refuse_permission),
        web.delete(f"{TOPIC_PATH}/permissions/{{role}}", refuse_permission),
        web.get(f"{NAMESPACE_PATH}/replication", get_replication),
        web.post(f"{NAMESPACE_PATH}/replication", set_replication),
        web.get(f"{TOPIC_PATH}/replication", get_topic_replication),
        web.post(f"{TOPIC_PATH}/replication", set_topic_replication),
        web.delete(f"{TOPIC_PATH}/replication", remove_topic_replication),
    ]
