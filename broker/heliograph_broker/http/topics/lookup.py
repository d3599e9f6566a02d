"""/lookup/v2/topic: which broker serves a topic. Every topic is served here."""

from __future__ import annotations

import msgspec
from aiohttp import web
from heliograph_api.values.names import InvalidName

from heliograph_broker.http.base.bundles import bundle_of
from heliograph_broker.http.base.context import BROKER, ENDPOINTS, as_json, as_text, topic_of
from heliograph_broker.http.base.operations import operation
from heliograph_broker.messaging.base.errors import BrokerError

from .admin_topics import DOMAIN


class LookupAnswer(msgspec.Struct, rename="camel"):
    """Pulsar's LookupData: where clients and tools reach the broker."""

    broker_url: str
    http_url: str
    native_url: str
    broker_url_ssl: str = ""


@operation("Get the address of the broker that serves a topic; the topic need not exist.", answers={200: LookupAnswer})
async def lookup(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    began = broker.clock.monotonic()
    try:
        broker.directory.namespace(topic_of(request).namespace_name)
    except (BrokerError, InvalidName):
        broker.metrics.lookup_answered(began, found=False)
        raise
    endpoints = request.app[ENDPOINTS]
    broker.metrics.lookup_answered(began, found=True)
    return as_json(LookupAnswer(endpoints.broker_url, endpoints.http_url, endpoints.broker_url))


@operation("Get the bundle of a topic: the hash range of its name.", answers={200: str})
async def bundle(request: web.Request) -> web.Response:
    name = topic_of(request)
    return as_text(bundle_of(name, request.app[BROKER].directory.namespace(name.namespace_name).bundles))


def routes() -> list[web.RouteDef]:
    path = f"/lookup/v2/topic/{DOMAIN}/{{tenant}}/{{namespace}}/{{topic}}"
    return [web.get(path, lookup), web.get(f"{path}/bundle", bundle)]
