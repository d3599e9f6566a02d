"""The operator makes topics match their resources, in any order of applying, and reports in the status."""

from __future__ import annotations

from tests.support.broker_process import BrokerProcess
from tests.support.operator_process import OperatorProcess

from .broker_side import admin, broker_state, topic_state
from .resources import Resources


def test_children_before_their_parents_wait_by_name_and_go_on_at_once(
    operator: OperatorProcess, resources: Resources, broker: BrokerProcess
) -> None:
    resources.topic(partitions=2, messageTTL="2h", subscriptions=["billing"])
    assert "no Namespace 'payments'" in resources.wait_reason("Topic", "orders", "ParentMissing")
    resources.hns()
    assert "no Tenant 'shop'" in resources.wait_reason("Namespace", "payments", "ParentMissing")
    resources.wait_reason("Topic", "orders", "ParentMissing")
    resources.tenant()
    assert "no BrokerCluster" in resources.wait_reason("Tenant", "shop", "ParentMissing")
    resources.cluster_at("main", broker.http_url)
    for kind, name in (("Tenant", "shop"), ("Namespace", "payments"), ("Topic", "orders")):
        resources.wait_ready(kind, name)
    topic = topic_state(broker, "persistent://shop/payments/orders")
    assert (topic.partitions, topic.subscriptions, topic.policies.message_ttl_ms) == (2, ["billing"], 7_200_000)
    status = resources.status("Topic", "orders")
    assert status["name"] == "persistent://shop/payments/orders"
    assert status["partitions"] == 2
    assert status["subscriptions"] == 1
    assert status["backlog"] == {"messages": 0, "bytes": "0"}
    assert status["observedGeneration"] == 1
    assert resources.condition("Topic", "orders", "PoliciesApplied")["status"] == "True"
    assert resources.condition("Topic", "orders", "QuotaExceeded")["reason"] == "NoQuota"


def test_a_field_taken_out_of_the_spec_is_taken_out_of_the_broker(
    operator: OperatorProcess, served: Resources, broker: BrokerProcess
) -> None:
    served.family(messageTTL="2h", maxProducers=3)
    name = "persistent://shop/payments/orders"
    assert topic_state(broker, name).policies.max_producers == 3
    served.topic(messageTTL="3h")

    def changed() -> bool:
        policies = topic_state(broker, name).policies
        return (policies.message_ttl_ms, policies.max_producers) == (10_800_000, None)

    served.wait("the broker has the new spec", changed)
    served.wait("its generation is reported", lambda: served.status("Topic", "orders")["observedGeneration"] == 2)
    assert served.events("orders", "DriftRepaired") == []


def test_partitions_grow_and_do_not_shrink_and_the_rest_is_applied_all_the_same(
    operator: OperatorProcess, served: Resources, broker: BrokerProcess
) -> None:
    served.family(partitions=2)
    name = "persistent://shop/payments/orders"
    served.topic(partitions=4)
    served.wait("there are 4 partitions", lambda: topic_state(broker, name).partitions == 4)
    served.wait("the status has them", lambda: served.status("Topic", "orders")["partitions"] == 4)
    admin(broker, "POST", "/admin/v2/persistent/shop/payments/orders/partitions", 6)
    served.topic(partitions=4, messageTTL="1h")
    message = served.wait_reason("Topic", "orders", "ShrinkRefused")
    assert message == "the topic has 6 partitions and cannot have fewer; valid: 6 or more, not 4"
    state = topic_state(broker, name)
    assert (state.partitions, state.policies.message_ttl_ms) == (6, 3_600_000)
    assert served.condition("Topic", "orders", "PoliciesApplied")["status"] == "True"


