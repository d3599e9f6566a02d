"""Policies in Apache Pulsar's documents: what it cannot hold is refused, and requests come in an order it accepts."""

from __future__ import annotations

from typing import Any

import pytest
from heliograph_api.policies.policy_field import Level
from heliograph_api.policies.policy_table import Policies
from heliograph_api.policies.policy_values import BacklogQuota, Retention
from heliograph_api.resources.model import KINDS, Namespace, Tenant, Topic
from heliograph_operator.decide.pulsar_policies import changes, fitted, namespace_policies, topic_policies, unsupported

MI = 1024 * 1024
_PARENT: dict[str, dict[str, Any]] = {
    "Tenant": {},
    "Namespace": {"tenantRef": {"name": "shop"}},
    "Topic": {"namespaceRef": {"name": "shop/payments"}},
}


def model(kind: str, **spec: Any) -> Tenant | Namespace | Topic:
    document = {"apiVersion": "heliograph.dev/v1alpha1", "kind": kind, "metadata": {"name": "x"}}
    found = KINDS[kind].model_validate({**document, "spec": {**_PARENT[kind], **spec}})
    assert isinstance(found, Tenant | Namespace | Topic)
    return found


@pytest.mark.parametrize(
    ("kind", "spec", "named"),
    [
        ("Tenant", {"limits": {"maxProducers": 3}}, "spec.limits.maxProducers"),
        ("Namespace", {"expires": "1h"}, "spec.expires"),
        ("Namespace", {"maxMessageSize": "1Mi"}, "spec.maxMessageSize"),
        ("Namespace", {"deadLetterTopic": "persistent://shop/a/b"}, "spec.deadLetterTopic"),
        ("Topic", {"ttlCountsDelay": True}, "spec.ttlCountsDelay"),
        ("Topic", {"maxDeliveryDelay": "1h"}, "spec.maxDeliveryDelay"),
        ("Topic", {"encryptionRequired": True}, "spec.encryptionRequired"),
        ("Topic", {"autoUpdateSchema": False}, "spec.autoUpdateSchema"),
        ("Topic", {"subscriptionPolicies": [{"name": "a", "messageTTL": "1h"}]}, "spec.subscriptionPolicies"),
        ("Topic", {"persistent": False}, "spec.persistent"),
        ("Topic", {"schema": {"type": "STRING"}}, "spec.schema"),
        ("Topic", {"permissions": []}, "spec.permissions"),
        ("Namespace", {"permissions": []}, "spec.permissions"),
        ("Topic", {"messageTTL": 0}, "spec.messageTTL"),
        ("Topic", {"messageTTL": "1500ms"}, "spec.messageTTL"),
        ("Topic", {"retention": {"time": "90s", "size": "1Gi"}}, "spec.retention"),
        ("Topic", {"retention": {"time": "1h", "size": 1000}}, "spec.retention"),
        ("Namespace", {"subscriptionExpiration": "90s"}, "spec.subscriptionExpiration"),
        ("Topic", {"publishRate": {"messages": 1, "period": "2s"}}, "spec.publishRate"),
        (
            "Topic",
            {"backlogQuota": {"messageAge": {"limit": "1500ms", "policy": "producer_exception"}}},
            "spec.backlogQuota.messageAge",
        ),
    ],
)
def test_fields_and_values_that_pulsar_does_not_have_are_refused_by_name(
    kind: str, spec: dict[str, Any], named: str
) -> None:
    [problem] = unsupported(model(kind, **spec))
    assert problem.startswith(f"{named}: ")
    assert "; valid: " in problem


def test_all_that_is_not_supported_is_named_at_once() -> None:
    found = unsupported(model("Topic", expires="1h", messageTTL=0, maxProducers=3, retention={"time": 0, "size": 0}))
    assert [each.partition(":")[0] for each in found] == ["spec.messageTTL", "spec.expires"]


@pytest.mark.parametrize("level", [Level.NAMESPACE, Level.TOPIC])
def test_a_quota_goes_before_the_retention_and_comes_back_after_it(level: Level) -> None:
    quota = BacklogQuota(5 * MI, "producer_exception")
    was = Policies(retention=Retention(-1, 10 * MI), backlog_quota_size=quota, max_producers=3)
    wanted = Policies(retention=Retention(-1, 2 * MI), backlog_quota_size=BacklogQuota(MI, "producer_exception"))
    order = [(each.method, each.path) for each in changes(level, was, wanted)]
    producers = "maxProducers" if level is Level.TOPIC else "maxProducersPerTopic"
    assert order[0] == ("DELETE", "backlogQuota")
    assert set(order[1:3]) == {("POST", "retention"), ("DELETE", producers)}
    assert order[3:] == [("POST", "backlogQuota")]
    # Alone, it is replaced in one step.
    assert [each.method for each in changes(level, Policies(backlog_quota_size=quota), Policies())] == ["DELETE"]
    larger = Policies(backlog_quota_size=BacklogQuota(6 * MI, "producer_exception"))
    assert [each.method for each in changes(level, Policies(backlog_quota_size=quota), larger)] == ["POST"]


def test_what_cannot_be_removed_gets_the_value_that_is_shown_without_it() -> None:
    was = Policies(schema_compatibility="FULL", auto_update_schema=False, encryption_required=True)
    assert [(each.method, each.path, each.body) for each in changes(Level.NAMESPACE, was, Policies())] == [
        ("POST", "encryptionRequired", False),
        ("PUT", "schemaCompatibilityStrategy", "UNDEFINED"),
        ("POST", "isAllowAutoUpdateSchema", True),
    ]
    assert [(each.method, each.path) for each in changes(Level.TOPIC, was, Policies(auto_update_schema=False))] == [
        ("DELETE", "schemaCompatibilityStrategy")
    ]


def test_values_that_look_as_if_they_were_not_set_are_no_difference() -> None:
    namespace = fitted(model("Namespace", encryptionRequired=False, autoUpdateSchema=True, subscriptionTypes=[]))
    assert isinstance(namespace, Namespace)
    assert namespace.spec.policies() == namespace_policies({"encryption_required": False, "schema_compatibility": None})
    topic = fitted(model("Topic", subscriptionTypes=["Failover", "Exclusive"], maxProducers=0))
    assert isinstance(topic, Topic)
    shown = {"subscription_types": ["Failover", "Exclusive"], "max_producers": 0}
    assert topic.spec.policies() == topic_policies(shown, {})


def test_rates_of_a_namespace_are_those_of_the_cluster_that_answers() -> None:
    rate = {"publishThrottlingRateInMsg": 5, "publishThrottlingRateInByte": -1}
    found = namespace_policies({"publishMaxMessageRate": {"standalone": rate}, "topicDispatchRate": {}})
    assert found.publish_rate is not None
    assert (found.publish_rate.messages, found.dispatch_rate) == (5, None)


def test_quotas_of_older_versions_have_their_limit_under_another_name() -> None:
    found = topic_policies({}, {"destination_storage": {"limit": 1000, "policy": "producer_exception"}})
    assert found.backlog_quota_size == BacklogQuota(1000, "producer_exception")
