"""Permissions of namespaces, topics and subscriptions; without effect while authorization is not enabled.

As in Pulsar all of them belong to the namespace: ``auth_policies`` of its document.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec
from aiohttp import web
from heliograph_api.policies.grants import WILDCARD, Actions, AuthPolicies, auth_policies, keep_grants
from heliograph_api.values.names import TopicName

from heliograph_broker.http.base.access import is_on, require
from heliograph_broker.http.base.context import (
    BROKER,
    accepted,
    as_json,
    body_as,
    namespace_of,
    required_body,
    topic_of,
)
from heliograph_broker.http.base.errors import ApiError
from heliograph_broker.http.base.operations import Refusal, operation
from heliograph_broker.http.base.warning_header import warn
from heliograph_broker.http.policies.policy_routes import NAMESPACE_PATH, namespace_policies
from heliograph_broker.http.topics.admin_topics import TOPIC_PATH
from heliograph_broker.messaging.base.errors import SubscriptionNotFound, TopicNotFound
from heliograph_broker.messaging.broker.broker import Broker
from heliograph_broker.security.authorization.grants import ACTIONS, granted, shown
from heliograph_broker.security.authorization.needs import Need, on_topic

_WARNING: Final = "permissions are kept and shown, but every client may do everything: authorization is not enabled"
_ACTIONS_EXAMPLE: Final = '["produce", "consume"]'
_TOPICS_EXAMPLE: Final = '[{"topic": "persistent://public/default/orders", "role": "ops", "actions": ["consume"]}]'


class TopicPermission(msgspec.Struct):
    """Pulsar's GrantTopicPermissionOptions and RevokeTopicPermissionOptions; without actions it revokes."""

    topic: str
    role: str
    actions: list[str] = msgspec.field(default_factory=list)


def _of(broker: Broker, namespace: str) -> AuthPolicies:
    return auth_policies(broker.directory.namespace(namespace).policies)


def _store(broker: Broker, namespace: str, permissions: AuthPolicies) -> None:
    policies = namespace_policies(broker, namespace)
    keep_grants(policies, permissions)
    broker.namespaces.set_policies(namespace, policies)


async def _put(request: web.Request, namespace: str, permissions: AuthPolicies) -> web.Response:
    broker = request.app[BROKER]
    _store(broker, namespace, permissions)
    _warn(request)
    return await accepted(broker)


def _warn(request: web.Request) -> None:
    if not is_on(request):
        warn(request, _WARNING)


def checked_actions(actions: list[str] | None) -> list[str]:
    """Return the actions, each once. Raises :class:`ApiError` 400 for one that Pulsar has not."""
    if actions is None:
        raise ApiError(400, "Actions should not be null")
    for action in actions:
        if action not in ACTIONS:
            raise ApiError(400, f"action '{action}' is not one of {', '.join(ACTIONS)}")
    return list(dict.fromkeys(actions))


# -- namespaces ----------------------------------------------------------------------------------------------------


@operation("Get the permissions on a namespace, by role.", answers={200: Actions}, needs=Need.ADMIN)
async def get_permissions(request: web.Request) -> web.Response:
    return as_json(shown(_of(request.app[BROKER], namespace_of(request)).namespace_auth))


@operation(
    "Keep a role's permissions on a namespace; without authorization every client may do everything.",
    body=list[str],
    body_required=True,
    example=_ACTIONS_EXAMPLE,
    needs=Need.ADMIN,
)
async def grant(request: web.Request) -> web.Response:
    namespace = namespace_of(request)
    request.app[BROKER].directory.namespace(namespace)
    actions = checked_actions(await body_as(request, list[str]))
    permissions, role = _of(request.app[BROKER], namespace), request.match_info["role"]
    permissions.namespace_auth[role] = granted(permissions.namespace_auth.get(role), actions)
    return await _put(request, namespace, permissions)


@operation("Remove a role's permissions on a namespace.", needs=Need.ADMIN)
async def revoke(request: web.Request) -> web.Response:
    namespace = namespace_of(request)
    permissions = _of(request.app[BROKER], namespace)
    permissions.namespace_auth.pop(request.match_info["role"], None)
    return await _put(request, namespace, permissions)


