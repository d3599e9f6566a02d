"""An operator with another default image replaces the brokers of its BrokerClusters one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from heliograph_operator.objects.conditions import condition
from heliograph_operator.objects.kinds import Key

from tests.simulation.run import quiet

from .api_server import Object
from .virtual_time import VirtualLoop, virtual_wall_clock
from .world import NAMESPACE, World

NAMES = ("main", "second", "third", "pinned")
#: The virtual clock begins at midnight.
NIGHTLY = [{"start": "00:10", "duration": "10m"}]


class Rollouts:
    """Watches the StatefulSets: which of them are being rolled out, and in which order they began."""

    def __init__(self) -> None:
        self.under_way: set[str] = set()
        self.began: list[str] = []
        self.most = 0

    def changed(self, before: Object | None, now: Object | None) -> None:
        if before is None or now is None or now["kind"] != "StatefulSet":
            return
        name = now["metadata"]["name"]
        if before["spec"]["template"] != now["spec"]["template"]:
            self.under_way.add(name)
            self.began.append(name)
            self.most = max(self.most, len(self.under_way))
        status = now.get("status") or {}
        if status.get("observedGeneration") == now["metadata"]["generation"] and status["readyReplicas"]:
            self.under_way.discard(name)


def _in_a_world(check: Callable[[World, Rollouts], Awaitable[None]], *, not_ready: str = "", **specs: Object) -> None:
    async def run() -> None:
        async with World(1) as world:
            for name in NAMES[1:]:
                world._create("BrokerCluster", name, specs.get(name, {}))
            await asyncio.sleep(60)
            assert all(_condition(world, name)["status"] == "True" for name in NAMES if name != not_ready)
            rollouts = Rollouts()
            world.server.observers.append(rollouts)
            await check(world, rollouts)
            assert world.witness.violation is None

    with quiet(), virtual_wall_clock(), asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(run())


def _condition(world: World, name: str, kind: str = "Ready") -> dict[str, Any]:
    status = world.server.objects[Key("BrokerCluster", NAMESPACE, name)].get("status") or {}
    return dict(condition(status, kind))


def _status(world: World, name: str) -> Object:
    found: Object = world.server.objects[Key("BrokerCluster", NAMESPACE, name)]["status"]
    return found


def _image(world: World, name: str) -> str:
    template = world.server.objects[Key("StatefulSet", NAMESPACE, name)]["spec"]["template"]
    return str(template["spec"]["containers"][0]["image"])


async def _upgrade(world: World, image: str = "broker:2") -> None:
    await world.stop_operator()
    world.image = image
    await world.start_operator()


PINNED: Object = {"pinned": {"image": "mine@sha256:" + "0" * 64}}


def test_an_upgrade_replaces_one_broker_at_a_time_and_no_pinned_one() -> None:
    async def check(world: World, rollouts: Rollouts) -> None:
        await _upgrade(world)
        await asyncio.sleep(4)
        waiting = [name for name in NAMES if _condition(world, name, "Progressing")["reason"] == "RolloutWaiting"]
        assert len(waiting) == 2, "one of three is replaced, and the pinned one does not wait"
        for name in waiting:
            assert _condition(world, name)["status"] == "True"
            assert f"waits for BrokerCluster {NAMESPACE}/" in _condition(world, name, "Progressing")["message"]
            assert _status(world, name)["rollout"] == {"image": "broker:2"}
            assert _image(world, name) == "broker:1"
        await asyncio.sleep(120)
        assert (rollouts.most, sorted(rollouts.began)) == (1, ["main", "second", "third"])
        for name in ("main", "second", "third"):
            assert _image(world, name) == "broker:2"
            assert _condition(world, name, "Progressing")["reason"] == "RolledOut"
            assert "rollout" not in _status(world, name)
        assert _image(world, "pinned") == PINNED["pinned"]["image"]

    _in_a_world(check, **PINNED)


def test_an_operator_that_is_killed_in_a_rollout_goes_on_one_by_one() -> None:
    async def check(world: World, rollouts: Rollouts) -> None:
        await _upgrade(world)
        for _ in range(20):
            await asyncio.sleep(1.3)
            await world.kill_operator()
            await world.start_operator()
        await asyncio.sleep(90)
        assert rollouts.most == 1
        assert {_image(world, name) for name in NAMES} == {"broker:2"}

    _in_a_world(check)


def test_a_broker_that_does_not_become_ready_stops_the_upgrade_and_no_change_of_a_person() -> None:
    async def check(world: World, rollouts: Rollouts) -> None:
        world.broken_images.add("broker:2")
        await _upgrade(world)
        await asyncio.sleep(90)
        [failed] = rollouts.began
        others = [name for name in NAMES if name != failed]
        assert {_image(world, name) for name in others} == {"broker:1"}
        for name in others:
            assert f"{NAMESPACE}/{failed}," in _condition(world, name, "Progressing")["message"]
        await world.edit("BrokerCluster", others[0], {"config": {"metrics_level": "broker"}, "image": "mine:1"})
        await asyncio.sleep(30)
        assert rollouts.began == [failed, others[0]]
        assert _condition(world, others[0])["status"] == "True"
        # An operator with a good image helps the one that failed at once, and then the others.
        await _upgrade(world, "broker:3")
        await asyncio.sleep(120)
        assert {_image(world, name) for name in NAMES} == {"broker:3", "mine:1"}
        assert all(_condition(world, name)["status"] == "True" for name in NAMES)

    _in_a_world(check)


def test_an_upgrade_waits_for_the_maintenance_window_and_a_change_of_a_person_does_not() -> None:
    windows: Object = {name: {"maintenanceWindows": NIGHTLY} for name in NAMES[1:]}

    async def check(world: World, rollouts: Rollouts) -> None:
        await _upgrade(world)
        await asyncio.sleep(120)
        assert rollouts.began == ["main"]
        for name in NAMES[1:]:
            found = _condition(world, name, "Progressing")
            # It is not under way: an alert tells of those that do not end.
            assert (found["status"], found["reason"]) == ("False", "RolloutWaiting")
            assert "maintenance window that opens at 2026-01-01 00:10 UTC" in found["message"]
            assert _status(world, name)["rollout"] == {"image": "broker:2", "nextWindow": "2026-01-01T00:10:00Z"}
        writes = len(world.server.writes)
        await asyncio.sleep(120)
        assert len(world.server.writes) == writes, "nothing is written while a rollout waits"
        spec = {"maintenanceWindows": NIGHTLY, "config": {"metrics_level": "broker"}}
        await world.edit("BrokerCluster", "second", spec)
        await asyncio.sleep(30)
        assert rollouts.began == ["main", "second"]
        await asyncio.sleep(400)
        assert rollouts.most == 1
        assert sorted(rollouts.began) == sorted(NAMES)

    _in_a_world(check, **windows)


def test_a_stateful_set_that_waits_is_repaired_with_the_template_it_has() -> None:
    windows: Object = {name: {"maintenanceWindows": NIGHTLY} for name in NAMES[1:]}

    async def check(world: World, rollouts: Rollouts) -> None:
        await _upgrade(world)
        await asyncio.sleep(60)
        key = Key("StatefulSet", NAMESPACE, "second")
        world.server.merge(key, {"spec": {"replicas": 0}})
        await asyncio.sleep(60)
        assert world.server.objects[key]["spec"]["replicas"] == 1
        assert _image(world, "second") == "broker:1"
        # A larger volume recreates the StatefulSet around its pods.
        before = world.server.objects[key]["metadata"]["uid"]
        await world.edit("BrokerCluster", "second", {"maintenanceWindows": NIGHTLY, "storage": {"size": "20Gi"}})
        await asyncio.sleep(60)
        assert world.server.objects[key]["metadata"]["uid"] != before
        assert _image(world, "second") == "broker:1"
        assert rollouts.began == ["main"]

    _in_a_world(check, **windows)


def test_a_stateful_set_that_is_gone_while_its_rollout_waits_comes_back_as_it_was() -> None:
    windows: Object = {name: {"maintenanceWindows": NIGHTLY} for name in NAMES[1:]}

    async def check(world: World, rollouts: Rollouts) -> None:
        await _upgrade(world)
        await asyncio.sleep(30)
        key = Key("StatefulSet", NAMESPACE, "second")
        # Somebody deletes it, and the operator does not see it.
        await world.kill_operator()
        world.server.delete(key)
        await asyncio.sleep(5)
        await world.start_operator()
        await asyncio.sleep(30)
        assert _image(world, "second") == "broker:1"
        # The operator is killed after it deleted it around its pods, for a larger volume.
        spec = {"maintenanceWindows": NIGHTLY, "storage": {"size": "20Gi"}}
        await world.edit("BrokerCluster", "second", spec)
        for _ in range(100):
            await asyncio.sleep(0.05)
            if "deletionTimestamp" in world.server.objects.get(key, {"metadata": "deletionTimestamp"})["metadata"]:
                break
        await world.kill_operator()
        await asyncio.sleep(10)
        assert key not in world.server.objects
        await world.start_operator()
        await asyncio.sleep(30)
        assert _image(world, "second") == "broker:1"
        assert _condition(world, "second", "Progressing")["reason"] == "RolloutWaiting"
        assert rollouts.began == ["main"]
        await asyncio.sleep(700)
        assert {_image(world, name) for name in NAMES} == {"broker:2"}

    _in_a_world(check, **windows)


def test_addresses_of_a_load_balancer_take_no_upgrade_with_them_and_their_order_restarts_nothing() -> None:
    spec: Object = {"maintenanceWindows": NIGHTLY, "listeners": [{"name": "world", "type": "LoadBalancer"}]}

    async def check(world: World, rollouts: Rollouts) -> None:
        async def assign(*addresses: str) -> None:
            status = {"loadBalancer": {"ingress": [{"ip": each} for each in addresses]}}
            world.server.merge(Key("Service", NAMESPACE, "second-world"), {"status": status}, status=True)
            await asyncio.sleep(20)

        def advertises() -> str:
            template = world.server.objects[Key("StatefulSet", NAMESPACE, "second")]["spec"]["template"]
            env = {each["name"]: each.get("value") for each in template["spec"]["containers"][0]["env"]}
            return str(env["HELIOGRAPH_ADVERTISED_LISTENERS"]).rpartition("world:pulsar://")[2]

        await assign("192.0.2.1", "192.0.2.2")
        assert (rollouts.began, advertises()) == (["second"], "192.0.2.1:6650")
        await _upgrade(world)
        await asyncio.sleep(30)
        for _ in range(2):
            await assign("192.0.2.2", "192.0.2.1")
            await assign("192.0.2.1", "192.0.2.2")
        assert rollouts.began == ["second", "main"]
        await assign("192.0.2.3")
        assert (rollouts.began, advertises()) == (["second", "main", "second"], "192.0.2.3:6650")
        assert _image(world, "second") == "broker:1"
        assert _condition(world, "second", "Progressing")["reason"] == "RolloutWaiting"
        await asyncio.sleep(600)
        assert _image(world, "second") == "broker:2"
        assert rollouts.began.count("second") == 3

    _in_a_world(check, not_ready="second", second=spec, third={"image": "mine:1"}, pinned={"image": "mine:1"})


def test_a_change_of_a_listener_takes_no_upgrade_with_it() -> None:
    office: Object = {"name": "office", "type": "ClusterIP", "clients": [{"ipBlock": {"cidr": "10.20.0.0/16"}}]}

    async def check(world: World, rollouts: Rollouts) -> None:
        async def edit(*listeners: Object) -> None:
            spec = {"maintenanceWindows": NIGHTLY, "listeners": list(listeners)}
            await world.edit("BrokerCluster", "second", spec)
            await asyncio.sleep(30)

        def ports() -> list[str]:
            template = world.server.objects[Key("StatefulSet", NAMESPACE, "second")]["spec"]["template"]
            return [each["name"] for each in template["spec"]["containers"][0]["ports"]]

        await _upgrade(world)
        await asyncio.sleep(30)
        other = {**office, "clients": [{"ipBlock": {"cidr": "10.21.0.0/16"}}]}
        await edit(other)
        policy = world.server.objects[Key("NetworkPolicy", NAMESPACE, "second")]
        assert "10.21.0.0/16" in str(policy)
        assert rollouts.began == ["main"]
        # A new listener is there at once, with the image that there was.
        await edit(other, {"name": "partners", "type": "ClusterIP"})
        assert rollouts.began == ["main", "second"]
        assert ports() == ["pulsar", "http", "metrics", "office", "partners"]
        await edit()
        assert ports() == ["pulsar", "http", "metrics"]
        assert _image(world, "second") == "broker:1"
        await asyncio.sleep(600)
        assert _image(world, "second") == "broker:2"

    spec: Object = {"maintenanceWindows": NIGHTLY, "listeners": [office]}
    _in_a_world(check, second=spec, third={"image": "mine:1"}, pinned={"image": "mine:1"})


def test_a_status_that_comes_after_its_pods_delays_the_next_one_no_longer() -> None:
    async def check(world: World, rollouts: Rollouts) -> None:
        world.status_delay_s = 2.0
        await _upgrade(world)
        await asyncio.sleep(60)
        assert (rollouts.most, sorted(rollouts.began)) == (1, ["main", "second", "third"])
        assert {_image(world, name) for name in NAMES[:3]} == {"broker:2"}

    _in_a_world(check, **PINNED)


def test_a_window_shorter_than_the_time_between_two_reconciles_is_not_missed() -> None:
    short: Object = {name: {"maintenanceWindows": [{"start": "00:12", "duration": "1m"}]} for name in NAMES[1:2]}

    async def check(world: World, rollouts: Rollouts) -> None:
        await _upgrade(world)
        await asyncio.sleep(30)
        assert _image(world, "second") == "broker:1"
        await asyncio.sleep(720)
        assert _image(world, "second") == "broker:2"

    _in_a_world(check, **short)
