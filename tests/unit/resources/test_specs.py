"""Every policy of a spec reaches the core, in the core's units."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from heliograph_api.policies import policy_kinds as kinds
from heliograph_api.policies.policies import AutoTopicCreation, InactiveTopic, Policies, Rate, SubscribeRate, resolve
from heliograph_api.policies.policy_field import manifest_name
from heliograph_api.policies.policy_table import POLICY_FIELDS
from heliograph_api.resources.model import TopicSpec
from heliograph_api.resources.specs import LimitsSpec, NamespacePolicySpec, PolicySpec

#: A value of each kind, for policies that no test here asks for by name.
_OF_KIND: dict[kinds.Kind, Any] = {
    kinds.SWITCH: True,
    kinds.COUNT: 1,
    kinds.SIZE_LIMIT: "1M",
    kinds.THRESHOLD: "1M",
    kinds.DURATION: "1h",
    kinds.DURATION_LIMIT: "1h",
    kinds.UNUSED_FOR: "1h",
    kinds.RATE: {"messages": 1},
    kinds.TOPIC_NAME: "dead",
}
EVERYTHING: dict[str, Any] = {
    manifest_name(field, row): _OF_KIND[row.kind]
    for field, row in POLICY_FIELDS.items()
    if row.levels and row.kind in _OF_KIND
} | {
    "retention": {"time": "3d", "size": "10Gi"},
    "backlogQuota": {"destinationStorage": {"limit": "8Gi"}, "messageAge": {"limit": "12h"}},
    "messageTTL": "2h",
    "expires": "30d",
    "maxProducers": 1,
    "maxConsumers": 2,
    "maxSubscriptions": 3,
    "maxMessageSize": "1M",
    "maxConsumersPerSubscription": 4,
    "maxUnackedPerConsumer": 5,
    "maxUnackedPerSubscription": 6,
    "maxDeliveryDelay": "7d",
    "subscriptionExpiration": "14d",
    "publishRate": {"messages": 7, "bytes": "1K", "period": "2s"},
    "dispatchRate": {"messages": 8},
    "subscriptionDispatchRate": {"bytes": 9},
    "deadLetterTopic": "dead",
    "ttlInBatches": True,
    "ttlCountsDelay": True,
    "deduplication": True,
    "delayedDelivery": False,
    "inactiveTopic": {"maxInactive": "1h", "mode": "delete_when_subscriptions_caught_up"},
    "subscribeRate": {"perConsumer": 10},
    "compactionThreshold": "100M",
    "autoSubscriptionCreation": False,
    "subscriptionTypes": ["Shared"],
    "encryptionRequired": True,
    "schemaCompatibility": "BACKWARD",
    "autoUpdateSchema": False,
    "schemaValidationEnforced": True,
    "maxTopics": 11,
    "autoTopicCreation": {"allow": True, "partitions": 12},
}


def test_every_policy_of_the_core_can_be_said_in_a_manifest() -> None:
    policies = NamespacePolicySpec.model_validate(EVERYTHING).policies()
    unset = {field for field in Policies.__struct_fields__ if getattr(policies, field) is None}
    # Fields that only Pulsar's clients are shown, and fields of subscriptions, not of topics.
    assert unset == {"delayed_delivery_tick_ms", "subscription_dispatch_rates", "subscription_policies", "kept"}


def test_every_field_of_a_spec_is_said_here() -> None:
    assert {field.alias for field in NamespacePolicySpec.model_fields.values()} == set(EVERYTHING)


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ("message_ttl_ms", 2 * 3_600_000),
        ("max_delivery_delay_ms", 7 * 86_400_000),
        ("subscription_expiration_ms", 14 * 86_400_000),
        ("compaction_threshold", 100 * 1024**2),
        ("publish_rate", Rate(7, 1024, 2)),
        ("dispatch_rate", Rate(8, 0, 1)),
        ("subscription_dispatch_rate", Rate(0, 9, 1)),
        ("subscribe_rate", SubscribeRate(10, 30)),
        ("inactive_topic", InactiveTopic(3_600_000, "delete_when_subscriptions_caught_up", True)),
        ("auto_topic_creation", AutoTopicCreation(True, 12)),
        ("dead_letter_topic", "persistent://public/default/dead"),
        ("subscription_types", ["Shared"]),
    ],
)
def test_the_cores_units_are_ms_bytes_and_seconds(field: str, expected: object) -> None:
    policies = NamespacePolicySpec.model_validate(EVERYTHING).policies()
    assert getattr(policies, field) == expected


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"publishRate": {}}, "publish_rate"),
        ({"dispatchRate": {"bytes": "infinite"}}, "dispatch_rate"),
        ({"subscribeRate": {"perConsumer": 0}}, "subscribe_rate"),
        ({"inactiveTopic": {"maxInactive": "infinite"}}, "inactive_topic"),
        ({"inactiveTopic": {"maxInactive": "1h", "delete": False}}, "inactive_topic"),
        ({"subscriptionExpiration": "infinite"}, "subscription_expiration_ms"),
        ({"maxDeliveryDelay": "infinite"}, "max_delivery_delay_ms"),
        ({"compactionThreshold": 0}, "compaction_threshold"),
        ({"maxUnackedPerConsumer": 0}, "max_unacked_per_consumer"),
    ],
)
def test_what_is_inherited_can_be_taken_back(spec: dict[str, Any], field: str) -> None:
    inherited = NamespacePolicySpec.model_validate(EVERYTHING).policies()
    assert getattr(resolve(None, inherited, Policies()), field) is not None
    own = PolicySpec.model_validate(spec).policies()
    assert getattr(resolve(own, inherited, Policies()), field) is None


def test_a_tenants_limits_cap_rates_and_maxima() -> None:
    limits = LimitsSpec.model_validate(
        {"publishRate": {"messages": 100, "period": "1s"}, "maxUnackedPerConsumer": 10, "maxDeliveryDelay": "1d"}
    ).policies()
    own = PolicySpec.model_validate(
        {"publishRate": {"messages": 5000, "period": "10s"}, "maxUnackedPerConsumer": 50}
    ).policies()
    effective = resolve(own, None, Policies(), [limits])
    assert effective.publish_rate == Rate(1000, -1, 10)
    assert effective.max_unacked_per_consumer == 10
    assert effective.max_delivery_delay_ms == 86_400_000


def test_policies_are_kept_as_they_were_said() -> None:
    policies = NamespacePolicySpec.model_validate(EVERYTHING).policies()
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(policies), type=Policies) == policies


def test_a_topic_says_policies_of_its_subscriptions() -> None:
    spec = TopicSpec.model_validate(
        {
            "namespaceRef": {"name": "payments"},
            "messageTTL": "1d",
            "subscriptionPolicies": [
                {"name": "billing", "messageTTL": "1h", "deadLetterTopic": "dead", "expires": "30d"},
                {"name": "idle"},
            ],
        }
    )
    billing = Policies(
        message_ttl_ms=3_600_000,
        dead_letter_topic="persistent://public/default/dead",
        subscription_expiration_ms=30 * 86_400_000,
    )
    assert spec.policies() == Policies(message_ttl_ms=86_400_000, subscription_policies={"billing": billing})
