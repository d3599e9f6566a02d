"""A new image is asked whether it reads the brokers' volumes before the running broker goes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from heliograph_operator.act.controller import Context
from heliograph_operator.act.resource_memory import ResourceMemories
from heliograph_operator.act.work_queue import WorkQueue
from heliograph_operator.decide.stateful_set import selector
from heliograph_operator.kube.client import KubeRefused
from heliograph_operator.kube.events import Events
from heliograph_operator.objects.conditions import condition
from heliograph_operator.objects.kinds import FINALIZER, Body, Key, Kind, key_of
from heliograph_operator.objects.resource_cache import ResourceCache
from heliograph_operator.operator_settings import Settings

from .api_server import ApiServer, resource_of
from .bodies import body
from .cluster_keys import cluster_reconciler
from .installation import Broker, OneBroker

CLUSTER = Key("BrokerCluster", "team", "main")
STATEFUL_SET = Key("StatefulSet", "team", "main")
POD = Key("Pod", "team", "main-preflight")


class Server(ApiServer):
    """Takes pods, too, and may refuse them."""

    refusal: KubeRefused | None = None

    async def create(self, kind: Kind, body: Body) -> dict[str, Any]:
        if kind.name != "Pod":
            return await super().create(kind, body)
        if self.refusal is not None:
            raise self.refusal
        created = datetime.now(UTC).isoformat()
        self.objects[key_of(body)] = {**body, "metadata": {**body["metadata"], "creationTimestamp": created}}
        return self.objects[key_of(body)]


class World:
    """A BrokerCluster with a StatefulSet whose broker is ready, and an operator with another default image."""

    def __init__(self, **spec: Any) -> None:
        self.server = Server(body("BrokerCluster", "main", spec, finalizers=[FINALIZER]))
        self.server.objects[CLUSTER]["status"] = {"storeFormat": "heliograph 3", "observedGeneration": 1}

    async def reconcile(self, image: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Reconcile it by a new operator; return the conditions Ready and Progressing."""
        cache = ResourceCache()
        cache.put(self.server.objects[CLUSTER])
        settings = Settings(namespaces=("team",), broker_image=image)
        context = Context(settings, self.server, cache, ResourceMemories(), WorkQueue(), Events(self.server, "test"))
        reconciler = cluster_reconciler(OneBroker(Broker()), image=image)
        await reconciler.reconcile(context, resource_of(context, CLUSTER))
        status = self.server.objects[CLUSTER]["status"]
        return dict(condition(status, "Ready")), dict(condition(status, "Progressing"))

    def runs(self) -> str:
        template = self.server.objects[STATEFUL_SET]["spec"]["template"]
        return str(template["spec"]["containers"][0]["image"])

    def pod_ends(self, phase: str, message: str = "", code: int = 0) -> None:
        ended = {"state": {"terminated": {"exitCode": code, "message": message}}}
        self.server.objects[POD]["status"] = {"phase": phase, "containerStatuses": [ended]}


async def _upgraded(**spec: Any) -> World:
    world = World(**spec)
    await world.reconcile("broker:1")
    assert (world.runs(), POD in world.server.objects) == ("broker:1", False)
    await world.reconcile("broker:2")
    return world


async def test_an_image_that_reads_the_format_replaces_the_broker() -> None:
    world = await _upgraded()
    pod = world.server.objects[POD]
    [container] = pod["spec"]["containers"]
    assert container["image"] == "broker:2"
    assert container["args"] == ["store", "formats", "--reads", "heliograph 3"]
    assert pod["metadata"]["labels"]["app.kubernetes.io/component"] == "preflight"
    assert world.runs() == "broker:1"
    _, progressing = await world.reconcile("broker:2")
    assert (progressing["status"], progressing["reason"]) == ("True", "PreflightRunning")
    world.pod_ends("Succeeded")
    await world.reconcile("broker:2")
    assert (world.runs(), POD in world.server.objects) == ("broker:2", False)
    assert "rollout" not in world.server.objects[CLUSTER]["status"]


