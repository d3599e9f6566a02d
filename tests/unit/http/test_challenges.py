"""A request without credentials gets to know the methods of authentication that are switched on, and no others."""

from __future__ import annotations

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from heliograph_broker.http.base.access import authorized
from heliograph_broker.http.base.challenges import METHODS
from heliograph_broker.http.base.errors import errors_as_json


async def nothing(request: web.Request) -> web.Response:
    return web.Response()


@pytest.mark.parametrize(
    ("methods", "challenges", "ways"),
    [
        (("token",), ["Bearer"], "token (Authorization: Bearer TOKEN)"),
        (("tls",), ["TLS"], "tls (a client certificate)"),
        (
            ("token", "tls", "basic"),
            ["Bearer", "TLS", 'Basic realm="heliograph", charset="UTF-8"'],
            "token (Authorization: Bearer TOKEN), tls (a client certificate), "
            "basic (Authorization: Basic, USER:PASSWORD in base64)",
        ),
    ],
)
async def test_a_request_without_credentials(methods: tuple[str, ...], challenges: list[str], ways: str) -> None:
    app = web.Application(middlewares=[errors_as_json, authorized])
    app[METHODS] = methods
    app.router.add_get("/", nothing)
    async with TestClient(TestServer(app)) as client:
        for path in ("/", "/no/such/path"):
            answer = await client.get(path)
            assert answer.status == 401
            assert answer.headers.getall("WWW-Authenticate") == challenges
            assert await answer.json() == {"reason": f"the request needs credentials; valid here: {ways}"}
