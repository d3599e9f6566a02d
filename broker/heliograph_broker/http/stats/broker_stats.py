"""/admin/v2/broker-stats: the statistics of every topic at once."""

from __future__ import annotations

import asyncio
from typing import Final

from aiohttp import web

from heliograph_broker.http.base.bundles import bundle_of
from heliograph_broker.http.base.context import BROKER, RATES, as_json
from heliograph_broker.http.base.operations import operation
from heliograph_broker.http.brokers.admin_brokers import own_address
from heliograph_broker.security.authorization.needs import Need

from .stats import topic_stats
from .stats_documents import TopicStats

_PATH: Final = "/admin/v2/broker-stats"
#: Topics described between two turns of the event loop.
_AT_ONCE: Final = 100
_Topics = dict[str, dict[str, dict[str, dict[str, TopicStats]]]]


@operation(
    "Get the statistics of all topics by namespace, bundle and domain.",
    answers={200: _Topics},
    needs=Need.MONITOR,
)
async def all_topics(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    rates, owner = request.app[RATES], own_address(request)
    found: _Topics = {}
    for at, topic in enumerate(list(broker.directory.topics.values())):
        if at % _AT_ONCE == _AT_ONCE - 1:
            await asyncio.sleep(0)
        name = topic.name
        namespace = broker.directory.namespaces.get(name.namespace_name)
        if namespace is None or topic.closed:
            continue
        bundle = bundle_of(name, namespace)
        domain = found.setdefault(name.namespace_name, {}).setdefault(bundle, {}).setdefault(name.domain, {})
        domain[str(name)] = topic_stats(topic, rates, owner)
    return as_json(found)


def routes() -> list[web.RouteDef]:
    return [web.get(f"{_PATH}/topics", all_topics)]