async def test_an_image_that_does_not_read_it_leaves_the_broker_and_names_the_formats() -> None:
    world = await _upgraded()
    world.pod_ends(
        "Failed", "starting\nError: this version does not read format 'heliograph 3'; it reads heliograph 9", 1
    )
    ready, progressing = await world.reconcile("broker:2")
    assert (ready["status"], ready["reason"], progressing["status"]) == ("False", "PreflightFailed", "False")
    assert ready["message"] == (
        "image broker:2 cannot read data of format 'heliograph 3': Error: this version does not read format"
        " 'heliograph 3'; it reads heliograph 9 (exit code 1); set an image whose `heliograph store formats` lists it"
    )
    assert world.runs() == "broker:1"
    # The image before is all it takes.
    ready, _ = await world.reconcile("broker:1")
    assert ready["reason"] != "PreflightFailed"
    assert (world.runs(), POD in world.server.objects) == ("broker:1", False)


async def test_a_failed_preflight_is_repeated_and_another_image_is_asked_at_once() -> None:
    world = await _upgraded()
    world.pod_ends("Failed", "no", 1)
    world.server.objects[POD]["metadata"]["creationTimestamp"] = (datetime.now(UTC) - timedelta(minutes=6)).isoformat()
    await world.reconcile("broker:2")
    assert POD not in world.server.objects
    await world.reconcile("broker:2")
    assert "status" not in world.server.objects[POD]
    await world.reconcile("broker:3")
    assert POD not in world.server.objects
    await world.reconcile("broker:3")
    assert world.server.objects[POD]["spec"]["containers"][0]["image"] == "broker:3"


@pytest.mark.parametrize("reason", ["ImagePullBackOff", "ErrImageNeverPull"])
async def test_an_image_that_cannot_be_pulled_leaves_the_broker(reason: str) -> None:
    world = await _upgraded()
    waiting = {"state": {"waiting": {"reason": reason, "message": "not there"}}}
    world.server.objects[POD]["status"] = {"phase": "Pending", "containerStatuses": [waiting]}
    ready, _ = await world.reconcile("broker:2")
    assert ready["reason"] == "PreflightFailed"
    assert ready["message"].startswith(f"image broker:2 does not start: {reason}: not there")
    assert world.runs() == "broker:1"


async def test_a_preflight_that_may_not_run_is_a_refusal() -> None:
    world = World()
    await world.reconcile("broker:1")
    world.server.refusal = KubeRefused(403, "Forbidden", "exceeded quota")
    ready, _ = await world.reconcile("broker:2")
    assert (ready["reason"], ready["message"]) == ("Forbidden", "Pod main-preflight: exceeded quota")
    assert world.runs() == "broker:1"


async def test_a_preflight_that_may_not_run_stops_no_repair_and_no_other_change() -> None:
    world = World()
    await world.reconcile("broker:1")
    world.server.refusal = KubeRefused(403, "Forbidden", "exceeded quota")
    service, policy = Key("Service", "team", "main"), Key("NetworkPolicy", "team", "main")
    del world.server.objects[service]
    world.server.objects[CLUSTER]["spec"] = {"networkPolicy": {"clients": []}}
    world.server.objects[CLUSTER]["metadata"]["generation"] = 2
    ready, progressing = await world.reconcile("broker:2")
    assert service in world.server.objects
    assert 6650 not in [rule["ports"][0]["port"] for rule in world.server.objects[policy]["spec"]["ingress"]]
    assert (ready["reason"], progressing["status"], progressing["reason"]) == ("Forbidden", "False", "Forbidden")
    assert world.runs() == "broker:1"


@pytest.mark.parametrize(
    ("spec", "status"), [({"preflight": False}, {"storeFormat": "heliograph 3"}), ({}, {"observedGeneration": 1})]
)
async def test_without_a_preflight_or_a_known_format_nothing_is_asked(
    spec: dict[str, Any], status: dict[str, Any]
) -> None:
    world = World(**spec)
    world.server.objects[CLUSTER]["status"] = status
    await world.reconcile("broker:1")
    await world.reconcile("broker:2")
    assert (world.runs(), POD in world.server.objects) == ("broker:2", False)


