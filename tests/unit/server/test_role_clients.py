"""Limits of all clients of a role together: refused by name and counted, or held back until there is room."""

from __future__ import annotations

import pytest
from heliograph_api.policies.policies import Rate
from heliograph_api.resources.role_state import RoleLimits
from heliograph_broker.clock import VirtualClock
from heliograph_broker.messaging.base.errors import NotAllowed
from heliograph_broker.messaging.base.histograms import BrokerMetrics
from heliograph_broker.server.role_clients import RoleClient, RoleClients


class Client(RoleClient):
    """A connection of a test, which remembers for how long (ms) it was held back; 0: it is not."""

    def __init__(self, producers: int = 0, consumers: int = 0) -> None:
        self.producers = producers
        self.consumers = consumers
        self.publishing_held = self.messages_held = 0

    @property
    def producer_count(self) -> int:
        return self.producers

    @property
    def consumer_count(self) -> int:
        return self.consumers

    def hold_publishing(self, reason: object, ms: int) -> None:
        self.publishing_held = ms

    def release_publishing(self, reason: object) -> None:
        self.publishing_held = 0

    def hold_messages(self, ms: int) -> None:
        self.messages_held = ms

    def release_messages(self) -> None:
        self.messages_held = 0


class Roles:
    """Clients of roles on virtual time, with limits by role."""

    def __init__(self, most: int = 0, **limits: RoleLimits) -> None:
        self.limits = limits
        self.clock = VirtualClock()
        self.metrics = BrokerMetrics(self.clock)
        self.clients = RoleClients(self.metrics, self.clock, lambda role: self.limits.get(role, RoleLimits()), most)


def test_the_lower_of_both_limits_of_connections_holds() -> None:
    roles = Roles(most=2, low=RoleLimits(connections=1), high=RoleLimits(connections=9), none=RoleLimits(connections=0))
    assert "role: 0 (limits of the role none)" in roles.clients.refusal("none")
    for role, most in (("low", 1), ("high", 2), ("other", 2)):
        there = [Client() for _ in range(most)]
        for each in there:
            assert roles.clients.refusal(role) == ""
            roles.clients.opened(role, each)
        named = f"limits of the role {role}" if role == "low" else "max_connections_per_role"
        assert roles.clients.refusal(role) == f"Reached the maximum number of connections of a role: {most} ({named})"
        assert roles.clients.connections(role) == most
        roles.clients.closed(role, there[0])
        assert roles.clients.refusal(role) == ""
    assert roles.metrics.binary_connections.refused["role"] == 4


def test_producers_and_consumers_are_counted_over_all_connections_of_a_role() -> None:
    roles = Roles(billing=RoleLimits(producers=3, consumers=2))
    first, second = Client(1, 1), Client(1)
    for each in (first, second):
        roles.clients.opened("billing", each)
    roles.clients.opened("other", Client(9, 9))
    roles.clients.check_producers("billing")
    roles.clients.check_consumers("billing")
    second.producers, second.consumers = 2, 1
    with pytest.raises(NotAllowed, match=r"maximum number of producers of a role: 3 \(limits of the role billing\)"):
        roles.clients.check_producers("billing")
    with pytest.raises(NotAllowed, match="maximum number of consumers of a role: 2"):
        roles.clients.check_consumers("billing")
    roles.clients.check_producers("other")
    assert roles.metrics.role_limits == {"producers": 1, "consumers": 1, "publishRate": 0, "dispatchRate": 0}
    roles.clients.closed("billing", second)
    roles.clients.check_producers("billing")
    # A limit that is lowered below what is there refuses the next one.
    roles.limits["billing"] = RoleLimits(producers=0)
    with pytest.raises(NotAllowed):
        roles.clients.check_producers("billing")


