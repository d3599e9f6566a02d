"""Finds who sends a request: by its Authorization header or its connection's certificate, as Pulsar's HTTP does."""

from __future__ import annotations

import base64
import binascii
import ssl
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from heliograph_broker.messaging.broker.role_activity import RoleActivity
from heliograph_broker.security.authentication.authenticator import Authenticator
from heliograph_broker.security.authentication.provider import Credentials, MayNotSpeak, Unauthenticated
from heliograph_broker.security.identity import Identity
from heliograph_broker.security.security import Security

from .challenges import valid_here
from .errors import refusal

#: Where a request keeps who sends it, once that is known.
IDENTITY: Final[web.RequestKey[Identity]] = web.RequestKey("identity", Identity)
#: What has found it.
AUTHENTICATOR: Final[web.RequestKey[Authenticator]] = web.RequestKey("authenticator", Authenticator)
#: Pulsar's headers: the method of clients whose credentials do not tell it, and whom a proxy speaks for.
_METHOD: Final = "X-Pulsar-Auth-Method-Name"
_ORIGINAL_PRINCIPAL: Final = "X-Original-Principal"
_SCHEMES: Final = {"bearer": "token", "basic": "basic"}


def authentication(security: Security, activity: RoleActivity) -> Middleware:
    """Return a middleware that refuses false credentials with 401, and who may not speak for another with 403.

    A request without any goes on without an identity: whether it may is the question of authorization. ``activity`` has
    the roles that were there.
    """
    authenticator = security.authenticator

    async def identity_of(request: web.Request) -> Identity | None:
        for header in ("Authorization", _METHOD, _ORIGINAL_PRINCIPAL):
            if len(request.headers.getall(header, ())) > 1:
                # A front-end that adds its own would be overruled by its client.
                raise Unauthenticated(f"the header {header} is there more than once; valid: once")
        method, credentials = _shown(request)
        if not method and not security.authenticator.anonymous_role:
            return None
        identity = await authenticator.authenticate(method, credentials)
        return await authenticator.through_proxy(identity, request.headers.get(_ORIGINAL_PRINCIPAL, ""))

    @web.middleware
    async def authenticate(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            identity = await identity_of(request)
        except Unauthenticated as error:
            security.failures.note(request.remote or "", error.detail)
            return refusal(403 if isinstance(error, MayNotSpeak) else 401, str(error))
        if identity is not None:
            request[IDENTITY] = identity
            request[AUTHENTICATOR] = authenticator
            activity.seen(identity.role)
        return await handler(request)

    return authenticate


def _shown(request: web.Request) -> tuple[str, Credentials]:
    """Return the method and the credentials of a request. Raises :class:`Unauthenticated` for a strange header."""
    certificate = _certificate(request)
    header = request.headers.get("Authorization")
    if header is None:
        method = request.headers.get(_METHOD, "tls" if certificate else "")
        return method, Credentials(certificate=certificate)
    scheme, _, value = header.strip().partition(" ")
    method = _SCHEMES.get(scheme.lower(), "")
    if not method:
        raise Unauthenticated(f"the Authorization header has no known scheme; {valid_here(request)}")
    # Bytes that are not UTF-8 are kept as halves of surrogate pairs.
    data = value.strip().encode(errors="surrogateescape")
    if method == "basic":
        try:
            data = base64.b64decode(data, validate=True)
        except binascii.Error:
            raise Unauthenticated("the Authorization header's user and password are not base64") from None
    return method, Credentials(data, certificate)


def _certificate(request: web.Request) -> bytes:
    """Return the client's verified certificate (DER), if its connection has one."""
    transport = request.transport
    connection = transport.get_extra_info("ssl_object") if transport is not None else None
    if not isinstance(connection, ssl.SSLObject):
        return b""
    return connection.getpeercert(binary_form=True) or b""
