"""The finalizer is added before anything is created, and no other writer's change of the metadata is lost."""

from __future__ import annotations

import pytest
from heliograph_operator.act.finalizers import hold, release
from heliograph_operator.objects.kinds import FINALIZER, Key, is_held, owned
from heliograph_operator.objects.targets import Target

from .api_server import ApiServer, resource_of
from .bodies import cluster, tenant

TENANT = Key("Tenant", "team", "shop")
CLUSTER = Key("BrokerCluster", "team", "main")
TARGET = Target(CLUSTER, "Tenant", "shop", "")


async def test_a_held_resource_names_what_was_created_for_it_until_it_is_released() -> None:
    server = ApiServer(tenant())
    context = server.context()
    resource = resource_of(context, TENANT)
    assert await hold(context, resource, TARGET)
    assert is_held(resource.body)
    assert owned(resource.body) == ("main", "shop")
    assert context.cache.get(TENANT) == resource.body == server.objects[TENANT]
    await release(context, resource)
    assert server.objects[TENANT]["metadata"]["finalizers"] == []


async def test_a_broker_cluster_is_held_without_annotations() -> None:
    server = ApiServer(cluster())
    context = server.context()
    resource = resource_of(context, CLUSTER)
    assert await hold(context, resource)
    assert resource.body["metadata"]["finalizers"] == [FINALIZER]
    assert "annotations" not in resource.body["metadata"]


async def test_after_a_conflict_the_finalizer_of_another_writer_is_kept() -> None:
    server = ApiServer(tenant())
    context = server.context()
    resource = resource_of(context, TENANT)
    server.change(TENANT, finalizers=["example.org/other"])
    assert await hold(context, resource, TARGET)
    assert server.objects[TENANT]["metadata"]["finalizers"] == ["example.org/other", FINALIZER]
    assert len(server.patches) == 1


@pytest.mark.parametrize("recreated", [False, True])
async def test_a_resource_that_is_gone_is_not_held(recreated: bool) -> None:
    server = ApiServer(tenant())
    context = server.context()
    resource = resource_of(context, TENANT)
    if recreated:
        server.change(TENANT, uid="another")
    else:
        del server.objects[TENANT]
    assert not await hold(context, resource, TARGET)
    assert server.patches == []


async def test_a_resource_that_is_deleted_meanwhile_is_not_held() -> None:
    server = ApiServer(tenant())
    context = server.context()
    resource = resource_of(context, TENANT)
    server.change(TENANT, deletionTimestamp="2026-01-01T00:00:00Z", finalizers=["example.org/other"])
    assert not await hold(context, resource, TARGET)
    assert server.patches == []
