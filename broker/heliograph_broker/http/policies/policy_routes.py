"""The handlers of every policy of :mod:`.policy_table`, for namespaces and for topics: read, set, remove.

A change is read, checked and made without a pause in between, and answered when it is durable.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

import msgspec
from aiohttp import web
from heliograph_api.policies.policies import Policies
from heliograph_api.policies.policy_values import MAX_SUBSCRIPTION_POLICIES
from heliograph_api.values.names import TopicName, check_subscription

from heliograph_broker.http.base.access import require
from heliograph_broker.http.base.context import (
    BROKER,
    CONFIG,
    accepted,
    as_json,
    flag,
    namespace_of,
    new_setting,
    topic_of,
)
from heliograph_broker.http.base.errors import ApiError
from heliograph_broker.http.base.operations import Handler, Parameter, operation
from heliograph_broker.http.topics.admin_topics import TOPIC_PATH
from heliograph_broker.messaging.base.errors import NamespaceNotFound, PreconditionFailed, TopicNotFound
from heliograph_broker.messaging.base.names import COMPACTION
from heliograph_broker.messaging.broker.broker import Broker
from heliograph_broker.security.authorization.needs import Need, on_topic

from .policy_description import NAMESPACE, POST, TOPIC, Level, PolicyPath
from .policy_table import MILLISECONDS, POLICIES
from .quota_rules import check_retention

NAMESPACE_PATH = "/admin/v2/namespaces/{tenant}/{namespace}"

APPLIED = Parameter(
    "applied", bool, "Return the effective value: the topic's, else its namespace's, else the broker's."
)
GLOBAL = Parameter(
    "isGlobal", bool, "Whether the policy is for all clusters; true is refused, as there is only one cluster."
)
_FIGURE = re.compile(r"-?[0-9]{1,10}", re.ASCII)


def namespace_policies(broker: Broker, namespace: str) -> Policies:
    """Return a copy to change: nothing holds before the core has taken it. Raises :class:`NamespaceNotFound`."""
    return msgspec.structs.replace(broker.directory.namespace(namespace).policies)


def topic_policies(broker: Broker, name: TopicName) -> Policies:
    """Return a copy of the topic's own settings, to change."""
    return msgspec.structs.replace(broker.policies.of_topic(name) or Policies())


def policy_topic(request: web.Request) -> TopicName:
    """Return the topic of the path, which must exist; partitions have the policies of their topic.

    Raises :class:`NamespaceNotFound`, :class:`TopicNotFound` or :class:`PreconditionFailed`, in Pulsar's words.
    """
    broker = request.app[BROKER]
    name = topic_of(request)
    if name.namespace_name not in broker.directory.namespaces:
        raise NamespaceNotFound("Namespace not found")
    if name.partition >= 0:
        raise PreconditionFailed("Not allowed to set/get topic policy for a partition")
    if not broker.directory.exists(name):
        raise TopicNotFound(f"Topic {name} not found")
    return name


def policy_subscription(request: web.Request) -> str:
    """Return the subscription of the path; as in Pulsar it may come into being later. Raises :class:`InvalidName`."""
    name = request.match_info["subscription"]
    check_subscription(name)
    return name


def refuse_reserved(subscription: str) -> None:
    """Refuse settings of the broker's own subscription. Raises :class:`PreconditionFailed`."""
    if subscription == COMPACTION:
        raise PreconditionFailed(f"{COMPACTION} is the broker's own subscription; valid: another name")


def refuse_too_many(names: Collection[str]) -> None:
    """Refuse settings for too many subscriptions. Raises :class:`PreconditionFailed`."""
    if len(names) > MAX_SUBSCRIPTION_POLICIES:
        raise PreconditionFailed(
            f"{len(names)} subscriptions of the topic would have settings; valid: at most {MAX_SUBSCRIPTION_POLICIES}"
        )


def refuse_own_letters(name: TopicName, policies: Policies) -> None:
    """Refuse the topic itself as its dead-letter topic. Raises :class:`PreconditionFailed`."""
    if policies.dead_letter_topic == str(name):
        raise PreconditionFailed(f"deadLetterTopic '{name}' is this topic; valid: another topic")


