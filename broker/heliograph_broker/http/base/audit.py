"""The audit log: one line for each request that changes something, or tries to.

It says who (role, method of authentication, proxy), what (method, path, the parameters that the operation knows), from
where, and how it was answered. Never the body, never a parameter that the operation does not know: both may be secret.

Requests for which no right was found, and that so have changed nothing, are logged for each role and for unknown
clients a few times in a while, and counted beyond: anybody can send as many as they want. All others are logged always.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from heliograph_broker.security.event_floods import EventFloods

from .access import ADMISSION
from .authentication import IDENTITY
from .operations import operation_of

#: A logger of its own, so that its lines can be told apart from the broker's by a field, too.
log = structlog.get_logger("heliograph.audit", log="audit")

_EVENT: Final = "administration"
#: Statuses of requests that nothing was done for.
_WITHOUT_RIGHT: Final = frozenset({401, 403})
_CHANGING: Final = frozenset({"POST", "PUT", "DELETE", "PATCH"})
#: A path up to the value of a setting or property, which may have slashes. It is known by its text, not by its route:
#: a method that is not possible there has none.
_BEFORE_VALUE: Final = re.compile(r"/+admin/+v2/+(brokers/+configuration|namespaces/+[^/]+/+[^/]+/+property)/+[^/]+/+")


def audit_log(now: Callable[[], float]) -> Middleware:
    """Return a middleware that logs each changing request once it is answered, refused or given up.

    ``now`` returns seconds.
    """
    refused = EventFloods(now)

    def log_outcome(request: web.Request, status: int) -> None:
        identity = request.get(IDENTITY)
        role = identity.role if identity is not None else ""
        admission = request.get(ADMISSION)
        unadmitted = admission is not None and not admission.given
        if unadmitted or status in _WITHOUT_RIGHT or request.match_info.http_exception is not None:
            flood = refused.of(role)
            flood.log(log.info, _EVENT, "further requests refused", {"role": role}, **_described(request, status))
        else:
            log.info(_EVENT, role=role, **_described(request, status))

    @web.middleware
    async def audited(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.method not in _CHANGING:
            return await handler(request)
        status = 0
        try:
            response = await handler(request)
            status = response.status
            return response
        except web.HTTPException as error:
            status = error.status
            raise
        finally:
            log_outcome(request, status)

    return audited


def _described(request: web.Request, status: int) -> dict[str, object]:
    """Return the fields of a request's line but for the role."""
    identity = request.get(IDENTITY)
    described = operation_of(request.match_info.handler)
    known = [each.name for each in described.query] if described is not None else []
    return {
        "authentication": identity.method if identity is not None else "",
        "via": identity.via if identity is not None else "",
        "method": request.method,
        "path": _path(request),
        "query": {name: request.query[name] for name in known if name in request.query},
        "address": request.remote or "",
        # 0: the client was gone before it was answered.
        "status": status,
    }


def _path(request: web.Request) -> str:
    """Return the path as it was encoded, without the value of a setting."""
    path = request.rel_url.raw_path
    before = _BEFORE_VALUE.match(path)
    if before is not None:
        return f"{before[0]}..."
    return path
