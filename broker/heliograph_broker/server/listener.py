"""The binary protocol's port: accepts connections, keeps them alive, holds them back when the store is behind."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from functools import partial

import structlog
from heliograph_api.protocol import wire_pb2 as wire
from heliograph_api.protocol.encoder import NO_REQUEST, Encoder
from heliograph_api.protocol.receive_buffer import SharedBuffer
from heliograph_api.values.listeners import ENCRYPTED, PLAIN, BindAddress, ServiceUrls, parse_bind_addresses

from heliograph_broker.messaging.broker.broker import Broker
from heliograph_broker.security.event_floods import EventFlood
from heliograph_broker.security.security import Security
from heliograph_broker.usecases.topics import advertised_urls

from .acceptor import Acceptor, Encryption, host_in_url
from .commands import producer_commands
from .commands.guards import guarded
from .commands.handlers import HANDLERS
from .connection import Connection, ConnectionHost
from .connection_limits import limits_of
from .connection_memory import ConnectionMemory
from .credential_check import CredentialCheck
from .role_clients import RoleClients
from .session import Session

log = structlog.get_logger(__name__)

#: Checks for silent clients per keep-alive interval.
_CHECKS_PER_INTERVAL = 4


class Listener(ConnectionHost):
    """See the module. Everything runs on one event loop."""

    def __init__(
        self,
        broker: Broker,
        loop: asyncio.AbstractEventLoop,
        security: Security | None = None,
        encryption: Encryption | None = None,
    ) -> None:
        """Without ``security`` every client may do everything; without ``encryption`` no port has TLS."""
        self._encryption = encryption
        self.broker = broker
        self.loop = loop
        self.security = security
        self.role_clients = RoleClients(
            broker.metrics, broker.clock, broker.roles.limits_of, broker.config.max_connections_per_role
        )
        broker.roles.activity.connections = self.role_clients.connections
        self.unconnected_aborts = EventFlood(broker.clock.monotonic)
        self.handlers = HANDLERS if security is None else guarded(HANDLERS)
        self.publish_handler = producer_commands.send
        #: In the order in which they came, so that iteration does not depend on memory addresses.
        self.connections: dict[Connection, None] = {}
        memory_bytes = broker.config.connection_memory_bytes
        #: Its check is called by the broker's tick.
        self.memory = ConnectionMemory(self.connections.keys(), broker.clock, loop.call_soon, memory_bytes)
        #: The buffer into which connections read from their sockets, one at a time.
        self.receive_buffer = SharedBuffer(
            broker.config.receive_buffer_bytes, memory_bytes or sys.maxsize, self.memory.check_soon
        )
        self.encoder = Encoder()
        self._paused: dict[Connection, None] = {}
        self._acceptors: list[Acceptor] = []
        self._all_lost = asyncio.Event()
        self._keep_alive: asyncio.TimerHandle | None = None
        self._credentials: CredentialCheck | None = None
        if security is not None:
            self._credentials = CredentialCheck(
                loop, broker, security, self.connections.keys, self.role_clients.configure
            )
        #: 0: the port is not open.
        self.port = 0
        self.tls_port = 0
        broker.metrics.throttled_connections = lambda: sum(connection.held for connection in self.connections)
        broker.metrics.connection_bytes = self.memory.total
        broker.metrics.undelivered_bytes = lambda: sum(
            connection.output.unwritten_bytes for connection in self.connections
        )

    async def start(self) -> None:
        """Bind the port, and those of advertised listeners. Raises :class:`OSError` if one is taken."""
        config = self.broker.config
        # One for all ports: a client does not get more connections by using several.
        limits = limits_of(config, self.broker.metrics.binary_connections)
        try:
            for address in self._addresses():
                protocol = partial(Connection, self, came_in_by=address.name)
                encryption = self._encryption if address.encrypted else None
                acceptor = Acceptor(self.loop, limits, protocol, self._refusal, encryption)
                await acceptor.listen(address.host, address.port)
                self._acceptors.append(acceptor)
                if not address.name and address.encrypted:
                    self.tls_port = acceptor.port
                elif not address.name:
                    self.port = acceptor.port
        except BaseException:
            self.stop_accepting()
            raise
        self.keep_watch()
        if self._credentials is not None:
            self._credentials.start()

    def _addresses(self) -> Iterator[BindAddress]:
        """Yield what to bind: those of the broker itself are without a listener's name."""
        config = self.broker.config
        if not config.tls_only:
            yield BindAddress("", config.bind, config.broker_port)
        if config.tls_cert:
            yield BindAddress("", config.bind, config.broker_tls_port, encrypted=True)
        yield from parse_bind_addresses(config.bind_addresses)

    def _refusal(self, reason: str) -> bytes:
        """Return the answer to a connection above a limit."""
        return self.encoder.error(NO_REQUEST, wire.NotAllowedError, reason)

    def keep_watch(self) -> None:
        """Start the periodic check for silent clients."""
        interval = self.broker.config.keep_alive_interval_s
        self._keep_alive = self.loop.call_later(interval / _CHECKS_PER_INTERVAL, self._check_alive)

    def stop_accepting(self) -> None:
        if self._keep_alive is not None:
            self._keep_alive.cancel()
        if self._credentials is not None:
            self._credentials.stop()
        for acceptor in self._acceptors:
            acceptor.stop()

    async def stop(self) -> None:
        """Close the port and every connection; clients have ``close_timeout_s`` to read the remaining data."""
        self.stop_accepting()
        for connection in list(self.connections):
            connection.close("the broker is stopping")
        if self.connections:
            self._all_lost.clear()
            await self._all_lost.wait()

    def service_urls_for(self, connection: Connection, listener: str) -> ServiceUrls:
        if urls := advertised_urls(self.broker.config, listener or connection.came_in_by):
            return urls
        return self.urls_at(self.broker.config.advertised_host or connection.local_address[0])

    def urls_at(self, host: str) -> ServiceUrls:
        """Return the URLs of the ports that are open, at a host."""
        at = host_in_url(host)
        return ServiceUrls(
            f"{PLAIN}{at}:{self.port}" if self.port else "", f"{ENCRYPTED}{at}:{self.tls_port}" if self.tls_port else ""
        )

    def open_session(self, connection: Connection) -> Session:
        return Session(connection)

    def opened(self, connection: Connection) -> None:
        self.connections[connection] = None

    def lost(self, connection: Connection) -> None:
        self.connections.pop(connection, None)
        self._paused.pop(connection, None)
        if not self.connections:
            self._all_lost.set()

    def check_pressure(self, connection: Connection) -> None:
        """Hold back ``connection`` while too much waits for the store."""
        if (
            self.broker.store.writer.pending_bytes <= self.broker.config.max_pending_publish_bytes
            or connection in self._paused
        ):
            return
        connection.hold(self)
        if not self._paused:
            self.broker.store.writer.after_commit(self._relieve)
        self._paused[connection] = None

    def _relieve(self, error: Exception | None) -> None:
        if self.broker.store.writer.pending_bytes > self.broker.config.max_pending_publish_bytes // 2:
            self.broker.store.writer.after_commit(self._relieve)
            return
        for connection in self._paused:
            connection.release(self)
        self._paused.clear()

    def _check_alive(self) -> None:
        """Ping clients that were silent for one keep-alive interval; abort those silent for two.

        Connections of clients whose certificate does not hold any more are closed.
        """
        interval = self.broker.config.keep_alive_interval_s
        now = self.broker.clock.monotonic()
        ping = self.encoder.ping()
        for connection in list(self.connections):
            if not connection.check_certificate():
                continue
            silent = connection.silent_s(now)
            if not connection.connected or silent < interval:
                continue
            if silent >= 2 * interval:
                # Aborted, not closed: closing would wait for a dead client to read the remaining data.
                connection.abort("silent", f"silent for {silent:.0f} s")
            elif connection.pinged_at <= connection.heard_at:
                connection.pinged_at = now
                connection.output.write(ping)
        self.keep_watch()
