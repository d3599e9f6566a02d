"""Operations on all topics of a namespace or bundle: clear backlogs, unsubscribe, unload."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from heliograph_broker.http.base.access import every_subscription_of_path
from heliograph_broker.http.base.await_result import all_durable
from heliograph_broker.http.base.bundles import check_bundle, in_bundle
from heliograph_broker.http.base.context import BROKER, accepted, namespace_of
from heliograph_broker.http.base.errors import ApiError
from heliograph_broker.http.base.operations import operation
from heliograph_broker.http.policies.policy_routes import NAMESPACE_PATH
from heliograph_broker.http.topics.admin_backlog import backlogs
from heliograph_broker.http.topics.admin_subscriptions import require_deletion, subscription_of
from heliograph_broker.messaging.base.errors import SubscriptionNotFound
from heliograph_broker.messaging.broker.admission import check_subscription_name
from heliograph_broker.messaging.broker.broker import Broker
from heliograph_broker.messaging.topic.directory import AnyTopic
from heliograph_broker.security.authorization.needs import Need, on_namespace
from heliograph_broker.usecases.subscriptions import delete_subscription

BUNDLE_PATH: Final = f"{NAMESPACE_PATH}/{{bundle}}"


def bundle_topics(request: web.Request) -> list[AnyTopic]:
    """Return the topics of the path's namespace, or bundle of it. Raises what says that there is no such thing."""
    broker = request.app[BROKER]
    namespace = namespace_of(request)
    record = broker.directory.namespace(namespace)
    topics = list(broker.directory.topics_by_namespace.get(namespace, {}).values())
    bundle = request.match_info.get("bundle")
    if bundle is None:
        return topics
    check_bundle(namespace, bundle, record)
    return [topic for topic in topics if in_bundle(topic.name, bundle, record)]


@operation(
    "Clear the backlogs of all subscriptions of a namespace, or of one bundle.",
    needs=Need.CONSUME,
    on=every_subscription_of_path,
)
async def clear_backlog(request: web.Request) -> web.Response:
    await all_durable(subscription.acks.clear_backlog for subscription in backlogs(bundle_topics(request)))
    return web.Response(status=204)


@operation("Clear the backlogs of the subscriptions of this name in a namespace, or in one bundle.", needs=Need.CONSUME)
async def clear_backlog_of(request: web.Request) -> web.Response:
    name = subscription_of(request)
    check_subscription_name(name)
    topics = [topic for topic in bundle_topics(request) if topic.persistent and name in topic.subscriptions]
    if not topics and "bundle" not in request.match_info:
        raise SubscriptionNotFound(f"Subscription {name} not found for any topic of {namespace_of(request)}")
    await all_durable(topic.subscriptions[name].acks.clear_backlog for topic in topics)
    return web.Response(status=204)


@operation(
    "Delete the subscriptions of this name from all topics of a namespace, or of one bundle, or from none.",
    needs=Need.CONSUME,
)
async def unsubscribe(request: web.Request) -> web.Response:
    name = subscription_of(request)
    require_deletion(request, on_namespace(namespace_of(request)))
    topics = [topic for topic in bundle_topics(request) if name in topic.subscriptions]
    delete_subscription(topics, name)
    return await accepted(request.app[BROKER])


@operation("Unload the topics of a namespace or bundle: their clients reconnect.", needs=Need.SUPERUSER)
async def unload(request: web.Request) -> web.Response:
    broker: Broker = request.app[BROKER]
    for topic in bundle_topics(request):
        broker.topics.unload(topic.name)
    return await accepted(broker)


@operation(
    "Give up a bundle without topics, which changes nothing here: one broker serves all of them.", needs=Need.ADMIN
)
async def delete_bundle(request: web.Request) -> web.Response:
    if bundle_topics(request):
        raise ApiError(409, "Cannot delete non empty bundle")
    return await accepted(request.app[BROKER])


def routes() -> list[web.RouteDef]:
    return [
        web.post(f"{NAMESPACE_PATH}/clearBacklog", clear_backlog),
        web.post(f"{NAMESPACE_PATH}/clearBacklog/{{subscription}}", clear_backlog_of),
        web.post(f"{BUNDLE_PATH}/clearBacklog", clear_backlog),
        web.post(f"{BUNDLE_PATH}/clearBacklog/{{subscription}}", clear_backlog_of),
        web.post(f"{NAMESPACE_PATH}/unsubscribe/{{subscription}}", unsubscribe),
        web.post(f"{BUNDLE_PATH}/unsubscribe/{{subscription}}", unsubscribe),
        web.put(f"{NAMESPACE_PATH}/unload", unload),
        web.put(f"{BUNDLE_PATH}/unload", unload),
        # Behind a namespace's path there are settings as well.
        web.delete(f"{NAMESPACE_PATH}/{{bundle:0x[^/]*}}", delete_bundle),
    ]
