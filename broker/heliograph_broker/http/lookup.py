"""/lookup/v2/topic: which broker serves a topic. Every topic is served here."""

from __future__ import annotations

from aiohttp import web

from .admin_topics import DOMAIN
from .context import BROKER, ENDPOINTS, as_json, as_text, topic_of


async def lookup(request: web.Request) -> web.Response:
    request.app[BROKER].namespace(topic_of(request).namespace_name)
    endpoints = request.app[ENDPOINTS]
    return as_json(
        {
            "brokerUrl": endpoints.broker_url,
            "httpUrl": endpoints.http_url,
            "nativeUrl": endpoints.broker_url,
            "brokerUrlSsl": "",
        }
    )


async def bundle(request: web.Request) -> web.Response:
    """The hash range of the one bundle that one broker needs."""
    request.app[BROKER].namespace(topic_of(request).namespace_name)
    return as_text("0x00000000_0xffffffff")


def routes() -> list[web.RouteDef]:
    path = f"/lookup/v2/topic/{DOMAIN}/{{tenant}}/{{namespace}}/{{topic}}"
    return [web.get(path, lookup), web.get(f"{path}/bundle", bundle)]
