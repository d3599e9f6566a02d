"""The handlers of policies that a single subscription sets, before those of its topic: read, set, remove.

Pulsar has no such paths. A subscription need not exist: what is set applies whenever one of the name does.
"""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web
from heliograph_api.policies.policies import Policies, of_subscription
from heliograph_api.values.names import TopicName

from heliograph_broker.http.base.context import BROKER, CONFIG, accepted, as_json, flag, new_setting
from heliograph_broker.http.base.operations import Handler, Parameter, operation
from heliograph_broker.http.topics.admin_topics import DOMAIN
from heliograph_broker.messaging.broker.broker import Broker
from heliograph_broker.security.authorization.needs import Need

from .policy_description import TOPIC, Level, PolicyPath
from .policy_routes import (
    policy_subscription,
    policy_topic,
    refuse_own_letters,
    refuse_reserved,
    refuse_too_many,
    refuse_unstored,
    require_letters,
    topic_policies,
)
from .policy_table import SUBSCRIPTION_PATHS

_PATH = f"/heliograph/v1/{DOMAIN}/{{tenant}}/{{namespace}}/{{topic}}/subscription/{{subscription}}"
_APPLIED = Parameter("applied", bool, "Get the effective policy: the subscription's, else the topic's, and so on.")


def _own(policies: Policies | None, subscription: str) -> Policies:
    """Return a copy of the subscription's own settings, to change."""
    own = (policies.subscription_policies if policies is not None else None) or {}
    return msgspec.structs.replace(own.get(subscription, Policies()))


def _put(broker: Broker, name: TopicName, subscription: str, own: Policies) -> None:
    policies = topic_policies(broker, name)
    others = {key: value for key, value in (policies.subscription_policies or {}).items() if key != subscription}
    if own != Policies():
        if subscription not in (policies.subscription_policies or {}):
            refuse_too_many([*others, subscription])
        others[subscription] = own
    policies.subscription_policies = others or None
    broker.policies.set_topic(name, policies)


def _applied(broker: Broker, name: TopicName, subscription: str, policy: PolicyPath) -> Any:
    """Return the effective policy of the subscription; a policy that a level disabled is shown as that level set it."""
    own = broker.policies.of_topic(name)
    namespace = broker.directory.namespaces[name.namespace_name].policies
    effective = of_subscription(broker.policies.effective(name), subscription)
    for level in (effective, _own(own, subscription), own, namespace, broker.policies.defaults):
        if level is not None and (document := policy.read(level)) is not None:
            return document
    return policy.otherwise(broker.config)


def _get(policy: PolicyPath) -> Handler:
    @operation(
        f"Get the subscription's own setting: {policy.title}.",
        query=(_APPLIED,),
        answers={200: policy.answer, 204: None},
        needs=Need.ADMIN,
    )
    async def get(request: web.Request) -> web.Response:
        broker = request.app[BROKER]
        name, subscription = policy_topic(request), policy_subscription(request)
        if flag(request, "applied"):
            return as_json(_applied(broker, name, subscription, policy))
        document = policy.read(_own(broker.policies.of_topic(name), subscription))
        return web.Response(status=204) if document is None else as_json(document)

    return get


def _set(policy: PolicyPath, end: str) -> Handler:
    @operation(
        f"Set it for the subscription: {policy.title}.",
        body=policy.document,
        body_required=True,
        example=policy.sample,
        needs=Need.ADMIN,
    )
    async def set_policy(request: web.Request) -> web.Response:
        broker = request.app[BROKER]
        subscription = policy_subscription(request)
        refuse_reserved(subscription)
        refuse_unstored(policy_topic(request), policy, end)
        document = await new_setting(request, policy.document, policy.example)
        # The topic may be gone by now.
        name = policy_topic(request)
        own = _own(broker.policies.of_topic(name), subscription)
        if document is None:
            policy.clear(own)
        else:
            policy.write(own, document, Level(TOPIC, request.app[CONFIG]))
            refuse_own_letters(name, own)
            require_letters(request, own)
        _put(broker, name, subscription, own)
        return await accepted(broker)

    return set_policy


def _remove(policy: PolicyPath) -> Handler:
    @operation(f"Remove the subscription's setting, so that the topic's applies: {policy.title}.", needs=Need.ADMIN)
    async def remove(request: web.Request) -> web.Response:
        broker = request.app[BROKER]
        name, subscription = policy_topic(request), policy_subscription(request)
        own = _own(broker.policies.of_topic(name), subscription)
        policy.clear(own)
        _put(broker, name, subscription, own)
        return await accepted(broker)

    return remove


def routes() -> list[web.RouteDef]:
    listed: list[web.RouteDef] = []
    for end, policy in SUBSCRIPTION_PATHS.items():
        path = f"{_PATH}/{end}"
        listed += [web.get(path, _get(policy)), web.post(path, _set(policy, end)), web.delete(path, _remove(policy))]
    return listed
