"""The policies that commands know at the level of namespaces and of topics, by their names in ``pulsar-admin``.

Each row makes get-, set- and remove- commands; :mod:`.cli_policy_commands` makes them.
"""

from __future__ import annotations

from heliograph_broker.cli.base.values import bare_minutes, size_bytes, time_seconds, topic_name

from .policy_flags import (
    COMPATIBILITY,
    DELAYED,
    DISPATCH,
    INACTIVE,
    PUBLISH,
    QUOTA,
    RETENTION,
    SUBSCRIBE,
    SWITCH,
    THRESHOLD,
    TYPES,
    Flag,
    Policy,
    auto_topic_body,
    choice,
    delayed_body,
    dispatch_body,
    enabled,
    inactive_body,
    only,
    publish_body,
    quota_body,
    retention_body,
    subscribe_body,
    whole,
)


def _maximum(name: str, path: str, what: str, *flags: str) -> Policy:
    """Return the row of a figure whose 0 means "no limit"."""
    flag = Flag("max", flags, f"Maximum number of {what}; 0: no limit.", whole, "N")
    return Policy(name, f"maximum number of {what}", path, (flag,), only("max"), f"{flags[0]} 10")


def _common(*, quota_example: str, threshold_method: str) -> tuple[Policy, ...]:
    """Return the rows that are the same for namespaces and topics."""
    return (
        Policy(
            "retention",
            "how long, and up to which size, messages are kept that no subscription holds",
            "retention",
            RETENTION,
            retention_body,
            "--size 10G --time 3h",
        ),
        Policy(
            "backlog-quota",
            "the limit of unacknowledged messages",
            "backlogQuota",
            QUOTA,
            quota_body,
            quota_example,
            get_name="backlog-quotas",
            get_path="backlogQuotaMap",
        ),
        Policy("publish-rate", "publish rate limit of a topic", "publishRate", PUBLISH, publish_body, "-m 1000 -b 10M"),
        Policy(
            "dispatch-rate",
            "dispatch rate limit of a topic",
            "dispatchRate",
            DISPATCH,
            dispatch_body,
            "-md 1000 -bd 10M",
        ),
        Policy(
            "subscription-dispatch-rate",
            "dispatch rate limit of each subscription",
            "subscriptionDispatchRate",
            DISPATCH,
            dispatch_body,
            "-md 100",
        ),
        Policy(
            "subscribe-rate", "subscribe rate limit of a consumer", "subscribeRate", SUBSCRIBE, subscribe_body, "-sr 10"
        ),
        Policy(
            "delayed-delivery",
            "whether delayed delivery is enabled",
            "delayedDelivery",
            DELAYED,
            delayed_body,
            "--enable --maxDelay 7d",
        ),
        Policy(
            "inactive-topic-policies",
            "when inactive topics are deleted",
            "inactiveTopicPolicies",
            INACTIVE,
            inactive_body,
            "-e -t 7d -m delete_when_no_subscriptions",
        ),
        Policy(
            "compaction-threshold",
            "size of new messages after which compaction starts automatically",
            "compactionThreshold",
            THRESHOLD,
            only("threshold"),
            "--threshold 100M",
            method=threshold_method,
        ),
        Policy(
            "subscription-types-enabled",
            "allowed subscription types",
            "subscriptionTypesEnabled",
            TYPES,
            only("types"),
            "--types Shared,Key_Shared",
        ),
        # Heliograph's own.
        Policy(
            "dead-letter-topic",
            "dead-letter topic of expired messages",
            "deadLetterTopic",
            (Flag("topic", ("--topic", "-t"), "Topic to send them to; '': none.", topic_name, "TOPIC"),),
            only("topic"),
            "--topic acme/shop/expired",
        ),
        Policy(
            "expires",
            "time after which an unused topic is deleted (as RabbitMQ's queue expiration)",
            "expires",
            (Flag("time", ("--time", "-t"), "The time: 3600 (s), 7d; -1 never.", time_seconds, "TIME"),),
            only("time"),
            "--time 30d",
        ),
        Policy(
            "ttl-in-batches",
            "whether the TTL of single messages in batches is honoured",
            "ttlInBatches",
            SWITCH,
            enabled,
            "--enable",
        ),
        Policy(
            "max-message-size",
            "maximum size of a message",
            "maxMessageSize",
            (Flag("max", ("--max-message-size", "-m"), "Bytes: 512K, 1M; 0 without limit.", size_bytes, "SIZE"),),
            only("max"),
            "--max-message-size 1M",
        ),
    )


_AUTO_SUBSCRIPTION = Policy(
    "auto-subscription-creation",
    "whether subscribing creates missing subscriptions",
    "autoSubscriptionCreation",
    SWITCH,
    lambda values: {"allowAutoSubscriptionCreation": enabled(values)},
    "--disable",
)
_SCHEMA_COMPATIBILITY = Policy(
    "schema-compatibility-strategy",
    "schema compatibility strategy",
    "schemaCompatibilityStrategy",
    COMPATIBILITY,
    only("compatibility"),
    "--compatibility BACKWARD",
    method="PUT",
    removable=False,
)

