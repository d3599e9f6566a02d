"""References are followed up to the cluster; what is missing on the way is named."""

from __future__ import annotations

from typing import Any

import pytest
from heliograph_operator.objects.conditions import Reason
from heliograph_operator.objects.kinds import FINALIZER, Key
from heliograph_operator.objects.resource_cache import ResourceCache
from heliograph_operator.objects.targets import Target, Waiting, http_url, target_of

from .bodies import body, cluster, namespace, tenant, topic

MAIN = Key("BrokerCluster", "team", "main")


def store(*bodies: dict[str, Any]) -> ResourceCache:
    found = ResourceCache()
    for each in bodies:
        found.put(each)
    return found


def test_a_topic_is_found_by_the_names_its_parents_have_in_the_broker() -> None:
    orders = topic(name="Orders.V2")
    known = store(cluster(), tenant(name="Shop"), namespace(name="pay"), orders)
    # The names in the manifests differ from those the references use: metadata.name is what is referred to.
    assert target_of(known, orders) == Waiting(
        Reason.PARENT_MISSING,
        "there is no Namespace 'payments' (namespaces.heliograph.dev) in Kubernetes namespace team yet",
    )
    known = store(
        cluster(),
        body("Tenant", "shop", {"name": "Shop"}),
        body("Namespace", "payments", {"tenantRef": {"name": "shop"}, "name": "Pay"}),
    )
    orders = body("Topic", "orders", {"namespaceRef": {"name": "payments"}, "name": "Orders/V2", "persistent": False})
    assert target_of(known, orders) == Target(MAIN, "Topic", "non-persistent://Shop/Pay/Orders/V2", "Shop/Pay")


@pytest.mark.parametrize(
    ("known", "reason", "message"),
    [
        ([], Reason.PARENT_MISSING, "there is no Namespace 'payments'"),
        ([namespace()], Reason.PARENT_MISSING, "Namespace payments: there is no Tenant 'shop'"),
        ([namespace(), tenant()], Reason.PARENT_MISSING, "; create one, or set spec.clusterRef"),
        (
            [namespace(), tenant(), cluster("a"), cluster("b")],
            Reason.CLUSTER_AMBIGUOUS,
            "several BrokerClusters (a, b)",
        ),
        (
            [namespace(), tenant(clusterRef={"name": "c"}), cluster("a")],
            Reason.PARENT_MISSING,
            "there is no BrokerCluster 'c'",
        ),
        (
            [
                body("Namespace", "payments", {"tenantRef": {"name": "shop"}}, deletionTimestamp="now"),
                tenant(),
                cluster(),
            ],
            Reason.PARENT_DELETING,
            "Namespace payments is being deleted",
        ),
    ],
)
def test_what_is_missing_on_the_way_is_named(known: list[dict[str, Any]], reason: Reason, message: str) -> None:
    found = target_of(store(*known), topic())
    assert isinstance(found, Waiting)
    assert found.reason is reason
    assert message in found.message


def test_of_several_clusters_the_one_called_default_is_meant() -> None:
    found = target_of(store(cluster("other"), cluster("default")), tenant())
    assert found == Target(Key("BrokerCluster", "team", "default"), "Tenant", "shop", "")


def test_the_cluster_recorded_for_a_topic_counts_though_nothing_is_recorded_for_its_parents() -> None:
    orders = topic()
    orders["metadata"] |= {
        "finalizers": [FINALIZER],
        "annotations": {
            "heliograph.dev/cluster": "main",
            "heliograph.dev/broker-object": "persistent://shop/payments/orders",
        },
    }
    wanted = Target(MAIN, "Topic", "persistent://shop/payments/orders", "shop/payments")
    for second in ("other", "default"):
        known = store(cluster(), cluster(second), tenant(), namespace(), orders)
        assert target_of(known, orders) == wanted
        # A parent may exist in the broker alone.
        assert target_of(store(cluster(), cluster(second), namespace(), orders), orders) == wanted


def test_another_kubernetes_namespace_is_another_world() -> None:
    known = store(cluster(namespace="elsewhere"), tenant())
    assert isinstance(target_of(known, tenant()), Waiting)


def test_what_the_broker_has_without_a_resource_can_be_a_parent_too() -> None:
    known = store(cluster())
    assert target_of(known, topic(namespace_name="public/default")) == Target(
        MAIN, "Topic", "persistent://public/default/orders", "public/default"
    )
    assert target_of(known, namespace(tenant_name="public")) == Target(MAIN, "Namespace", "public/payments", "public")


def test_a_name_that_no_broker_takes_is_invalid() -> None:
    known = store(cluster(), tenant(), namespace())
    found = target_of(known, body("Namespace", "x", {"tenantRef": {"name": "shop"}, "name": "a b"}))
    assert isinstance(found, Waiting)
    assert found.reason is Reason.INVALID


def test_a_cluster_without_endpoints_has_no_url() -> None:
    assert http_url(cluster(http="")) == ""
    assert http_url(cluster()) == "http://broker"


def test_a_cluster_is_named_where_a_parent_has_no_resource_and_must_be_the_parents_where_it_has() -> None:
    clusters = [cluster("a"), cluster("b")]
    named: Any = {"clusterRef": {"name": "b"}}
    found = target_of(store(*clusters), topic(namespace_name="public/default", **named))
    assert found == Target(
        Key("BrokerCluster", "team", "b"), "Topic", "persistent://public/default/orders", "public/default"
    )
    found = target_of(store(*clusters), topic(namespace_name="public/default"))
    assert isinstance(found, Waiting)
    assert found.reason is Reason.CLUSTER_AMBIGUOUS
    found = target_of(store(*clusters, tenant(clusterRef={"name": "a"}), namespace()), topic(**named))
    message = "spec.clusterRef.name: b is not the BrokerCluster of its Namespace payments; valid: a, or leave it out"
    assert found == Waiting(Reason.INVALID, message)


def test_a_recorded_cluster_that_is_gone_is_named() -> None:
    recorded = {"heliograph.dev/cluster": "gone", "heliograph.dev/broker-object": "shop"}
    found = target_of(store(cluster()), body("Tenant", "shop", finalizers=[FINALIZER], annotations=recorded))
    message = "annotation heliograph.dev/cluster: there is no BrokerCluster 'gone' in Kubernetes namespace team"
    assert found == Waiting(Reason.PARENT_MISSING, message)