# -- subscriptions -------------------------------------------------------------------------------------------------


@operation(
    "Get the roles that may consume from subscriptions, by their names.",
    answers={200: dict[str, list[str]]},
    needs=Need.ADMIN,
)
async def get_subscription_permissions(request: web.Request) -> web.Response:
    return as_json(_of(request.app[BROKER], namespace_of(request)).subscription_auth_roles)


@operation(
    "Keep the roles that may consume from a subscription; without authorization every client may.",
    body=list[str],
    body_required=True,
    example='["billing"]',
    needs=Need.ADMIN,
)
async def grant_subscription(request: web.Request) -> web.Response:
    namespace = namespace_of(request)
    request.app[BROKER].directory.namespace(namespace)
    roles = await body_as(request, list[str])
    if roles is None:
        raise ApiError(400, 'the request needs a JSON body, for example ["billing"]')
    permissions = _of(request.app[BROKER], namespace)
    permissions.subscription_auth_roles[request.match_info["subscription"]] = list(dict.fromkeys(roles))
    return await _put(request, namespace, permissions)


@operation("Remove a role from those that may consume from a subscription.", needs=Need.ADMIN)
async def revoke_subscription(request: web.Request) -> web.Response:
    namespace, subscription = namespace_of(request), request.match_info["subscription"]
    permissions = _of(request.app[BROKER], namespace)
    roles = permissions.subscription_auth_roles.get(subscription)
    if roles is None:
        raise SubscriptionNotFound(f"Subscription {subscription} has no permissions in namespace {namespace}")
    left = [role for role in roles if role != request.match_info["role"]]
    if left:
        permissions.subscription_auth_roles[subscription] = left
    else:
        del permissions.subscription_auth_roles[subscription]
    return await _put(request, namespace, permissions)


# -- topics --------------------------------------------------------------------------------------------------------


def _check_exists(broker: Broker, name: TopicName) -> None:
    """Check that a topic exists, or is the beginning of the names of several, with a ``*``. Raises TopicNotFound."""
    if not str(name).endswith(WILDCARD) and not broker.directory.exists(name):
        raise TopicNotFound(f"Topic {name} not found")


def _topic(request: web.Request) -> tuple[str, str]:
    """Return the namespace and the full name of the path's topic. Raises :class:`TopicNotFound`."""
    name = topic_of(request)
    _check_exists(request.app[BROKER], name)
    return name.namespace_name, str(name.base)


@operation(
    "Get the permissions on a topic, by role; those on its namespace apply as well.",
    answers={200: Actions},
    needs=Need.ADMIN,
)
async def get_topic_permissions(request: web.Request) -> web.Response:
    namespace, topic = _topic(request)
    permissions = _of(request.app[BROKER], namespace)
    both = permissions.namespace_auth | {}
    for role, actions in permissions.destination_auth.get(topic, {}).items():
        both[role] = list(dict.fromkeys([*both.get(role, []), *actions]))
    return as_json(shown(both))


@operation(
    "Keep a role's permissions on a topic; without authorization every client may do everything.",
    body=list[str],
    body_required=True,
    example=_ACTIONS_EXAMPLE,
    needs=Need.ADMIN,
)
async def grant_topic(request: web.Request) -> web.Response:
    _topic(request)
    actions = checked_actions(await body_as(request, list[str]))
    # The topic may be gone by now.
    namespace, topic = _topic(request)
    permissions = _of(request.app[BROKER], namespace)
    _grant(permissions, topic, request.match_info["role"], actions)
    return await _put(request, namespace, permissions)


@operation("Remove a role's permissions on a topic.", needs=Need.ADMIN)
async def revoke_topic(request: web.Request) -> web.Response:
    # Whether or not it exists: one that was deleted by itself or by the last client may come back.
    name = topic_of(request)
    namespace, topic = name.namespace_name, str(name.base)
    permissions = _of(request.app[BROKER], namespace)
    if topic not in permissions.destination_auth:
        _check_exists(request.app[BROKER], name)
    _revoke(permissions, topic, request.match_info["role"])
    return await _put(request, namespace, permissions)