async def test_an_image_in_the_resource_stays_through_every_upgrade() -> None:
    image = f"registry.test/broker@sha256:{'0' * 64}"
    world = World(image=image)
    await world.reconcile("broker:1")
    before = world.server.applied.count(STATEFUL_SET)
    await world.reconcile("broker:2")
    assert (world.runs(), world.server.applied.count(STATEFUL_SET)) == (image, before)


async def test_a_window_in_a_zone_that_nobody_knows_is_invalid() -> None:
    world = World()
    await world.reconcile("broker:1")
    windows = [{"start": "02:00", "duration": "1h", "timeZone": "Europe/Atlantis"}]
    world.server.objects[CLUSTER]["spec"] = {"maintenanceWindows": windows}
    ready, _ = await world.reconcile("broker:2")
    assert (ready["reason"], world.runs()) == ("Invalid", "broker:1")
    assert ready["message"].startswith("spec.maintenanceWindows[0].timeZone: 'Europe/Atlantis' is not a time zone")


@pytest.mark.parametrize("name", ["aaa", "zzz"])
async def test_a_service_of_somebody_else_with_a_listeners_labels_gives_no_address(name: str) -> None:
    world = World(listeners=[{"name": "world", "type": "LoadBalancer"}])
    await world.reconcile("broker:1")
    own = world.server.objects[Key("Service", "team", "main-world")]
    theirs = {**own, "metadata": {**own["metadata"], "name": name, "uid": "theirs"}}
    theirs["metadata"]["ownerReferences"] = [{"uid": "other", "controller": True}]
    theirs["status"] = {"loadBalancer": {"ingress": [{"ip": "203.0.113.66"}]}}
    own["status"] = {"loadBalancer": {"ingress": [{"ip": "192.0.2.7"}]}}
    world.server.objects[Key("Service", "team", name)] = theirs
    await world.reconcile("broker:1")
    text = str(world.server.objects[STATEFUL_SET]["spec"]["template"])
    assert ("203.0.113.66" in text, "192.0.2.7" in text) == (False, True)
    assert Key("Service", "team", name) in world.server.objects


async def test_a_stateful_set_that_somebody_deletes_does_not_come_back_with_an_image_that_was_refused() -> None:
    world = await _upgraded()
    world.pod_ends("Failed", "this version does not read format 'heliograph 3'", 1)
    await world.reconcile("broker:2")
    del world.server.objects[STATEFUL_SET]
    ready, _ = await world.reconcile("broker:2")
    assert (world.runs(), ready["reason"]) == ("broker:1", "PreflightFailed")
    # Nor with a person's image.
    del world.server.objects[STATEFUL_SET]
    world.server.objects[CLUSTER]["spec"] = {"image": "mine:2"}
    world.server.objects[CLUSTER]["metadata"]["generation"] = 2
    await world.reconcile("broker:2")
    assert world.runs() == "broker:1"


async def test_a_load_balancer_without_an_address_keeps_its_listener_when_the_stateful_set_is_deleted() -> None:
    world = World(listeners=[{"name": "world", "type": "LoadBalancer"}])
    await world.reconcile("broker:1")
    service = world.server.objects[Key("Service", "team", "main-world")]
    service["status"] = {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}}
    await world.reconcile("broker:1")
    template = world.server.objects[STATEFUL_SET]["spec"]["template"]
    assert "world:pulsar://192.0.2.1:6650" in str(template)
    service["status"] = {}
    del world.server.objects[STATEFUL_SET]
    await world.reconcile("broker:1")
    assert world.server.objects[STATEFUL_SET]["spec"]["template"] == template


