"""Paths of Pulsar's API that this broker does not support: they answer why, and what to use instead."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from heliograph_broker.security.authorization.needs import Need

from .errors import ApiError
from .operations import Refusal, operation

_METRICS: Final = "the broker's metrics are at /metrics"
_NO_BOOKIES: Final = "There are no bookies: the broker stores messages itself"
_UNSUPPORTED: Final = {
    "broker-stats/metrics": f"Pulsar's collection is not kept; {_METRICS}",
    "broker-stats/mbeans": f"There are no Java beans; {_METRICS}",
    "broker-stats/allocator-stats/{allocator}": f"There are no Java allocators; {_METRICS}",
    "broker-stats/broker-resource-availability/{tenant}/{namespace}": f"There is no load manager; {_METRICS}",
    "broker-stats/bookieops": f"{_NO_BOOKIES}; {_METRICS}",
    "bookies/all": _NO_BOOKIES,
    "bookies/racks-info": _NO_BOOKIES,
    "bookies/racks-info/{bookie}": _NO_BOOKIES,
}


def _unsupported(path: str, reason: str) -> web.RouteDef:
    @operation(f"{reason}.", answers={404: Refusal}, needs=Need.SUPERUSER)
    async def refuse(request: web.Request) -> web.Response:
        raise ApiError(404, reason)

    return web.get(f"/admin/v2/{path}", refuse)


def routes() -> list[web.RouteDef]:
    return [_unsupported(path, reason) for path, reason in _UNSUPPORTED.items()]
