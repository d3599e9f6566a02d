"""The listings every few seconds go on while sessions come and go, and queue what a broker's answer concerns."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Literal

import pytest
from heliograph_api.admin.admin_client import AdminRefused
from heliograph_operator.act.broker_sessions import BrokerSessions, Listing
from heliograph_operator.objects.kinds import Key
from heliograph_operator.objects.targets import broker_address
from heliograph_operator.policies.refresh import Refresh

from tests.simulation.operator.virtual_time import VirtualLoop

from .installation import Broker, Installation, Operator
from .test_broker_connections import CONNECTION, TENANT, TOPIC, connection, family

ADDRESS = broker_address(connection())


class Counted(Broker):
    """A broker that counts its listings, each of which takes a moment; it refuses them on demand."""

    def __init__(self) -> None:
        super().__init__()
        self.listings = 0
        self.refuses = False

    async def listing(self, since: float, role: str | None = None) -> Listing:
        self.listings += 1
        await asyncio.sleep(0.03)
        if self.refuses:
            raise AdminRefused(401, "HTTP 401")
        return await super().listing(since)


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        yield runner


async def refreshed(broker: Counted) -> tuple[Operator, BrokerSessions, asyncio.Task[None]]:
    """Start an operator with resources on a connection, and its refresh every 0.3 s."""
    installation = Installation(connection(), *family())
    sessions = BrokerSessions(0.0)
    await sessions.connect(ADDRESS, broker)
    operator = installation.started(sessions=sessions, refresh_s=0.3)
    await operator.settle_policies()
    assert installation.ready(TOPIC)[0] == "Reconciled"
    # The session of the connection itself, as its own reconcile has it.
    operator.context.memories.of(CONNECTION, connection()).http_url = ADDRESS
    return operator, sessions, asyncio.create_task(Refresh(operator.context, sessions).run())


@pytest.mark.parametrize("early_s", [each * 0.03 for each in range(11)])
def test_the_refresh_goes_on_with_the_session_that_replaces_another(runner: asyncio.Runner, early_s: float) -> None:
    async def check() -> int:
        _, sessions, refresh = await refreshed(Counted())
        # At any moment between two listings.
        await asyncio.sleep(1.5 + early_s)
        await sessions.disconnect(ADDRESS)
        await asyncio.sleep(0.1)
        replacing = Counted()
        await sessions.connect(ADDRESS, replacing)
        await asyncio.sleep(3)
        refresh.cancel()
        return replacing.listings

    assert runner.run(check()) > 5


async def reported_when(broker_is: Literal["refuses", "unreachable"]) -> list[Key]:
    """Return the resources that are enqueued within a second after a broker refuses, or does not answer."""
    broker = Counted()
    operator, _, refresh = await refreshed(broker)
    setattr(broker, broker_is, True)
    await asyncio.sleep(1)
    refresh.cancel()
    queue = operator.context.queue
    return [await queue.take() for _ in range(len(queue))]


def test_brokers_that_refuse_a_listing_are_reported_by_their_connection_alone(runner: asyncio.Runner) -> None:
    assert runner.run(reported_when("refuses")) == [CONNECTION]


def test_brokers_that_do_not_answer_are_reported_by_all_on_them(runner: asyncio.Runner) -> None:
    assert {CONNECTION, TENANT, TOPIC} <= set(runner.run(reported_when("unreachable")))
