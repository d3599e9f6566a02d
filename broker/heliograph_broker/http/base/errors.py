"""Every refusal is JSON with a reason, as from Pulsar's admin API; a fault of ours is logged, never shown."""

from __future__ import annotations

import msgspec
import structlog
from aiohttp import web
from aiohttp.typedefs import Handler
from heliograph_api.values.names import InvalidName

from heliograph_broker.messaging.base.errors import BrokerError

from .absent_services import absent_service
from .challenges import challenge
from .error_statuses import ERROR_STATUSES

log = structlog.get_logger(__name__)


class ApiError(Exception):
    """A request that is refused before the core is asked: an HTTP status and the reason for people."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def refusal(status: int, reason: str) -> web.Response:
    """Return Pulsar's error document."""
    body = msgspec.json.encode({"reason": reason})
    return web.Response(status=status, body=body, content_type="application/json")


@web.middleware
async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn whatever a handler raises into the answer it stands for; 401 asks for credentials."""
    answer = await _answer(request, handler)
    if answer.status == 401:
        challenge(request, answer)
    elif answer.status == 408:
        # Its body goes on to arrive, slowly: nothing can follow it.
        answer.force_close()
    return answer


async def _answer(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except BrokerError as error:
        return refusal(ERROR_STATUSES[type(error)], str(error))
    except ApiError as error:
        return refusal(error.status, str(error))
    except InvalidName as error:
        return refusal(412, str(error))
    except (web.HTTPMethodNotAllowed, web.HTTPNotFound) as error:
        return _unrouted(request, error)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        return refusal(error.status, error.reason)
    except ConnectionError:
        # The client went away while it was being answered: nobody is left to tell.
        raise
    except Exception:
        log.exception("request failed", method=request.method, path=request.path)
        return refusal(500, "internal error: the broker's log has the details")


def _unrouted(request: web.Request, error: web.HTTPMethodNotAllowed | web.HTTPNotFound) -> web.Response:
    absent = absent_service(request.path)
    if absent is not None:
        return refusal(*absent)
    if isinstance(error, web.HTTPNotFound):
        return refusal(404, f"{request.path} is not a path of this API")
    allowed = ", ".join(sorted(error.allowed_methods))
    answer = refusal(405, f"{request.method} is not possible on {request.path}; possible: {allowed}")
    answer.headers["Allow"] = allowed
    return answer
