"""A namespace's own document: everything it sets, under Pulsar's names, to be shown and to be created with."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from .http_api import HttpApi, running_api
from .policy_samples import NAMESPACE_ONLY, SAMPLES

N = "/admin/v2/namespaces/public/default"
NEW = "/admin/v2/namespaces/public/new"

RATE = {
    "dispatchThrottlingRateInMsg": 100,
    "dispatchThrottlingRateInByte": 1000,
    "relativeToPublishRate": False,
    "ratePeriodInSecond": 2,
}
#: As a Pulsar 4.2.4 showed it, but for what is not set here: offloading, snapshots, and the like.
EVERYTHING: dict[str, Any] = {
    "auth_policies": {"namespace_auth": {}, "destination_auth": {}, "subscription_auth_roles": {}},
    "replication_clusters": ["standalone"],
    "allowed_clusters": [],
    "bundles": {"boundaries": ["0x00000000", "0x40000000", "0x80000000", "0xc0000000", "0xffffffff"], "numBundles": 4},
    "backlog_quota_map": {
        "message_age": {"limit": -1, "limitSize": -1, "limitTime": 300, "policy": "producer_request_hold"}
    },
    "clusterDispatchRate": {"standalone": RATE},
    "topicDispatchRate": {"standalone": RATE},
    "subscriptionDispatchRate": {"standalone": RATE},
    "replicatorDispatchRate": {},
    "clusterSubscribeRate": {"standalone": {"subscribeThrottlingRatePerConsumer": 5, "ratePeriodInSecond": 10}},
    "deduplicationEnabled": True,
    "autoTopicCreationOverride": {
        "allowAutoTopicCreation": True,
        "topicType": "partitioned",
        "defaultNumPartitions": 3,
    },
    "autoSubscriptionCreationOverride": {"allowAutoSubscriptionCreation": True},
    "publishMaxMessageRate": {"standalone": {"publishThrottlingRateInMsg": 100, "publishThrottlingRateInByte": 1000}},
    "latency_stats_sample_rate": {},
    "message_ttl_in_seconds": 3600,
    "subscription_expiration_time_minutes": 60,
    "retention_policies": {"retentionTimeInMinutes": 10, "retentionSizeInMB": 10},
    "deleted": False,
    "encryption_required": True,
    "delayed_delivery_policies": {"tickTime": 1000, "active": True, "maxDeliveryDelayInMillis": 60000},
    "inactive_topic_policies": {
        "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
        "maxInactiveDurationSeconds": 600,
        "deleteWhileInactive": True,
    },
    "subscription_auth_mode": "None",
    "max_producers_per_topic": 5,
    "max_consumers_per_topic": 6,
    "max_consumers_per_subscription": 7,
    "max_unacked_messages_per_consumer": 10,
    "max_unacked_messages_per_subscription": 11,
    "max_subscriptions_per_topic": 8,
    "compaction_threshold": 1024,
    "offload_threshold": -1,
    "offload_threshold_in_seconds": -1,
    "max_topics_per_namespace": 90,
    "schema_compatibility_strategy": "FULL",
    "is_allow_auto_update_schema": False,
    "schema_validation_enforced": True,
    "subscription_types_enabled": ["Failover", "Shared"],
    "properties": {"a": "b"},
    "migrated": False,
}
#: The request of Java's client for a namespace without any settings.
JAVAS = (
    '{"auth_policies":{"namespace_auth":{},"destination_auth":{},"subscription_auth_roles":{}},"replication_clusters":[],'
    '"allowed_clusters":[],"bundles":{"numBundles":4},"backlog_quota_map":{},"clusterDispatchRate":{},'
    '"topicDispatchRate":{},"subscriptionDispatchRate":{},"replicatorDispatchRate":{},"clusterSubscribeRate":{},'
    '"publishMaxMessageRate":{},"latency_stats_sample_rate":{},"deleted":false,"encryption_required":false,'
    '"subscription_auth_mode":"None","offload_threshold":-1,"offload_threshold_in_seconds":-1,'
    '"schema_compatibility_strategy":"UNDEFINED","schema_validation_enforced":false,"subscription_types_enabled":[],'
    '"properties":{},"migrated":false}'
)


#: The request of Go's library: fields that are not set are empty.
GOS = (
    '{"bundles":null,"persistence":null,"retention_policies":{"retentionTimeInMinutes":60,"retentionSizeInMB":10},'
    '"schema_validation_enforced":false,"deduplicationEnabled":null,"deleted":false,"encryption_required":false,'
    '"message_ttl_in_seconds":null,"max_producers_per_topic":null,"max_consumers_per_topic":null,'
    '"max_consumers_per_subscription":null,"compaction_threshold":null,"offload_threshold":0,'
    '"offload_deletion_lag_ms":null,"antiAffinityGroup":"","replication_clusters":["standalone"],'
    '"latency_stats_sample_rate":null,"backlog_quota_map":null,"topicDispatchRate":null,'
    '"subscriptionDispatchRate":null,"replicatorDispatchRate":null,"publishMaxMessageRate":null,'
    '"clusterSubscribeRate":null,"autoTopicCreationOverride":null,"schema_auto_update_compatibility_strategy":"",'
    '"schema_compatibility_strategy":"","auth_policies":{"namespace_auth":null,"destination_auth":null,'
    '"subscription_auth_roles":null},"subscription_auth_mode":"","is_allow_auto_update_schema":null}'
)


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[HttpApi]:
    async with running_api(tmp_path / "data") as running:
        yield running


async def test_a_namespace_is_created_with_what_another_is_shown_as(api: HttpApi) -> None:
    await api.done("PUT", NEW, json.dumps(EVERYTHING))
    assert await api.get(NEW) == EVERYTHING
    assert await api.get(f"{NEW}/dispatchRate") == RATE
    assert await api.get(f"{NEW}/messageTTL") == 3600
    assert await api.get(f"{NEW}/bundles") == EVERYTHING["bundles"]


async def test_a_namespace_shows_every_policy_it_sets(api: HttpApi) -> None:
    before = await api.get(N)
    for sample in SAMPLES:
        await api.done(sample.namespace_verb, f"{N}/{sample.namespace}", json.dumps(sample.one))
    for name, verb, one, _, _ in NAMESPACE_ONLY:
        await api.done(verb, f"{N}/{name}", json.dumps(one))
    changed = {key for key, value in (await api.get(N)).items() if before.get(key) != value}
    # The dispatch rate is shown twice, deduplication has two paths at topics and one here.
    paths = {sample.namespace for sample in SAMPLES} | {name for name, *_ in NAMESPACE_ONLY}
    assert len(changed) == len(paths) + 1
    await api.done("PUT", NEW, json.dumps(await api.get(N)))
    assert await api.get(NEW) == await api.get(N)


@pytest.mark.parametrize(
    "bundles", [{"numBundles": 8}, {"boundaries": ["0x00000000", "0x80000000", "0xffffffff"], "numBundles": 2}]
)
async def test_a_namespace_is_created_with_bundles_and_clusters_that_are_null(
    api: HttpApi, bundles: dict[str, Any]
) -> None:
    await api.done("PUT", NEW, json.dumps({"replication_clusters": None, "bundles": bundles}))
    assert (await api.get(f"{NEW}/bundles")).items() >= bundles.items()
    assert await api.get(f"{NEW}/replication") == ["standalone"]


async def test_javas_document_of_nothing_sets_nothing(api: HttpApi) -> None:
    await api.done("PUT", NEW, JAVAS)
    assert await api.get(NEW) == await api.get(N)
    policies = api.broker.directory.namespaces["public/new"].policies
    assert all(getattr(policies, field) is None for field in policies.__struct_fields__)


async def test_empty_fields_of_gos_document_set_nothing(api: HttpApi) -> None:
    await api.done("PUT", NEW, GOS)
    before, created = await api.get(N), await api.get(NEW)
    changed = {key: created[key] for key in created if created[key] != before.get(key)}
    assert changed == {
        "retention_policies": {"retentionTimeInMinutes": 60, "retentionSizeInMB": 10},
        "offload_threshold": 0,
    }


@pytest.mark.parametrize(
    ("document", "status", "part"),
    [
        ({"retention_policies": []}, 400, "$.retention_policies"),
        (
            {"retention_policies": {"retentionTimeInMinutes": 0, "retentionSizeInMB": 10}},
            400,
            "single time or size limit",
        ),
        ({"message_ttl_in_seconds": -4}, 412, "Invalid value for message TTL"),
        ({"max_producers_per_topic": -5}, 412, "maxProducersPerTopic must be 0 or more"),
        ({"bundles": {"numBundles": 5000}}, 412, "1 to 4096"),
        ({"bundles": {"numBundles": -1}}, 412, "1 to 4096"),
        ({"replication_clusters": ["other"]}, 412, "Clusters do not exist"),
        ({"topicDispatchRate": {"other": RATE}}, 412, "Clusters do not exist"),
        ({"backlog_quota_map": {"age": {"limitTime": 1, "policy": "producer_exception"}}}, 400, "message_age"),
        (
            {
                "backlog_quota_map": {"destination_storage": {"limitSize": 2**30, "policy": "producer_exception"}},
                "retention_policies": {"retentionTimeInMinutes": 1, "retentionSizeInMB": 1},
            },
            412,
            "Backlog Quota exceeds configured retention quota",
        ),
        ({"migrated": True}, 412, "migrated cannot be set here; valid: false"),
        ({"entryFilters": {"entryFilterNames": "a"}}, 412, "entryFilters cannot be set here"),
        ({"persistence": {"bookkeeperEnsemble": 1}}, 400, "Bookkeeper Ensemble (1) >= WriteQuorum (2)"),
        ({"offload_policies": {}}, 412, "The driver is not supported"),
        ({"subscription_auth_mode": "Suffix"}, 400, "None, Prefix"),
        ({"resource_group_name": "none"}, 412, "ResourceGroup does not exist"),
        ({"allowed_clusters": ["other"]}, 412, "Clusters do not exist"),
        ({"replicatorDispatchRate": {"other": RATE}}, 412, "Clusters do not exist"),
        ({"deleted": True}, 412, "deleted cannot be set here; valid: false"),
        ({"encryption_required": "yes"}, 400, "$.encryption_required"),
    ],
)
async def test_a_namespace_is_not_created_with_what_cannot_be(
    api: HttpApi, document: dict[str, Any], status: int, part: str
) -> None:
    answer = await api.request("PUT", NEW, json.dumps(document))
    assert answer.status == status, answer
    assert part in answer.body["reason"]
    assert (await api.request("GET", NEW)).status == 404


async def test_properties_are_added_replaced_and_removed(api: HttpApi) -> None:
    assert await api.get(f"{N}/properties") == {}
    await api.done("PUT", f"{N}/properties", '{"a":"b","c":"d"}')
    await api.done("PUT", f"{N}/properties", '{"a":"e"}')
    assert await api.get(f"{N}/properties") == {"a": "e", "c": "d"}
    await api.done("PUT", f"{N}/property/q/w%2Fx")
    assert await api.get(f"{N}/property/q") == "w/x"
    removed = await api.request("DELETE", f"{N}/property/q")
    assert (removed.status, removed.body) == (200, "w/x")
    assert (await api.request("DELETE", f"{N}/property/q")).status == 204
    assert (await api.request("GET", f"{N}/property/q")).status == 204
    await api.done("DELETE", f"{N}/properties")
    assert await api.get(f"{N}/properties") == {}


async def test_nobody_is_named_in_permissions(api: HttpApi) -> None:
    await api.done("PUT", "/admin/v2/persistent/public/default/t")
    assert await api.get(f"{N}/permissions") == {}
    assert await api.get(f"{N}/permissions/subscription") == {}
    assert await api.get("/admin/v2/persistent/public/default/t/permissions") == {}
    assert (await api.request("GET", "/admin/v2/persistent/public/default/none/permissions")).status == 404
