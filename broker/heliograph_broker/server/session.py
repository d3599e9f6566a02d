"""One client's session: its producers, consumers and watchers, and the answers to its requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import structlog

from heliograph_broker.messaging.base.errors import BrokerError, Done, NotAllowed
from heliograph_broker.messaging.broker.topic_list import TopicListWatcher
from heliograph_broker.security.identity import Identity
from heliograph_broker.security.security import Security

from .connection import Connection, ConnectionSession
from .consumer_sink import SessionConsumers
from .error_codes import error_code
from .producer_sink import SessionProducers
from .role_clients import RoleRates

log = structlog.get_logger(__name__)

T = TypeVar("T")


class Session(ConnectionSession):
    """The state of one client. Every handler of a command gets it."""

    __slots__ = (
        "broker",
        "challenged",
        "connection",
        "consumers",
        "counted_role",
        "encoder",
        "identity",
        "output",
        "overdue",
        "producers",
        "rates",
        "renews",
        "verifying",
        "watchers",
    )

    consumers: SessionConsumers

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.broker = connection.broker
        self.output = connection.output
        self.encoder = connection.output.encoder
        self.producers = SessionProducers(connection)
        self.consumers = SessionConsumers(connection.output)
        self.watchers: dict[int, TopicListWatcher] = {}
        #: The client's identity; None without authentication.
        self.identity: Identity | None = None
        #: The role that the connection counts for; empty for none.
        self.counted_role = ""
        #: Whether the client can renew its credentials, was asked to, and is late with it.
        self.renews = self.challenged = self.overdue = False
        #: The rates of its role; None without authentication.
        self.rates: RoleRates | None = None
        #: Verifies the credentials; kept, as the event loop does not keep it.
        self.verifying: asyncio.Task[None] | None = None

    @property
    def known_identity(self) -> Identity:
        """The client's identity on a broker with authentication, once CONNECT is accepted."""
        assert self.identity is not None
        return self.identity

    @property
    def security(self) -> Security:
        """Authentication and authorization, on a broker that has them."""
        security = self.connection.listener.security
        assert security is not None
        return security

    def give_up(self) -> None:
        if self.verifying is not None:
            # Nobody waits for the answer any more, and others may wait for their turn. A refusal that ends the
            # connection is the last thing that it does.
            self.verifying.cancel()
        if self.counted_role:
            self.connection.listener.role_clients.closed(self.counted_role, self)
            self.broker.roles.activity.seen(self.counted_role)
            self.counted_role = ""
        while self.watchers:
            self.broker.watches.end(self.watchers.popitem()[1])
        producers, consumers = self.producers, self.consumers
        for producer_id in list(producers.held):
            self._give_up(producers.stop_holding, producer_id)
        for producer in list(producers.open.values()):
            self._give_up(producers.forget, producer)
        while consumers.open:
            _, consumer = consumers.open.popitem()
            self._give_up(consumer.subscription.remove_consumer, consumer)
        for consumer_id, reader in list(consumers.sought_readers.items()):
            self._give_up(partial(consumers.stays_away, consumer_id), reader)

    def _give_up(self, action: Callable[[T], object], what: T) -> None:
        try:
            action(what)
        except Exception:
            # A defect of the broker in one topic must not prevent the cleanup in others.
            log.exception("cleanup after a closed connection failed", client=self.connection.address)

    def share(self, rates: RoleRates) -> None:
        """Keep to the rates of the client's role."""
        self.rates = self.consumers.rates = rates

    @property
    def held_bytes(self) -> int:
        return self.producers.held_bytes

    @property
    def producer_count(self) -> int:
        return len(self.producers.open) + len(self.producers.held)

    @property
    def consumer_count(self) -> int:
        # The readers that seek come back, and nobody asks again whether they may.
        open_now = self.consumers.open
        return len(open_now) + sum(each not in open_now for each in self.consumers.sought_readers)

    def hold_publishing(self, reason: object, ms: int) -> None:
        self.connection.hold(reason, ms)

    def release_publishing(self, reason: object) -> None:
        self.connection.release(reason)

    def hold_messages(self, ms: int) -> None:
        self.connection.hold_messages(ms)

    def release_messages(self) -> None:
        self.connection.release_messages()

    def check_producer(self) -> None:
        """Raise :class:`NotAllowed` if the client may not have one more producer."""
        self.check_handles()
        self._check_role(self.connection.listener.role_clients.check_producers)
        if self.rates is not None:
            self.rates.producing(self)

    def check_consumer(self) -> None:
        """Raise :class:`NotAllowed` if the client may not have one more consumer."""
        self.check_handles()
        self._check_role(self.connection.listener.role_clients.check_consumers)
        if self.rates is not None:
            self.rates.consuming(self)

    def _check_role(self, check: Callable[[str], None]) -> None:
        if not self.counted_role:
            return
        try:
            check(self.counted_role)
        except NotAllowed:
            self.broker.roles.activity.denied(self.counted_role)
            raise

    def refuse(self, request_id: int, error: BrokerError) -> None:
        """Answer a request with the ERROR of a refusal."""
        self.output.send_error(request_id, error_code(error), str(error))

    def succeed(self, request_id: int) -> None:
        self.output.write(self.encoder.success(request_id))

    def answer_to(self, request_id: int) -> Done:
        """Return a callback that answers a request with SUCCESS, or with ERROR if it is given one."""

        def answer(error: BrokerError | None) -> None:
            if error is not None:
                self.refuse(request_id, error)
            else:
                self.succeed(request_id)

        return answer

    def check_handles(self) -> None:
        """Raise :class:`NotAllowed` if the connection may not have one more producer, consumer or watcher."""
        most = self.broker.config.max_handles_per_connection
        handles = len(self.producers.open) + len(self.producers.held) + len(self.watchers)
        if 0 < most <= handles + len(self.consumers.open) + len(self.consumers.sought_readers):
            self.broker.metrics.limits_reached["max_handles_per_connection"] += 1
            raise NotAllowed(
                f"Reached the maximum number of producers, consumers and topic watchers on a connection: {most} "
                "(max_handles_per_connection)"
            )
