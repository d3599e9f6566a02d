"""The connections of each role to the binary ports, and the limits of all of them together.

Limits are those that are set for the role, and ``max_connections_per_role`` for every role. A limit that is lowered
closes nothing that is open. Producers and consumers are counted when another one comes: a count that followed each
way in which they end would sooner or later be wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from heliograph_api.resources.role_state import RoleLimits

from heliograph_broker.clock import Clock, monotonic_ms
from heliograph_broker.messaging.base.errors import NotAllowed
from heliograph_broker.messaging.base.histograms import BrokerMetrics
from heliograph_broker.messaging.policies.rate_limits import RateLimit, limit_for

#: So many clients of a role are held back for a millisecond more.
_CLIENTS_PER_MS: Final = 20


class RoleClient:
    """A connection, as the limits of its role know it."""

    __slots__ = ()

    @property
    def producer_count(self) -> int:
        """The number of its producers, those included that wait for room."""
        raise NotImplementedError

    @property
    def consumer_count(self) -> int:
        """The number of its consumers."""
        raise NotImplementedError

    def hold_publishing(self, reason: object, ms: int) -> None:
        """Take nothing from the client for ``ms``, or until :meth:`release_publishing` for the same reason."""
        raise NotImplementedError

    def release_publishing(self, reason: object) -> None:
        """Messages of the client may be taken again."""
        raise NotImplementedError

    def hold_messages(self, ms: int) -> None:
        """Send the client no messages for ``ms``, or until :meth:`release_messages`."""
        raise NotImplementedError

    def release_messages(self) -> None:
        """Messages may be sent to the client again."""
        raise NotImplementedError


class RoleRates:
    """The rates of one role, which all its connections share."""

    __slots__ = ("_clock", "_metrics", "clients", "dispatch", "publish")

    def __init__(self, clock: Clock, metrics: BrokerMetrics) -> None:
        self._clock = clock
        self._metrics = metrics
        #: In the order in which they came.
        self.clients: dict[RoleClient, None] = {}
        self.publish: RateLimit | None = None
        self.dispatch: RateLimit | None = None

    @property
    def matter(self) -> bool:
        """Whether a connection shares them, or one that comes has to keep to them."""
        return bool(self.clients) or self.publish is not None or self.dispatch is not None

    def configure(self, limits: RoleLimits) -> None:
        """Take over the limits; those that have not changed go on counting."""
        publish, dispatch = limit_for(limits.publish_rate, self.publish), limit_for(limits.dispatch_rate, self.dispatch)
        if publish is not self.publish:
            self.publish = publish
            for client in self.clients:
                client.release_publishing(self)
        if dispatch is not self.dispatch:
            self.dispatch = dispatch
            for client in self.clients:
                client.release_messages()

    def producing(self, client: RoleClient) -> None:
        """A client gets a producer: it waits for as long as the others do."""
        if self.publish is not None and (wait_ms := self._wait_ms(self.publish)):
            client.hold_publishing(self, wait_ms)

    def consuming(self, client: RoleClient) -> None:
        """A client gets a consumer: it waits for as long as the others do."""
        if self.dispatch is not None and (wait_ms := self._wait_ms(self.dispatch)):
            client.hold_messages(wait_ms)

    def published(self, messages: int, size: int) -> None:
        """Count an entry; hold back all producers of the role once the rate is reached."""
        wait_ms = self._spend(self.publish, "publishRate", messages, size)
        if wait_ms:
            for client in self.clients:
                if client.producer_count:
                    client.hold_publishing(self, wait_ms)

    def dispatched(self, messages: int, size: int) -> None:
        """Count an entry that was sent; hold back all consumers of the role once the rate is reached."""
        wait_ms = self._spend(self.dispatch, "dispatchRate", messages, size)
        if wait_ms:
            for client in self.clients:
                if client.consumer_count:
                    client.hold_messages(wait_ms)

    def _spend(self, limit: RateLimit | None, name: str, messages: int, size: int) -> int:
        """Count an entry, and return the time (ms) until there is room, 0 if there is."""
        if limit is None:
            return 0
        if not limit.spend(messages, size, monotonic_ms(self._clock)):
            return 0
        self._metrics.role_limits[name] += 1
        # To hold and release all of many clients takes time itself, which must not be that of other roles.
        return max(self._wait_ms(limit), len(self.clients) // _CLIENTS_PER_MS)

    def _wait_ms(self, limit: RateLimit) -> int:
        now_ms = monotonic_ms(self._clock)
        return limit.free_at(now_ms) - now_ms


class RoleClients:
    """See the module. ``most`` is the limit of each role's connections, 0: none."""

    def __init__(self, metrics: BrokerMetrics, clock: Clock, limits_of: Callable[[str], RoleLimits], most: int) -> None:
        self._metrics = metrics
        self._clock = clock
        self._limits_of = limits_of
        self._most = most
        self._by_role: dict[str, RoleRates] = {}

    def connections(self, role: str) -> int:
        """Return the number of connections of a role."""
        found = self._by_role.get(role)
        return 0 if found is None else len(found.clients)

    def refusal(self, role: str) -> str:
        """Return the reason for refusing one more connection of a role; empty if it is accepted."""
        there, own = self.connections(role), self._limits_of(role).connections
        setting = "max_connections_per_role"
        most = self._most or None
        if own is not None and (most is None or own < most):
            most, setting = own, f"limits of the role {role}"
        if most is None or there < most:
            return ""
        self._metrics.binary_connections.refused["role"] += 1
        return f"Reached the maximum number of connections of a role: {most} ({setting})"

    def opened(self, role: str, client: RoleClient) -> RoleRates:
        """A connection has the role now; return the rates that it shares."""
        rates = self._by_role.get(role)
        if rates is None:
            rates = self._by_role[role] = RoleRates(self._clock, self._metrics)
        if not rates.clients:
            rates.configure(self._limits_of(role))
        rates.clients[client] = None
        return rates

    def closed(self, role: str, client: RoleClient) -> None:
        """The connection of a role has ended. Its rates go on: else it would have others as soon as it came back."""
        rates = self._by_role[role]
        del rates.clients[client]
        if not rates.matter:
            del self._by_role[role]

    def check_producers(self, role: str) -> None:
        """Raise :class:`NotAllowed` if the role may not have one more producer."""
        self._check(role, self._limits_of(role).producers, "producers", lambda client: client.producer_count)

    def check_consumers(self, role: str) -> None:
        """Raise :class:`NotAllowed` if the role may not have one more consumer."""
        self._check(role, self._limits_of(role).consumers, "consumers", lambda client: client.consumer_count)

    def configure(self) -> None:
        """The limits of roles may have changed."""
        for role, rates in list(self._by_role.items()):
            rates.configure(self._limits_of(role))
            if not rates.matter:
                del self._by_role[role]

    def _check(self, role: str, most: int | None, what: str, count: Callable[[RoleClient], int]) -> None:
        if most is None or sum(map(count, self._by_role[role].clients)) < most:
            return
        self._metrics.role_limits[what] += 1
        raise NotAllowed(f"Reached the maximum number of {what} of a role: {most} (limits of the role {role})")
