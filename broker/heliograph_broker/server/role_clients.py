"""The connections of each role to the binary ports, and how many it may have."""

from __future__ import annotations

from heliograph_broker.messaging.base.histograms import ConnectionMetrics


class RoleClient:
    """A connection, as its role's limits know it."""

    __slots__ = ()


class RoleClients:
    """Knows the connections by role. ``most`` limits those of each role; 0 means no limit."""

    def __init__(self, metrics: ConnectionMetrics, most: int) -> None:
        self._metrics = metrics
        self._most = most
        #: In the order in which they came.
        self._by_role: dict[str, dict[RoleClient, None]] = {}

    def connections(self, role: str) -> int:
        """Return the number of connections of a role."""
        return len(self._by_role.get(role, ()))

    def refusal(self, role: str) -> str:
        """Return the reason for refusing one more connection of a role; empty if it is accepted."""
        if 0 < self._most <= self.connections(role):
            self._metrics.refused["role"] += 1
            return f"Reached the maximum number of connections of a role: {self._most} (max_connections_per_role)"
        return ""

    def opened(self, role: str, client: RoleClient) -> None:
        """A connection has the role now."""
        self._by_role.setdefault(role, {})[client] = None

    def closed(self, role: str, client: RoleClient) -> None:
        """The connection of a role has ended."""
        clients = self._by_role.get(role)
        if clients is not None:
            clients.pop(client, None)
            if not clients:
                del self._by_role[role]
