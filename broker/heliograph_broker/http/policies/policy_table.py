"""Every policy that namespaces and topics have, described once.

:mod:`.policy_routes` makes the handlers of both levels from it, :mod:`.namespace_document` the namespace's document.
Backlog quotas, two policies that share their paths, are in :mod:`.quota_routes`.
"""

from __future__ import annotations

from typing import Final

from heliograph_api.resources.policies import SUBSCRIPTION_TYPES, Policies
from heliograph_api.values.names import TopicName

from heliograph_broker.messaging.base.errors import PreconditionFailed

from . import policy_documents as documents
from .policy_description import POST, PUT, TOPIC, Level, PolicyPath, figure, maximum, plain, structure
from .policy_documents import MINUTE_MS, SECOND_MS, Count, Limit, LongCount


def _dispatch_rate(title: str, field: str, path: str, key: str) -> PolicyPath:
    return structure(
        title,
        field,
        documents.DispatchRateDocument,
        '{"dispatchThrottlingRateInMsg": 1000, "dispatchThrottlingRateInByte": -1, "ratePeriodInSecond": 1}',
        documents.dispatch_rate_from,
        documents.dispatch_rate_document,
        lambda config: documents.DispatchRateDocument(0, 0),
        namespace=path,
        topic=(path,),
        key=key,
        per_cluster=True,
    )


def _read_ttl(policies: Policies) -> int | None:
    """Return seconds, 0 for never. A manifest's TTL of 0, which is "at once", is shown as the shortest there is."""
    ttl_ms = policies.message_ttl_ms
    if ttl_ms is None:
        return None
    return 0 if ttl_ms < 0 else max(1, documents.up(ttl_ms, SECOND_MS))


def _write_ttl(policies: Policies, seconds: int, level: Level) -> None:
    if seconds < 0:
        reason = "Invalid value for message TTL"
        raise PreconditionFailed(reason if level.name == TOPIC else f"{reason}, message TTL must >= 0")
    # Pulsar's 0 switches expiry off.
    policies.message_ttl_ms = documents.scaled(seconds, SECOND_MS) or -1


def _expires_from(seconds: int) -> int:
    if seconds == 0 or seconds < -1:
        raise PreconditionFailed(f"expires must be 1 second or more, or -1 for never, not {seconds}")
    return documents.scaled(seconds, SECOND_MS)


def _subscription_types_from(names: list[str]) -> list[str]:
    for name in names:
        documents.check_choice("subscription type", name, SUBSCRIPTION_TYPES)
    return sorted(set(names))


def _schema_compatibility_from(strategy: str) -> str | None:
    documents.check_choice("strategy", strategy, documents.COMPATIBILITY_STRATEGIES)
    return None if strategy == "UNDEFINED" else strategy


def _write_delayed_delivery(policies: Policies, document: documents.DelayedDeliveryDocument, level: Level) -> None:
    documents.delayed_delivery_from(policies, document)


def _dead_letter_topic_from(text: str) -> str:
    return str(TopicName.parse(text)) if text else text


RETENTION: Final = structure(
    "retention of messages that no subscription holds",
    "retention",
    documents.RetentionDocument,
    '{"retentionTimeInMinutes": 60, "retentionSizeInMB": 512}',
    documents.retention_from,
    documents.retention_document,
    # Data stays as long as its ledger then, which 0/0 would not say.
    lambda config: None,
    namespace="retention",
    topic=("retention",),
    key="retention_policies",
    for_stored=True,
    guards_backlog=True,
)

SUBSCRIPTION_DISPATCH_RATE: Final = _dispatch_rate(
    "dispatch rate limit of a subscription",
    "subscription_dispatch_rate",
    "subscriptionDispatchRate",
    "subscriptionDispatchRate",
)