NAMESPACE_POLICIES: tuple[Policy, ...] = (
    *_common(quota_example="--limit 2G --policy producer_request_hold", threshold_method="PUT"),
    Policy(
        "message-ttl",
        "time after which unacknowledged messages expire (message TTL)",
        "messageTTL",
        (Flag("ttl", ("--messageTTL", "-ttl"), "The time: 120 (s), 2h; 0 never.", time_seconds, "TIME"),),
        only("ttl"),
        "--messageTTL 120",
    ),
    Policy(
        "subscription-expiration-time",
        "time after which unused subscriptions are deleted",
        "subscriptionExpirationTime",
        (Flag("time", ("--time", "-t"), "The time: 60 (minutes), 7d; 0 never.", bare_minutes, "TIME"),),
        only("time"),
        "--time 7d",
    ),
    Policy("deduplication", "whether messages are deduplicated", "deduplication", SWITCH, enabled, "--enable"),
    Policy(
        "auto-topic-creation",
        "whether producing or subscribing creates missing topics",
        "autoTopicCreation",
        (
            *SWITCH,
            Flag(
                "type",
                ("--type", "-t"),
                "What is created: partitioned or non-partitioned topics.",
                choice("partitioned", "non-partitioned"),
                "TYPE",
                "non-partitioned",
            ),
            Flag("partitions", ("--num-partitions", "-n"), "Number of partitions.", whole, "N", "0"),
        ),
        auto_topic_body,
        "--enable --type partitioned -n 4",
    ),
    _AUTO_SUBSCRIPTION,
    _maximum(
        "max-producers-per-topic",
        "maxProducersPerTopic",
        "producers per topic",
        "--max-producers-per-topic",
        "-p",
    ),
    _maximum(
        "max-consumers-per-topic",
        "maxConsumersPerTopic",
        "consumers per topic",
        "--max-consumers-per-topic",
        "-c",
    ),
    _maximum(
        "max-consumers-per-subscription",
        "maxConsumersPerSubscription",
        "consumers per subscription",
        "--max-consumers-per-subscription",
        "-c",
    ),
    _maximum(
        "max-unacked-messages-per-consumer",
        "maxUnackedMessagesPerConsumer",
        "unacknowledged messages per consumer",
        "--max-unacked-messages-per-topic",
        "-c",
    ),
    _maximum(
        "max-unacked-messages-per-subscription",
        "maxUnackedMessagesPerSubscription",
        "unacknowledged messages per subscription",
        "--max-unacked-messages-per-subscription",
        "-c",
    ),
    _maximum(
        "max-subscriptions-per-topic",
        "maxSubscriptionsPerTopic",
        "subscriptions per topic",
        "--max-subscriptions-per-topic",
        "-m",
    ),
    _maximum(
        "max-topics-per-namespace", "maxTopicsPerNamespace", "topics in a namespace", "--max-topics-per-namespace", "-t"
    ),
    _SCHEMA_COMPATIBILITY,
    Policy(
        "is-allow-auto-update-schema",
        "whether producers may add schema versions automatically",
        "isAllowAutoUpdateSchema",
        SWITCH,
        enabled,
        "--disable",
        removable=False,
    ),
    Policy(
        "schema-validation-enforce",
        "whether producers without a schema are refused on topics that have one",
        "schemaValidationEnforced",
        SWITCH,
        enabled,
        "--enable",
        removable=False,
    ),
    Policy(
        "encryption-required",
        "whether messages must be encrypted",
        "encryptionRequired",
        SWITCH,
        enabled,
        "--enable",
        removable=False,
    ),
)

TOPIC_POLICIES: tuple[Policy, ...] = (
    *_common(
        quota_example="--limitTime 3600 --type message_age --policy producer_request_hold", threshold_method="POST"
    ),
    Policy(
        "message-ttl",
        "time after which unacknowledged messages expire (message TTL)",
        "messageTTL",
        (
            Flag(
                "ttl",
                ("--ttl", "-t", "--messageTTL", "-ttl"),
                "The time: 120 (s), 2h; 0 never.",
                time_seconds,
                "TIME",
                query="messageTTL",
            ),
        ),
        None,
        "--ttl 120",
    ),
    Policy(
        "deduplication",
        "whether messages are deduplicated",
        "deduplicationEnabled",
        SWITCH,
        enabled,
        "--enable",
    ),
    _maximum("max-producers", "maxProducers", "producers of the topic", "--max-producers", "-p"),
    _maximum("max-consumers", "maxConsumers", "consumers of the topic", "--max-consumers", "-c"),
    _maximum(
        "max-subscriptions",
        "maxSubscriptionsPerTopic",
        "subscriptions of the topic",
        "--max-subscriptions-per-topic",
        "-m",
    ),
    _maximum(
        "max-consumers-per-subscription",
        "maxConsumersPerSubscription",
        "consumers per subscription",
        "--max-consumers-per-subscription",
        "-c",
    ),
    _maximum(
        "max-unacked-messages-per-consumer",
        "maxUnackedMessagesOnConsumer",
        "unacknowledged messages per consumer",
        "--maxNum",
        "-m",
    ),
    _maximum(
        "max-unacked-messages-per-subscription",
        "maxUnackedMessagesOnSubscription",
        "unacknowledged messages per subscription",
        "--maxNum",
        "-m",
    ),
    _AUTO_SUBSCRIPTION,
    _SCHEMA_COMPATIBILITY,
    Policy(
        "schema-validation-enforce",
        "whether producers without a schema are refused on topics that have one",
        "schemaValidationEnforced",
        SWITCH,
        enabled,
        "--enable",
        removable=False,
    ),
)
