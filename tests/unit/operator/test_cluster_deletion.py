"""A BrokerCluster is deleted with its volumes only if no resource that stays has messages on them."""

from __future__ import annotations

from typing import Any

import pytest
from heliograph_operator.cluster.cluster_deletion import delete_cluster
from heliograph_operator.objects.conditions import READY, condition
from heliograph_operator.objects.kinds import FINALIZER, Key, Kind

from .api_server import ApiServer, resource_of
from .bodies import body, namespace, tenant, topic

CLUSTER = Key("BrokerCluster", "team", "main")
LONG_AGO = {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": [FINALIZER]}


class Volumes(ApiServer):
    """An API server with the volume of a broker."""

    async def list(self, kind: Kind, namespace: str = "", *, labels: str = "") -> list[dict[str, Any]]:
        return [{"metadata": {"name": "data-main-0"}}] if kind.name == "PersistentVolumeClaim" else []


async def test_volumes_are_not_deleted_under_one_that_was_created_again(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Volumes(body("BrokerCluster", "main", {"storage": {"size": "1Gi", "retainOnDelete": False}}, **LONG_AGO))
    context = server.context()
    resource = resource_of(context, CLUSTER)
    find = server.find

    async def find_late(kind: Kind, namespace: str, name: str) -> dict[str, Any] | None:
        # The watch has not shown it yet.
        again = body("BrokerCluster", "main", {"storage": {"size": "1Gi"}}, uid="again", resourceVersion="9")
        server.objects[CLUSTER] = again
        return await find(kind, namespace, name)

    monkeypatch.setattr(server, "find", find_late)
    assert (await delete_cluster(context, resource)).result == "gone"
    assert server.deleted == []


async def test_volumes_are_not_deleted_by_a_deletion_that_is_over() -> None:
    """Its last patch took effect, and no watch has said so yet; somebody restores volumes of the same names."""
    server = Volumes(body("BrokerCluster", "main", {"storage": {"size": "1Gi", "retainOnDelete": False}}, **LONG_AGO))
    context = server.context()
    resource = resource_of(context, CLUSTER)
    del server.objects[CLUSTER]
    assert (await delete_cluster(context, resource)).result == "gone"
    assert server.deleted == []


async def test_volumes_stay_if_the_spec_says_so_by_now() -> None:
    server = Volumes(body("BrokerCluster", "main", {"storage": {"size": "1Gi", "retainOnDelete": False}}, **LONG_AGO))
    context = server.context()
    resource = resource_of(context, CLUSTER)
    server.objects[CLUSTER] = body(
        "BrokerCluster", "main", {"storage": {"size": "1Gi"}}, generation=2, resourceVersion="2", **LONG_AGO
    )
    outcome = await delete_cluster(context, resource)
    assert (outcome.result, outcome.requeue_s, server.deleted) == ("waiting", 0.0, [])
    assert (await delete_cluster(context, resource_of(context, CLUSTER))).result == "deleted"
    assert server.deleted == []


@pytest.mark.parametrize("retained", [True, False])
async def test_volumes_are_not_deleted_under_a_resource_that_stays(retained: bool) -> None:
    storage = {"storage": {"size": "1Gi", "retainOnDelete": retained}}
    going = body("BrokerCluster", "main", storage, **LONG_AGO)
    in_full = topic("full", "public/default")
    server = Volumes(going, tenant(), namespace(), in_full)
    context = server.context()
    outcome = await delete_cluster(context, resource_of(context, CLUSTER))
    assert server.deleted == []
    if retained:
        assert outcome.result == "deleted"
        return
    assert outcome.result == "waiting"
    found = condition(server.objects[CLUSTER]["status"], READY)
    assert (found["reason"], found["message"]) == (
        "ChildrenExist",
        "the volumes hold the messages of Namespace payments, Tenant shop, Topic full; valid: delete these, too, or set"
        " spec.storage.retainOnDelete to true",
    )
    # They may take their time: what was deleted does not stay.
    for key in list(server.objects):
        if key != CLUSTER:
            server.change(key, deletionTimestamp="2026-01-01T00:00:00Z")
            context.cache.put(server.objects[key])
    assert (await delete_cluster(context, resource_of(context, CLUSTER))).result == "deleted"
    assert server.deleted == [Key("PersistentVolumeClaim", "team", "data-main-0")]
