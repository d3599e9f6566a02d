"""/lookup/v2/topic: which broker serves a topic. Every topic is served here."""

from __future__ import annotations

import msgspec
from aiohttp import web
from heliograph_api.values.listeners import ServiceUrls
from heliograph_api.values.names import InvalidName
from msgspec import UNSET, UnsetType

from heliograph_broker.http.base.access import namespace_of_path
from heliograph_broker.http.base.bundles import bundle_of
from heliograph_broker.http.base.context import BROKER, CONFIG, ENDPOINTS, as_json, as_text, topic_of
from heliograph_broker.http.base.operations import Parameter, operation
from heliograph_broker.messaging.base.errors import BrokerError
from heliograph_broker.security.authorization.needs import Need
from heliograph_broker.usecases.topics import advertised_urls

from .admin_topics import DOMAIN


class LookupAnswer(msgspec.Struct, rename="camel"):
    """Pulsar's LookupData: where clients and tools reach the broker."""

    broker_url: str
    http_url: str
    native_url: str
    broker_url_ssl: str = ""
    broker_url_tls: str | UnsetType = UNSET
    http_url_tls: str | UnsetType = UNSET


#: Pulsar's clients send the header, its tools and others the parameter.
_LISTENER_HEADER = "X-Pulsar-ListenerName"
_LISTENER = Parameter("listenerName", str, "one of the broker's advertised listeners; default: the internal one")


@operation(
    "Get the address of the broker that serves a topic; the topic need not exist.",
    query=(_LISTENER,),
    answers={200: LookupAnswer},
    needs=Need.LOOKUP,
)
async def lookup(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    began = broker.clock.monotonic()
    try:
        broker.directory.namespace(topic_of(request).namespace_name)
        listener = request.query.get("listenerName") or request.headers.get(_LISTENER_HEADER) or ""
        endpoints = request.app[ENDPOINTS]
        own = ServiceUrls(endpoints.broker_url, endpoints.broker_tls_url)
        urls = advertised_urls(request.app[CONFIG], listener) or own
    except (BrokerError, InvalidName):
        broker.metrics.lookup_answered(began, found=False)
        raise
    broker.metrics.lookup_answered(began, found=True)
    return as_json(
        LookupAnswer(
            urls.plain,
            endpoints.http_url,
            urls.plain,
            urls.encrypted,
            urls.encrypted or UNSET,
            endpoints.https_url or UNSET,
        )
    )


@operation(
    "Get the bundle of a topic: the hash range of its name.",
    answers={200: str},
    needs=Need.LOOKUP,
    on=namespace_of_path,
)
async def bundle(request: web.Request) -> web.Response:
    name = topic_of(request)
    return as_text(bundle_of(name, request.app[BROKER].directory.namespace(name.namespace_name)))


def routes() -> list[web.RouteDef]:
    path = f"/lookup/v2/topic/{DOMAIN}/{{tenant}}/{{namespace}}/{{topic}}"
    return [web.get(path, lookup), web.get(f"{path}/bundle", bundle)]