def _ready(world: World) -> None:
    """Let the StatefulSet's controller and the broker be done with the template."""
    found = world.server.objects[STATEFUL_SET]
    found["metadata"]["generation"] = 1
    found["status"] = {"observedGeneration": 1, "updateRevision": "r1", "currentRevision": "r1", "readyReplicas": 1}
    labels = {**selector("main"), "controller-revision-hash": "r1"}
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    metadata = {"name": "main-0", "namespace": "team", "labels": labels}
    world.server.objects[Key("Pod", "team", "main-0")] = {"kind": "Pod", "metadata": metadata, "status": status}


async def test_a_persons_image_that_is_not_applied_is_not_ready_and_an_upgrade_that_waits_is() -> None:
    world = World()
    await world.reconcile("broker:1")
    _ready(world)
    ready, _ = await world.reconcile("broker:1")
    assert ready["status"] == "True"
    ready, progressing = await world.reconcile("broker:2")
    assert (ready["status"], progressing["reason"]) == ("True", "PreflightRunning")
    del world.server.objects[POD]
    world.server.objects[CLUSTER]["spec"] = {"image": "mine:2"}
    world.server.objects[CLUSTER]["metadata"]["generation"] = 2
    ready, progressing = await world.reconcile("broker:2")
    assert (ready["status"], ready["reason"], ready["observedGeneration"]) == ("False", "PreflightRunning", 2)
    assert progressing["status"] == "True"
    # Its pod finds no node.
    waits = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available"}
    world.server.objects[POD]["status"] = {"phase": "Pending", "conditions": [waits]}
    ready, _ = await world.reconcile("broker:2")
    assert ready["reason"] == "PreflightRunning"
    created = (datetime.now(UTC) - timedelta(minutes=11)).isoformat()
    world.server.objects[POD]["metadata"]["creationTimestamp"] = created
    ready, _ = await world.reconcile("broker:2")
    assert (ready["reason"], ready["message"]) == (
        "PreflightFailed",
        "image mine:2 has not answered within 10 minutes: main-preflight: Unschedulable: 0/3 nodes are available",
    )
    assert world.runs() == "broker:1"
    # It found one at last.
    world.pod_ends("Succeeded")
    await world.reconcile("broker:2")
    assert world.runs() == "mine:2"


async def test_a_pod_of_somebody_else_that_has_the_name_is_a_conflict() -> None:
    world = World()
    await world.reconcile("broker:1")
    world.server.objects[POD] = {"kind": "Pod", "metadata": {"name": POD.name, "namespace": "team", "labels": {}}}
    world.server.refusal = KubeRefused(409, "AlreadyExists", "exists")
    ready, _ = await world.reconcile("broker:2")
    assert (ready["status"], ready["reason"]) == ("False", "Conflict")
    assert ready["message"].startswith("Pod main-preflight exists and does not belong to this BrokerCluster")
    assert (world.runs(), POD in world.server.objects) == ("broker:1", True)


async def test_a_policy_opens_no_port_of_a_listener_to_the_clients_of_another_while_pods_wait() -> None:
    office = {"name": "office", "type": "ClusterIP", "clients": [{"ipBlock": {"cidr": "10.20.0.0/16"}}]}
    world = World(listeners=[office])
    await world.reconcile("broker:1")
    everybody = {"name": "any", "type": "NodePort", "nodePort": 31651}
    world.server.objects[CLUSTER]["spec"] = {"image": "gone:2", "listeners": [office, everybody]}
    world.server.objects[CLUSTER]["metadata"]["generation"] = 2
    await world.reconcile("broker:1")
    world.pod_ends("Failed", "no", 1)
    ready, _ = await world.reconcile("broker:1")
    assert ready["reason"] == "PreflightFailed"
    assert "office:pulsar://*:6660" in str(world.server.objects[STATEFUL_SET]["spec"]["template"])
    policy = world.server.objects[Key("NetworkPolicy", "team", "main")]
    [rule] = [each for each in policy["spec"]["ingress"] if each["ports"][0]["port"] == 6660]
    assert rule["from"] == office["clients"]
