"""Resources of other Kubernetes namespaces are on a broker only as far as its BrokerCluster consents."""

from __future__ import annotations

from typing import Any

import pytest
from heliograph_operator.objects.conditions import POLICIES_APPLIED, condition
from heliograph_operator.objects.kinds import FINALIZER, Key, annotation, is_held

from .bodies import body
from .installation import Installation

ORDERS = "persistent://shop/payments/orders"
MAIN = {"namespace": "team", "name": "main"}
CLUSTER = Key("BrokerCluster", "team", "main")
DELETE = "delete one of the two resources"
SHOP, PAYMENTS = Key("Tenant", "team", "shop"), Key("Namespace", "team", "payments")
TOPIC = Key("Topic", "apps", "orders")
CONSENT = {"kubernetesNamespaces": ["apps"], "tenants": ["shop"]}
REFUSED = (
    "NotAllowed",
    "BrokerCluster team/main does not let a Topic in Kubernetes namespace apps be in tenant shop; valid: an entry in"
    " its spec.consents with apps in kubernetesNamespaces, shop in tenants and Topic in kinds",
)


def cluster(*consents: dict[str, Any]) -> dict[str, Any]:
    found = body("BrokerCluster", "main", {"consents": list(consents)})
    return {**found, "status": {"endpoints": {"http": "http://broker"}}}


