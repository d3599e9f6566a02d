"""The dispatch rate of one subscription of a topic, before the one its topic gives to all of them."""

from __future__ import annotations

from aiohttp import web
from heliograph_api.policies.policies import subscription_rate

from heliograph_broker.http.base.context import BROKER, accepted, as_json, flag, new_setting
from heliograph_broker.http.base.operations import operation
from heliograph_broker.http.topics.admin_topics import TOPIC_PATH
from heliograph_broker.security.authorization.needs import Need

from .policy_documents import DispatchRateDocument, dispatch_rate_document, dispatch_rate_from
from .policy_routes import (
    APPLIED,
    GLOBAL,
    applied_document,
    policy_subscription,
    policy_topic,
    refuse_global,
    refuse_reserved,
    refuse_too_many,
    topic_policies,
)
from .policy_table import PATHS

_FOR_ALL = PATHS["subscription_dispatch_rate"]


@operation(
    "Get the dispatch rate of one subscription.",
    query=(APPLIED, GLOBAL),
    answers={200: DispatchRateDocument, 204: None},
    needs=Need.ADMIN,
)
async def get_rate(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    name, subscription = policy_topic(request), policy_subscription(request)
    own = broker.policies.of_topic(name)
    rates = (own.subscription_dispatch_rates if own is not None else None) or {}
    if flag(request, "applied"):
        if subscription not in rates:
            return as_json(applied_document(broker, name, _FOR_ALL))
        effective = subscription_rate(broker.policies.effective(name), subscription)
        return as_json(dispatch_rate_document(effective if effective is not None else rates[subscription]))
    if subscription not in rates or flag(request, "isGlobal"):
        return web.Response(status=204)
    return as_json(dispatch_rate_document(rates[subscription]))


@operation(
    "Set the dispatch rate of one subscription.",
    body=DispatchRateDocument,
    body_required=True,
    query=(GLOBAL,),
    example=_FOR_ALL.sample,
    needs=Need.ADMIN,
)
async def set_rate(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    policy_topic(request)
    refuse_global(request)
    subscription = policy_subscription(request)
    refuse_reserved(subscription)
    document = await new_setting(request, DispatchRateDocument, _FOR_ALL.example)
    # The topic may be gone by now.
    name = policy_topic(request)
    policies = topic_policies(broker, name)
    before = policies.subscription_dispatch_rates or {}
    rates = {name: rate for name, rate in before.items() if name != subscription}
    if document is not None:
        rates[subscription] = dispatch_rate_from(document)
        if subscription not in before:
            refuse_too_many(rates)
    policies.subscription_dispatch_rates = rates or None
    broker.policies.set_topic(name, policies)
    return await accepted(broker)


@operation(
    "Remove the subscription's own dispatch rate, so that the topic's rate for each subscription applies.",
    query=(GLOBAL,),
    needs=Need.ADMIN,
)
async def remove_rate(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    name, subscription = policy_topic(request), policy_subscription(request)
    policies = topic_policies(broker, name)
    rates = dict(policies.subscription_dispatch_rates or {})
    if not flag(request, "isGlobal") and rates.pop(subscription, None) is not None:
        policies.subscription_dispatch_rates = rates or None
        broker.policies.set_topic(name, policies)
    return await accepted(broker)


def routes() -> list[web.RouteDef]:
    path = f"{TOPIC_PATH}/{{subscription}}/dispatchRate"
    return [web.get(path, get_rate), web.post(path, set_rate), web.delete(path, remove_rate)]
