"""Every policy that namespaces and topics have, as the admin REST API shows and sets it.

The rows are those of the shared table of policies; here is how a document is made of each kind, and what Pulsar's API
does in ways of its own. :mod:`.policy_routes` makes the handlers of both levels from it, :mod:`.namespace_document` the
namespace's document. Backlog quotas, two policies that share their paths, are in :mod:`.quota_routes`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec
from heliograph_api.policies import policy_kinds as kinds
from heliograph_api.policies.policies import SUBSCRIPTION_TYPES, Policies
from heliograph_api.policies.policy_table import POLICY_FIELDS, SUBSCRIPTION_FIELDS
from heliograph_api.policies.policy_values import SETTABLE_COMPATIBILITIES
from heliograph_api.values.names import TopicName

from heliograph_broker.messaging.base.errors import PreconditionFailed

from . import policy_documents as documents
from .kept_settings import keep, kept_value
from .policy_description import TOPIC, Level, PolicyPath, described, number, plain, structure
from .policy_documents import MINUTE_MS, SECOND_MS, Count, Limit, LongCount

#: The type of topics that was given although none are created: it is shown.
_UNUSED_TOPIC_TYPE: Final = "auto_topic_creation_type"


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


def _milliseconds(field: str, end: str) -> PolicyPath:
    """Describe the same policy in milliseconds, -1 for never: what Pulsar's paths cannot say."""

    def to_core(milliseconds: int) -> int:
        if milliseconds < -1:
            raise PreconditionFailed(f"{end} must be 0 or more, or -1 for never, not {milliseconds}")
        return milliseconds

    path = structure(
        field,
        documents.LongLimit,
        "500 (milliseconds)",
        to_core,
        lambda time_ms: time_ms,
        lambda config: -1,
        note=", in milliseconds (0: at once, -1: never)",
    )
    return msgspec.structs.replace(path, namespace=end, topic=(end,), topic_query="", key="")


def _seconds(field: str, least: int, end: str = "") -> PolicyPath:
    """Describe a time in seconds, -1 for never; ``end`` is that of its path if it is not a namespace's."""
    row = POLICY_FIELDS[field]
    name = end or (row.rest.namespace if row.rest is not None else field)

    def to_core(seconds: int) -> int:
        if seconds != -1 and seconds < least:
            raise PreconditionFailed(
                f"{name} must be {'1 second' if least else '0'} or more, or -1 for never, not {seconds}"
            )
        return documents.scaled(seconds, SECOND_MS)

    return structure(
        field,
        Limit,
        "86400 (seconds)",
        to_core,
        # Where 0 cannot be set here, it is never, as Pulsar's minutes have it.
        lambda time_ms: documents.up(time_ms, SECOND_MS) if time_ms or not least else -1,
        lambda config: -1,
        note=", in seconds (-1: never)",
    )


def _subscription_types_from(names: list[str]) -> list[str]:
    for name in names:
        documents.check_choice("subscription type", name, SUBSCRIPTION_TYPES)
    return sorted(set(names))


def _schema_compatibility_from(strategy: str) -> str | None:
    documents.check_choice("strategy", strategy, SETTABLE_COMPATIBILITIES)
    return None if strategy == "UNDEFINED" else strategy


def _write_delayed_delivery(policies: Policies, document: documents.DelayedDeliveryDocument, level: Level) -> None:
    documents.delayed_delivery_from(policies, document)


def _auto_topic_creation(policies: Policies) -> documents.AutoTopicCreationDocument | None:
    creation = policies.auto_topic_creation
    if creation is None:
        return None
    document = documents.auto_topic_creation_document(creation)
    if not creation.allow:
        document.topic_type = kept_value(policies, _UNUSED_TOPIC_TYPE)
    return document


def _set_auto_topic_creation(policies: Policies, document: documents.AutoTopicCreationDocument, level: Level) -> None:
    policies.auto_topic_creation = creation = documents.auto_topic_creation_from(document)
    keep(policies, _UNUSED_TOPIC_TYPE, None if creation.allow else document.topic_type)


def _topic_name_from(text: str) -> str:
    if not text:
        return text
    name = TopicName.parse(text)
    if name.is_system:
        raise PreconditionFailed(f"deadLetterTopic '{name}' is a system topic; valid: another topic")
    return str(name)


def _dispatch_rate(field: str) -> PolicyPath:
    return structure(
        field,
        documents.DispatchRateDocument,
        '{"dispatchThrottlingRateInMsg": 1000, "dispatchThrottlingRateInByte": -1, "ratePeriodInSecond": 1}',
        documents.dispatch_rate_from,
        documents.dispatch_rate_document,
        lambda config: documents.DispatchRateDocument(0, 0),
    )


