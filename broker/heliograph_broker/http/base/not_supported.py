"""Paths of Pulsar's API that this broker does not support: they answer why, and what to use instead."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from .context import as_json
from .errors import ApiError
from .operations import Refusal, operation

_METRICS: Final = "the broker's metrics are at /metrics"
_NO_BOOKIES: Final = "There are no bookies: the broker stores messages itself"
_NO_QUOTAS: Final = "There is no load to balance, so namespaces have no resource quotas"
_NO_FUNCTIONS: Final = "Functions, sources and sinks are not run here"
_UNSUPPORTED: Final = {
    "broker-stats/load-report": f"There is no load to share with other brokers; {_METRICS}",
    "broker-stats/metrics": f"Pulsar's collection is not kept; {_METRICS}",
    "broker-stats/mbeans": f"There are no Java beans; {_METRICS}",
    "broker-stats/allocator-stats/{allocator}": f"There are no Java allocators; {_METRICS}",
    "broker-stats/broker-resource-availability/{tenant}/{namespace}": f"There is no load manager; {_METRICS}",
    "bookies/all": _NO_BOOKIES,
    "bookies/racks-info": _NO_BOOKIES,
    "bookies/racks-info/{bookie}": _NO_BOOKIES,
    "resource-quotas": _NO_QUOTAS,
    "resource-quotas/{tenant}/{namespace}/{bundle}": _NO_QUOTAS,
    "functions/{tenant}/{namespace}": _NO_FUNCTIONS,
    "worker/cluster": _NO_FUNCTIONS,
    "worker-stats/metrics": _NO_FUNCTIONS,
}


def _unsupported(path: str, reason: str) -> web.RouteDef:
    @operation(f"{reason}.", answers={404: Refusal})
    async def refuse(request: web.Request) -> web.Response:
        raise ApiError(404, reason)

    return web.get(f"/admin/v2/{path}", refuse)


@operation("List the resource groups: always empty.", answers={200: list[str]})
async def resource_groups(request: web.Request) -> web.Response:
    return as_json([])


def routes() -> list[web.RouteDef]:
    return [
        *(_unsupported(path, reason) for path, reason in _UNSUPPORTED.items()),
        web.get("/admin/v2/resourcegroups", resource_groups),
    ]
