"""A BrokerCluster is reconciled by one generation of it from beginning to end."""

from __future__ import annotations

from typing import Any

import pytest
from heliograph_api.resources.model import BrokerCluster
from heliograph_operator.act.controller import Context, Outcome
from heliograph_operator.act.resource import Resource
from heliograph_operator.cluster.cluster_reconciler import ClusterReconciler
from heliograph_operator.objects.kinds import Key

from .api_server import ApiServer, resource_of
from .bodies import body

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
    await ClusterReconciler(None, None).reconcile(context, resource)  # type: ignore[arg-type]
    assert applied == [(10 << 30, 2)]
