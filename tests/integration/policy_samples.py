"""One of each policy as Pulsar's clients send it: its paths at both levels, two documents, and what holds without."""

from __future__ import annotations

from typing import Any, NamedTuple


class Sample(NamedTuple):
    """``one`` and ``other`` are different documents; ``default`` is what ``applied=true`` answers before any is set.

    A ``default`` of None: 204.
    """

    namespace: str
    topic: str
    one: Any
    other: Any
    default: Any
    namespace_verb: str = "POST"
    topic_verb: str = "POST"
    #: what a level that sets nothing answers; None: 204
    namespace_unset: Any = None
    topic_unset: Any = None
    #: the topic's number goes into the query
    in_query: bool = False


def _dispatch(messages: int, size: int, period: int) -> dict[str, Any]:
    return {
        "dispatchThrottlingRateInMsg": messages,
        "dispatchThrottlingRateInByte": size,
        "relativeToPublishRate": False,
        "ratePeriodInSecond": period,
    }


def _retention(minutes: int, megabytes: int) -> dict[str, int]:
    return {"retentionTimeInMinutes": minutes, "retentionSizeInMB": megabytes}


def _delayed(active: bool, tick: int, longest: int) -> dict[str, Any]:
    return {"active": active, "tickTime": tick, "maxDeliveryDelayInMillis": longest}


def _published(messages: int, size: int) -> dict[str, int]:
    return {"publishThrottlingRateInMsg": messages, "publishThrottlingRateInByte": size}


def _subscribed(times: int, period: int) -> dict[str, int]:
    return {"subscribeThrottlingRatePerConsumer": times, "ratePeriodInSecond": period}


def _inactive(mode: str, seconds: int, delete: bool) -> dict[str, Any]:
    return {"inactiveTopicDeleteMode": mode, "maxInactiveDurationSeconds": seconds, "deleteWhileInactive": delete}


_SUBSCRIBE = "allowAutoSubscriptionCreation"

SAMPLES = [
    Sample("retention", "retention", _retention(60, 512), _retention(-1, 10), None),
    Sample("messageTTL", "messageTTL", 3600, 0, 0, in_query=True),
    Sample("deduplication", "deduplicationEnabled", True, False, False),
    Sample("deduplication", "deduplication", True, False, False),
    Sample(
        "delayedDelivery",
        "delayedDelivery",
        _delayed(True, 500, 60_000),
        _delayed(False, 0, 0),
        _delayed(True, 1000, 0),
    ),
    Sample("publishRate", "publishRate", _published(100, 1000), _published(-1, 5), _published(-1, -1)),
    Sample("dispatchRate", "dispatchRate", _dispatch(100, 1000, 2), _dispatch(-1, 7, 1), _dispatch(0, 0, 1)),
    Sample(
        "subscriptionDispatchRate",
        "subscriptionDispatchRate",
        _dispatch(5, -1, 1),
        _dispatch(0, 900, 3),
        _dispatch(0, 0, 1),
    ),
    Sample("subscribeRate", "subscribeRate", _subscribed(5, 10), _subscribed(6, 30), _subscribed(0, 30)),
    Sample("maxProducersPerTopic", "maxProducers", 5, 7, 0),
    Sample("maxConsumersPerTopic", "maxConsumers", 5, 0, 0),
    Sample("maxConsumersPerSubscription", "maxConsumersPerSubscription", 5, 7, 0),
    Sample("maxSubscriptionsPerTopic", "maxSubscriptionsPerTopic", 5, 7, 0),
    Sample("maxUnackedMessagesPerConsumer", "maxUnackedMessagesOnConsumer", 5, 0, 50_000),
    Sample("maxUnackedMessagesPerSubscription", "maxUnackedMessagesOnSubscription", 5, 7, 200_000),
    Sample("maxMessageSize", "maxMessageSize", 1000, 5 * 1024 * 1024, 5 * 1024 * 1024),
    Sample("compactionThreshold", "compactionThreshold", 1024, 0, 0, namespace_verb="PUT"),
    Sample(
        "inactiveTopicPolicies",
        "inactiveTopicPolicies",
        _inactive("delete_when_subscriptions_caught_up", 600, True),
        _inactive("delete_when_no_subscriptions", 0, False),
        _inactive("delete_when_no_subscriptions", 60, False),
    ),
    Sample("subscriptionExpirationTime", "subscriptionExpirationTime", 60, 90, 0, in_query=True),
    Sample(
        "autoSubscriptionCreation",
        "autoSubscriptionCreation",
        {_SUBSCRIBE: False},
        {_SUBSCRIBE: True},
        {_SUBSCRIBE: True},
    ),
    Sample(
        "subscriptionTypesEnabled",
        "subscriptionTypesEnabled",
        ["Failover", "Shared"],
        ["Exclusive"],
        [],
        namespace_unset=[],
        topic_unset=[],
    ),
    Sample("encryptionRequired", "encryptionRequired", True, False, False, namespace_unset=False),
    Sample(
        "schemaCompatibilityStrategy",
        "schemaCompatibilityStrategy",
        "BACKWARD",
        "FORWARD_TRANSITIVE",
        "FULL",
        "PUT",
        "PUT",
        namespace_unset="UNDEFINED",
    ),
    Sample("isAllowAutoUpdateSchema", "isAllowAutoUpdateSchema", False, True, True, namespace_unset=True),
    Sample(
        "schemaValidationEnforced",
        "schemaValidationEnforced",
        True,
        False,
        False,
        namespace_unset=False,
        topic_unset=False,
    ),
    Sample("deadLetterTopic", "deadLetterTopic", "persistent://public/default/dead", "", ""),
    Sample("expires", "expires", 86_400, -1, -1),
    Sample("ttlInBatches", "ttlInBatches", False, True, True),
    Sample("ttlCountsDelay", "ttlCountsDelay", True, False, False),
]

#: policies of namespaces only: path, verb, one, other, what is answered without
NAMESPACE_ONLY: list[tuple[str, str, Any, Any, Any]] = [
    ("maxTopicsPerNamespace", "POST", 50, 60, 0),
    (
        "autoTopicCreation",
        "POST",
        {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 3},
        {"allowAutoTopicCreation": False},
        None,
    ),
    (
        "autoTopicCreation",
        "POST",
        {"allowAutoTopicCreation": True, "topicType": "non-partitioned"},
        {"allowAutoTopicCreation": False},
        None,
    ),
]
