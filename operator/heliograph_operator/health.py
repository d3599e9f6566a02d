"""Serves /healthz, /readyz and /metrics."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from . import operator_metrics
from .objects.resource_cache import ResourceCache
from .resource_metrics import ResourceMetrics


class Health:
    """The HTTP server of the three, on one port; ``problem`` returns why the operator is not ready, or nothing."""

    def __init__(self, cache: ResourceCache, problem: Callable[[], str]) -> None:
        self._resources = CollectorRegistry()
        self._resources.register(ResourceMetrics(cache))
        self._problem = problem
        self._runner: web.AppRunner | None = None

    async def start(self, bind: str, port: int) -> int:
        """Start to serve; return the port."""
        app = web.Application()
        app.add_routes(
            [web.get("/healthz", self._alive), web.get("/readyz", self._ready), web.get("/metrics", self._metrics)]
        )
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, None if bind == "*" else bind, port).start()
        return int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        """Stop to serve, if it was started."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _alive(self, _: web.Request) -> web.Response:
        # An answer proves health: everything runs in this one loop, and a task that fails ends the process.
        return web.Response(text="ok\n")

    async def _ready(self, _: web.Request) -> web.Response:
        if problem := self._problem():
            return web.Response(status=503, text=f"{problem}\n")
        return web.Response(text="ok\n")

    async def _metrics(self, _: web.Request) -> web.Response:
        text = generate_latest(operator_metrics.REGISTRY) + generate_latest(self._resources)
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE_LATEST})
