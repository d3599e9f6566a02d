"""The right to make a request: checked before its handler runs, by what :func:`.operations.operation` says it needs.

All of this is off unless the application has an :class:`Authorizer`. A refusal is the same whether or not the tenant,
the namespace or the topic exists.
"""

from __future__ import annotations

from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler
from heliograph_api.values.names import NamespaceName, TopicName, decode_subscription

from heliograph_broker.security.authorization.authorizer import Authorizer
from heliograph_broker.security.authorization.needs import (
    EVERY_SUBSCRIPTION,
    NOWHERE,
    Need,
    Resource,
    on_namespace,
    on_tenant,
    on_topic,
)

from .authentication import AUTHENTICATOR, IDENTITY
from .bodies import BODIES, limited, read_in_time, too_large
from .challenges import valid_here
from .context import BROKER, namespace_of, tenant_of, topic_of
from .errors import ApiError, refusal
from .operations import operation_of

AUTHORIZER: Final[web.AppKey[Authorizer]] = web.AppKey("authorizer", Authorizer)


class Admission:
    """Whether a request was found to have a right that not everybody with credentials has: else it changes nothing."""

    __slots__ = ("given",)

    def __init__(self) -> None:
        self.given = False


#: Shared by a request and its copies. Requests have it while authorization is on.
ADMISSION: Final[web.RequestKey[Admission]] = web.RequestKey("admission", Admission)
_ON_NOTHING: Final = frozenset({Need.NOTHING, Need.IDENTITY, Need.MONITOR, Need.BACKUP, Need.SUPERUSER})
"""The needs that do not depend on an object."""


def is_on(request: web.Request) -> bool:
    """Return whether the broker checks who may do what."""
    return AUTHORIZER in request.app


def may(request: web.Request, need: Need, on: Resource) -> bool:
    """Return whether the client may do something more than its request needs by itself."""
    authorizer = request.app.get(AUTHORIZER)
    if authorizer is None:
        return True
    identity = request.get(IDENTITY)
    return identity is not None and authorizer.decide(identity, need, on).allowed


def require(request: web.Request, need: Need, on: Resource) -> None:
    """Check one right of the client. Raises :class:`ApiError` 401 without an identity, and 403 if it lacks the right.

    Nothing is checked, and nothing raised, while authorization is off.
    """
    authorizer = request.app.get(AUTHORIZER)
    if authorizer is None or need is Need.NOTHING:
        return
    identity = request.get(IDENTITY)
    if identity is None:
        raise ApiError(401, f"the request needs credentials; {valid_here(request)}")
    decision = authorizer.decide(identity, need, on)
    if not decision.allowed:
        raise ApiError(403, decision.rule)
    if need is not Need.IDENTITY:
        request[ADMISSION].given = True


@web.middleware
async def authorized(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse a request whose client has no identity, or lacks what its operation needs (:class:`ApiError` 403)."""
    request[ADMISSION] = Admission()
    described = operation_of(request.match_info.handler)
    need = described.needs if described is not None and described.needs is not None else Need.SUPERUSER
    if request.match_info.http_exception is not None:
        # There is no such route; that is nothing for a client without an identity to learn.
        need = Need.IDENTITY
    if need is not Need.NOTHING and IDENTITY not in request:
        # Before the path is read, whose errors would be an answer, too.
        return refusal(401, f"the request needs credentials; {valid_here(request)}")
    on = NOWHERE if need in _ON_NOTHING else ((described is not None and described.on) or of_path)(request)
    require(request, need, on)
    if need is Need.NOTHING or not request.can_read_body:
        return await handler(request)
    if request.app[AUTHORIZER].explain(request[IDENTITY], Need.SUPERUSER, NOWHERE).allowed:
        return await _with_body(request, handler, need, on)
    request = limited(request)
    async with request.app[BODIES].taken(request[IDENTITY].role, request.content_length):
        return await _with_body(request, handler, need, on)


async def _with_body(request: web.Request, handler: Handler, need: Need, on: Resource) -> web.StreamResponse:
    """Read the body, and handle the request if its client may still send it. Raises :class:`ApiError`."""
    try:
        # The client decides how long this takes, and may lose the right meanwhile, or the credentials their validity.
        await read_in_time(request)
    except web.HTTPRequestEntityTooLarge:
        raise too_large() from None
    _require_still(request, need, on)
    return await handler(request)


def _require_still(request: web.Request, need: Need, on: Resource) -> None:
    """Check again, without counting it, what :func:`require` has allowed. Raises :class:`ApiError` 401 or 403."""
    identity = request[IDENTITY]
    expires_ms = identity.expires_at_ms
    if expires_ms is not None and expires_ms <= request.app[BROKER].clock.now_ms():
        raise ApiError(401, "the credentials have expired before the request was complete")
    authenticator = request.get(AUTHENTICATOR)
    if authenticator is not None and (authenticator.withdrawn(identity) or authenticator.has_another_role(identity)):
        raise ApiError(401, "the credentials may prove something else than before the request was complete: try again")
    decision = request.app[AUTHORIZER].explain(identity, need, on)
    if not decision.allowed:
        raise ApiError(403, decision.rule)


# -- the object of a request ---------------------------------------------------------------------------------------


def of_path(request: web.Request) -> Resource:
    """Return the most particular object that the path names. Raises :class:`InvalidName`."""
    named = request.match_info
    if "topic" in named:
        return on_topic(topic_of(request), _subscription(request))
    if "namespace" in named:
        namespace = namespace_of(request)
        return Resource(namespace.partition("/")[0], namespace, "", _subscription(request))
    return on_tenant(tenant_of(request)) if "tenant" in named else NOWHERE


def tenant_of_path(request: web.Request) -> Resource:
    """Return the tenant of the path: what creating and deleting a namespace needs a right on."""
    return on_tenant(tenant_of(request))


def namespace_of_path(request: web.Request) -> Resource:
    """Return the namespace of the path, though the path names a topic, too."""
    return on_namespace(namespace_of(request))


def every_subscription_of_path(request: web.Request) -> Resource:
    """Return all subscriptions of the topic or namespace of the path, together."""
    if "topic" in request.match_info:
        return on_topic(topic_of(request), EVERY_SUBSCRIPTION)
    namespace = namespace_of(request)
    return Resource(namespace.partition("/")[0], namespace, "", EVERY_SUBSCRIPTION)


def tenant_of_query(request: web.Request) -> Resource:
    """Return the tenant that the query names; none, which only superusers may ask for."""
    return on_tenant(request.query.get("tenant", ""))


def named(topic: str, namespace: str = "", subscription: str = "") -> Resource:
    """Return the topic, or else the namespace, of these names. Raises :class:`InvalidName`."""
    if topic:
        return on_topic(TopicName.parse(topic), subscription)
    return on_namespace(str(NamespaceName.parse(namespace)))


def _subscription(request: web.Request) -> str:
    return decode_subscription(request.match_info.get("subscription", ""))