async def _of_topics(request: web.Request, *, known: bool = False) -> list[TopicPermission]:
    """Return the permissions in the body, of topics that exist and that the client administers.

    ``known``: or that have permissions. Raises :class:`ApiError` or :class:`TopicNotFound`.
    """
    given = await required_body(request, list[TopicPermission], _TOPICS_EXAMPLE)
    names = [TopicName.parse(each.topic) for each in given]
    # All of them first: whether a topic exists is only for those who administer it.
    for name in names:
        require(request, Need.ADMIN, on_topic(name))
    broker = request.app[BROKER]
    for name in names:
        if not known or str(name.base) not in _of(broker, name.namespace_name).destination_auth:
            _check_exists(broker, name)
    return given


@operation(
    "Keep permissions on several topics; without authorization every client may do everything.",
    body=list[TopicPermission],
    body_required=True,
    example=_TOPICS_EXAMPLE,
    answers={204: None, 404: Refusal},
    needs=Need.IDENTITY,
)
async def grant_topics(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    given = await _of_topics(request)
    for each in given:
        each.actions = checked_actions(each.actions)
    _change(broker, given, lambda permissions, topic, each: _grant(permissions, topic, each.role, each.actions))
    _warn(request)
    return await accepted(broker)


@operation(
    "Remove permissions on several topics.",
    body=list[TopicPermission],
    body_required=True,
    example=_TOPICS_EXAMPLE,
    answers={204: None, 404: Refusal},
    needs=Need.IDENTITY,
)
async def revoke_topics(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    _change(
        broker,
        await _of_topics(request, known=True),
        lambda permissions, topic, each: _revoke(permissions, topic, each.role),
    )
    _warn(request)
    return await accepted(broker)


def _change(
    broker: Broker, given: list[TopicPermission], change: Callable[[AuthPolicies, str, TopicPermission], None]
) -> None:
    """Make a change for each of ``given``, and store each namespace once: a change concerns all its topics."""
    changed: dict[str, AuthPolicies] = {}
    for each in given:
        name = TopicName.parse(each.topic)
        if name.namespace_name not in changed:
            changed[name.namespace_name] = _of(broker, name.namespace_name)
        change(changed[name.namespace_name], str(name.base), each)
    for namespace, permissions in changed.items():
        _store(broker, namespace, permissions)


def _grant(permissions: AuthPolicies, topic: str, role: str, actions: list[str]) -> None:
    before = permissions.destination_auth.get(topic, {})
    permissions.destination_auth[topic] = {**before, role: granted(before.get(role), actions)}


def _revoke(permissions: AuthPolicies, topic: str, role: str) -> None:
    left = {other: actions for other, actions in permissions.destination_auth.get(topic, {}).items() if other != role}
    if left:
        permissions.destination_auth[topic] = left
    else:
        permissions.destination_auth.pop(topic, None)


def routes() -> list[web.RouteDef]:
    permissions = f"{NAMESPACE_PATH}/permissions"
    return [
        web.post("/admin/v2/namespaces/grantPermissionsOnTopics", grant_topics),
        web.post("/admin/v2/namespaces/revokePermissionsOnTopics", revoke_topics),
        web.get(permissions, get_permissions),
        web.get(f"{permissions}/subscription", get_subscription_permissions),
        web.post(f"{permissions}/{{role}}", grant),
        web.delete(f"{permissions}/{{role}}", revoke),
        web.post(f"{permissions}/subscription/{{subscription}}", grant_subscription),
        web.delete(f"{permissions}/{{subscription}}/{{role}}", revoke_subscription),
        web.get(f"{TOPIC_PATH}/permissions", get_topic_permissions),
        web.post(f"{TOPIC_PATH}/permissions/{{role}}", grant_topic),
        web.delete(f"{TOPIC_PATH}/permissions/{{role}}", revoke_topic),
    ]
