"""The HTTP application over a real broker and a real store, on the test's own event loop."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from aiohttp.typedefs import Handler
from heliograph_api.broker_config import BrokerConfig
from heliograph_broker.clock import SystemClock
from heliograph_broker.http.app import Endpoints, create_app
from heliograph_broker.http.base.authentication import IDENTITY
from heliograph_broker.messaging.broker.broker import Broker
from heliograph_broker.security.authentication.authenticator import Authenticator
from heliograph_broker.security.authentication.failure_log import FailureLog
from heliograph_broker.security.authorization.authorizer import Authorizer
from heliograph_broker.security.identity import Identity
from heliograph_broker.security.security import Security
from heliograph_broker.storage.base.scheduler import LoopScheduler
from heliograph_broker.storage.store import LedgerStore
from yarl import URL


class Answer(NamedTuple):
    """Status, decoded JSON (or text, or None without a body), and headers."""

    status: int
    body: Any
    headers: Any


class HttpApi:
    """Requests with the path exactly as given: nothing is encoded or normalized on the way."""

    def __init__(self, broker: Broker, client: TestClient[Any, Any], security: Security | None = None) -> None:
        self.broker = broker
        self.security = security
        self._client = client

    @property
    def app(self) -> web.Application:
        """The application that is served."""
        server = self._client.server
        assert isinstance(server, TestServer)
        return server.app

    @property
    def url(self) -> str:
        """The URL it is served at."""
        return str(self._client.make_url("/"))

    async def request(self, method: str, path: str, body: str | bytes | None = None, **headers: str) -> Answer:
        """Send ``body`` as it is; header names are given with ``_`` for ``-``."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        url = URL(str(self._client.make_url("/")).rstrip("/") + path, encoded=True)
        async with self._client.session.request(method, url, data=body, headers=named) as response:
            text = await response.text(errors="replace")
            is_json = response.content_type == "application/json" and bool(text)
            return Answer(response.status, await response.json() if is_json else text or None, response.headers)

    async def get(self, path: str) -> Any:
        """Return the body of a GET that must succeed."""
        answer = await self.request("GET", path)
        assert answer.status == 200, answer
        return answer.body

    async def done(self, method: str, path: str, body: str | None = None) -> None:
        """Send a change that must be accepted."""
        answer = await self.request(method, path, body)
        assert answer.status == 204, answer


@web.middleware
async def identified(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Stand in for authentication: the role is in the header ``Role``, that of a proxy in ``Via``."""
    if "Role" in request.headers:
        request[IDENTITY] = Identity(request.headers["Role"], "token", via=request.headers.get("Via", ""))
    return await handler(request)


@asynccontextmanager
async def running_api(
    data_dir: Path, *, authorization: Mapping[str, Any] | None = None, **settings: Any
) -> AsyncIterator[HttpApi]:
    """Open the store in ``data_dir``, load the broker with ``settings``, serve; and close everything in order.

    With ``authorization``, the arguments of an :class:`Authorizer`, requests have the rights of their ``Role``.
    """
    clock = SystemClock()
    store = LedgerStore.open(data_dir, clock, scheduler=LoopScheduler(asyncio.get_running_loop()))
    try:
        config = BrokerConfig(data_dir=str(data_dir), **settings)
        broker = Broker(store, clock, config, random.Random(7))
        broker.load()
        endpoints = Endpoints("pulsar://127.0.0.1:6650", "http://127.0.0.1:8080")
        security = None
        if authorization is not None:
            authorizer = Authorizer(broker.directory, **authorization)
            security = Security(Authenticator([]), authorizer, FailureLog(clock), 60.0)
        app = create_app(broker, config, endpoints, security)
        if security is not None:
            app.middlewares.insert(0, identified)
        async with TestClient(TestServer(app)) as client:
            yield HttpApi(broker, client, security)
        committed = asyncio.Event()
        store.writer.after_commit(lambda error: committed.set())
        await committed.wait()
    finally:
        store.close()
