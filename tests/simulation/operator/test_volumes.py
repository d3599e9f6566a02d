"""Volumes grow under a running broker, and the status follows them to the end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from heliograph_operator.objects.kinds import Key

from tests.simulation.run import quiet

from .virtual_time import VirtualLoop, virtual_wall_clock
from .witness import ready_of
from .world import NAMESPACE, Operation, World

CLUSTER = Key("BrokerCluster", NAMESPACE, "main")
CLAIM = Key("PersistentVolumeClaim", NAMESPACE, "data-main-0")
POD = Key("Pod", NAMESPACE, "main-0")
STATEFUL_SET = Key("StatefulSet", NAMESPACE, "main")
GROWS = Operation("edit", ("BrokerCluster", "main", {"storage": {"size": "20Gi"}}), 0.0)


def _in_a_world(check: Callable[[World], Awaitable[None]]) -> None:
    async def run() -> None:
        async with World(1) as world:
            await asyncio.sleep(30)
            assert _ready(world)["status"] == "True"
            await check(world)
            assert world.witness.violation is None

    with quiet(), virtual_wall_clock(), asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(run())


def _ready(world: World) -> dict[str, Any]:
    return ready_of(world.server.objects[CLUSTER].get("status") or {})


async def _reasons(world: World, seconds: float) -> list[str]:
    """Return the reasons of the new generation's Ready, each once, in the order of their first appearance."""
    reasons: dict[str, None] = {}
    for _ in range(int(seconds * 10)):
        await asyncio.sleep(0.1)
        ready = _ready(world)
        if ready["observedGeneration"] == world.server.objects[CLUSTER]["metadata"]["generation"]:
            reasons[ready["reason"]] = None
            if ready["status"] == "True":
                assert world.server.objects[CLAIM]["status"]["capacity"] == {"storage": "20Gi"}
    return list(reasons)


def _events(world: World) -> set[str]:
    return {body["reason"] for key, body in world.server.objects.items() if key.kind == "Event"}


def test_a_cluster_is_ready_when_its_volumes_have_the_size_and_the_next_stateful_set_waits_for_the_last() -> None:
    async def check(world: World) -> None:
        pod, before = (world.server.objects[key]["metadata"]["uid"] for key in (POD, STATEFUL_SET))
        await world.do(GROWS)
        assert await _reasons(world, 90) == ["RollingOut", "VolumesGrowing", "Reconciled"]
        [template] = world.server.objects[STATEFUL_SET]["spec"]["volumeClaimTemplates"]
        assert template["spec"]["resources"]["requests"] == {"storage": "20Gi"}
        assert world.server.objects[STATEFUL_SET]["metadata"]["uid"] != before
        assert world.server.objects[POD]["metadata"]["uid"] == pod
        assert _events(world) & {"DriftRepaired", "Invalid"} == set()

    _in_a_world(check)


@pytest.mark.parametrize("error", ["ControllerResizeError", "NodeResizeError"])
def test_a_volume_that_cannot_grow_makes_the_cluster_not_ready_until_it_can(error: str) -> None:
    async def check(world: World) -> None:
        world.resize_error = error
        await world.do(GROWS)
        assert await _reasons(world, 90) == ["RollingOut", "VolumesGrowing", "VolumeGrowthFailed"]
        assert _ready(world)["message"] == f"volume data-main-0 has 10Gi of 20Gi: {error}: no space"
        assert "VolumeGrowthFailed" in _events(world)
        world.resize_error = ""
        world._grow_volume("data-main-0")
        assert await _reasons(world, 30) == ["VolumeGrowthFailed", "Reconciled"]

    _in_a_world(check)


def test_an_operator_that_is_killed_between_two_stateful_sets_leaves_the_pods_and_goes_on() -> None:
    async def check(world: World) -> None:
        pod = world.server.objects[POD]["metadata"]["uid"]
        await world.do(GROWS)
        await asyncio.sleep(2)
        assert "deletionTimestamp" in world.server.objects[STATEFUL_SET]["metadata"]
        await world.kill_operator()
        await asyncio.sleep(60)
        assert STATEFUL_SET not in world.server.objects
        await world.start_operator()
        await asyncio.sleep(60)
        assert _ready(world)["status"] == "True"
        assert world.server.objects[POD]["metadata"]["uid"] == pod

    _in_a_world(check)
