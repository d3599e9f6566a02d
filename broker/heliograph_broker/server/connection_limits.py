"""Limits of the connections of a port: in total, by address, and by the file descriptors that the store needs."""

from __future__ import annotations

from collections import Counter

from heliograph_api.broker_config import BrokerConfig

from heliograph_broker.messaging.base.histograms import ConnectionMetrics

from .descriptors import descriptor_limit, reserve_of


class ConnectionLimits:
    """Counts the connections of one port. A maximum of 0 means no limit.

    ``descriptors`` is the limit of the process; connections must leave ``reserve`` of them free.
    """

    def __init__(
        self, metrics: ConnectionMetrics, *, total: int, per_address: int, descriptors: int, reserve: int
    ) -> None:
        self._metrics = metrics
        self._total = total
        self._per_address = per_address
        self._descriptors = descriptors
        self._reserve = reserve
        self._by_address: Counter[str] = Counter()

    def refusal(self, address: str, descriptor: int) -> str:
        """Return the reason for refusing a connection, with the limit's name; empty if it is accepted."""
        if descriptor >= self._descriptors - self._reserve:
            self._metrics.refused["descriptors"] += 1
            return (
                f"Reached the maximum number of connections: of {self._descriptors} file descriptors "
                f"{self._reserve} are kept for the store (reserved_descriptors)"
            )
        if 0 < self._total <= self._metrics.open:
            self._metrics.refused["total"] += 1
            return f"Reached the maximum number of connections: {self._total} (max_connections)"
        if 0 < self._per_address <= self._by_address[address]:
            self._metrics.refused["address"] += 1
            return (
                f"Reached the maximum number of connections on address {address}: {self._per_address} "
                "(max_connections_per_address)"
            )
        return ""

    def cut(self, reason: str) -> None:
        """Count a connection that ended before it had a protocol, if there is a reason for which it was cut."""
        if reason:
            self._metrics.cut[reason] += 1

    def opened(self, address: str) -> None:
        self._metrics.open += 1
        self._by_address[address] += 1

    def closed(self, address: str) -> None:
        self._metrics.open -= 1
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]


def limits_of(config: BrokerConfig, metrics: ConnectionMetrics, *, of_reserve: float = 1.0) -> ConnectionLimits:
    """Return the limits of a port that leaves the fraction ``of_reserve`` of the reserved descriptors free."""
    descriptors = descriptor_limit()
    return ConnectionLimits(
        metrics,
        total=config.max_connections,
        per_address=config.max_connections_per_address,
        descriptors=descriptors,
        reserve=round(reserve_of(descriptors, config.reserved_descriptors) * of_reserve),
    )
