"""The operator makes subscriptions of a real broker match their resources, and deletes them as these say."""

from __future__ import annotations

from contextlib import closing

from tests.support.broker_process import BrokerProcess
from tests.support.clients import connect
from tests.support.operator_process import OperatorProcess

from .broker_side import admin, consume, publish_to, topic_state
from .resources import Resources

ORDERS = "persistent://shop/payments/orders"
PATH = "/admin/v2/persistent/shop/payments/orders/subscription"


def test_a_subscription_has_all_of_its_resource_on_each_partition_and_goes_with_it(
    operator: OperatorProcess, served: Resources, broker: BrokerProcess
) -> None:
    served.subscription(position="earliest", properties={"owner": "finance"}, messageTTL="7d", expires="30d")
    assert "no Topic 'orders'" in served.wait_reason("Subscription", "billing", "ParentMissing")
    served.family(partitions=2, subscriptions=["keep"])
    served.wait_ready("Subscription", "billing")
    publish_to(broker, ORDERS, 6)
    topic = topic_state(broker, ORDERS)
    assert topic.subscriptions == ["billing", "keep"]
    assert topic.subscription_states["billing"].properties == {"owner": "finance"}
    policies = (topic.policies.subscription_policies or {})["billing"]
    assert (policies.message_ttl_ms, policies.subscription_expiration_ms) == (604_800_000, 2_592_000_000)
    served.wait(
        "its status has the backlog", lambda: served.status("Subscription", "billing")["backlog"]["messages"] == 6
    )
    with closing(connect(broker.service_url)) as client:
        client.subscribe(ORDERS, "billing")
        served.wait("its status has the consumers", lambda: served.status("Subscription", "billing")["consumers"] > 0)
        served.topic(partitions=2, subscriptions=["keep"], messageTTL="1h")
        served.wait("the Topic is changed", lambda: topic_state(broker, ORDERS).policies.message_ttl_ms == 3_600_000)
        assert (topic_state(broker, ORDERS).policies.subscription_policies or {})["billing"] == policies
        served.delete("Subscription", "billing")
        served.wait_gone("Subscription", "billing")
    topic = topic_state(broker, ORDERS)
    # The client may have subscribed again before it was closed: that subscription is not of the resource.
    assert topic.policies.subscription_policies is None
    assert served.events("billing", "DriftRepaired") == []


def test_a_subscription_begins_where_its_resource_says(
    operator: OperatorProcess, served: Resources, broker: BrokerProcess
) -> None:
    served.family(subscriptions=["keep"])
    publish_to(broker, ORDERS, 5)
    served.subscription("early", position="earliest")
    served.subscription("late")
    for name, messages in (("early", 5), ("late", 0)):
        served.wait_ready("Subscription", name)
        assert served.status("Subscription", name)["backlog"]["messages"] == messages
    consume(broker, ORDERS, "early", 5)
    # A position that changes later moves nothing.
    served.subscription("late", position="earliest", properties={"changed": "yes"})
    served.wait("the change is applied", lambda: _properties(broker, "late") == {"changed": "yes"})
    assert "late" not in topic_state(broker, ORDERS).behind


def test_one_that_existed_is_adopted_and_stays_and_drift_is_repaired(
    operator: OperatorProcess, served: Resources, broker: BrokerProcess
) -> None:
    served.family()
    admin(broker, "PUT", f"{PATH}/billing")
    publish_to(broker, ORDERS, 3)
    served.subscription(messageTTL="2h")
    served.wait_ready("Subscription", "billing")
    assert served.condition("Subscription", "billing", "Adopted")["status"] == "True"
    own = "/heliograph/v1/persistent/shop/payments/orders/subscription/billing/messageTTL"
    admin(broker, "POST", own, 60)
    served.wait("it is repaired", lambda: served.events("billing", "DriftRepaired") == ["messageTTL was 1m, is 2h"])
    served.delete("Subscription", "billing")
    served.wait_gone("Subscription", "billing")
    assert topic_state(broker, ORDERS).behind == {"billing": 3}
    # The Topic leaves what was retained as it is.
    served.topic(maxProducers=3)
    served.wait("the Topic is changed", lambda: topic_state(broker, ORDERS).policies.max_producers == 3)
    assert "billing" in (topic_state(broker, ORDERS).policies.subscription_policies or {})


def test_of_a_topic_and_a_subscription_one_has_it_and_the_other_says_so(
    operator: OperatorProcess, served: Resources, broker: BrokerProcess
) -> None:
    served.family(subscriptions=["billing"])
    served.subscription(messageTTL="1m")
    assert "Topic orders names the subscription" in served.wait_reason("Subscription", "billing", "Conflict")
    served.topic()
    served.wait_ready("Subscription", "billing")
    served.topic(subscriptions=["billing"])
    assert "belongs to Subscription" in served.wait_reason("Topic", "orders", "SubscriptionOwned")
    served.delete("Topic", "orders")
    assert "waiting for Subscription billing" in served.wait_reason("Topic", "orders", "ChildrenExist")
    assert "billing" in topic_state(broker, ORDERS).subscriptions
    served.delete("Subscription", "billing")
    served.wait_gone("Topic", "orders")


def _properties(broker: BrokerProcess, name: str) -> dict[str, str]:
    state = topic_state(broker, ORDERS).subscription_states.get(name)
    return state.properties if state is not None else {}