def require_letters(request: web.Request, policies: Policies) -> None:
    """Check that the client may produce to the dead-letter topic that it sets, which may be of another tenant.

    Raises :class:`ApiError` 401 or 403.
    """
    if policies.dead_letter_topic:
        require(request, Need.PRODUCE, on_topic(TopicName.parse(policies.dead_letter_topic)))


def refuse_global(request: web.Request) -> None:
    """Refuse global policies. Raises :class:`PreconditionFailed`, because there is one cluster."""
    if flag(request, "isGlobal"):
        raise PreconditionFailed("isGlobal=true is not supported: there is only one cluster; valid: false")


def refuse_unstored(name: TopicName, policy: PolicyPath, path: str) -> None:
    """Refuse policies of stored messages on a topic that stores none. Raises :class:`PreconditionFailed`."""
    if policy.for_stored and not name.is_persistent:
        raise PreconditionFailed(f"{path} is for persistent topics only, as {name} stores nothing")


def applied_document(broker: Broker, name: TopicName, policy: PolicyPath) -> Any:
    """Return the topic's effective policy, None if none is set. One that a level disabled is shown as it set it."""
    document = policy.read(broker.policies.effective(name))
    if document is not None:
        return document
    namespace = broker.directory.namespaces[name.namespace_name].policies
    for level in (broker.policies.of_topic(name), namespace, broker.policies.defaults):
        if level is not None:
            document = policy.read(level)
            if document is not None:
                return document
    return policy.otherwise(broker.config)


def _answer(document: Any, unset: Any) -> web.Response:
    shown = unset if document is None else document
    return web.Response(status=204) if shown is None else as_json(shown)


def _answers(policy: PolicyPath, unset: Any) -> dict[int, Any]:
    return {200: policy.answer} if unset is not None else {200: policy.answer, 204: None}


# -- namespaces ----------------------------------------------------------------------------------------------------


def _get_of_namespace(policy: PolicyPath) -> Handler:
    unset = policy.unset[0]

    @operation(f"Get the namespace's own setting: {policy.title}.", answers=_answers(policy, unset), needs=Need.ADMIN)
    async def get(request: web.Request) -> web.Response:
        record = request.app[BROKER].directory.namespace(namespace_of(request))
        return _answer(policy.read(record.policies), unset)

    return get


def _set_of_namespace(policy: PolicyPath) -> Handler:
    @operation(
        f"Set it for the namespace: {policy.title}.",
        body=policy.document,
        body_required=True,
        example=policy.sample,
        needs=Need.ADMIN,
    )
    async def set_policy(request: web.Request) -> web.Response:
        broker = request.app[BROKER]
        namespace = namespace_of(request)
        broker.directory.namespace(namespace)
        document = await new_setting(request, policy.document, policy.example)
        policies = namespace_policies(broker, namespace)
        if document is None:
            policy.clear(policies)
        else:
            policy.write(policies, document, Level(NAMESPACE, request.app[CONFIG]))
        if policy.guards_backlog:
            check_retention(broker, policies)
        if "dead_letter_topic" in policy.fields:
            require_letters(request, policies)
        broker.namespaces.set_policies(namespace, policies)
        return await accepted(broker)

    return set_policy


def _remove_of_namespace(policy: PolicyPath) -> Handler:
    @operation(f"Remove the namespace's setting, so that the broker's applies: {policy.title}.", needs=Need.ADMIN)
    async def remove(request: web.Request) -> web.Response:
        broker = request.app[BROKER]
        namespace = namespace_of(request)
        policies = namespace_policies(broker, namespace)
        policy.clear(policies)
        broker.namespaces.set_policies(namespace, policies)
        return await accepted(broker)

    return remove


# -- topics --------------------------------------------------------------------------------------------------------


