"""/healthz, /readyz and /metrics."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from . import operator_metrics
from .objects.kinds import KINDS
from .objects.resource_cache import Store


class Health:
    """Serves them on one port; use it with ``start`` and ``stop``."""

    def __init__(self, store: Store, ready: Callable[[], bool]) -> None:
        self._store = store
        self._ready = ready
        self._runner: web.AppRunner | None = None

    async def start(self, bind: str, port: int) -> int:
        """Serve, and return the port."""
        app = web.Application()
        app.add_routes(
            [web.get("/healthz", self._alive), web.get("/readyz", self._readiness), web.get("/metrics", self._metrics)]
        )
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, bind, port).start()
        return int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _alive(self, _: web.Request) -> web.Response:
        # That it answers is the health: everything is in this one loop, and a task that fails ends the process.
        return web.Response(text="ok\n")

    async def _readiness(self, _: web.Request) -> web.Response:
        # One that waits to lead is ready: it takes over when it has to.
        return web.Response(text="ok\n") if self._ready() else web.Response(status=503, text="starting\n")

    async def _metrics(self, _: web.Request) -> web.Response:
        for kind in KINDS:
            operator_metrics.RESOURCES.labels(kind).set(len(self._store.keys(kind)))
        return web.Response(
            body=generate_latest(operator_metrics.REGISTRY), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )
