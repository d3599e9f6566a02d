"""CONNECT and AUTH_RESPONSE on a broker with authentication: who a client is, and the renewal of its credentials.

As in Pulsar a client whose credentials have expired is asked for new ones by AUTH_CHALLENGE, if it knows that command,
and keeps its role. Until the identity of a client is known, nothing that it sends is handled.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import msgspec
import structlog
from heliograph_api import __version__
from heliograph_api.protocol import wire_pb2 as wire
from heliograph_api.protocol.encoder import NO_REQUEST
from heliograph_api.protocol.frames import FrameError
from heliograph_api.tables import readable_time

from heliograph_broker.security.authentication.authenticator import Authenticator, earlier
from heliograph_broker.security.authentication.provider import Credentials, MayNotSpeak, Unauthenticated
from heliograph_broker.security.identity import Identity
from heliograph_broker.server.session import Session

from .connection_commands import PROTOCOL_VERSION, accept

log = structlog.get_logger(__name__)

#: The reason for not reading from a connection while its credentials are verified.
_VERIFYING: Final = "its credentials are verified"
#: What Pulsar's brokers send as the data of a challenge for new credentials.
_REFRESH: Final = b"PulsarAuthRefresh"


def connect(session: Session, command: wire.BaseCommand) -> None:
    """Accept a client once it has shown who it is; a second CONNECT is a protocol error."""
    if session.connection.connected:
        raise FrameError("CONNECT was sent twice")
    request = command.connect
    authenticator = session.security.authenticator
    certificate = session.connection.certificate

    def accepted(identity: Identity) -> None:
        clients = session.connection.listener.role_clients
        session.broker.roles.activity.seen(identity.role)
        if reason := clients.refusal(identity.role):
            session.broker.roles.activity.denied(identity.role)
            session.output.send_error(NO_REQUEST, wire.NotAllowedError, reason)
            session.connection.close(reason)
            return
        session.share(clients.opened(identity.role, session))
        session.counted_role = identity.role
        session.identity = identity
        session.renews = request.feature_flags.supports_auth_refresh
        accept(session, request)

    _verify(session, partial(_identity, authenticator, request, certificate), accepted)


async def _identity(authenticator: Authenticator, request: wire.CommandConnect, certificate: bytes) -> Identity:
    """Return who a client is. Raises :class:`Unauthenticated`."""
    identity = await authenticator.authenticate(_method(request), Credentials(request.auth_data, certificate))
    original = None
    if request.original_auth_data:
        original = Credentials(request.original_auth_data.encode())
    method = request.original_auth_method or _method(request)
    return await authenticator.through_proxy(identity, request.original_principal, method, original)


def _method(request: wire.CommandConnect) -> str:
    """Return the method's name; clients older than Pulsar 1.19 send a number, of methods that are gone."""
    if request.auth_method_name or not request.auth_method:
        return request.auth_method_name
    return wire.AuthMethod.Name(request.auth_method).removeprefix("AuthMethod").lower()


def auth_response(session: Session, command: wire.BaseCommand) -> None:
    """Take the new credentials that a client was asked for: they must be of the same role."""
    if not session.challenged:
        raise FrameError("AUTH_RESPONSE without an AUTH_CHALLENGE")
    session.challenged = False
    response = command.authResponse.response
    credentials = Credentials(bytes(response.auth_data), session.connection.certificate)
    method = response.auth_method_name
    known = session.known_identity

    async def renewed() -> Identity:
        identity = await session.security.authenticator.authenticate(method, credentials)
        if identity.role != (known.via or known.role):
            raise Unauthenticated("the new credentials are of another role: connect again with them")
        if known.via:
            # The proxy renews its own credentials, and still speaks for the same role; it cannot renew its client's.
            ends_ms = known.original_expires_at_ms
            over = ends_ms is not None and ends_ms <= session.broker.clock.now_ms()
            if over or session.security.authenticator.withdrawn(msgspec.structs.replace(known, proxy=None)):
                raise Unauthenticated(
                    "the credentials of the proxy's client have expired or are withdrawn: connect again with new ones"
                )
            return msgspec.structs.replace(
                known, expires_at_ms=earlier(identity.expires_at_ms, ends_ms), proxy=identity
            )
        return identity

    def accepted(identity: Identity) -> None:
        session.identity = identity
        session.overdue = False

    _verify(session, renewed, accepted)


def challenge(session: Session) -> None:
    """Ask a client for new credentials."""
    question = wire.BaseCommand(type=wire.BaseCommand.AUTH_CHALLENGE)
    question.authChallenge.server_version = f"Heliograph-{__version__}"
    question.authChallenge.protocol_version = PROTOCOL_VERSION
    known = session.known_identity
    question.authChallenge.challenge.auth_method_name = (known.proxy or known).method
    question.authChallenge.challenge.auth_data = _REFRESH
    session.challenged = True
    session.output.send(question)


def end_expired(session: Session) -> None:
    """Close the connection of a client that has not renewed what has expired, and tell it why."""
    why = "a key that credentials are verified with was removed"
    expired_ms = session.known_identity.expires_at_ms
    if expired_ms is not None and expired_ms <= session.broker.clock.now_ms():
        why = f"the credentials have expired at {readable_time(expired_ms)} UTC"
    means = "did not renew them" if session.renews else "cannot renew them on an open connection"
    _refuse(session, f"{why}, and the client {means}: connect again with new ones")


def _verify(session: Session, find: Callable[[], Awaitable[Identity]], accepted: Callable[[Identity], None]) -> None:
    """Handle nothing from the client until ``find`` has its identity; close the connection if there is none."""
    connection = session.connection
    connection.hold(_VERIFYING, sees_end=True)

    async def verify() -> None:
        try:
            identity = await find()
        except Unauthenticated as error:
            session.security.failures.note(connection.host, error.detail)
            _refuse(session, str(error), known=isinstance(error, MayNotSpeak))
            return
        except Exception:
            log.exception("authentication failed by a defect", client=connection.address)
            _refuse(session, "internal error")
            return
        if connection.alive:
            accepted(identity)
            connection.release(_VERIFYING)

    session.verifying = connection.listener.loop.create_task(verify())


def _refuse(session: Session, reason: str, *, known: bool = False) -> None:
    """End the connection of a client that is not authenticated, or is ``known`` and speaks for others than it may."""
    if session.connection.alive:
        code = wire.AuthorizationError if known else wire.AuthenticationError
        session.output.send_error(NO_REQUEST, code, reason)
        # Until CONNECT is accepted it is in the log of failures, which a flood does not fill.
        session.connection.close(f"not authenticated: {reason}", logged=not session.connection.connected)
