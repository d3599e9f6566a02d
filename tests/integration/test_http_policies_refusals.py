"""Refusals of a policy's path: Pulsar's statuses and words where it has any, and never half a change."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from .http_api import HttpApi, running_api
from .policy_samples import NAMESPACE_ONLY, SAMPLES, Sample

N = "/admin/v2/namespaces/public/default"
T = "/admin/v2/persistent/public/default"
NOT_STORED = "/admin/v2/non-persistent/public/default/np"
ONE_ZERO = (
    "Invalid retention policy: Setting a single time or size limit to 0 is invalid when one of the limits has a "
    "non-zero value. Use the value of -1 instead of 0 to ignore a specific limit. To disable retention both limits "
    "must be set to 0."
)
BROKER_SIZE = "maxMessageSize must be greater than or equal to 0 and must be smaller than that in the broker-level"
OVERRIDE = "Invalid configuration for autoTopicCreationOverride. the detail is "


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[HttpApi]:
    async with running_api(tmp_path / "data") as running:
        await running.done("PUT", f"{T}/t")
        yield running


async def _refused(api: HttpApi, method: str, path: str, body: str | None, status: int, part: str) -> None:
    before = (await api.request("GET", N)).body, api.broker.directory.topics[TOPIC].policies
    answer = await api.request(method, path, body)
    assert answer.status == status, answer
    assert list(answer.body) == ["reason"]
    assert part in answer.body["reason"], answer
    assert ((await api.request("GET", N)).body, api.broker.directory.topics[TOPIC].policies) == before


TOPIC = "persistent://public/default/t"


#: the path behind the level's, the body, the status, a part of the reason: the same at both levels
BAD_DOCUMENTS: list[tuple[str, str, int, str]] = [
    ("retention", '{"retentionTimeInMinutes":0,"retentionSizeInMB":5}', 400, ONE_ZERO),
    ("retention", '{"retentionTimeInMinutes":5,"retentionSizeInMB":0}', 400, ONE_ZERO),
    ("retention", '{"retentionTimeInMinutes":-2,"retentionSizeInMB":5}', 400, "time limit must be >= -1"),
    ("retention", '{"retentionTimeInMinutes":5,"retentionSizeInMB":-2}', 400, "size limit must be >= -1"),
    ("retention", '{"retentionTimeInMinutes":5}', 400, "retentionSizeInMB"),
    ("retention", '{"retentionTimeInMinutes":"5","retentionSizeInMB":5}', 400, "$.retentionTimeInMinutes"),
    ("retention", '{"retentionTimeInMinutes":1.5,"retentionSizeInMB":5}', 400, "Expected `int`, got `float`"),
    ("retention", '{"retentionTimeInMinutes":2147483648,"retentionSizeInMB":5}', 400, "<= 2147483647"),
    ("retention", '{"retentionTimeInMinutes":5,"retentionSizeInMB":9223372036854775807}', 400, "too large"),
    ("retention", '{"retentionTimeInMinutes":5,"retentionSizeInMB":5,"size":1}', 400, "unknown field `size`"),
    ("retention", "5", 400, "Expected `object`"),
    ("retention", "null", 400, "got `null`"),
    ("retention", "{", 400, "not JSON"),
    ("retention", "", 400, "for example"),
    ("delayedDelivery", '{"tickTime":1000}', 400, "active"),
    ("delayedDelivery", '{"active":true,"tickTime":-1}', 412, "tickTime must be 0 or more"),
    ("delayedDelivery", '{"active":true,"maxDeliveryDelayInMillis":-1}', 412, "maxDeliveryDelayInMillis must be 0"),
    ("publishRate", '{"publishThrottlingRateInMsg":-2}', 412, "publishThrottlingRateInMsg must be -1 or more"),
    ("publishRate", '{"publishThrottlingRateInByte":99999999999999999999}', 400, "publishThrottlingRateInByte"),
    ("dispatchRate", '{"dispatchThrottlingRateInMsg":5,"ratePeriodInSecond":0}', 412, "ratePeriodInSecond must be 1"),
    ("dispatchRate", '{"dispatchThrottlingRateInByte":-7}', 412, "must be -1 or more, not -7"),
    ("dispatchRate", '{"relativeToPublishRate":true}', 412, "relativeToPublishRate is not supported"),
    ("subscriptionDispatchRate", '{"rate":5}', 400, "unknown field `rate`"),
    ("subscribeRate", '{"subscribeThrottlingRatePerConsumer":5,"ratePeriodInSecond":-3}', 412, "1 or more, not -3"),
    ("subscribeRate", "true", 400, "Expected `object`, got `bool`"),
    (
        "inactiveTopicPolicies",
        '{"inactiveTopicDeleteMode":"nope","maxInactiveDurationSeconds":6,"deleteWhileInactive":true}',
        400,
        "delete_when_no_subscriptions, delete_when_subscriptions_caught_up",
    ),
    ("inactiveTopicPolicies", '{"maxInactiveDurationSeconds":0,"deleteWhileInactive":true}', 412, "1 or more"),
    ("inactiveTopicPolicies", '{"maxInactiveDurationSeconds":5}', 400, "deleteWhileInactive"),
    ("autoSubscriptionCreation", "{}", 400, "allowAutoSubscriptionCreation"),
    ("subscriptionTypesEnabled", '["Shared","shared"]', 400, "Exclusive, Shared, Failover, Key_Shared"),
    ("subscriptionTypesEnabled", '"Shared"', 400, "Expected `array`"),
    ("subscriptionTypesEnabled", "[1]", 400, "$[0]"),
    ("encryptionRequired", '"yes"', 400, "Expected `bool`"),
    ("schemaValidationEnforced", "1", 400, "Expected `bool`"),
    ("deadLetterTopic", '"a/b"', 412, "Invalid short topic name 'a/b'"),
    ("deadLetterTopic", "5", 400, "Expected `str`"),
    ("expires", "0", 412, "1 second or more, or -1 for never, not 0"),
    ("expires", "-2", 412, "not -2"),
    ("ttlInBatches", "0", 400, "Expected `bool`"),
    ("maxMessageSize", "-1", 412, BROKER_SIZE),
    ("maxMessageSize", "5242881", 412, BROKER_SIZE),
    (
        "backlogQuota",
        '{"limitSize":1,"policy":"drop"}',
        400,
        "producer_request_hold, producer_exception, consumer_back",
    ),
    ("backlogQuota", '{"limitSize":1}', 400, "policy"),
    ("backlogQuota", '{"policy":"producer_exception"}', 412, "limitSize in bytes"),
    ("backlogQuota", '{"limitSize":0,"policy":"producer_exception"}', 412, "would let nothing through"),
    ("backlogQuota", '{"limitSize":-2,"policy":"producer_exception"}', 412, "limitSize must be >= -1, not -2"),
    ("backlogQuota", '{"limitSize":1,"policy":"producer_exception","action":1}', 400, "unknown field `action`"),
    ("backlogQuota?backlogQuotaType=age", '{"limitTime":1,"policy":"producer_exception"}', 400, "or message_age"),
    (
        "backlogQuota?backlogQuotaType=message_age",
        '{"limitSize":1,"policy":"producer_exception"}',
        412,
        "limitTime in s",
    ),
    (
        "backlogQuota?backlogQuotaType=message_age",
        '{"limitTime":99999999999,"policy":"producer_exception"}',
        400,
        "$.limitTime",
    ),
]


@pytest.mark.parametrize(("path", "body", "status", "part"), BAD_DOCUMENTS)
@pytest.mark.parametrize("level", [N, f"{T}/t"], ids=["namespace", "topic"])
async def test_a_bad_document_is_refused_at_both_levels(
    api: HttpApi, level: str, path: str, body: str, status: int, part: str
) -> None:
    await _refused(api, "POST", f"{level}/{path}", body, status, part)


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "part"),
    [
        ("POST", f"{N}/messageTTL", "-1", 412, "Invalid value for message TTL, message TTL must >= 0"),
        ("POST", f"{N}/messageTTL", "99999999999", 400, "<= 2147483647"),
        ("POST", f"{T}/t/messageTTL?messageTTL=-1", None, 412, "Invalid value for message TTL"),
        ("POST", f"{T}/t/messageTTL?messageTTL=1h", None, 400, "messageTTL should be a whole number, not '1h'"),
        ("POST", f"{T}/t/messageTTL?messageTTL=1_000", None, 400, "whole number"),
        ("POST", f"{T}/t/messageTTL?messageTTL=2147483648", None, 400, "32 bits"),
        ("POST", f"{T}/t/messageTTL", None, 400, "for example 3600"),
        ("POST", f"{N}/subscriptionExpirationTime", "-1", 412, "Invalid value for subscription expiration time"),
        (
            "POST",
            f"{T}/t/subscriptionExpirationTime?subscriptionExpirationTime=-1",
            None,
            412,
            "Invalid value for subscription expiration time",
        ),
        ("POST", f"{N}/deduplication", "{}", 400, "Expected `bool`"),
        ("POST", f"{T}/t/deduplicationEnabled", '"x"', 400, "Expected `bool`"),
        ("POST", f"{N}/maxProducersPerTopic", "-1", 412, "maxProducersPerTopic must be 0 or more"),
        ("POST", f"{N}/maxProducersPerTopic", '"5"', 400, "Expected `int`"),
        ("POST", f"{T}/t/maxProducers", "-1", 412, "maxProducers must be 0 or more"),
        ("POST", f"{T}/t/maxConsumers", "-1", 412, "maxConsumers must be 0 or more"),
        ("POST", f"{N}/maxConsumersPerSubscription", "-1", 412, "maxConsumersPerSubscription must be 0 or more"),
        ("POST", f"{T}/t/maxConsumersPerSubscription", "-1", 412, "Invalid value for maxConsumersPerSubscription"),
        ("POST", f"{T}/t/maxSubscriptionsPerTopic", "-1", 412, "maxSubscriptionsPerTopic must be 0 or more"),
        ("POST", f"{N}/maxUnackedMessagesPerConsumer", "-1", 412, "maxUnackedMessagesPerConsumer must be 0 or more"),
        ("POST", f"{T}/t/maxUnackedMessagesOnConsumer", "-1", 412, "maxUnackedNum must be 0 or more"),
        ("POST", f"{T}/t/maxUnackedMessagesOnSubscription", "-1", 412, "maxUnackedNum must be 0 or more"),
        ("POST", f"{N}/maxTopicsPerNamespace", "-1", 412, "maxTopicsPerNamespace must be 0 or more"),
        ("POST", f"{N}/maxTopicsPerNamespace", "3000000000", 400, "<= 2147483647"),
        ("PUT", f"{N}/compactionThreshold", "-1", 412, "compactionThreshold must be 0 or more"),
        ("POST", f"{T}/t/compactionThreshold", "-1", 412, "Invalid value for compactionThreshold"),
        ("PUT", f"{N}/schemaCompatibilityStrategy", '"full"', 400, "BACKWARD_TRANSITIVE"),
        ("PUT", f"{T}/t/schemaCompatibilityStrategy", "null", 400, "Expected `str`"),
        (
            "POST",
            f"{N}/autoTopicCreation",
            '{"allowAutoTopicCreation":true}',
            412,
            OVERRIDE + "Unknown topic type [null]",
        ),
        (
            "POST",
            f"{N}/autoTopicCreation",
            '{"allowAutoTopicCreation":true,"topicType":"partitioned"}',
            412,
            OVERRIDE + "[defaultNumPartitions] cannot be null when the type is partitioned.",
        ),
        (
            "POST",
            f"{N}/autoTopicCreation",
            '{"allowAutoTopicCreation":true,"topicType":"non-partitioned","defaultNumPartitions":3}',
            412,
            OVERRIDE + "[defaultNumPartitions] is not allowed to be set when the type is non-partition.",
        ),
        (
            "POST",
            f"{N}/autoTopicCreation",
            '{"allowAutoTopicCreation":true,"topicType":"partitioned","defaultNumPartitions":0}',
            412,
            OVERRIDE + "[defaultNumPartitions] cannot be less than 1 for partition type.",
        ),
        ("POST", f"{T}/t/retention?isGlobal=true", "{}", 412, "only one"),
        ("GET", f"{T}/t/retention?applied=maybe", None, 400, "applied should be true or false"),
        ("POST", f"{N}/replication", '["other"]', 403, "Invalid cluster id: other"),
        ("POST", f"{N}/replication", "[]", 412, "ClusterIds should not be null or empty"),
        ("POST", f"{T}/t/replication", '["standalone","other"]', 403, "Invalid cluster id: other"),
        ("PUT", f"{N}/properties", '{"a":1}', 400, "Expected `str`"),
        ("POST", f"{N}/permissions/joe", '["produce"]', 412, "Authorization is not enabled"),
        ("DELETE", f"{N}/permissions/joe", None, 412, "Authorization is not enabled"),
        ("POST", f"{T}/t/permissions/joe", '["produce"]', 412, "Authorization is not enabled"),
    ],
)
async def test_a_refusal_has_pulsars_status_and_words(
    api: HttpApi, method: str, path: str, body: str | None, status: int, part: str
) -> None:
    await _refused(api, method, path, body, status, part)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.topic)
async def test_what_is_not_there_has_no_policies(api: HttpApi, sample: Sample) -> None:
    missing = "/admin/v2/namespaces/public/none"
    for method in ("GET", "DELETE", sample.namespace_verb):
        await _refused(api, method, f"{missing}/{sample.namespace}", "0", 404, "Namespace does not exist")
    for method in ("GET", "DELETE", sample.topic_verb):
        await _refused(
            api, method, f"{T}/none/{sample.topic}", "0", 404, "Topic persistent://public/default/none not found"
        )
        await _refused(
            api, method, f"/admin/v2/persistent/public/none/t/{sample.topic}", "0", 404, "Namespace not found"
        )
        await _refused(
            api, method, f"{T}/t-partition-0/{sample.topic}", "0", 412, "Not allowed to set/get topic policy for a part"
        )


@pytest.mark.parametrize("path", [*sorted({sample.namespace for sample in SAMPLES}), NAMESPACE_ONLY[0][0]])
async def test_a_missing_body_is_refused_with_an_example(api: HttpApi, path: str) -> None:
    verb = "PUT" if path in ("compactionThreshold", "schemaCompatibilityStrategy") else "POST"
    await _refused(api, verb, f"{N}/{path}", None, 400, "the request needs a JSON body, for example ")


@pytest.mark.parametrize(
    "path",
    [
        "retention",
        "messageTTL",
        "deduplicationEnabled",
        "deadLetterTopic",
        "ttlInBatches",
        "compactionThreshold",
        "subscriptionExpirationTime",
        "backlogQuota",
    ],
)
async def test_a_topic_that_stores_nothing_has_no_policies_for_what_is_stored(api: HttpApi, path: str) -> None:
    await api.done("PUT", NOT_STORED)
    await _refused(api, "POST", f"{NOT_STORED}/{path}", "1", 412, f"{path} is for persistent topics only")
    await api.done("POST", f"{NOT_STORED}/maxProducers", "3")
    assert await api.get(f"{NOT_STORED}/maxProducers?applied=true") == 3


# -- retention and quotas ------------------------------------------------------------------------------------------

RETENTION = '{{"retentionTimeInMinutes":{},"retentionSizeInMB":{}}}'
SIZE_QUOTA = '{{"limitSize":{},"policy":"producer_exception"}}'
AGE_QUOTA = '{{"limitTime":{},"policy":"producer_exception"}}'
MB = 1024 * 1024


@pytest.mark.parametrize(("level", "word"), [(N, "namespace"), (f"{T}/t", "topic")])
async def test_a_quota_above_the_retention_is_refused(api: HttpApi, level: str, word: str) -> None:
    await api.done("POST", f"{level}/retention", RETENTION.format(10, 10))
    reason = f"Backlog Quota exceeds configured retention quota for {word}. Please increase retention quota and retry"
    await _refused(api, "POST", f"{level}/backlogQuota", SIZE_QUOTA.format(10 * MB + 1), 412, reason)
    by_age = f"{level}/backlogQuota?backlogQuotaType=message_age"
    await _refused(api, "POST", by_age, AGE_QUOTA.format(601), 412, reason)
    await api.done("POST", f"{level}/backlogQuota", SIZE_QUOTA.format(10 * MB))
    await api.done("POST", by_age, AGE_QUOTA.format(600))


@pytest.mark.parametrize(
    ("level", "reason"),
    [
        (N, "Retention Quota must exceed configured backlog quota for namespace."),
        (
            f"{T}/t",
            "Retention Quota must exceed configured backlog quota for topic. Please increase retention quota and retry",
        ),
    ],
)
async def test_a_retention_below_the_quota_is_refused(api: HttpApi, level: str, reason: str) -> None:
    await api.done("POST", f"{level}/backlogQuota", SIZE_QUOTA.format(10 * MB))
    await _refused(api, "POST", f"{level}/retention", RETENTION.format(5, 5), 412, reason)
    for minutes, megabytes in ((-1, -1), (0, 0), (5, 11)):
        await api.done("POST", f"{level}/retention", RETENTION.format(minutes, megabytes))


async def test_a_topic_is_checked_against_what_it_inherits(api: HttpApi) -> None:
    await api.done("POST", f"{N}/retention", RETENTION.format(10, 10))
    await _refused(
        api,
        "POST",
        f"{T}/t/backlogQuota",
        SIZE_QUOTA.format(20 * MB),
        412,
        "Backlog Quota exceeds configured retention",
    )
    await api.done("POST", f"{N}/backlogQuota", SIZE_QUOTA.format(5 * MB))
    await _refused(
        api, "POST", f"{T}/t/retention", RETENTION.format(2, 2), 412, "Retention Quota must exceed configured backlog"
    )


# -- what this broker cannot do ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "verb", "body", "shown", "part"),
    [
        ("persistence", "POST", '{"bookkeeperEnsemble":1}', None, "no bookies"),
        ("persistence/bookieAffinity", "POST", "{}", None, "no bookies"),
        ("offloadPolicies", "POST", "{}", None, "offloading to other storage is not supported"),
        ("offloadThreshold", "PUT", "5", -1, "offloading to other storage is not supported"),
        ("offloadThresholdInSeconds", "PUT", "5", -1, "offloading to other storage is not supported"),
        ("offloadDeletionLagMs", "PUT", "5", None, "offloading to other storage is not supported"),
        ("replicatorDispatchRate", "POST", "{}", None, "one cluster"),
        ("entryFilters", "POST", '{"entryFilterNames":"a"}', None, "entry filters"),
        ("antiAffinity", "POST", '"x"', None, "not isolated from each other"),
        ("deduplicationSnapshotInterval", "POST", "1000", None, "no snapshots"),
        ("dispatcherPauseOnAckStatePersistent", "POST", None, False, "does not wait"),
        ("subscriptionAuthMode", "POST", '"Prefix"', "None", "no authorization of subscriptions"),
        ("allowedTopicPropertyKeysForMetrics", "POST", '["a"]', None, "metrics"),
        ("schemaAutoUpdateCompatibilityStrategy", "PUT", '"Full"', None, "schemaCompatibilityStrategy"),
        ("allowedClusters", "POST", '["other"]', [], "one cluster"),
    ],
)
async def test_what_a_namespace_cannot_have_is_read_as_unset_and_refused_with_the_reason(
    api: HttpApi, path: str, verb: str, body: str | None, shown: object, part: str
) -> None:
    answer = await api.request("GET", f"{N}/{path}")
    assert (answer.status, answer.body) == (204 if shown is None else 200, shown)
    await _refused(api, verb, f"{N}/{path}", body, 412, part)
    await _refused(api, "GET", f"/admin/v2/namespaces/public/none/{path}", None, 404, "Namespace does not exist")


@pytest.mark.parametrize(
    ("path", "verb", "applied", "part"),
    [
        ("persistence", "POST", None, "no bookies"),
        ("offloadPolicies", "POST", None, "offloading to other storage is not supported"),
        ("replicatorDispatchRate", "POST", {"dispatchThrottlingRateInMsg": 0}, "one cluster"),
        ("entryFilters", "POST", {"entryFilterNames": ""}, "entry filters"),
        ("deduplicationSnapshotInterval", "POST", None, "no snapshots"),
        ("dispatcherPauseOnAckStatePersistent", "POST", False, "does not wait"),
        ("shadowTopics", "PUT", None, "shadow topics are not supported"),
    ],
)
async def test_what_a_topic_cannot_have_is_read_as_unset_and_refused_with_the_reason(
    api: HttpApi, path: str, verb: str, applied: object, part: str
) -> None:
    answer = await api.request("GET", f"{T}/t/{path}?applied=true")
    assert answer.status == (204 if applied is None else 200)
    if isinstance(applied, dict):
        assert answer.body.items() >= applied.items()
    else:
        assert answer.body == applied
    await _refused(api, verb, f"{T}/t/{path}", json.dumps({"x": 1}), 412, part)
    await _refused(api, verb, f"{T}/none/{path}", "{}", 404, "not found")
    await api.done("DELETE", f"{T}/t/{path}")


async def test_the_value_there_is_anyway_may_be_set(api: HttpApi) -> None:
    for path, verb, body in (
        ("offloadThreshold", "PUT", "-1"),
        ("subscriptionAuthMode", "POST", '"None"'),
        ("allowedClusters", "POST", '["standalone"]'),
        ("replication", "POST", '["standalone"]'),
    ):
        await api.done(verb, f"{N}/{path}", body)
    await api.done("POST", f"{T}/t/replication", '["standalone"]')
    assert await api.get(f"{T}/t/replication?applied=true") == ["standalone"]