def test_a_publish_rate_holds_back_all_producers_of_the_role_and_nobody_else() -> None:
    roles = Roles(billing=RoleLimits(publish_rate=Rate(messages=10)), other=RoleLimits(publish_rate=Rate(messages=10)))
    one, two, consuming, other = Client(1), Client(1), Client(0, 1), Client(1)
    rates = [roles.clients.opened("billing", each) for each in (one, two, consuming)]
    roles.clients.opened("other", other)
    assert rates[0] is rates[1]
    rates[0].published(9, 100)
    assert one.publishing_held == 0
    rates[1].published(1, 100)
    assert (one.publishing_held, two.publishing_held) == (1000, 1000)
    assert (consuming.publishing_held, other.publishing_held) == (0, 0)
    assert roles.metrics.role_limits["publishRate"] == 1
    # Without the limit, they go on at once; a limit that stays goes on counting.
    roles.clients.configure()
    assert one.publishing_held == 1000
    roles.limits["billing"] = RoleLimits()
    roles.clients.configure()
    assert (one.publishing_held, two.publishing_held) == (0, 0)
    rates[0].published(1000, 1000)
    assert one.publishing_held == 0


def test_a_dispatch_rate_of_bytes_holds_back_all_consumers_of_the_role() -> None:
    roles = Roles(billing=RoleLimits(dispatch_rate=Rate(bytes=1000)))
    one, two = Client(0, 1), Client(0, 1)
    rates = roles.clients.opened("billing", one)
    roles.clients.opened("billing", two)
    rates.dispatched(50, 999)
    assert one.messages_held == 0
    rates.dispatched(1, 1001)
    # The part above the rate is owed.
    assert one.messages_held == two.messages_held == 2000
    roles.clock.advance_ms(2000)
    rates.dispatched(1, 1)
    assert roles.metrics.role_limits["dispatchRate"] == 1
    roles.limits["billing"] = RoleLimits(dispatch_rate=Rate(bytes=2000))
    roles.clients.configure()
    assert one.messages_held == two.messages_held == 0


def test_many_clients_of_a_role_are_held_back_seldom() -> None:
    roles = Roles(billing=RoleLimits(publish_rate=Rate(messages=1000), dispatch_rate=Rate(messages=1000)))
    clients = [Client(1, 1) for _ in range(400)]
    for each in clients:
        rates = roles.clients.opened("billing", each)
    for _ in range(1000):
        roles.clock.advance_ms(1)
        rates.published(1, 1)
        rates.dispatched(1, 1)
    # There is room for one message in a millisecond; to hold and release all for each would take all of the time.
    assert {(each.publishing_held, each.messages_held) for each in clients} == {(20, 20)}


def test_rates_go_on_for_a_role_that_connects_again() -> None:
    roles = Roles(billing=RoleLimits(publish_rate=Rate(messages=10), dispatch_rate=Rate(messages=5)))
    client = Client(1, 1)
    rates = roles.clients.opened("billing", client)
    rates.published(20, 1)
    rates.dispatched(10, 1)
    assert (client.publishing_held, client.messages_held) == (2000, 2000)
    roles.clients.closed("billing", client)
    assert roles.clients.connections("billing") == 0
    roles.clock.advance_ms(500)
    again = Client()
    rates = roles.clients.opened("billing", again)
    assert (again.publishing_held, again.messages_held) == (0, 0)
    rates.producing(again)
    rates.consuming(again)
    assert (again.publishing_held, again.messages_held) == (1500, 1500)
    assert roles.metrics.role_limits["publishRate"] == 1
    roles.clock.advance_ms(1500)
    later = Client()
    rates.producing(later)
    rates.consuming(later)
    assert (later.publishing_held, later.messages_held) == (0, 0)


def test_nothing_is_kept_of_a_role_without_connections_and_rates() -> None:
    roles = Roles(billing=RoleLimits(publish_rate=Rate(messages=1)), other=RoleLimits(connections=1))
    for role in ("billing", "other"):
        client = Client(1)
        roles.clients.opened(role, client)
        roles.clients.closed(role, client)
    assert list(roles.clients._by_role) == ["billing"]
    assert roles.clients.connections("billing") == 0
    roles.clients.configure()
    assert list(roles.clients._by_role) == ["billing"]
    del roles.limits["billing"]
    roles.clients.configure()
    assert roles.clients._by_role == {}
