"""Serves /healthz, /readyz and /metrics."""

from __future__ import annotations

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from . import operator_metrics
from .objects.kinds import KINDS
from .objects.resource_cache import ResourceCache


class Health:
    """The HTTP server of the three, on one port."""

    def __init__(self, cache: ResourceCache) -> None:
        self._cache = cache
        self._runner: web.AppRunner | None = None

    async def start(self, bind: str, port: int) -> int:
        """Start to serve; return the port."""
        app = web.Application()
        app.add_routes(
            [web.get("/healthz", self._alive), web.get("/readyz", self._ready), web.get("/metrics", self._metrics)]
        )
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, bind, port).start()
        return int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        """Stop to serve, if it was started."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _alive(self, _: web.Request) -> web.Response:
        # An answer proves health: everything runs in this one loop, and a task that fails ends the process.
        return web.Response(text="ok\n")

    async def _ready(self, _: web.Request) -> web.Response:
        # An operator that waits for leadership is ready: it takes over when it has to.
        return web.Response(text="ok\n")

    async def _metrics(self, _: web.Request) -> web.Response:
        for kind in KINDS:
            operator_metrics.RESOURCES.labels(kind).set(len(self._cache.keys(kind)))
        return web.Response(
            body=generate_latest(operator_metrics.REGISTRY), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )
