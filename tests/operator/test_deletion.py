"""A resource that is deleted ends, with its data seen to as it says; whatever is gone already, or comes back later."""

from __future__ import annotations

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.operator_process import OperatorProcess

from .broker_side import admin, broker_state, publish_to, topic_state
from .resources import FAMILY, Resources

ORDERS = "persistent://shop/payments/orders"


def test_parents_wait_for_their_children_and_all_goes_from_the_broker(
    operator: OperatorProcess, served: Resources, broker: BrokerProcess
) -> None:
    served.family(partitions=2)
    served.delete("Tenant", "shop")
    message = served.wait_reason("Tenant", "shop", "ChildrenExist")
    assert message.startswith("waiting for Namespace payments, Topic orders to be deleted; valid: delete ")
    served.delete("Namespace", "payments")
    served.wait_reason("Namespace", "payments", "ChildrenExist")
    assert ORDERS in broker_state(broker).topics
    served.delete("Topic", "orders")
    for kind, name in FAMILY:
        served.wait_gone(kind, name)
    state = broker_state(broker)
    assert (state.topics, "shop/payments" in state.namespaces, "shop" in state.tenants) == ({}, False, False)


def test_what_is_retained_stays_and_is_not_deleted_with_what_it_is_in(
    operator: OperatorProcess, served: Resources, broker: BrokerProcess
) -> None:
    served.family(deletionPolicy="Retain")
    for kind, name in FAMILY:
        served.delete(kind, name)
        served.wait_gone(kind, name)
    assert topic_state(broker, ORDERS).partitions == 0
    assert served.events("orders", "DataRetained") == [f"{ORDERS} stays in the broker: its deletionPolicy is Retain"]
    # And it can be taken up again.
    served.family(messageTTL="1h")
    assert topic_state(broker, ORDERS).policies.message_ttl_ms == 3_600_000


def test_delete_if_empty_looks_first(operator: OperatorProcess, served: Resources, broker: BrokerProcess) -> None:
    served.family(deletionPolicy="DeleteIfEmpty", subscriptions=["billing"])
    served.topic("idle", deletionPolicy="DeleteIfEmpty")
    served.wait_ready("Topic", "idle")
    publish_to(broker, ORDERS, 1)
    for name in ("orders", "idle"):
        served.delete("Topic", name)
        served.wait_gone("Topic", name)
    assert set(broker_state(broker).topics) == {ORDERS}
    assert "1 messages are not acknowledged" in served.events("orders", "DataRetained")[0]


def test_it_ends_when_the_cluster_is_gone_before(operator: OperatorProcess, served: Resources) -> None:
    served.family()
    served.delete("BrokerCluster", "main")
    served.wait_gone("BrokerCluster", "main")
    for kind, name in FAMILY:
        served.delete(kind, name)
        served.wait_gone(kind, name)


def test_it_waits_for_a_broker_that_is_away_and_ends_when_it_is_back(
    operator: OperatorProcess, served: Resources, broker: BrokerProcess
) -> None:
    served.family()
    broker.terminate()
    served.delete("Topic", "orders")
    assert "Connection refused" in served.wait_reason("Topic", "orders", "BrokerUnreachable")
    broker.start()
    served.wait_gone("Topic", "orders", within_s=75)
    assert ORDERS not in broker_state(broker).topics


def test_a_whole_kubernetes_namespace_ends_though_the_broker_is_away(
    operator: OperatorProcess, served: Resources, broker: BrokerProcess
) -> None:
    served.family()
    broker.kill9()
    served.cluster.kubectl("delete", "namespace", served.namespace, "--wait=false")

    def gone() -> bool:
        return not served.cluster.kubectl("get", "namespace", served.namespace, "--ignore-not-found", "-o", "name")

    served.cluster.wait_for("the Kubernetes namespace is gone", gone, within_s=100)
    # The fixtures' end expects it.
    served.cluster.kubectl("create", "namespace", served.namespace)


def test_an_operator_that_was_away_goes_on_with_what_was_deleted_meanwhile(
    operator: OperatorProcess, served: Resources, broker: BrokerProcess
) -> None:
    served.family()
    operator.kill9()
    for kind, name in (("Tenant", "shop"), ("Topic", "orders"), ("Namespace", "payments")):
        served.delete(kind, name)
    # It was deleted before: a missing object counts as deleted.
    admin(broker, "DELETE", "/admin/v2/persistent/shop/payments/orders?force=true")
    operator.start()
    for kind, name in FAMILY:
        served.wait_gone(kind, name)
    assert "shop" not in broker_state(broker).tenants


@pytest.mark.parametrize("operator", [("--deletion-wait", "8")], indirect=True)
def test_a_resource_may_say_that_it_does_not_wait_for_a_broker_that_never_comes_back(
    operator: OperatorProcess, served: Resources, broker: BrokerProcess
) -> None:
    orphan = {"deletionWhenUnreachable": "Orphan"}
    served.tenant(**orphan)
    served.hns(**orphan)
    served.topic(**orphan)
    served.wait_ready("Topic", "orders")
    broker.kill9()
    for kind, name in FAMILY:
        served.delete(kind, name)
    served.wait_reason("Topic", "orders", "BrokerUnreachable")
    for kind, name in FAMILY:
        served.wait_gone(kind, name)
    assert f"{ORDERS} stays in the broker, which cannot be reached" in served.events("orders", "DataRetained")[0]
