"""A BrokerCluster leaves alone what somebody else made, and asks no broker that is not its own."""

from __future__ import annotations

from typing import Any

import pytest
from heliograph_operator.act.broker_sessions import BrokerSession, BrokerSessions
from heliograph_operator.cluster.cluster_deletion import delete_cluster
from heliograph_operator.decide.stateful_set import selector
from heliograph_operator.objects.conditions import POLICIES_APPLIED, READY, condition
from heliograph_operator.objects.kinds import FINALIZER, Key

from .api_server import ApiServer, resource_of
from .bodies import body
from .cluster_keys import cluster_reconciler
from .installation import Broker, OneBroker

CLUSTER = Key("BrokerCluster", "team", "redis")
STATEFUL_SET = Key("StatefulSet", "team", "redis")


class NoBroker(BrokerSessions):
    """Sessions that nobody may ask for."""

    def at(self, http_url: str) -> BrokerSession:
        raise AssertionError(f"{http_url} was asked")


class Asked(OneBroker):
    """One broker, and the URLs at which it was asked."""

    def __init__(self) -> None:
        super().__init__(Broker())
        self.urls: list[str] = []

    def at(self, http_url: str) -> BrokerSession:
        self.urls.append(http_url)
        return super().at(http_url)


def foreign(size: str) -> dict[str, Any]:
    made = body("StatefulSet", "redis", labels={"app": "redis"})
    claim = {"metadata": {"name": "data"}, "spec": {"resources": {"requests": {"storage": size}}}}
    return {**made, "apiVersion": "apps/v1", "spec": {"replicas": 1, "volumeClaimTemplates": [claim]}}


# A StatefulSet of another size is recreated, if it is the BrokerCluster's own.
@pytest.mark.parametrize("size", ["8Gi", "10Gi"])
async def test_a_stateful_set_of_somebody_else_is_never_deleted(size: str) -> None:
    theirs = foreign(size)
    server = ApiServer(body("BrokerCluster", "redis"), theirs)
    context = server.context()
    await cluster_reconciler(NoBroker(0.0)).reconcile(context, resource_of(context, CLUSTER))
    found = condition(server.objects[CLUSTER]["status"], READY)
    assert (found["reason"], found["message"]) == (
        "Conflict",
        "StatefulSet redis exists and does not belong to this BrokerCluster; delete it, or use another name",
    )
    server.change(CLUSTER, deletionTimestamp="2026-01-01T00:00:00Z")
    context.cache.put(server.objects[CLUSTER])
    assert (await delete_cluster(context, resource_of(context, CLUSTER))).result == "deleted"
    assert STATEFUL_SET not in [*server.deleted, *server.applied]
    assert server.objects[STATEFUL_SET] == theirs


def running(paused: str, owner: str) -> ApiServer:
    """Return a BrokerCluster ``main`` that runs since a version with one Service, and a Service of another owner."""
    old = body("BrokerCluster", "main", finalizers=[FINALIZER], annotations={"heliograph.dev/paused": paused})
    old["status"] = {"endpoints": {"http": OLD_URL}, "readyReplicas": 1}
    own = [{"uid": "BrokerCluster-main", "controller": True}]
    stateful_set = body("StatefulSet", "main", {"replicas": 1}, ownerReferences=own)
    stateful_set["status"] = {"observedGeneration": 1, "updateRevision": "r"}
    pod = body("Pod", "main-0", labels={**selector("main"), "controller-revision-hash": "r"})
    pod["status"] = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    service = body("Service", "main-admin", ownerReferences=[{"uid": owner, "controller": True}])
    return ApiServer(old, stateful_set, pod, service)


OLD_URL = "http://main.team.svc.cluster.local:8080"
NEW_URL = "http://main-admin.team.svc.cluster.local:8080"
MAIN = Key("BrokerCluster", "team", "main")


@pytest.mark.parametrize(
    ("paused", "owner", "url"),
    [
        ("false", "BrokerCluster-main-admin", OLD_URL),
        ("true", "BrokerCluster-main-admin", OLD_URL),
        ("true", "BrokerCluster-main", NEW_URL),
    ],
)
async def test_the_broker_is_asked_where_its_own_service_is(paused: str, owner: str, url: str) -> None:
    server = running(paused, owner)
    context = server.context()
    brokers = Asked()
    await cluster_reconciler(brokers).reconcile(context, resource_of(context, MAIN))
    status = server.objects[MAIN]["status"]
    assert condition(status, READY)["reason"] == ("Paused" if paused == "true" else "Conflict")
    assert (set(brokers.urls), status["endpoints"]["http"]) == ({url}, url)
    # The Service for clients keeps the port while there is no other one.
    assert Key("Service", "team", "main") not in server.applied


async def test_no_broker_is_asked_without_a_service_for_the_admin_api() -> None:
    server = running("false", "BrokerCluster-main-admin")
    server.objects[MAIN]["status"] = {"readyReplicas": 1}
    context = server.context()
    await cluster_reconciler(NoBroker(0.0)).reconcile(context, resource_of(context, MAIN))
    status = server.objects[MAIN]["status"]
    assert condition(status, POLICIES_APPLIED)["message"] == "there is no Service for the admin API"
    assert "endpoints" not in status


@pytest.mark.parametrize(
    ("service_type", "owner", "shown"),
    [
        ("LoadBalancer", "BrokerCluster-main", ["192.0.2.7", "broker.example.org"]),
        ("LoadBalancer", "BrokerCluster-other", None),
        ("ClusterIP", "BrokerCluster-main", None),
    ],
)
async def test_the_status_has_the_addresses_of_the_load_balancer_for_clients(
    service_type: str, owner: str, shown: list[str] | None
) -> None:
    server = running("true", "BrokerCluster-main")
    server.objects[MAIN]["spec"] = {"serviceType": service_type}
    service = body("Service", "main", ownerReferences=[{"uid": owner, "controller": True}])
    ingress = [{"ip": "192.0.2.7"}, {"hostname": "broker.example.org"}]
    server.objects[Key("Service", "team", "main")] = service | {"status": {"loadBalancer": {"ingress": ingress}}}
    context = server.context()
    await cluster_reconciler(Asked()).reconcile(context, resource_of(context, MAIN))
    assert server.objects[MAIN]["status"].get("addresses") == shown
