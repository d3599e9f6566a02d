"""POST /heliograph/v1/apply: manifests as a file would hold them, applied to the running broker."""

from __future__ import annotations

from aiohttp import web

from heliograph_broker.messaging.apply import apply_resources
from heliograph_broker.resources.manifests import ManifestError, parse

from .context import BROKER, as_json, committed
from .errors import ApiError


async def apply(request: web.Request) -> web.Response:
    """Answer with what was done to each resource, once durable; nothing is done if anything is wrong."""
    broker = request.app[BROKER]
    body = await request.read()
    try:
        resources = parse(body.decode(), "request body")
    except UnicodeDecodeError as error:
        raise ApiError(400, f"request body: not UTF-8: {error}") from error
    except ManifestError as error:
        raise ApiError(422, str(error)) from error
    applied = apply_resources(broker, resources)
    await committed(broker)
    return as_json({"results": applied})


def routes() -> list[web.RouteDef]:
    return [web.post("/heliograph/v1/apply", apply)]