def test_drift_is_repaired_and_named(operator: OperatorProcess, served: Resources, broker: BrokerProcess) -> None:
    served.family(messageTTL="2h", subscriptions=["billing"])
    name = "persistent://shop/payments/orders"
    admin(broker, "POST", "/admin/v2/persistent/shop/payments/orders/messageTTL?messageTTL=60")
    served.wait("it is repaired", lambda: topic_state(broker, name).policies.message_ttl_ms == 7_200_000)
    drift = served.wait("an event names it", lambda: served.events("orders", "DriftRepaired"))
    assert drift == ["messageTTL was 1m, is 2h"]
    admin(broker, "DELETE", "/admin/v2/persistent/shop/payments/orders?force=true")
    served.wait("it is there again", lambda: topic_state(broker, name).subscriptions == ["billing"])
    served.wait(
        "an event names it", lambda: f"topic {name} was missing, is there" in served.events("orders", "DriftRepaired")
    )


def test_a_broker_that_lost_everything_gets_everything_again(
    operator: OperatorProcess, served: Resources, broker: BrokerProcess
) -> None:
    served.family()
    admin(broker, "DELETE", "/admin/v2/tenants/shop?force=true")
    name = "persistent://shop/payments/orders"
    served.wait("it is all there again", lambda: topic_state(broker, name).partitions == 0)
    for kind, resource in (("Tenant", "shop"), ("Namespace", "payments"), ("Topic", "orders")):
        served.wait_ready(kind, resource)


def test_what_the_broker_refuses_is_said_in_its_words(
    operator: OperatorProcess, served: Resources, broker: BrokerProcess
) -> None:
    served.tenant()
    served.hns(maxTopics=1)
    served.wait_ready("Namespace", "payments")
    served.topic(partitions=3)
    assert "maximum number of topics" in served.wait_reason("Topic", "orders", "Refused")
    served.topic("other")
    served.wait_ready("Topic", "other")


def test_a_schema_is_stored_again_and_one_that_is_incompatible_is_refused_in_the_brokers_words(
    operator: OperatorProcess, served: Resources, broker: BrokerProcess
) -> None:
    name, path = "persistent://shop/payments/orders", "/admin/v2/schemas/shop/payments/orders/schema"
    fields = '{"type":"record","name":"Order","fields":[{"name":"%s","type":"string"}]}'
    first = {"type": "AVRO", "definition": fields % "customer"}
    served.family(schema=first)
    stored = topic_state(broker, name).schemas
    assert len(stored) == 1
    admin(broker, "DELETE", path)
    served.wait("it is there again", lambda: topic_state(broker, name).schemas == stored)
    served.wait("an event names it", lambda: served.events("orders", "DriftRepaired"))
    served.topic(schema={**first, "definition": fields % "amount"})
    assert f"Schema of topic {name} is incompatible" in served.wait_reason("Topic", "orders", "Refused")
    assert topic_state(broker, name).schemas == stored
    # Nothing is deleted with the field.
    served.topic(messageTTL="1h")
    served.wait("the rest is applied", lambda: topic_state(broker, name).policies.message_ttl_ms == 3_600_000)
    assert topic_state(broker, name).schemas == stored


def test_whoever_has_a_topic_keeps_it_and_another_takes_over_when_it_goes(
    operator: OperatorProcess, served: Resources, broker: BrokerProcess
) -> None:
    served.family(messageTTL="1h")
    served.apply("Topic", "again", {"namespaceRef": {"name": "payments"}, "name": "orders", "messageTTL": "2h"})
    message = served.wait_reason("Topic", "again", "Conflict")
    assert (
        message == "Topic orders already describes persistent://shop/payments/orders; delete one of the two resources"
    )
    name = "persistent://shop/payments/orders"
    assert topic_state(broker, name).policies.message_ttl_ms == 3_600_000
    served.delete("Topic", "orders")
    served.wait_gone("Topic", "orders")
    served.wait_ready("Topic", "again")
    assert topic_state(broker, name).policies.message_ttl_ms == 7_200_000


