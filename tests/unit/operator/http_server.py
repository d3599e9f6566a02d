"""An HTTP server in the place of the API server, which the client finds by a kubeconfig."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path

from aiohttp import web


async def serve(answer: Callable[[web.Request], Awaitable[web.Response]], kubeconfig: Path) -> web.AppRunner:
    """Serve all requests by ``answer`` and write a kubeconfig that names it. Clean it up in the end."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    _write(kubeconfig, f"http://127.0.0.1:{runner.addresses[0][1]}")
    return runner


def _write(kubeconfig: Path, address: str) -> None:
    config = {
        "clusters": [{"name": "c", "cluster": {"server": address}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    kubeconfig.write_text(json.dumps(config))
