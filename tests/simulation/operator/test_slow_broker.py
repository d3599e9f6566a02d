"""A broker that takes requests and never answers delays its own resources, and no other broker's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from heliograph_operator.objects.kinds import Key

from tests.simulation.run import quiet

from .virtual_time import VirtualLoop, virtual_wall_clock
from .witness import ready_of
from .world import NAMESPACE, World

#: More than the operator reconciles at the same time.
TENANTS = 40
TOPIC = "persistent://shop/payments/orders"


def _in_a_world(check: Callable[[World], Awaitable[None]]) -> None:
    async def run() -> None:
        async with World(1) as world:
            await world.create("BrokerCluster", "slow", {}, {})
            await world.create("Tenant", "shop", {"clusterRef": {"name": "main"}}, {})
            await world.create("Namespace", "payments", {"tenantRef": {"name": "shop"}}, {})
            await world.create("Topic", "orders", {"namespaceRef": {"name": "payments"}, "messageTTL": "1h"}, {})
            for number in range(TENANTS):
                await world.create("Tenant", f"t{number}", {"clusterRef": {"name": "slow"}}, {})
            await asyncio.sleep(90)
            for name in ("shop", *(f"t{number}" for number in range(TENANTS))):
                assert _ready(world, "Tenant", name)["status"] == "True", name
            assert TOPIC in world.brokers["main"].topics
            world.brokers["slow"].silent = True
            await check(world)
            assert world.witness.violation is None

    with quiet(), virtual_wall_clock(), asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(run())


def _ready(world: World, kind: str, name: str) -> dict[str, Any]:
    return ready_of(world.server.objects[Key(kind, NAMESPACE, name)].get("status") or {})


@pytest.mark.parametrize("later_s", [0.5, 15, 25, 60, 200])
def test_its_resources_hold_no_other_brokers_back(later_s: float) -> None:
    async def check(world: World) -> None:
        for number in range(TENANTS):
            await world.edit("Tenant", f"t{number}", {"adminRoles": ["ops"]})
        await asyncio.sleep(later_s)
        await world.edit("Tenant", "shop", {"adminRoles": ["finance"]})
        await asyncio.sleep(3)
        assert world.brokers["main"].tenants["shop"].admin_roles == ["finance"]
        assert _ready(world, "Tenant", "shop")["observedGeneration"] == 2

    _in_a_world(check)


def test_drift_in_another_broker_is_found_in_time() -> None:
    async def check(world: World) -> None:
        for _ in range(8):
            await world.drift(TOPIC, 1000)
            # The period of a refresh, and a little for the repair.
            await asyncio.sleep(17)
            assert world.brokers["main"].topics[TOPIC].policies.message_ttl_ms == 3_600_000

    _in_a_world(check)


def test_its_own_resources_follow_when_it_answers_again() -> None:
    async def check(world: World) -> None:
        for number in range(TENANTS):
            await world.edit("Tenant", f"t{number}", {"adminRoles": ["ops"]})
        await asyncio.sleep(100)
        assert {_ready(world, "Tenant", f"t{number}")["reason"] for number in range(TENANTS)} == {"BrokerUnreachable"}
        assert _ready(world, "BrokerCluster", "slow")["reason"] == "BrokerUnreachable"
        assert _ready(world, "BrokerCluster", "main")["status"] == "True"
        world.brokers["slow"].silent = False
        # A request on its way has 20 s, the pause after it 30.
        await asyncio.sleep(60)
        for number in range(TENANTS):
            assert world.brokers["slow"].tenants[f"t{number}"].admin_roles == ["ops"]
            assert _ready(world, "Tenant", f"t{number}")["status"] == "True"

    _in_a_world(check)
