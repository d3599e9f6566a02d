"""Finds clients whose credentials have expired, or whose role is another or has lost a right, on open connections.

Once credentials have expired, or one of the keys that they may be signed by is removed, a client is asked for new ones.
It has until the next check to send them; so long a client that cannot renew them on an open connection is left alone,
too. Then its connection is closed. That of a client for which another role was set is closed at once: when it connects
again, it has that one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import structlog

from heliograph_broker.messaging.broker.broker import Broker
from heliograph_broker.security.authorization.needs import Need, on_namespace, on_topic
from heliograph_broker.security.identity import Identity
from heliograph_broker.security.security import Security

from .commands.authentication_commands import challenge, end_expired
from .connection import Connection
from .session import Session

log = structlog.get_logger(__name__)

#: Longest time (s) after which a change of rights shows on producers and consumers that are open.
_RIGHTS_CHECK_S = 1.0


class CredentialCheck:
    """Runs on timers of the event loop, for the open connections of a broker with authentication."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        broker: Broker,
        security: Security,
        connections: Callable[[], Iterable[Connection]],
        changed: Callable[[], None],
    ) -> None:
        """``changed`` is called when rights or limits of roles may have changed."""
        self._loop = loop
        self._clock = broker.clock
        self._broker = broker
        self._security = security
        self._connections = connections
        self._changed = changed
        self._timers: list[asyncio.TimerHandle] = []
        self._rights_seen = broker.directory.rights_version

    def start(self) -> None:
        self._timers = [
            self._loop.call_later(self._security.refresh_check_s, self._check_expiry),
            self._loop.call_later(_RIGHTS_CHECK_S, self._check_rights),
        ]

    def stop(self) -> None:
        for timer in self._timers:
            timer.cancel()

    def _check_expiry(self) -> None:
        # First of all: a defect must not end the checks of all.
        self._timers[0] = self._loop.call_later(self._security.refresh_check_s, self._check_expiry)
        # For the next check.
        self._refreshing = self._loop.create_task(self._security.authenticator.refresh())
        now_ms = self._clock.now_ms()

        def check(connection: Connection, session: Session) -> None:
            if not self._is_over(session.known_identity, now_ms):
                # A wall clock that was set back made them good again: should they end again, the client has its time.
                session.overdue = False
            elif session.overdue:
                end_expired(session)
            else:
                session.overdue = True
                if session.renews:
                    challenge(session)

        self._check_each(check)

    def _check_each(self, check: Callable[[Connection, Session], None]) -> None:
        """Check all clients; one for which that fails may not go on, and leaves the others to be checked."""
        for connection in list(self._connections()):
            session = connection.session
            assert isinstance(session, Session)
            if not connection.connected or not connection.alive:
                continue
            try:
                check(connection, session)
            except Exception:
                log.exception("the check of a client's rights failed", client=connection.address)
                connection.close("internal error")

    def _is_over(self, identity: Identity, now_ms: int) -> bool:
        """Return whether the client has to show credentials again."""
        expired = identity.expires_at_ms is not None and identity.expires_at_ms <= now_ms
        return expired or self._security.authenticator.withdrawn(identity)

    def _check_rights(self) -> None:
        """Close what a role may not have any more, after a change of any rights."""
        self._timers[1] = self._loop.call_later(_RIGHTS_CHECK_S, self._check_rights)
        version = self._broker.directory.rights_version
        if version != self._rights_seen:
            self._rights_seen = version
            self._check_each(self._check_rights_of)
            self._changed()

    def _check_rights_of(self, connection: Connection, session: Session) -> None:
        if self._security.authenticator.has_another_role(session.known_identity):
            connection.close("the role that is set for its client has changed")
        else:
            self._close_what_is_lost(session)

    def _close_what_is_lost(self, session: Session) -> None:
        identity, decide = session.known_identity, self._security.authorizer.decide
        for producer in list(session.producers.open.values()):
            if not decide(identity, Need.PRODUCE, on_topic(producer.topic.name)).allowed:
                session.producers.send_close_producer(producer)
                session.producers.forget(producer)
        for consumer in list(session.consumers.open.values()):
            subscription = consumer.subscription
            on = on_topic(subscription.topic.name, subscription.name)
            if not decide(identity, Need.CONSUME, on).allowed:
                session.consumers.send_close_consumer(consumer)
                subscription.remove_consumer(consumer)
        for watcher_id, watcher in list(session.watchers.items()):
            if not decide(identity, Need.LOOKUP, on_namespace(watcher.list.namespace)).allowed:
                # The protocol has no command that tells the client.
                del session.watchers[watcher_id]
                self._broker.watches.end(watcher)