def _get_of_topic(policy: PolicyPath) -> Handler:
    unset = policy.unset[1]

    @operation(
        f"Get the topic's own setting: {policy.title}.",
        query=(APPLIED, GLOBAL),
        answers=_answers(policy, unset),
        needs=Need.ADMIN,
    )
    async def get(request: web.Request) -> web.Response:
        broker = request.app[BROKER]
        name = policy_topic(request)
        applied, everywhere = flag(request, "applied"), flag(request, "isGlobal")
        if applied:
            return _answer(applied_document(broker, name, policy), None)
        # No policy is set for all clusters.
        own = broker.policies.of_topic(name) if not everywhere else None
        return _answer(policy.read(own) if own is not None else None, unset)

    return get


def _set_of_topic(policy: PolicyPath, path: str) -> Handler:
    parameters: tuple[Parameter, ...] = (GLOBAL,)
    if policy.topic_query:
        parameters += (
            Parameter(policy.topic_query, policy.document, f"The value: {policy.title}. Without it, the body's."),
        )

    @operation(
        f"Set it for the topic: {policy.title}.",
        body=policy.document,
        body_required=not policy.topic_query,
        query=parameters,
        example=policy.sample,
        needs=Need.ADMIN,
    )
    async def set_policy(request: web.Request) -> web.Response:
        broker = request.app[BROKER]
        name = policy_topic(request)
        refuse_global(request)
        refuse_unstored(name, policy, path)
        text = request.query.get(policy.topic_query, "") if policy.topic_query else ""
        if text:
            document: Any = _query_number(text, policy.topic_query)
        else:
            document = await new_setting(request, policy.document, policy.example)
            # The topic may be gone by now.
            name = policy_topic(request)
        policies = topic_policies(broker, name)
        if document is None:
            policy.clear(policies)
        else:
            policy.write(policies, document, Level(TOPIC, request.app[CONFIG]))
        if policy.guards_backlog:
            check_retention(broker, policies, name)
        if "dead_letter_topic" in policy.fields:
            refuse_own_letters(name, policies)
            require_letters(request, policies)
        broker.policies.set_topic(name, policies)
        return await accepted(broker)

    return set_policy


def _remove_of_topic(policy: PolicyPath) -> Handler:
    @operation(
        f"Remove the topic's setting, so that the namespace's applies: {policy.title}.",
        query=(GLOBAL,),
        needs=Need.ADMIN,
    )
    async def remove(request: web.Request) -> web.Response:
        broker = request.app[BROKER]
        name = policy_topic(request)
        if not flag(request, "isGlobal"):
            policies = topic_policies(broker, name)
            policy.clear(policies)
            broker.policies.set_topic(name, policies)
        return await accepted(broker)

    return remove


def _query_number(text: str, name: str) -> int:
    if not _FIGURE.fullmatch(text):
        raise ApiError(400, f"query parameter {name} should be a whole number, not '{text}'")
    number = int(text)
    if not -(2**31) <= number < 2**31:
        raise ApiError(400, f"query parameter {name} should fit in 32 bits, not {text}")
    return number


@operation("Remove all settings of the topic, so that the namespace's apply.", needs=Need.ADMIN)
async def remove_all(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    broker.policies.set_topic(policy_topic(request), Policies())
    return await accepted(broker)


def routes() -> list[web.RouteDef]:
    listed: list[web.RouteDef] = [web.delete(f"{TOPIC_PATH}/policies", remove_all)]
    for policy in (*POLICIES, *MILLISECONDS):
        if policy.namespace is not None:
            path = f"{NAMESPACE_PATH}/{policy.namespace}"
            verb = web.post if policy.verbs[0] == POST else web.put
            listed += [
                web.get(path, _get_of_namespace(policy)),
                verb(path, _set_of_namespace(policy)),
                web.delete(path, _remove_of_namespace(policy)),
            ]
        for name in policy.topic:
            path = f"{TOPIC_PATH}/{name}"
            verb = web.post if policy.verbs[1] == POST else web.put
            listed += [
                web.get(path, _get_of_topic(policy)),
                verb(path, _set_of_topic(policy, name)),
                web.delete(path, _remove_of_topic(policy)),
            ]
    return listed