#: By the core's names: what Pulsar's API does in a way of its own.
_PULSARS: Final[dict[str, Callable[[str], PolicyPath]]] = {
    "message_ttl_ms": lambda field: described(
        field, Count, "3600 (seconds)", _read_ttl, _write_ttl, note=", in seconds (0: never)"
    ),
    "delayed_delivery": lambda field: described(
        field,
        documents.DelayedDeliveryDocument,
        '{"active": true, "tickTime": 1000, "maxDeliveryDelayInMillis": 86400000}',
        documents.delayed_delivery_document,
        _write_delayed_delivery,
        otherwise=lambda config: documents.DelayedDeliveryDocument(active=True, tick_ms=documents.DEFAULT_TICK_MS),
        fields=(field, "max_delivery_delay_ms", "delayed_delivery_tick_ms"),
    ),
    "publish_rate": lambda field: structure(
        field,
        documents.PublishRateDocument,
        '{"publishThrottlingRateInMsg": 1000, "publishThrottlingRateInByte": -1}',
        documents.publish_rate_from,
        documents.publish_rate_document,
        lambda config: documents.PublishRateDocument(),
        note=", per second",
    ),
    "max_message_size": lambda field: number(
        field,
        refusals=(
            "maxMessageSize must be greater than or equal to 0 and must be smaller than that in the broker-level",
            "topic-level maxMessageSize must be greater than or equal to 0 and must be smaller than that in the "
            "broker-level",
        ),
        most=lambda config: config.max_message_size,
        example="1048576 (bytes)",
        note=", in bytes",
    ),
    "subscription_expiration_ms": lambda field: number(
        field,
        refusals=("Invalid value for subscription expiration time",) * 2,
        scale=MINUTE_MS,
        example="1440 (minutes)",
        note=", in minutes (0: never)",
    ),
    "auto_subscription_creation": lambda field: structure(
        field,
        documents.AutoSubscriptionCreationDocument,
        '{"allowAutoSubscriptionCreation": true}',
        lambda document: document.allow_auto_subscription_creation,
        documents.AutoSubscriptionCreationDocument,
        lambda config: documents.AutoSubscriptionCreationDocument(config.allow_auto_subscription_creation),
    ),
}
_BY_KIND: Final[dict[kinds.Kind, Callable[[str], PolicyPath]]] = {
    kinds.SWITCH: lambda field: plain(field, bool, "true"),
    kinds.COUNT: number,
    kinds.SIZE_LIMIT: lambda field: number(field, document=LongCount, example="1048576 (bytes)", note=", in bytes"),
    kinds.THRESHOLD: lambda field: number(
        field, document=LongCount, example="104857600 (bytes)", note=", in bytes (0: never)"
    ),
    kinds.DURATION: lambda field: _seconds(field, 0),
    kinds.UNUSED_FOR: lambda field: _seconds(field, 1),
    kinds.RATE: _dispatch_rate,
    kinds.TOPIC_NAME: lambda field: structure(
        field, str, '"persistent://public/default/expired"', _topic_name_from, str, note=' ("": none)'
    ),
    kinds.RETENTION: lambda field: structure(
        field,
        documents.RetentionDocument,
        '{"retentionTimeInMinutes": 60, "retentionSizeInMB": 512}',
        documents.retention_from,
        documents.retention_document,
        # Data stays as long as its ledger then, which 0/0 would not say.
        lambda config: None,
        guards_backlog=True,
    ),
    kinds.SUBSCRIBE_RATE: lambda field: structure(
        field,
        documents.SubscribeRateDocument,
        '{"subscribeThrottlingRatePerConsumer": 10, "ratePeriodInSecond": 30}',
        documents.subscribe_rate_from,
        documents.subscribe_rate_document,
        lambda config: documents.SubscribeRateDocument(0),
    ),
    kinds.INACTIVE_TOPIC: lambda field: structure(
        field,
        documents.InactiveTopicDocument,
        '{"inactiveTopicDeleteMode": "delete_when_no_subscriptions", "maxInactiveDurationSeconds": 3600, '
        '"deleteWhileInactive": true}',
        documents.inactive_topic_from,
        documents.inactive_topic_document,
        lambda config: documents.InactiveTopicDocument(seconds=60, delete=False),
    ),
    kinds.AUTO_TOPIC_CREATION: lambda field: described(
        field,
        documents.AutoTopicCreationDocument,
        '{"allowAutoTopicCreation": true, "topicType": "partitioned", "defaultNumPartitions": 4}',
        _auto_topic_creation,
        _set_auto_topic_creation,
        otherwise=lambda config: documents.AutoTopicCreationDocument(config.allow_auto_topic_creation),
    ),
    kinds.SUBSCRIPTION_TYPES: lambda field: structure(
        field,
        list[documents.SubscriptionType],
        '["Shared", "Key_Shared"]',
        _subscription_types_from,
        list,
        note=" (none: all)",
    ),
    kinds.SCHEMA_COMPATIBILITY: lambda field: structure(
        field, documents.CompatibilityStrategy, '"FULL"', _schema_compatibility_from, str
    ),
}

PATHS: Final = {
    field: (_PULSARS.get(field) or _BY_KIND[row.kind])(field)
    for field, row in POLICY_FIELDS.items()
    if row.rest is not None
}
"""By the core's names: all policies but backlog quotas and the rates of single subscriptions."""
POLICIES: Final = tuple(PATHS.values())
MILLISECONDS: Final = tuple(
    _milliseconds(field, row.rest.milliseconds)
    for field, row in POLICY_FIELDS.items()
    if row.rest is not None and row.rest.milliseconds
)
"""Further paths of some of them, that a namespace's own document does not have."""


def _of_subscription(field: str, end: str) -> PolicyPath:
    # Pulsar counts it in minutes, and there 0 is never.
    return _seconds(field, 1, end) if POLICY_FIELDS[field].kind is kinds.UNUSED_FOR_OR_ZERO else PATHS[field]


SUBSCRIPTION_PATHS: Final = {
    row.rest.subscription: _of_subscription(field, row.rest.subscription)
    for field, row in SUBSCRIPTION_FIELDS.items()
    if row.rest is not None and row.rest.subscription
} | {path.topic[0]: path for path in MILLISECONDS if path.fields[0] in SUBSCRIPTION_FIELDS}
"""By the ends of their paths: the policies that a subscription may set for itself."""