def elsewhere(kind: str, name: str, spec: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    return body(kind, name, spec, namespace="apps", uid=f"apps-{kind}-{name}", **metadata)


def orders(**spec: Any) -> dict[str, Any]:
    reference = {"namespaceRef": {"name": "payments", "namespace": "team"}}
    return elsewhere("Topic", "orders", {**reference, "messageTTL": "1h", **spec})


def parents() -> list[dict[str, Any]]:
    return [body("Tenant", "shop"), body("Namespace", "payments", {"tenantRef": {"name": "shop"}})]


def consent(world: Installation, *consents: dict[str, Any]) -> None:
    world.apply({**world.body(CLUSTER), "spec": {"consents": list(consents)}})


async def test_without_consent_nothing_is_done_and_the_message_names_the_field() -> None:
    world = Installation(cluster(), *parents(), orders())
    operator = world.started()
    await operator.settle()
    assert world.ready(TOPIC) == REFUSED
    assert not is_held(world.body(TOPIC))
    assert world.broker.topics == {}
    consent(world, CONSENT)
    await operator.settle()
    assert world.ready(TOPIC) == ("Reconciled", "")
    assert annotation(world.body(TOPIC), "cluster") == "team/main"
    assert world.broker.topics[ORDERS].policies.message_ttl_ms == 3_600_000


@pytest.mark.parametrize(
    "given",
    [
        {"kubernetesNamespaces": ["other"], "tenants": ["shop"]},
        {"kubernetesNamespaces": ["apps"], "tenants": ["sho", "shop2"]},
        {"kubernetesNamespaces": ["apps"], "tenants": ["shop"], "kinds": ["Tenant", "Namespace"]},
    ],
)
async def test_a_consent_is_for_what_it_names_and_nothing_else(given: dict[str, Any]) -> None:
    world = Installation(cluster(given), *parents(), orders())
    await world.started().settle()
    assert world.ready(TOPIC) == REFUSED
    assert world.broker.topics == {}


async def test_a_tenant_needs_a_consent_that_names_its_kind() -> None:
    tenant = elsewhere("Tenant", "shop", {"clusterRef": MAIN, "limits": {"maxProducers": 9}})
    world = Installation(cluster(CONSENT), tenant)
    operator = world.started()
    await operator.settle()
    assert world.ready(Key("Tenant", "apps", "shop"))[0] == "NotAllowed"
    assert "shop" not in world.broker.tenants
    consent(world, {**CONSENT, "kinds": ["Tenant"]})
    await operator.settle()
    assert world.ready(Key("Tenant", "apps", "shop")) == ("Reconciled", "")


async def test_consent_taken_back_leaves_the_broker_as_it_is() -> None:
    world = Installation(cluster(CONSENT), *parents(), orders())
    operator = world.started()
    await operator.settle()
    world.broker.publish(ORDERS, 1000)
    consent(world)
    await operator.settle()
    reason, message = world.ready(TOPIC)
    assert (reason, message) == (REFUSED[0], f"{REFUSED[1]}; {ORDERS} stays in the broker as it is")
    assert condition(world.body(TOPIC)["status"], POLICIES_APPLIED)["status"] == "Unknown"
    # Drift is not repaired any more, and the parents keep what is in them.
    world.broker.topics[ORDERS].policies.message_ttl_ms = 5000
    await operator.resync()
    assert world.broker.topics[ORDERS].policies.message_ttl_ms == 5000
    assert annotation(world.body(PAYMENTS), "holds-retained") == "true"
    world.delete(TOPIC)
    await operator.settle()
    assert TOPIC not in world.server.objects
    world.delete(PAYMENTS)
    await operator.settle()
    assert world.broker.topics[ORDERS].backlog_messages == 1000


async def test_a_deletion_without_consent_releases_and_says_so() -> None:
    world = Installation(cluster(CONSENT), *parents(), orders())
    await world.started().settle()
    world.broker.publish(ORDERS, 1000)
    # Both happen while no operator runs.
    consent(world)
    world.delete(TOPIC)
    await world.started().settle()
    assert TOPIC not in world.server.objects
    assert world.broker.topics[ORDERS].backlog_messages == 1000
    assert world.server.events[-1] == ("DataRetained", f"{ORDERS} stays in the broker: {REFUSED[1]}")
    assert annotation(world.body(PAYMENTS), "holds-retained") == "true"


async def test_two_topics_of_two_kubernetes_namespaces_for_one_topic_are_a_conflict() -> None:
    own = body("Topic", "orders", {"namespaceRef": {"name": "payments"}, "messageTTL": "7d"})
    world = Installation(cluster(CONSENT), *parents(), own, orders())
    operator = world.started()
    await operator.settle()
    # They have the same age: the one in the Kubernetes namespace that comes first has it.
    assert world.ready(TOPIC) == ("Reconciled", "")
    assert world.ready(Key("Topic", "team", "orders")) == (
        "Conflict",
        f"Topic apps/orders already describes {ORDERS}; {DELETE}",
    )
    world.delete(TOPIC)
    await operator.settle()
    assert world.ready(Key("Topic", "team", "orders"))[0] == "Reconciled"


async def test_annotations_written_by_hand_own_and_delete_nothing_and_stop_nobody() -> None:
    notes = {"heliograph.dev/cluster": "team/main", "heliograph.dev/broker-object": ORDERS}
    forged = elsewhere(
        "Topic",
        "forged",
        {"namespaceRef": {"name": "bank/safe"}, "clusterRef": MAIN},
        finalizers=[FINALIZER],
        annotations=notes,
        creationTimestamp="2025-01-01T00:00:00Z",
    )
    own = body("Topic", "orders", {"namespaceRef": {"name": "payments"}})
    world = Installation(cluster({**CONSENT, "tenants": ["bank"]}), *parents(), forged, own)
    operator = world.started()
    await operator.settle()
    world.broker.publish(ORDERS, 1000)
    assert world.ready(Key("Topic", "team", "orders")) == ("Reconciled", "")
    key = Key("Topic", "apps", "forged")
    assert world.ready(key)[0] == "NotAllowed"
    assert annotation(world.body(PAYMENTS), "holds-retained") == ""
    world.server.change(key, finalizers=[FINALIZER], annotations=notes)
    world.delete(key)
    await operator.settle()
    assert key not in world.server.objects
    assert world.broker.topics[ORDERS].backlog_messages == 1000
    # Nor does one that is not allowed hold up the deletion of what it names.
    world.apply(elsewhere("Topic", "blocks", {"namespaceRef": {"name": "payments", "namespace": "team"}}))
    world.delete(Key("Topic", "team", "orders"))
    world.delete(PAYMENTS)
    await operator.settle()
    assert PAYMENTS not in world.server.objects


@pytest.mark.parametrize("opened", ["bank", "shop"])
async def test_a_topics_own_name_says_nothing_about_its_tenant(opened: str) -> None:
    world = Installation(cluster({**CONSENT, "tenants": [opened]}), *parents(), orders(name="a://bank/x"))
    operator = world.started()
    await operator.settle()
    name = "persistent://shop/payments/a://bank/x"
    allowed = opened == "shop"
    assert (world.ready(TOPIC) == REFUSED, name in world.broker.topics) == (not allowed, allowed)
    world.delete(PAYMENTS)
    await operator.settle()
    # The Namespace waits for the Topic that is in it, and only for one that may be.
    assert (PAYMENTS in world.server.objects, name in world.broker.topics) == (allowed, allowed)


async def test_dead_letters_go_to_no_tenant_that_is_not_opened() -> None:
    world = Installation(cluster(CONSENT), *parents(), orders(deadLetterTopic="bank/safe/dead"))
    operator = world.started()
    await operator.settle()
    assert world.ready(TOPIC) == (
        "NotAllowed",
        "spec.deadLetterTopic: persistent://bank/safe/dead is in tenant bank, which BrokerCluster team/main does not"
        " open to Kubernetes namespace apps in its spec.consents; valid: a topic of a tenant that it opens",
    )
    assert world.broker.topics == {}
    consent(world, {**CONSENT, "tenants": ["shop", "bank"]})
    await operator.settle()
    assert world.ready(TOPIC) == ("Reconciled", "")


@pytest.mark.parametrize("stated", [[], [{"role": "apps", "actions": ["admin"]}]])
async def test_permissions_need_a_consent_that_lets_users_have_rights(stated: list[dict[str, Any]]) -> None:
    world = Installation(cluster(CONSENT), *parents(), orders(permissions=stated))
    await world.started().settle()
    reason, message = world.ready(TOPIC)[:2]
    assert reason == "NotAllowed"
    assert "User in kinds" in message
    assert not world.broker.namespaces["shop/payments"].policies.kept
    consent(world, {**CONSENT, "kinds": ["Topic", "User"]})
    await world.started().settle()
    assert world.ready(TOPIC)[0] == "Reconciled"
    assert bool(world.broker.namespaces["shop/payments"].policies.kept) == bool(stated)


async def test_a_kubernetes_namespace_that_is_not_watched_is_named() -> None:
    topic = elsewhere("Topic", "orders", {"namespaceRef": {"name": "public/default"}, "clusterRef": MAIN})
    world = Installation(topic)
    await world.started().settle()
    assert world.ready(TOPIC) == (
        "ParentMissing",
        "spec.clusterRef.name: there is no BrokerCluster 'main' in Kubernetes namespace team, or the operator does not"
        " watch that",
    )


async def test_a_broker_cluster_that_comes_later_is_found_by_those_elsewhere() -> None:
    topic = elsewhere("Topic", "orders", {"namespaceRef": {"name": "public/default"}, "clusterRef": MAIN})
    world = Installation(topic)
    operator = world.started()
    await operator.settle()
    world.apply(cluster({**CONSENT, "tenants": ["public"]}))
    await operator.settle()
    assert world.ready(TOPIC) == ("Reconciled", "")


async def test_the_deletion_of_its_kubernetes_namespace_alone_does_not_excuse_a_broker_that_is_away() -> None:
    world = Installation(cluster(CONSENT), *parents(), orders())
    operator = world.started()
    await operator.settle()
    asked = []
    find = world.server.find

    async def noted(kind: Any, namespace: str, name: str) -> Any:
        if kind.api_version == "v1":
            asked.append(name)
        return await find(kind, namespace, name)

    world.server.find = noted  # type: ignore[method-assign]
    world.broker.unreachable = True
    world.delete(TOPIC)
    await operator.settle()
    assert world.ready(TOPIC)[0] == "BrokerUnreachable"
    assert asked == ["team"]
