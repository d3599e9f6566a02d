"""What can be done to all topics of a namespace, or of one of its bundles: clear backlogs, unsubscribe, unload.

A bundle is a range of hashes of topic names, as in Pulsar. One broker serves all of them, so they matter only as a
way to name some of a namespace's topics; the whole range is taken as a bundle too.
"""

from __future__ import annotations

import re
import zlib
from typing import Final

from aiohttp import web

from heliograph_broker.messaging.broker import AnyTopic, Broker
from heliograph_broker.messaging.errors import BrokerError, PreconditionFailed, SubscriptionNotFound
from heliograph_broker.messaging.topic import Topic
from heliograph_broker.resources.names import TopicName

from .admin_backlog import backlogs
from .admin_subscriptions import check_idle
from .awaiting import all_durable
from .context import BROKER, accepted, namespace_of
from .namespace_document import bundle_boundaries
from .operations import operation

NAMESPACE_PATH: Final = "/admin/v2/namespaces/{tenant}/{namespace}"
BUNDLE_PATH: Final = f"{NAMESPACE_PATH}/{{bundle}}"
WHOLE_RANGE: Final = "0x00000000_0xffffffff"
_BUNDLE = re.compile(r"(0x[0-9a-fA-F]{8})_(0x[0-9a-fA-F]{8})")


class BundlesStay(BrokerError):
    http_status = 405


def bundle_of(name: TopicName, bundles: int) -> str:
    """Return the bundle, of ``bundles`` equal ones, that a topic's name falls into: by its CRC-32, as in Pulsar."""
    edges = bundle_boundaries(bundles)
    at = min(zlib.crc32(str(name).encode()) // (0x1_0000_0000 // bundles), bundles - 1)
    return f"{edges[at]}_{edges[at + 1]}"


def _topics(request: web.Request) -> list[AnyTopic]:
    """Return the topics of the path's namespace, or bundle of it. Raises what says that there is no such thing."""
    broker = request.app[BROKER]
    namespace = namespace_of(request)
    bundles = broker.namespace(namespace).bundles
    topics = list(broker.topics_by_namespace.get(namespace, {}).values())
    bundle = request.match_info.get("bundle")
    if bundle is None:
        return topics
    check_bundle(namespace, bundle, bundles)
    return [topic for topic in topics if bundle == WHOLE_RANGE or bundle_of(topic.name, bundles) == bundle]


def check_bundle(namespace: str, bundle: str, bundles: int) -> None:
    """Raises :class:`PreconditionFailed` unless ``bundle`` is one of the namespace's, or the whole range."""
    match = _BUNDLE.fullmatch(bundle)
    if match is None:
        raise PreconditionFailed(f"Invalid bundle range: {bundle}; one looks like {WHOLE_RANGE}")
    if bundle == WHOLE_RANGE:
        return
    edges = bundle_boundaries(bundles)
    if match[1] not in edges[:-1]:
        raise PreconditionFailed(f"Invalid lower boundary for bundle {namespace}/{bundle}. Valid: {', '.join(edges)}")
    upper = edges[edges.index(match[1]) + 1]
    if match[2] != upper:
        raise PreconditionFailed(
            f"Invalid upper boundary for bundle {namespace}/{bundle}."
            f" Expected upper boundary of {namespace}/{match[1]}_{upper}"
        )


@operation("Clear the backlogs of all subscriptions of a namespace, or of one bundle.")
async def clear_backlog(request: web.Request) -> web.Response:
    await all_durable(subscription.clear_backlog for subscription in backlogs(_topics(request)))
    return web.Response(status=204)


@operation("Clear the backlogs of the subscriptions of this name in a namespace, or in one bundle.")
async def clear_backlog_of(request: web.Request) -> web.Response:
    name = request.match_info["subscription"]
    topics = [topic for topic in _topics(request) if isinstance(topic, Topic) and name in topic.subscriptions]
    if not topics and "bundle" not in request.match_info:
        raise SubscriptionNotFound(f"Subscription {name} not found for any topic of {namespace_of(request)}")
    await all_durable(topic.subscriptions[name].clear_backlog for topic in topics)
    return web.Response(status=204)


@operation("Delete the subscriptions of this name from all topics of a namespace, or of one bundle, or from none.")
async def unsubscribe(request: web.Request) -> web.Response:
    name = request.match_info["subscription"]
    topics = [topic for topic in _topics(request) if name in topic.subscriptions]
    check_idle(topics, name, force=False)
    for topic in topics:
        topic.delete_subscription(name)
    return await accepted(request.app[BROKER])


@operation("Ask all clients of a namespace's topics, or of one bundle's, to connect again.")
async def unload(request: web.Request) -> web.Response:
    broker: Broker = request.app[BROKER]
    for topic in _topics(request):
        broker.unload_topic(topic.name)
    return await accepted(broker)


@operation("Split a bundle: refused, as one broker serves all of them.")
async def split(request: web.Request) -> web.Response:
    _topics(request)
    raise BundlesStay("Bundles are not split: one broker serves all topics of a namespace")


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
        web.put(f"{BUNDLE_PATH}/split", split),
    ]
