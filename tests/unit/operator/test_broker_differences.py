"""Differences are named as a manifest would write them; state that no manifest can express is compared, too."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from heliograph_api.policies.policies import BacklogQuota, InactiveTopic, Policies, Rate, Retention, SubscribeRate
from heliograph_api.resources.broker_state import BrokerState, NamespaceState, TenantState, TopicState
from heliograph_api.resources.model import KINDS, BrokerCluster
from heliograph_api.values.schema_digest import schema_digest
from heliograph_operator.decide.broker_differences import (
    Difference,
    default_differences,
    described,
    differences,
    field_name,
    surplus,
)
from heliograph_operator.objects.kinds import API_VERSION

from .bodies import namespace, tenant, topic

NAME = "persistent://shop/payments/orders"


def state(topic_state: TopicState | None = None, **more: Any) -> BrokerState:
    topics = {NAME: topic_state} if topic_state is not None else {}
    return BrokerState("1", Policies(), Policies(), more.get("tenants", {}), more.get("namespaces", {}), topics)


def model(body: dict[str, Any]) -> Any:
    metadata = {name: body["metadata"][name] for name in ("name", "namespace")}
    return KINDS[body["kind"]].model_validate({**body, "metadata": metadata})


def texts(resource: Any, name: str, broker: BrokerState) -> list[str]:
    return [str(each) for each in differences(resource, name, broker)]


def test_what_is_not_there_is_one_difference() -> None:
    assert texts(model(topic(messageTTL="1h")), NAME, state()) == [f"topic {NAME} was missing, is there"]
    assert texts(model(namespace()), "shop/payments", state()) == ["namespace shop/payments was missing, is there"]
    assert texts(model(tenant()), "shop", state()) == ["tenant shop was missing, is there"]


def test_policies_partitions_and_subscriptions_of_a_topic_are_compared_field_by_field() -> None:
    wanted = model(
        topic(
            partitions=4,
            subscriptions=["billing", "audit"],
            messageTTL="2h",
            backlogQuota={"messageAge": {"limit": "1h"}, "destinationStorage": {"limit": "1Gi"}},
            retention={"time": "1d", "size": "10Gi"},
        )
    )
    has = TopicState(
        2,
        Policies(
            message_ttl_ms=60_000,
            max_producers=3,
            backlog_quota_size=BacklogQuota(1 << 20, "producer_exception"),
            backlog_quota_age=BacklogQuota(3_600_000, "producer_request_hold"),
            subscription_dispatch_rates={"billing": Rate(10, -1, 1)},
        ),
        subscriptions=["audit", "mine"],
    )
    assert texts(wanted, NAME, state(has)) == [
        "partitions was 2, is 4",
        "subscriptions: billing was missing, is there",
        "retention was not set, is {time: 1d, size: 10Gi}",
        "backlogQuota.destinationStorage was {limit: 1Mi, policy: producer_exception},"
        " is {limit: 1Gi, policy: producer_request_hold}",
        "messageTTL was 1m, is 2h",
        "maxProducers was 3, is not set",
        "subscriptionDispatchRates was {billing: {messages: 10, bytes: infinite, periodS: 1}}, is not set",
    ]


def test_policies_of_subscriptions_are_compared_one_by_one() -> None:
    wanted = model(
        topic(
            subscriptionPolicies=[
                {"name": "audit", "expires": "30d"},
                {"name": "billing", "messageTTL": "1h", "deadLetterTopic": "dead"},
                {"name": "idle"},
            ]
        )
    )
    has = TopicState(
        0,
        Policies(
            subscription_policies={
                "billing": Policies(message_ttl_ms=60_000, dead_letter_topic="persistent://public/default/dead"),
                "mine": Policies(subscription_expiration_ms=-1),
            }
        ),
    )
    assert texts(wanted, NAME, state(has)) == [
        "subscriptionPolicies[audit].expires was not set, is 30d",
        "subscriptionPolicies[billing].messageTTL was 1m, is 1h",
        "subscriptionPolicies[mine].expires was infinite, is not set",
    ]
    same = TopicState(0, wanted.spec.policies())
    assert texts(wanted, NAME, state(same)) == []


def test_deleted_partitions_properties_and_bundles_are_compared_too() -> None:
    wanted = model(topic(partitions=4, properties={"owner": "ann", "tier": "gold"}))
    has = TopicState(4, Policies(), {"owner": "bob", "desk": "3"}, [1, 3])
    assert texts(wanted, NAME, state(has)) == [
        "partitions: 1, 3 was missing, is there",
        "properties.desk was 3, is not set",
        "properties.owner was bob, is ann",
        "properties.tier was not set, is gold",
    ]
    known = {"shop/payments": NamespaceState(4, Policies())}
    assert texts(model(namespace(bundles=8)), "shop/payments", state(namespaces=known)) == ["bundles was 4, is 8"]


def test_a_schema_differs_until_one_version_is_the_same() -> None:
    wanted = model(topic(schema={"type": "AVRO", "definition": '"string"'}))
    own = schema_digest("AVRO", b'"string"')
    assert texts(wanted, NAME, state(TopicState(0, Policies()))) == [f"schema was not set, is {own}"]
    other = schema_digest("JSON", b'"string"')
    assert texts(wanted, NAME, state(TopicState(0, Policies(), schemas=[other]))) == [f"schema was {other}, is {own}"]
    # Clients may have brought later versions along.
    assert texts(wanted, NAME, state(TopicState(0, Policies(), schemas=[own, other]))) == []
    assert texts(model(topic()), NAME, state(TopicState(0, Policies(), schemas=[other]))) == []


def test_nothing_differs_when_the_broker_is_as_the_resource_says() -> None:
    wanted = model(topic(partitions=2, messageTTL="2h", subscriptions=["a"]))
    has = TopicState(2, Policies(message_ttl_ms=7_200_000), subscriptions=["a", "b"])
    assert texts(wanted, NAME, state(has)) == []
    spec = model(namespace(retention={"time": "1d", "size": "1Gi"}))
    known = {"shop/payments": NamespaceState(4, Policies(retention=Retention(86_400_000, 1 << 30)))}
    assert texts(spec, "shop/payments", state(namespaces=known)) == []


def test_a_retention_of_nothing_differs_from_none_that_is_set() -> None:
    nothing = NamespaceState(4, Policies(retention=Retention(0, 0)))
    unset = NamespaceState(4, Policies())
    wanted = model(namespace(retention={"time": "0", "size": "0"}))
    assert texts(wanted, "shop/payments", state(namespaces={"shop/payments": nothing})) == []
    assert texts(wanted, "shop/payments", state(namespaces={"shop/payments": unset})) == [
        "retention was not set, is {time: 0, size: 0}"
    ]
    assert texts(model(namespace()), "shop/payments", state(namespaces={"shop/payments": nothing})) == [
        "retention was {time: 0, size: 0}, is not set"
    ]


def test_a_tenants_lists_are_sets_and_its_clusters_the_brokers_unless_named() -> None:
    known = {"shop": TenantState(["b", "a"], ["standalone"], Policies(max_producers=5))}
    broker = state(tenants=known)
    assert texts(model(tenant(adminRoles=["a", "b"], limits={"maxProducers": 5})), "shop", broker) == []
    assert texts(model(tenant(allowedClusters=["other"])), "shop", broker) == [
        "adminRoles was b, a, is none",
        "allowedClusters was standalone, is other",
        "limits.maxProducers was 5, is not set",
    ]


def test_the_policies_and_limits_of_a_broker_are_named_one_by_one() -> None:
    spec = {"brokerDefaults": {"messageTTL": "1h", "maxProducers": 4}, "limits": {"maxConsumers": 2}}
    cluster = KINDS["BrokerCluster"].model_validate(
        {"apiVersion": API_VERSION, "kind": "BrokerCluster", "metadata": {"name": "main"}, "spec": spec}
    )
    assert isinstance(cluster, BrokerCluster)
    defaults, limits = cluster.spec.broker_defaults.policies(), cluster.spec.limits.policies()
    assert default_differences(cluster, BrokerState("1", defaults, limits, {}, {}, {})) == []
    other = msgspec.structs.replace(defaults, message_ttl_ms=60_000)
    more = msgspec.structs.replace(limits, max_consumers=9, max_producers=5)
    found = default_differences(cluster, BrokerState("1", other, more, {}, {}, {}))
    assert [str(each) for each in found] == [
        "brokerDefaults.messageTTL was 1m, is 1h",
        "limits.maxProducers was 5, is not set",
        "limits.maxConsumers was 9, is 2",
    ]


@pytest.mark.parametrize(
    ("there", "wanted", "found"), [(4, 2, (4, 2)), (4, 0, (4, 0)), (0, 3, (0, 3)), (2, 4, None), (0, 0, None)]
)
def test_partitions_that_cannot_be_had_are_a_surplus(there: int, wanted: int, found: tuple[int, int] | None) -> None:
    resource = model(topic(partitions=wanted))
    broker = state(TopicState(there, Policies()))
    assert surplus(resource, NAME, broker) == found
    assert (Difference("partitions", str(there), str(wanted)) in differences(resource, NAME, broker)) == (
        found is None and there != wanted
    )


def test_every_policy_has_a_name_and_a_text() -> None:
    shown = {
        "retention": Retention(-1, -1),
        "publish_rate": Rate(5, 1024, 2),
        "subscribe_rate": SubscribeRate(3),
        "inactive_topic": InactiveTopic(60_000),
        "subscription_types": ["Shared"],
        "deduplication": True,
        "max_message_size": 5 << 20,
        "max_delivery_delay_ms": 1500,
        "dead_letter_topic": "",
    }
    assert {field_name(field): described(field, value) for field, value in shown.items()} == {
        "retention": "{time: infinite, size: infinite}",
        "publishRate": "{messages: 5, bytes: 1Ki, periodS: 2}",
        "subscribeRate": "{perConsumer: 3, periodS: 30}",
        "inactiveTopic": "{maxInactive: 1m, mode: delete_when_no_subscriptions, delete: true}",
        "subscriptionTypes": "Shared",
        "deduplication": "true",
        "maxMessageSize": "5Mi",
        "maxDeliveryDelay": "1500ms",
        "deadLetterTopic": "none",
    }
    for field in Policies.__struct_fields__:
        assert "_" not in field_name(field)
