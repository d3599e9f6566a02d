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
    flag = Flag("max", flags, f"How many {what}; 0 without limit.", whole, "N")
    return Policy(name, f"how many {what}", path, (flag,), only("max"), f"{flags[0]} 10")


def _common(*, quota_example: str, threshold_method: str) -> tuple[Policy, ...]:
    """Return the rows that are the same for namespaces and topics."""
    return (
        Policy(
            "retention",
            "what is kept of acknowledged messages and without subscriptions",
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
        Policy(
            "publish-rate", "how fast producers may publish", "publishRate", PUBLISH, publish_body, "-m 1000 -b 10M"
        ),
        Policy(
            "dispatch-rate",
            "how fast a topic gives out messages",
            "dispatchRate",
            DISPATCH,
            dispatch_body,
            "-md 1000 -bd 10M",
        ),
        Policy(
            "subscription-dispatch-rate",
            "how fast a subscription gives out messages",
            "subscriptionDispatchRate",
            DISPATCH,
            dispatch_body,
            "-md 100",
        ),
        Policy(
            "subscribe-rate", "how often a consumer may subscribe", "subscribeRate", SUBSCRIBE, subscribe_body, "-sr 10"
        ),
        Policy(
            "delayed-delivery",
            "whether messages may be delayed",
            "delayedDelivery",
            DELAYED,
            delayed_body,
            "--enable --maxDelay 7d",
        ),
        Policy(
            "inactive-topic-policies",
            "when topics nobody uses are deleted",
            "inactiveTopicPolicies",
            INACTIVE,
            inactive_body,
            "-e -t 7d -m delete_when_no_subscriptions",
        ),
        Policy(
            "compaction-threshold",
            "after how many bytes compaction starts by itself",
            "compactionThreshold",
            THRESHOLD,
            only("threshold"),
            "--threshold 100M",
            method=threshold_method,
        ),
        Policy(
            "subscription-types-enabled",
            "which types subscriptions may have",
            "subscriptionTypesEnabled",
            TYPES,
            only("types"),
            "--types Shared,Key_Shared",
        ),
        # Heliograph's own.
        Policy(
            "dead-letter-topic",
            "where expired messages go",
            "deadLetterTopic",
            (Flag("topic", ("--topic", "-t"), "The topic; '' for nowhere.", topic_name, "TOPIC"),),
            only("topic"),
            "--topic acme/shop/expired",
        ),
        Policy(
            "expires",
            "after how long a topic nobody uses is deleted, as RabbitMQ counts it",
            "expires",
            (Flag("time", ("--time", "-t"), "The time: 3600 (s), 7d; -1 never.", time_seconds, "TIME"),),
            only("time"),
            "--time 30d",
        ),
        Policy(
            "ttl-in-batches",
            "whether batches are opened to look for messages with a TTL of their own",
            "ttlInBatches",
            SWITCH,
            enabled,
            "--enable",
        ),
        Policy(
            "max-message-size",
            "how large a message may be",
            "maxMessageSize",
            (Flag("max", ("--max-message-size", "-m"), "Bytes: 512K, 1M; 0 without limit.", size_bytes, "SIZE"),),
            only("max"),
            "--max-message-size 1M",
        ),
    )


_AUTO_SUBSCRIPTION = Policy(
    "auto-subscription-creation",
    "whether consumers create subscriptions by naming them",
    "autoSubscriptionCreation",
    SWITCH,
    lambda values: {"allowAutoSubscriptionCreation": enabled(values)},
    "--disable",
)
_SCHEMA_COMPATIBILITY = Policy(
    "schema-compatibility-strategy",
    "which new schemas are accepted",
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
        "after how long unacknowledged messages expire",
        "messageTTL",
        (Flag("ttl", ("--messageTTL", "-ttl"), "The time: 120 (s), 2h; 0 never.", time_seconds, "TIME"),),
        only("ttl"),
        "--messageTTL 120",
    ),
    Policy(
        "subscription-expiration-time",
        "after how long subscriptions nobody uses are deleted",
        "subscriptionExpirationTime",
        (Flag("time", ("--time", "-t"), "The time: 60 (minutes), 7d; 0 never.", bare_minutes, "TIME"),),
        only("time"),
        "--time 7d",
    ),
    Policy(
        "deduplication", "whether messages sent twice are stored once", "deduplication", SWITCH, enabled, "--enable"
    ),
    Policy(
        "auto-topic-creation",
        "whether clients create topics by naming them",
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
            Flag("partitions", ("--num-partitions", "-n"), "How many partitions.", whole, "N", "0"),
        ),
        auto_topic_body,
        "--enable --type partitioned -n 4",
    ),
    _AUTO_SUBSCRIPTION,
    _maximum(
        "max-producers-per-topic",
        "maxProducersPerTopic",
        "producers a topic may have",
        "--max-producers-per-topic",
        "-p",
    ),
    _maximum(
        "max-consumers-per-topic",
        "maxConsumersPerTopic",
        "consumers a topic may have",
        "--max-consumers-per-topic",
        "-c",
    ),
    _maximum(
        "max-consumers-per-subscription",
        "maxConsumersPerSubscription",
        "consumers a subscription may have",
        "--max-consumers-per-subscription",
        "-c",
    ),
    _maximum(
        "max-unacked-messages-per-consumer",
        "maxUnackedMessagesPerConsumer",
        "messages a consumer may hold unacknowledged",
        "--max-unacked-messages-per-topic",
        "-c",
    ),
    _maximum(
        "max-unacked-messages-per-subscription",
        "maxUnackedMessagesPerSubscription",
        "messages a subscription may hold unacknowledged",
        "--max-unacked-messages-per-subscription",
        "-c",
    ),
    _maximum(
        "max-subscriptions-per-topic",
        "maxSubscriptionsPerTopic",
        "subscriptions a topic may have",
        "--max-subscriptions-per-topic",
        "-m",
    ),
    _maximum(
        "max-topics-per-namespace", "maxTopicsPerNamespace", "topics there may be", "--max-topics-per-namespace", "-t"
    ),
    _SCHEMA_COMPATIBILITY,
    Policy(
        "is-allow-auto-update-schema",
        "whether producers may bring new schemas",
        "isAllowAutoUpdateSchema",
        SWITCH,
        enabled,
        "--disable",
        removable=False,
    ),
    Policy(
        "schema-validation-enforce",
        "whether producers need a schema",
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
        "after how long unacknowledged messages expire",
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
        "whether messages sent twice are stored once",
        "deduplicationEnabled",
        SWITCH,
        enabled,
        "--enable",
    ),
    _maximum("max-producers", "maxProducers", "producers the topic may have", "--max-producers", "-p"),
    _maximum("max-consumers", "maxConsumers", "consumers the topic may have", "--max-consumers", "-c"),
    _maximum(
        "max-subscriptions",
        "maxSubscriptionsPerTopic",
        "subscriptions the topic may have",
        "--max-subscriptions-per-topic",
        "-m",
    ),
    _maximum(
        "max-consumers-per-subscription",
        "maxConsumersPerSubscription",
        "consumers a subscription may have",
        "--max-consumers-per-subscription",
        "-c",
    ),
    _maximum(
        "max-unacked-messages-per-consumer",
        "maxUnackedMessagesOnConsumer",
        "messages a consumer may hold unacknowledged",
        "--maxNum",
        "-m",
    ),
    _maximum(
        "max-unacked-messages-per-subscription",
        "maxUnackedMessagesOnSubscription",
        "messages a subscription may hold unacknowledged",
        "--maxNum",
        "-m",
    ),
    _AUTO_SUBSCRIPTION,
    _SCHEMA_COMPATIBILITY,
    Policy(
        "schema-validation-enforce",
        "whether producers need a schema",
        "schemaValidationEnforced",
        SWITCH,
        enabled,
        "--enable",
        removable=False,
    ),
)
