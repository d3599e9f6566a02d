"""/admin/v2/broker-stats: the statistics of every topic at once; and where to find what Pulsar's has besides."""

from __future__ import annotations

import asyncio
from typing import Final

from aiohttp import web

from heliograph_broker.messaging.errors import BrokerError

from .admin_brokers import own_address
from .admin_namespace_operations import bundle_of
from .context import BROKER, RATES, as_json
from .operations import operation
from .stats import topic_stats
from .stats_documents import TopicStats

_PATH: Final = "/admin/v2/broker-stats"
#: Topics described between two turns of the event loop.
_AT_ONCE: Final = 100
#: Pulsar's other paths, and why they have nothing to say.
_ELSEWHERE: Final = {
    "load-report": "There is no load to share with other brokers: figures of this one are at /metrics",
    "metrics": "Figures of the broker are at /metrics",
    "mbeans": "This broker has no Java beans: its figures are at /metrics",
    "allocator-stats/{allocator}": "This broker has no Java allocators: its figures are at /metrics",
    "broker-resource-availability/{tenant}/{namespace}": "There is no load manager to ask: figures are at /metrics",
}

_Topics = dict[str, dict[str, dict[str, dict[str, TopicStats]]]]


class NothingThere(BrokerError):
    http_status = 404


@operation(
    "The statistics of all topics, by namespace, bundle and domain.",
    answers={200: _Topics},
)
async def all_topics(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    rates, owner = request.app[RATES], own_address(request)
    found: _Topics = {}
    for at, topic in enumerate(list(broker.topics.values())):
        if at % _AT_ONCE == _AT_ONCE - 1:
            await asyncio.sleep(0)
        name = topic.name
        namespace = broker.namespaces.get(name.namespace_name)
        if namespace is None or topic.closed:
            continue
        bundle = bundle_of(name, namespace.bundles)
        domain = found.setdefault(name.namespace_name, {}).setdefault(bundle, {}).setdefault(name.domain, {})
        domain[str(name)] = topic_stats(topic, rates, owner)
    return as_json(found)


def _nothing(path: str, reason: str) -> web.RouteDef:
    @operation(f"{reason}.")
    async def refuse(request: web.Request) -> web.Response:
        raise NothingThere(reason)

    return web.get(f"{_PATH}/{path}", refuse)


def routes() -> list[web.RouteDef]:
    return [web.get(f"{_PATH}/topics", all_topics), *(_nothing(path, why) for path, why in _ELSEWHERE.items())]
