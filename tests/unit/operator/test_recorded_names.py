"""The annotation that records an object counts as the operator writes it; in other forms, it deletes nothing."""

from __future__ import annotations

from typing import Any

import pytest
from heliograph_operator.objects.conditions import Reason
from heliograph_operator.objects.kinds import FINALIZER, Key, is_held

from .bodies import body, cluster, namespace, tenant, topic
from .installation import Installation

ORDERS = "persistent://shop/payments/orders"
OWNER = Key("Topic", "team", "orders")
OLDER, YOUNGER = "2025-01-01T00:00:00Z", "2030-01-01T00:00:00Z"
DELETES = {"deletionPolicy": "Delete"}


def recorded(kind: str, name: str, spec: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    """Return a resource with the annotations of one that stands for an object, and the spec of another."""
    notes = {"heliograph.dev/cluster": "team/main", "heliograph.dev/broker-object": name}
    own = {"uid": "forged", "finalizers": [FINALIZER], "annotations": notes, **metadata}
    return body(kind, "forged", {**spec, **DELETES}, **own)


def deletions(world: Installation, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Return a list that gets what the broker is asked to delete."""
    found: list[tuple[str, str]] = []
    delete = world.broker.delete

    async def noted(kind: str, name: str, *, force: bool) -> None:
        found.append((kind, name))
        await delete(kind, name, force=force)

    monkeypatch.setattr(world.broker, "delete", noted)
    return found


@pytest.mark.parametrize("where", ["team", "apps"])
@pytest.mark.parametrize(
    ("name", "created"),
    [
        (ORDERS, YOUNGER),
        ("shop/payments/orders", YOUNGER),
        ("shop/payments/orders", OLDER),
        (f"{ORDERS}-partition-0", YOUNGER),
        (f"{ORDERS}-partition-0", OLDER),
        ("shop/payments/orders-partition-1", OLDER),
        (f"{ORDERS}-partition-0-partition-1", OLDER),
    ],
)
async def test_no_form_of_the_name_lets_another_resource_delete_a_topic_or_a_partition(
    name: str, where: str, created: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = cluster()
    main["spec"] = {"consents": [{"kubernetesNamespaces": ["apps"], "tenants": ["shop"]}]}
    world = Installation(main, tenant(), namespace(), topic(partitions=2))
    operator, deleted = world.started(), deletions(world, monkeypatch)
    await operator.settle()
    spec = {"namespaceRef": {"name": "shop/payments"}}
    world.apply(recorded("Topic", name, spec, namespace=where, creationTimestamp=created))
    await operator.settle()
    forged = Key("Topic", where, "forged")
    world.delete(forged)
    await operator.settle()
    assert forged not in world.server.objects
    assert (deleted, is_held(world.body(OWNER)), world.ready(OWNER)[0]) == ([], True, "Reconciled")
    # It does not keep the owner from what is its own, either.
    world.delete(OWNER)
    await operator.settle()
    assert deleted == [("Topic", ORDERS)]


@pytest.mark.parametrize("name", ["shop/payments/orders", "Persistent://shop/payments/orders", "nothing of the kind/"])
async def test_one_that_is_deleted_with_the_owner_does_not_decide(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world = Installation(cluster(), tenant(), namespace(), topic())
    operator, deleted = world.started(), deletions(world, monkeypatch)
    await operator.settle()
    spec = {"namespaceRef": {"name": "payments"}, "name": "orders"}
    world.apply(recorded("Topic", name, spec, creationTimestamp=OLDER))
    await operator.settle()
    world.delete(OWNER)
    world.delete(Key("Topic", "team", "forged"))
    for _ in range(2):
        await operator.resync()
    assert deleted == [("Topic", ORDERS)]
    assert world.server.objects.keys() == {("BrokerCluster", "team", "main"), *map(tuple, _parents())}


@pytest.mark.parametrize(
    ("kind", "name", "spec"),
    [
        ("Topic", "orders", {"namespaceRef": {"name": "payments"}}),
        ("Topic", "public/default/orders", {"namespaceRef": {"name": "payments"}}),
        ("Topic", "persistent://public/default/orders-partition-0", {"namespaceRef": {"name": "payments"}}),
        ("Topic", "public/default", {"namespaceRef": {"name": "payments"}}),
        ("Namespace", "persistent://public/default", {"tenantRef": {"name": "shop"}}),
        ("Namespace", "public/default/", {"tenantRef": {"name": "shop"}}),
        ("Tenant", "public/default", {}),
        ("Tenant", "persistent://public", {}),
        # A step in a path: that of the tenant bank.
        ("Topic", "persistent://../tenants/bank", {"namespaceRef": {"name": "payments"}}),
        ("Tenant", "..", {}),
    ],
)
async def test_what_the_operator_would_not_have_written_is_not_deleted(
    kind: str, name: str, spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = Installation(cluster(), tenant(), namespace(), recorded(kind, name, spec))
    operator, deleted = world.started(), deletions(world, monkeypatch)
    await operator.settle()
    key = Key(kind, "team", "forged")
    reason, message = world.ready(key)
    assert reason == Reason.RENAME_REFUSED
    assert f"annotation heliograph.dev/broker-object: {name!r} is not the full name of a {kind}; valid:" in message
    world.delete(key)
    await operator.settle()
    assert key not in world.server.objects
    assert deleted == []
    assert world.server.events[-1][0] == "DataRetained"
    assert "annotation heliograph.dev/broker-object" in world.server.events[-1][1]


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("Topic", ORDERS),
        ("Topic", "non-persistent://shop/payments/a://b/c"),
        ("Namespace", "shop/old"),
        ("Tenant", "t"),
    ],
)
async def test_what_the_operator_wrote_is_deleted_though_nothing_else_says_so(
    kind: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = {"Topic": {"namespaceRef": {"name": "gone"}}, "Namespace": {"tenantRef": {"name": "gone"}}, "Tenant": {}}
    leaving = recorded(kind, name, spec[kind], deletionTimestamp="2026-01-02T00:00:00Z")
    world = Installation(cluster(), tenant(), namespace(), leaving)
    operator, deleted = world.started(), deletions(world, monkeypatch)
    await operator.settle()
    assert deleted == [(kind, name)]
    assert Key(kind, "team", "forged") not in world.server.objects


def _parents() -> list[Key]:
    return [Key("Tenant", "team", "shop"), Key("Namespace", "team", "payments")]