POLICIES: Final = (
    RETENTION,
    PolicyPath(
        title="seconds after which messages expire (0: never)",
        document=Count,
        example="3600 (seconds)",
        fields=("message_ttl_ms",),
        read=_read_ttl,
        write=_write_ttl,
        otherwise=lambda config: 0,
        namespace="messageTTL",
        topic=("messageTTL",),
        topic_query="messageTTL",
        key="message_ttl_in_seconds",
        for_stored=True,
    ),
    plain(
        "whether messages are deduplicated",
        "deduplication",
        bool,
        "true",
        False,
        namespace="deduplication",
        topic=("deduplicationEnabled", "deduplication"),
        key="deduplicationEnabled",
        for_stored=True,
    ),
    PolicyPath(
        title="whether delayed delivery is enabled",
        document=documents.DelayedDeliveryDocument,
        example='{"active": true, "tickTime": 1000, "maxDeliveryDelayInMillis": 86400000}',
        fields=("delayed_delivery", "max_delivery_delay_ms", "delayed_delivery_tick_ms"),
        read=documents.delayed_delivery_document,
        write=_write_delayed_delivery,
        otherwise=lambda config: documents.DelayedDeliveryDocument(active=True, tick_ms=documents.DEFAULT_TICK_MS),
        namespace="delayedDelivery",
        topic=("delayedDelivery",),
        key="delayed_delivery_policies",
    ),
    structure(
        "publish rate limit, per second",
        "publish_rate",
        documents.PublishRateDocument,
        '{"publishThrottlingRateInMsg": 1000, "publishThrottlingRateInByte": -1}',
        documents.publish_rate_from,
        documents.publish_rate_document,
        lambda config: documents.PublishRateDocument(),
        namespace="publishRate",
        topic=("publishRate",),
        key="publishMaxMessageRate",
        per_cluster=True,
    ),
    _dispatch_rate("dispatch rate limit of a topic", "dispatch_rate", "dispatchRate", "topicDispatchRate"),
    SUBSCRIPTION_DISPATCH_RATE,
    structure(
        "subscribe rate limit of a consumer",
        "subscribe_rate",
        documents.SubscribeRateDocument,
        '{"subscribeThrottlingRatePerConsumer": 10, "ratePeriodInSecond": 30}',
        documents.subscribe_rate_from,
        documents.subscribe_rate_document,
        lambda config: documents.SubscribeRateDocument(0),
        namespace="subscribeRate",
        topic=("subscribeRate",),
        key="clusterSubscribeRate",
        per_cluster=True,
    ),
    maximum(
        "maximum number of producers per topic",
        "max_producers",
        "maxProducersPerTopic",
        "maxProducers",
        "max_producers_per_topic",
    ),
    maximum(
        "maximum number of consumers per topic",
        "max_consumers",
        "maxConsumersPerTopic",
        "maxConsumers",
        "max_consumers_per_topic",
    ),
    maximum(
        "maximum number of consumers per subscription",
        "max_consumers_per_subscription",
        "maxConsumersPerSubscription",
        "maxConsumersPerSubscription",
        "max_consumers_per_subscription",
        topic_reason="Invalid value for maxConsumersPerSubscription",
    ),
    maximum(
        "maximum number of subscriptions per topic",
        "max_subscriptions",
        "maxSubscriptionsPerTopic",
        "maxSubscriptionsPerTopic",
        "max_subscriptions_per_topic",
    ),
    maximum(
        "maximum number of topics in a namespace",
        "max_topics",
        "maxTopicsPerNamespace",
        "",
        "max_topics_per_namespace",
        unset=(0, None),
    ),
    maximum(
        "maximum number of unacknowledged messages per consumer",
        "max_unacked_per_consumer",
        "maxUnackedMessagesPerConsumer",
        "maxUnackedMessagesOnConsumer",
        "max_unacked_messages_per_consumer",
        topic_reason="maxUnackedNum must be 0 or more",
        otherwise=lambda config: config.max_unacked_per_consumer,
    ),
    maximum(
        "maximum number of unacknowledged messages per subscription",
        "max_unacked_per_subscription",
        "maxUnackedMessagesPerSubscription",
        "maxUnackedMessagesOnSubscription",
        "max_unacked_messages_per_subscription",
        topic_reason="maxUnackedNum must be 0 or more",
        otherwise=lambda config: config.max_unacked_per_subscription,
    ),
    figure(
        "maximum size of a message in bytes",
        "max_message_size",
        (
            "maxMessageSize must be greater than or equal to 0 and must be smaller than that in the broker-level",
            "topic-level maxMessageSize must be greater than or equal to 0 and must be smaller than that in the "
            "broker-level",
        ),
        most=lambda config: config.max_message_size,
        otherwise=lambda config: config.max_message_size,
        example="1048576 (bytes)",
        namespace="maxMessageSize",
        topic=("maxMessageSize",),
        key="max_message_size",
    ),
    figure(
        "size of new messages in bytes after which compaction starts automatically (0: never)",
        "compaction_threshold",
        ("compactionThreshold must be 0 or more", "Invalid value for compactionThreshold"),
        document=LongCount,
        example="104857600 (bytes)",
        namespace="compactionThreshold",
        topic=("compactionThreshold",),
        verbs=(PUT, POST),
        key="compaction_threshold",
        for_stored=True,
    ),
    structure(
        "when an inactive topic is deleted",
        "inactive_topic",
        documents.InactiveTopicDocument,
        '{"inactiveTopicDeleteMode": "delete_when_no_subscriptions", "maxInactiveDurationSeconds": 3600, '
        '"deleteWhileInactive": true}',
        documents.inactive_topic_from,
        documents.inactive_topic_document,
        lambda config: documents.InactiveTopicDocument(seconds=60, delete=False),
        namespace="inactiveTopicPolicies",
        topic=("inactiveTopicPolicies",),
        key="inactive_topic_policies",
    ),
    figure(
        "minutes after which an unused subscription is deleted (0: never)",
        "subscription_expiration_ms",
        ("Invalid value for subscription expiration time",) * 2,
        unit=MINUTE_MS,
        example="1440 (minutes)",
        namespace="subscriptionExpirationTime",
        topic=("subscriptionExpirationTime",),
        topic_query="subscriptionExpirationTime",
        key="subscription_expiration_time_minutes",
        for_stored=True,
    ),
    structure(
        "whether producing or subscribing creates missing topics",
        "auto_topic_creation",
        documents.AutoTopicCreationDocument,
        '{"allowAutoTopicCreation": true, "topicType": "partitioned", "defaultNumPartitions": 4}',
        documents.auto_topic_creation_from,
        documents.auto_topic_creation_document,
        lambda config: documents.AutoTopicCreationDocument(config.allow_auto_topic_creation),
        namespace="autoTopicCreation",
        key="autoTopicCreationOverride",
    ),
    structure(
        "whether subscribing creates missing subscriptions",
        "auto_subscription_creation",
        documents.AutoSubscriptionCreationDocument,
        '{"allowAutoSubscriptionCreation": true}',
        lambda document: document.allow_auto_subscription_creation,
        documents.AutoSubscriptionCreationDocument,
        lambda config: documents.AutoSubscriptionCreationDocument(config.allow_auto_subscription_creation),
        namespace="autoSubscriptionCreation",
        topic=("autoSubscriptionCreation",),
        key="autoSubscriptionCreationOverride",
    ),
    structure(
        "allowed subscription types (none: all)",
        "subscription_types",
        list[documents.SubscriptionType],
        '["Shared", "Key_Shared"]',
        _subscription_types_from,
        list,
        lambda config: [],
        namespace="subscriptionTypesEnabled",
        topic=("subscriptionTypesEnabled",),
        unset=([], []),
        key="subscription_types_enabled",
    ),
    plain(
        "whether messages must be encrypted",
        "encryption_required",
        bool,
        "true",
        False,
        namespace="encryptionRequired",
        topic=("encryptionRequired",),
        unset=(False, None),
        key="encryption_required",
    ),
    structure(
        "schema compatibility strategy",
        "schema_compatibility",
        documents.CompatibilityStrategy,
        '"FULL"',
        _schema_compatibility_from,
        str,
        lambda config: "FULL",
        namespace="schemaCompatibilityStrategy",
        topic=("schemaCompatibilityStrategy",),
        verbs=(PUT, PUT),
        unset=("UNDEFINED", None),
        key="schema_compatibility_strategy",
    ),
    plain(
        "whether producers may add schema versions automatically",
        "auto_update_schema",
        bool,
        "true",
        True,
        namespace="isAllowAutoUpdateSchema",
        topic=("isAllowAutoUpdateSchema",),
        unset=(True, None),
        key="is_allow_auto_update_schema",
    ),
    plain(
        "whether producers without a schema are refused on topics that have one",
        "schema_validation_enforced",
        bool,
        "true",
        False,
        namespace="schemaValidationEnforced",
        topic=("schemaValidationEnforced",),
        unset=(False, False),
        key="schema_validation_enforced",
    ),
    # Heliograph's own, in Pulsar's style.
    structure(
        'dead-letter topic of expired messages ("": none)',
        "dead_letter_topic",
        str,
        '"persistent://public/default/expired"',
        _dead_letter_topic_from,
        str,
        lambda config: "",
        namespace="deadLetterTopic",
        topic=("deadLetterTopic",),
        key="dead_letter_topic",
        for_stored=True,
    ),
    structure(
        "seconds after which an unused topic is deleted, as RabbitMQ's queue expiration (-1: never)",
        "expires_ms",
        Limit,
        "86400 (seconds)",
        _expires_from,
        lambda expires_ms: documents.up(expires_ms, SECOND_MS),
        lambda config: -1,
        namespace="expires",
        topic=("expires",),
        key="expires_in_seconds",
    ),
    plain(
        "whether the TTL of single messages in batches is honoured",
        "ttl_in_batches",
        bool,
        "true",
        False,
        namespace="ttlInBatches",
        topic=("ttlInBatches",),
        key="ttl_in_batches",
        for_stored=True,
    ),
)
"""All of them but backlog quotas and the rates of single subscriptions."""