def test_a_resource_stays_what_it_was_made_for(
    operator: OperatorProcess, served: Resources, broker: BrokerProcess
) -> None:
    served.family()
    # The definitions refuse a rename; a Tenant that is recreated under another name renames what is below it.
    served.annotate("Tenant", "shop", "heliograph.dev/managed=false")
    served.wait_reason("Tenant", "shop", "Unmanaged")
    served.delete("Tenant", "shop")
    served.wait_gone("Tenant", "shop")
    served.apply("Tenant", "shop", {"name": "store"})
    message = served.wait_reason("Namespace", "payments", "RenameRefused")
    assert "it stands for shop/payments in BrokerCluster main and cannot become store/payments" in message
    served.wait_reason("Topic", "orders", "RenameRefused")
    assert topic_state(broker, "persistent://shop/payments/orders").partitions == 0


def test_a_paused_resource_is_reported_and_not_touched(
    operator: OperatorProcess, served: Resources, broker: BrokerProcess
) -> None:
    served.family(messageTTL="1h")
    served.annotate("Topic", "orders", "heliograph.dev/paused=true")
    served.wait_reason("Topic", "orders", "Paused")
    admin(broker, "POST", "/admin/v2/persistent/shop/payments/orders/messageTTL?messageTTL=60")
    served.wait(
        "the difference is reported", lambda: "messageTTL was 1m" in served.condition("Topic", "orders")["message"]
    )
    name = "persistent://shop/payments/orders"
    assert topic_state(broker, name).policies.message_ttl_ms == 60_000
    served.annotate("Topic", "orders", "heliograph.dev/paused-")
    served.wait_ready("Topic", "orders")
    assert topic_state(broker, name).policies.message_ttl_ms == 3_600_000


def test_an_unmanaged_resource_is_left_alone_and_goes_without_its_topic(
    operator: OperatorProcess, served: Resources, broker: BrokerProcess
) -> None:
    served.family(messageTTL="1h")
    served.annotate("Topic", "orders", "heliograph.dev/managed=false")
    served.wait_reason("Topic", "orders", "Unmanaged")
    served.delete("Topic", "orders")
    served.wait_gone("Topic", "orders")
    assert topic_state(broker, "persistent://shop/payments/orders").policies.message_ttl_ms == 3_600_000


def test_a_partition_that_somebody_deleted_is_made_again_with_its_subscriptions(
    operator: OperatorProcess, served: Resources, broker: BrokerProcess
) -> None:
    served.family(partitions=3, subscriptions=["billing"])
    name = "persistent://shop/payments/orders"
    admin(broker, "DELETE", "/admin/v2/persistent/shop/payments/orders-partition-1?force=true")

    drift = served.wait("an event names it", lambda: served.events("orders", "DriftRepaired"))
    assert drift == ["partitions: 1 was missing, is there"]
    topic = topic_state(broker, name)
    assert (topic.partitions, topic.missing_partitions, topic.subscriptions) == (3, [], ["billing"])


def test_properties_and_bundles_follow_the_spec_and_what_somebody_added_is_taken_out(
    operator: OperatorProcess, served: Resources, broker: BrokerProcess
) -> None:
    served.family(properties={"owner": "ann", "tier": "gold"})
    name = "persistent://shop/payments/orders"
    assert topic_state(broker, name).properties == {"owner": "ann", "tier": "gold"}
    served.topic(properties={"owner": "bob"})
    served.wait("they are as the new spec says", lambda: topic_state(broker, name).properties == {"owner": "bob"})
    served.wait("its generation is reported", lambda: served.status("Topic", "orders")["observedGeneration"] == 2)
    admin(broker, "PUT", "/admin/v2/persistent/shop/payments/orders/properties", {"owner": "eve", "desk": "3"})
    drift = served.wait("an event names it", lambda: served.events("orders", "DriftRepaired"))
    assert drift == ["properties.desk was 3, is not set; properties.owner was eve, is bob"]
    assert topic_state(broker, name).properties == {"owner": "bob"}
    served.hns(bundles=16)
    served.wait("the namespace is split again", lambda: broker_state(broker).namespaces["shop/payments"].bundles == 16)
