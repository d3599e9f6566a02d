"""A BrokerCluster is reconciled by one generation of it from beginning to end."""

from __future__ import annotations

from typing import Any

import pytest
from heliograph_api.resources.model import BrokerCluster
from heliograph_operator.act.controller import Context, Outcome
from heliograph_operator.act.resource import Resource
from heliograph_operator.cluster.cluster_reconciler import ClusterReconciler
from heliograph_operator.decide.cluster_objects import SERVICE
from heliograph_operator.objects.kinds import FINALIZER, Key, Kind

from .api_server import ApiServer, resource_of
from .bodies import body
from .cluster_keys import cluster_reconciler

CLUSTER = Key("BrokerCluster", "team", "main")


async def test_a_spec_that_changes_while_the_finalizer_is_added_is_the_one_that_is_applied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = ApiServer(body("BrokerCluster", "main", {"storage": {"size": "20Gi"}}, generation=1))
    context = server.context()
    resource = resource_of(context, CLUSTER)
    server.change(CLUSTER, generation=2)
    server.objects[CLUSTER]["spec"] = {"storage": {"size": "10Gi"}}
    applied: list[tuple[int | None, Any]] = []

    async def apply(self: ClusterReconciler, context: Context, resource: Resource, cluster: BrokerCluster) -> Outcome:
        applied.append((cluster.spec.storage.size, resource.body["metadata"]["generation"]))
        return Outcome("applied")

    monkeypatch.setattr(ClusterReconciler, "_reconcile", apply)
    await cluster_reconciler().reconcile(context, resource)
    assert applied == [(10 << 30, 2)]


class Counting(ApiServer):
    """Counts the listings of Services of listeners."""

    listed = 0

    async def list(self, kind: Kind, namespace: str = "", *, labels: str = "") -> list[dict[str, Any]]:
        self.listed += kind == SERVICE and "listener" in labels
        return await super().list(kind, namespace, labels=labels)


@pytest.mark.parametrize("paused", ["false", "true"])
@pytest.mark.parametrize("listeners", [[], [{"name": "external", "type": "NodePort"}]])
async def test_the_services_of_listeners_are_listed_once_in_a_reconcile(paused: str, listeners: list[Any]) -> None:
    made = body("BrokerCluster", "main", {"listeners": listeners}, finalizers=[FINALIZER])
    made["metadata"]["annotations"] = {"heliograph.dev/paused": paused}
    server = Counting(made)
    context = server.context()
    reconciler = cluster_reconciler()
    await reconciler.reconcile(context, resource_of(context, CLUSTER))
    assert server.listed == (1 if paused == "false" or listeners else 0)
