"""Refusals of a policy's path: Pulsar's statuses and words where it has any, and never half a change."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from heliograph_broker.http.base.json_bodies import is_scalar
from heliograph_broker.http.policies.policy_table import POLICIES

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


DOCUMENTS = {policy.namespace: policy.document for policy in POLICIES}


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
    ("retention", '{"retentionTimeInMinutes":"5m","retentionSizeInMB":5}', 400, "$.retentionTimeInMinutes"),
    ("retention", '{"retentionTimeInMinutes":null,"retentionSizeInMB":5}', 400, "$.retentionTimeInMinutes"),
    ("retention", '{"retentionTimeInMinutes":true,"retentionSizeInMB":5}', 400, "Expected `int`, got `bool`"),
    ("retention", '{"retentionTimeInMinutes":2147483648,"retentionSizeInMB":5}', 400, "<= 2147483647"),
    ("retention", '{"retentionTimeInMinutes":5,"retentionSizeInMB":9223372036854775807}', 400, "too large"),
    ("retention", "5", 400, "Expected `object`"),
    ("retention", "{", 400, "not JSON"),
    ("delayedDelivery", '{"active":"on"}', 400, "active"),
    ("delayedDelivery", '{"active":true,"tickTime":-1}', 412, "tickTime must be 0 or more"),
    ("delayedDelivery", '{"active":true,"maxDeliveryDelayInMillis":-1}', 412, "maxDeliveryDelayInMillis must be 0"),
    ("publishRate", '{"publishThrottlingRateInMsg":-2}', 412, "publishThrottlingRateInMsg must be -1 or more"),
    ("publishRate", '{"publishThrottlingRateInByte":99999999999999999999}', 400, "publishThrottlingRateInByte"),
    ("dispatchRate", '{"dispatchThrottlingRateInMsg":5,"ratePeriodInSecond":0}', 412, "ratePeriodInSecond must be 1"),
    ("dispatchRate", '{"dispatchThrottlingRateInByte":-7}', 412, "must be -1 or more, not -7"),
    ("dispatchRate", '{"relativeToPublishRate":true}', 412, "relativeToPublishRate is not supported"),
    ("subscribeRate", '{"subscribeThrottlingRatePerConsumer":5,"ratePeriodInSecond":-3}', 412, "1 or more, not -3"),
    ("subscribeRate", "true", 400, "Expected `object`, got `bool`"),
    (
        "inactiveTopicPolicies",
        '{"inactiveTopicDeleteMode":"nope","maxInactiveDurationSeconds":6,"deleteWhileInactive":true}',
        400,
        "delete_when_no_subscriptions, delete_when_subscriptions_caught_up",
    ),
    ("inactiveTopicPolicies", '{"maxInactiveDurationSeconds":0,"deleteWhileInactive":true}', 412, "1 or more"),
    ("inactiveTopicPolicies", '{"deleteWhileInactive":2.5}', 400, "deleteWhileInactive"),
    ("autoSubscriptionCreation", "[]", 400, "Expected `object`"),
    ("subscriptionTypesEnabled", '["Shared","shared"]', 400, "Exclusive, Shared, Failover, Key_Shared"),
    ("subscriptionTypesEnabled", '"Shared"', 400, "Expected `array`"),
    ("subscriptionTypesEnabled", "[[]]", 400, "$[0]"),
    ("encryptionRequired", '"yes"', 400, "Expected `bool`"),
    ("schemaValidationEnforced", "1.5", 400, "Expected `bool`"),
    ("deadLetterTopic", '"a/b"', 412, "Invalid short topic name 'a/b'"),
    ("deadLetterTopic", "[]", 400, "Expected `str`"),
    ("expires", "0", 412, "1 second or more, or -1 for never, not 0"),
    ("expires", "-2", 412, "not -2"),
    ("ttlInBatches", "{}", 400, "Expected `bool`"),
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
        ("POST", f"{N}/maxProducersPerTopic", '"five"', 400, "Expected `int`"),
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
        ("PUT", f"{N}/properties", '{"a":[]}', 400, "Expected `str`"),
    ],
)
async def test_a_refusal_has_pulsars_status_and_words(
    api: HttpApi, method: str, path: str, body: str | None, status: int, part: str
) -> None:
    await _refused(api, method, path, body, status, part)


OWN = "/heliograph/v1/persistent/public/default/t/subscription"


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        (f"{N}/messageTTLMillis", "-2", "messageTTLMillis must be 0 or more, or -1 for never, not -2"),
        (f"{T}/t/deadLetterTopic", '"t"', "deadLetterTopic 'persistent://public/default/t' is this topic"),
        (f"{OWN}/s/deadLetterTopic", '"t"', "deadLetterTopic 'persistent://public/default/t' is this topic"),
        (
            f"{N}/deadLetterTopic",
            '"__change_events"',
            "'persistent://public/default/__change_events' is a system topic",
        ),
        (f"{OWN}/__compaction/messageTTL", "1", "__compaction is the broker's own subscription"),
        (f"{T}/t/__compaction/dispatchRate", "{}", "__compaction is the broker's own subscription"),
    ],
)
async def test_a_policy_that_could_do_harm_is_refused(api: HttpApi, path: str, body: str, words: str) -> None:
    await _refused(api, "POST", path, body, 412, words)


@pytest.mark.parametrize(
    ("end", "body"), [("messageTTL", "60"), ("dispatchRate", '{"dispatchThrottlingRateInMsg": 1}')]
)
async def test_a_topic_has_settings_of_so_many_subscriptions(api: HttpApi, end: str, body: str) -> None:
    base = OWN if end == "messageTTL" else f"{T}/t"
    for number in range(100):
        await api.done("POST", f"{base}/s{number}/{end}", body)
    await _refused(api, "POST", f"{base}/more/{end}", body, 412, "101 subscriptions of the topic would have settings")
    await api.done("POST", f"{base}/s7/{end}", body)
    await api.done("DELETE", f"{base}/s7/{end}")
    await api.done("POST", f"{base}/more/{end}", body)


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


@pytest.mark.parametrize(
    "path",
    [*sorted({sample.namespace for sample in SAMPLES if is_scalar(DOCUMENTS[sample.namespace])}), NAMESPACE_ONLY[0][0]],
)
async def test_a_missing_figure_is_refused_with_an_example(api: HttpApi, path: str) -> None:
    verb = "PUT" if path == "compactionThreshold" else "POST"
    await _refused(api, verb, f"{N}/{path}", None, 400, "the request needs a JSON body, for example ")


@pytest.mark.parametrize(
    "path",
    [
        "retention",
        "messageTTL",
        "deduplicationEnabled",
        "deadLetterTopic",
        "ttlInBatches",
        "ttlCountsDelay",
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
