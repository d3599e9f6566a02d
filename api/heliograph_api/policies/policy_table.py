"""The table of policies: each field of :class:`Policies` is a row that says all that is to be known of the policy.

To add one, add a row here, enforce it in the core, and test it; where it can be set follows from the row. A kind of
values that is new is described in :mod:`.policy_kinds`, and wherever something is looked up by the kind.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, get_type_hints

import msgspec

from . import policy_kinds as kinds
from .policy_field import Command, Level, PolicyField, RestPath
from .policy_values import AutoTopicCreation, BacklogQuota, InactiveTopic, Rate, Retention, SubscribeRate

_ONLY_NAMESPACE: Final = Level.NAMESPACE
_NO_LIMIT: Final = "0: no limit"


class Policies(msgspec.Struct, omit_defaults=True):
    """The policies set at one level. ``None`` means: not set here, inherit.

    To set "none at all" against a level below, numbers are -1 (``max_*``: 0 too, as in Pulsar) and
    ``dead_letter_topic`` is the empty text. Times are ms, sizes bytes.
    """

    retention: Annotated[
        Retention | None,
        PolicyField(
            kind=kinds.RETENTION,
            levels=Level.LIMITED,
            title="retention of messages that no subscription holds",
            doc="""Retention of messages that every subscription has acknowledged, or that no subscription waits for:
            until they are older than `time` or larger than `size` in total, whichever comes first; both 0: none. Not
            below the backlog quota. If no level sets it, they stay as long as their ledger: by default for 50,000
            entries, 2 GiB or 4 hours.""",
            for_stored=True,
            rest=RestPath(namespace="retention", topic=("retention",), key="retention_policies"),
            command=Command(
                namespace="retention",
                topic="retention",
            ),
        ),
    ] = None
    backlog_quota_size: Annotated[
        BacklogQuota | None,
        PolicyField(
            kind=kinds.SIZE_QUOTA,
            levels=Level.LIMITED,
            title="the limit of unacknowledged messages",
            doc="Limits of unacknowledged messages by size and by age, and what happens at them. Default: none.",
            manifest="backlogQuota.destinationStorage",
            for_stored=True,
            command=Command(namespace="backlog-quota", topic="backlog-quota"),
        ),
    ] = None
    backlog_quota_age: Annotated[
        BacklogQuota | None,
        PolicyField(kind=kinds.AGE_QUOTA, levels=Level.LIMITED, manifest="backlogQuota.messageAge", for_stored=True),
    ] = None
    message_ttl_ms: Annotated[
        int | None,
        PolicyField(
            kind=kinds.DURATION,
            levels=Level.ALL,
            title="time after which unacknowledged messages expire (message TTL)",
            doc="A duration: older messages expire, which acknowledges them. -1 removes an inherited one; 0: at once.",
            manifest="messageTTL",
            default=0,
            for_stored=True,
            rest=RestPath(
                namespace="messageTTL",
                topic=("messageTTL",),
                milliseconds="messageTTLMillis",
                topic_query="messageTTL",
                key="message_ttl_in_seconds",
                subscription="messageTTL",
            ),
            command=Command(
                namespace="message-ttl",
                topic="message-ttl",
                subscription="message-ttl",
                options=("--messageTTL", "-ttl"),
                topic_options=("--ttl", "-t", "--messageTTL", "-ttl"),
            ),
        ),
    ] = None
    expires_ms: Annotated[
        int | None,
        PolicyField(
            kind=kinds.UNUSED_FOR,
            levels=Level.LIMITED,
            title="time after which an unused topic is deleted (as RabbitMQ's queue expiration)",
            doc="A duration: the topic is deleted after this time without use. -1: never.",
            default=-1,
            rest=RestPath(namespace="expires", topic=("expires",), key="expires_in_seconds"),
            command=Command(namespace="expires", topic="expires"),
        ),
    ] = None
    max_producers: Annotated[
        int | None,
        PolicyField(
            kind=kinds.COUNT,
            levels=Level.LIMITED,
            title="maximum number of producers per topic",
            doc=f"Maximum connected producers; {_NO_LIMIT}.",
            default=0,
            rest=RestPath(namespace="maxProducersPerTopic", topic=("maxProducers",), key="max_producers_per_topic"),
            command=Command(
                namespace="max-producers-per-topic",
                topic="max-producers",
                options=("--max-producers-per-topic", "-p"),
                topic_options=("--max-producers", "-p"),
            ),
        ),
    ] = None
    max_consumers: Annotated[
        int | None,
        PolicyField(
            kind=kinds.COUNT,
            levels=Level.LIMITED,
            title="maximum number of consumers per topic",
            doc=f"Maximum connected consumers; {_NO_LIMIT}.",
            default=0,
            rest=RestPath(namespace="maxConsumersPerTopic", topic=("maxConsumers",), key="max_consumers_per_topic"),
            command=Command(
                namespace="max-consumers-per-topic",
                topic="max-consumers",
                options=("--max-consumers-per-topic", "-c"),
                topic_options=("--max-consumers", "-c"),
            ),
        ),
    ] = None
    max_subscriptions: Annotated[
        int | None,
        PolicyField(
            kind=kinds.COUNT,
            levels=Level.LIMITED,
            title="maximum number of subscriptions per topic",
            doc=f"Maximum subscriptions of a topic; {_NO_LIMIT}.",
            default=0,
            rest=RestPath(
                namespace="maxSubscriptionsPerTopic",
                topic=("maxSubscriptionsPerTopic",),
                key="max_subscriptions_per_topic",
            ),
            command=Command(
                namespace="max-subscriptions-per-topic",
                topic="max-subscriptions",
                options=("--max-subscriptions-per-topic", "-m"),
            ),
        ),
    ] = None
    max_message_size: Annotated[
        int | None,
        PolicyField(
            kind=kinds.SIZE_LIMIT,
            levels=Level.LIMITED,
            title="maximum size of a message",
            doc="A size: the largest message (or batch) a producer may send. Default: the broker's setting.",
            rest=RestPath(
                namespace="maxMessageSize",
                topic=("maxMessageSize",),
                key="max_message_size",
                setting="max_message_size",
            ),
            command=Command(
                namespace="max-message-size", topic="max-message-size", options=("--max-message-size", "-m")
            ),
        ),
    ] = None
    max_consumers_per_subscription: Annotated[
        int | None,
        PolicyField(
            kind=kinds.COUNT,
            levels=Level.LIMITED,
            title="maximum number of consumers per subscription",
            doc=f"Maximum connected consumers of one subscription; {_NO_LIMIT}.",
            default=0,
            rest=RestPath(
                namespace="maxConsumersPerSubscription",
                topic=("maxConsumersPerSubscription",),
                key="max_consumers_per_subscription",
                topic_refusal="Invalid value for maxConsumersPerSubscription",
            ),
            command=Command(
                namespace="max-consumers-per-subscription",
                topic="max-consumers-per-subscription",
                options=("--max-consumers-per-subscription", "-c"),
            ),
        ),
    ] = None
    max_unacked_per_consumer: Annotated[
        int | None,
        PolicyField(
            kind=kinds.COUNT,
            levels=Level.LIMITED,
            title="maximum number of unacknowledged messages per consumer",
            doc=f"Maximum unacknowledged messages of a consumer; {_NO_LIMIT}. Default: 50000.",
            rest=RestPath(
                namespace="maxUnackedMessagesPerConsumer",
                topic=("maxUnackedMessagesOnConsumer",),
                key="max_unacked_messages_per_consumer",
                setting="max_unacked_per_consumer",
                topic_refusal="maxUnackedNum must be 0 or more",
            ),
            command=Command(
                namespace="max-unacked-messages-per-consumer",
                topic="max-unacked-messages-per-consumer",
                options=("--max-unacked-messages-per-topic", "-c"),
                topic_options=("--maxNum", "-m"),
            ),
        ),
    ] = None
    max_unacked_per_subscription: Annotated[
        int | None,
        PolicyField(
            kind=kinds.COUNT,
            levels=Level.LIMITED,
            title="maximum number of unacknowledged messages per subscription",
            doc=f"Maximum unacknowledged messages of all consumers of a subscription; {_NO_LIMIT}. Default: 200000.",
            rest=RestPath(
                namespace="maxUnackedMessagesPerSubscription",
                topic=("maxUnackedMessagesOnSubscription",),
                key="max_unacked_messages_per_subscription",
                setting="max_unacked_per_subscription",
                topic_refusal="maxUnackedNum must be 0 or more",
            ),
            command=Command(
                namespace="max-unacked-messages-per-subscription",
                topic="max-unacked-messages-per-subscription",
                options=("--max-unacked-messages-per-subscription", "-c"),
                topic_options=("--maxNum", "-m"),
            ),
        ),
    ] = None
    max_delivery_delay_ms: Annotated[
        int | None,
        PolicyField(
            kind=kinds.DURATION_LIMIT,
            levels=Level.LIMITED,
            doc="A duration: the longest delay that a producer may give to a message. -1: no limit.",
        ),
    ] = None
    subscription_expiration_ms: Annotated[
        int | None,
        PolicyField(
            kind=kinds.UNUSED_FOR_OR_ZERO,
            levels=Level.ALL,
            title="time after which unused subscriptions are deleted",
            doc="A duration: a subscription is deleted after this time without use. -1: never.",
            subscription_manifest="expires",
            default=0,
            for_stored=True,
            rest=RestPath(
                namespace="subscriptionExpirationTime",
                topic=("subscriptionExpirationTime",),
                topic_query="subscriptionExpirationTime",
                key="subscription_expiration_time_minutes",
                subscription="expires",
            ),
            command=Command(namespace="subscription-expiration-time", subscription="expires"),
        ),
    ] = None
    publish_rate: Annotated[
        Rate | None,
        PolicyField(
            kind=kinds.RATE,
            levels=Level.LIMITED,
            title="publish rate limit of a topic",
            doc="Publish rate limit.",
            rest=RestPath(
                namespace="publishRate", topic=("publishRate",), key="publishMaxMessageRate", per_cluster=True
            ),
            command=Command(namespace="publish-rate", topic="publish-rate"),
        ),
    ] = None
    dispatch_rate: Annotated[
        Rate | None,
        PolicyField(
            kind=kinds.RATE,
            levels=Level.LIMITED,
            title="dispatch rate limit of a topic",
            doc="Dispatch rate limit of the topic.",
            rest=RestPath(namespace="dispatchRate", topic=("dispatchRate",), key="topicDispatchRate", per_cluster=True),
            command=Command(namespace="dispatch-rate", topic="dispatch-rate"),
        ),
    ] = None
    subscription_dispatch_rate: Annotated[
        Rate | None,
        PolicyField(
            kind=kinds.RATE,
            levels=Level.LIMITED,
            title="dispatch rate limit of each subscription",
            doc="Dispatch rate limit of each subscription.",
            rest=RestPath(
                namespace="subscriptionDispatchRate",
                topic=("subscriptionDispatchRate",),
                key="subscriptionDispatchRate",
                per_cluster=True,
            ),
            command=Command(namespace="subscription-dispatch-rate", topic="subscription-dispatch-rate"),
        ),
    ] = None
    #: Rates of single subscriptions by name, which count before that of all; topics only.
    subscription_dispatch_rates: Annotated[dict[str, Rate] | None, PolicyField(kind=kinds.BY_SUBSCRIPTION)] = None
    #: By the names of subscriptions, what each sets for itself; topics only. A name may come into being later.
    subscription_policies: Annotated[dict[str, Policies] | None, PolicyField(kind=kinds.BY_SUBSCRIPTION)] = None
    dead_letter_topic: Annotated[
        str | None,
        PolicyField(
            kind=kinds.TOPIC_NAME,
            levels=Level.TOPICS | Level.SUBSCRIPTION,
            title="dead-letter topic of expired messages",
            doc="Dead-letter topic of expired messages: the name of a topic. The empty text removes an inherited one.",
            default="",
            for_stored=True,
            rest=RestPath(
                namespace="deadLetterTopic",
                topic=("deadLetterTopic",),
                key="dead_letter_topic",
                subscription="deadLetterTopic",
            ),
            command=Command(namespace="dead-letter-topic", topic="dead-letter-topic", subscription="dead-letter-topic"),
        ),
    ] = None
    ttl_in_batches: Annotated[
        bool | None,
        PolicyField(
            kind=kinds.SWITCH,
            levels=Level.TOPICS,
            title="whether the TTL of single messages in batches is honoured",
            doc="Whether the TTL of single messages in batches is honoured. Default: true.",
            default=True,
            for_stored=True,
            idle_value=False,
            rest=RestPath(namespace="ttlInBatches", topic=("ttlInBatches",), key="ttl_in_batches"),
            command=Command(namespace="ttl-in-batches", topic="ttl-in-batches", example="--disable"),
        ),
    ] = None
    ttl_counts_delay: Annotated[
        bool | None,
        PolicyField(
            kind=kinds.SWITCH,
            levels=Level.TOPICS,
            title="whether the TTL of a delayed message counts its delay",
            doc="""Whether the TTL of a delayed message begins when the broker receives it, as on Pulsar, and not at
            its delivery time. Default: false.""",
            default=False,
            for_stored=True,
            idle_value=False,
            rest=RestPath(namespace="ttlCountsDelay", topic=("ttlCountsDelay",), key="ttl_counts_delay"),
            command=Command(namespace="ttl-counts-delay", topic="ttl-counts-delay"),
        ),
    ] = None
    deduplication: Annotated[
        bool | None,
        PolicyField(
            kind=kinds.SWITCH,
            levels=Level.TOPICS,
            title="whether messages are deduplicated",
            doc="Whether messages that a producer sends twice are stored once. Default: false.",
            default=False,
            for_stored=True,
            idle_value=False,
            rest=RestPath(
                namespace="deduplication", topic=("deduplicationEnabled", "deduplication"), key="deduplicationEnabled"
            ),
            command=Command(namespace="deduplication", topic="deduplication"),
        ),
    ] = None
    delayed_delivery: Annotated[
        bool | None,
        PolicyField(
            kind=kinds.SWITCH,
            levels=Level.TOPICS,
            title="whether delayed delivery is enabled",
            doc="Whether delayed delivery is enabled. Default: true.",
            default=True,
            rest=RestPath(namespace="delayedDelivery", topic=("delayedDelivery",), key="delayed_delivery_policies"),
            command=Command(namespace="delayed-delivery", topic="delayed-delivery"),
        ),
    ] = None
    #: The delivery delay that Pulsar's clients are shown. Kept for them to read: messages are on time.
    delayed_delivery_tick_ms: Annotated[int | None, PolicyField(kind=kinds.TICK)] = None
    inactive_topic: Annotated[
        InactiveTopic | None,
        PolicyField(
            kind=kinds.INACTIVE_TOPIC,
            levels=Level.TOPICS,
            title="when inactive topics are deleted",
            doc="Whether, and after which time, the topic is deleted when no client is connected.",
            rest=RestPath(
                namespace="inactiveTopicPolicies", topic=("inactiveTopicPolicies",), key="inactive_topic_policies"
            ),
            command=Command(namespace="inactive-topic-policies", topic="inactive-topic-policies"),
        ),
    ] = None
    subscribe_rate: Annotated[
        SubscribeRate | None,
        PolicyField(
            kind=kinds.SUBSCRIBE_RATE,
            levels=Level.TOPICS,
            title="subscribe rate limit of a consumer",
            doc="Limit of the subscribe requests of one consumer per period.",
            rest=RestPath(
                namespace="subscribeRate", topic=("subscribeRate",), key="clusterSubscribeRate", per_cluster=True
            ),
            command=Command(namespace="subscribe-rate", topic="subscribe-rate"),
        ),
    ] = None
    compaction_threshold: Annotated[
        int | None,
        PolicyField(
            kind=kinds.THRESHOLD,
            levels=Level.TOPICS,
            title="size of new messages after which compaction starts automatically",
            doc="A size: compact when this much was published since the last compaction. 0: never.",
            default=0,
            for_stored=True,
            idle_value=0,
            rest=RestPath(
                namespace="compactionThreshold",
                topic=("compactionThreshold",),
                methods=("PUT", "POST"),
                key="compaction_threshold",
                topic_refusal="Invalid value for compactionThreshold",
            ),
            command=Command(
                namespace="compaction-threshold", topic="compaction-threshold", options=("--threshold", "-t")
            ),
        ),
    ] = None
    auto_subscription_creation: Annotated[
        bool | None,
        PolicyField(
            kind=kinds.SWITCH,
            levels=Level.TOPICS,
            title="whether subscribing creates missing subscriptions",
            doc="Whether subscribing creates a missing subscription. Default: the broker's setting.",
            rest=RestPath(
                namespace="autoSubscriptionCreation",
                topic=("autoSubscriptionCreation",),
                key="autoSubscriptionCreationOverride",
            ),
            command=Command(
                namespace="auto-subscription-creation", topic="auto-subscription-creation", example="--disable"
            ),
        ),
    ] = None
    #: Names of the subscription types consumers may use; an empty list allows all.
    subscription_types: Annotated[
        list[str] | None,
        PolicyField(
            kind=kinds.SUBSCRIPTION_TYPES,
            levels=Level.TOPICS,
            title="allowed subscription types",
            doc="Allowed subscription types; left out or an empty list: all.",
            default=[],
            rest=RestPath(
                namespace="subscriptionTypesEnabled",
                topic=("subscriptionTypesEnabled",),
                unset=([], []),
                key="subscription_types_enabled",
            ),
            command=Command(namespace="subscription-types-enabled", topic="subscription-types-enabled"),
        ),
    ] = None
    encryption_required: Annotated[
        bool | None,
        PolicyField(
            kind=kinds.SWITCH,
            levels=Level.TOPICS,
            title="whether messages must be encrypted",
            doc="Whether messages that are not encrypted are refused. Default: false.",
            default=False,
            rest=RestPath(
                namespace="encryptionRequired",
                topic=("encryptionRequired",),
                unset=(False, None),
                key="encryption_required",
            ),
            command=Command(namespace="encryption-required", removable=False),
        ),
    ] = None
    schema_compatibility: Annotated[
        str | None,
        PolicyField(
            kind=kinds.SCHEMA_COMPATIBILITY,
            levels=Level.TOPICS,
            title="schema compatibility strategy",
            doc="Schema compatibility strategy, by Pulsar's names. Default: FULL.",
            default="FULL",
            rest=RestPath(
                namespace="schemaCompatibilityStrategy",
                topic=("schemaCompatibilityStrategy",),
                methods=("PUT", "PUT"),
                unset=("UNDEFINED", None),
                key="schema_compatibility_strategy",
            ),
            command=Command(
                namespace="schema-compatibility-strategy", topic="schema-compatibility-strategy", removable=False
            ),
        ),
    ] = None
    auto_update_schema: Annotated[
        bool | None,
        PolicyField(
            kind=kinds.SWITCH,
            levels=Level.TOPICS,
            title="whether producers may add schema versions automatically",
            doc="Whether producers may add schema versions automatically. Default: true.",
            default=True,
            rest=RestPath(
                namespace="isAllowAutoUpdateSchema",
                topic=("isAllowAutoUpdateSchema",),
                unset=(True, None),
                key="is_allow_auto_update_schema",
            ),
            command=Command(namespace="is-allow-auto-update-schema", removable=False, example="--disable"),
        ),
    ] = None
    schema_validation_enforced: Annotated[
        bool | None,
        PolicyField(
            kind=kinds.SWITCH,
            levels=Level.TOPICS,
            title="whether producers without a schema are refused on topics that have one",
            doc="Whether producers without a schema are refused on topics that have one. Default: false.",
            default=False,
            rest=RestPath(
                namespace="schemaValidationEnforced",
                topic=("schemaValidationEnforced",),
                unset=(False, False),
                key="schema_validation_enforced",
            ),
            command=Command(namespace="schema-validation-enforce", topic="schema-validation-enforce", removable=False),
        ),
    ] = None
    max_topics: Annotated[
        int | None,
        PolicyField(
            kind=kinds.COUNT,
            levels=_ONLY_NAMESPACE,
            title="maximum number of topics in a namespace",
            doc=f"Maximum topics in the namespace, each partition counted; {_NO_LIMIT}.",
            default=0,
            rest=RestPath(namespace="maxTopicsPerNamespace", unset=(0, None), key="max_topics_per_namespace"),
            command=Command(namespace="max-topics-per-namespace", options=("--max-topics-per-namespace", "-t")),
        ),
    ] = None
    auto_topic_creation: Annotated[
        AutoTopicCreation | None,
        PolicyField(
            kind=kinds.AUTO_TOPIC_CREATION,
            levels=_ONLY_NAMESPACE,
            title="whether producing or subscribing creates missing topics",
            doc="""Whether producing or subscribing creates missing topics, and with how many partitions. Default: the
            broker's setting.""",
            rest=RestPath(namespace="autoTopicCreation", key="autoTopicCreationOverride"),
            command=Command(namespace="auto-topic-creation"),
        ),
    ] = None
    #: Settings that tools set and the broker only keeps, by Pulsar's names, as JSON has them.
    kept: Annotated[dict[str, Any] | None, PolicyField(kind=kinds.KEPT)] = None


def _rows() -> dict[str, PolicyField]:
    hints: dict[str, Any] = get_type_hints(Policies, include_extras=True)
    return {field: hints[field].__metadata__[0] for field in Policies.__struct_fields__}


POLICY_FIELDS: Final = _rows()
"""The rows by the core's names, in the order in which manifests list them."""
SUBSCRIPTION_FIELDS: Final = {field: row for field, row in POLICY_FIELDS.items() if row.levels & Level.SUBSCRIPTION}
"""Those of them that a subscription may set for itself."""
