"""Pulsar's documents of policies, to and from the policies of the core (ms and bytes).

What a document says in minutes, seconds or MB is rounded up where the core is finer: what is kept for 90 s is not kept
for one minute only.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from heliograph_api.policies.policies import (
    BACKLOG_QUOTA_POLICIES,
    INACTIVE_TOPIC_MODES,
    MAX_PARTITIONS,
    SETTABLE_COMPATIBILITIES,
    SUBSCRIPTION_TYPES,
    AutoTopicCreation,
    BacklogQuota,
    InactiveTopic,
    Policies,
    Rate,
    Retention,
    SubscribeRate,
)

from heliograph_broker.http.base.errors import ApiError
from heliograph_broker.messaging.base.errors import PreconditionFailed

SECOND_MS: Final = 1000
MINUTE_MS: Final = 60_000
MB: Final = 1024 * 1024
SIZE_QUOTA: Final = "destination_storage"
AGE_QUOTA: Final = "message_age"
#: The tick of delayed delivery that Pulsar's clients show if none is set.
DEFAULT_TICK_MS: Final = 1000


def _whole(bits: int, least: int) -> msgspec.Meta:
    """Return the type of a Java number; a value below ``least`` is refused in words of its own."""
    return msgspec.Meta(le=2 ** (bits - 1) - 1, extra_json_schema={"minimum": least})


Count = Annotated[int, _whole(32, 0)]
LongCount = Annotated[int, _whole(64, 0)]
Limit = Annotated[int, _whole(32, -1)]
LongLimit = Annotated[int, _whole(64, -1)]
Positive = Annotated[int, _whole(32, 1)]


def choice(*names: str) -> msgspec.Meta:
    """Return what describes a text that is one of ``names``; :func:`check_choice` checks it, with better words."""
    return msgspec.Meta(extra_json_schema={"enum": list(names)})


QuotaAction = Annotated[str, choice(*BACKLOG_QUOTA_POLICIES)]
InactiveMode = Annotated[str, choice(*INACTIVE_TOPIC_MODES)]
SubscriptionType = Annotated[str, choice(*SUBSCRIPTION_TYPES)]
CompatibilityStrategy = Annotated[str, choice(*SETTABLE_COMPATIBILITIES)]
TopicType = Annotated[str, choice("partitioned", "non-partitioned")]


class RetentionDocument(msgspec.Struct):
    """Pulsar's RetentionPolicies; -1 without limit."""

    minutes: Limit = msgspec.field(name="retentionTimeInMinutes")
    megabytes: LongLimit = msgspec.field(name="retentionSizeInMB")


class QuotaDocument(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True):
    """Pulsar's BacklogQuota; ``limit`` is the old name of ``limitSize`` (bytes), ``limitTime`` is in s."""

    limit: LongLimit | None = None
    limit_size: LongLimit | None = None
    limit_time: Limit | None = None
    policy: QuotaAction


class DelayedDeliveryDocument(msgspec.Struct, kw_only=True):
    """Pulsar's DelayedDeliveryPolicies; ``tickTime`` (ms) is how late a message may be, 0 delays have no maximum."""

    tick_ms: LongCount = msgspec.field(default=0, name="tickTime")
    active: bool = False
    max_delay_ms: LongCount = msgspec.field(default=0, name="maxDeliveryDelayInMillis")


class PublishRateDocument(msgspec.Struct):
    """Pulsar's PublishRate, in one second; 0 and -1 without limit."""

    messages: Limit = msgspec.field(default=-1, name="publishThrottlingRateInMsg")
    bytes: LongLimit = msgspec.field(default=-1, name="publishThrottlingRateInByte")


class DispatchRateDocument(msgspec.Struct):
    """Pulsar's DispatchRate, in ``ratePeriodInSecond``; 0 and -1 without limit."""

    messages: Limit = msgspec.field(default=-1, name="dispatchThrottlingRateInMsg")
    bytes: LongLimit = msgspec.field(default=-1, name="dispatchThrottlingRateInByte")
    relative: bool = msgspec.field(default=False, name="relativeToPublishRate")
    period_s: Positive = msgspec.field(default=1, name="ratePeriodInSecond")


class SubscribeRateDocument(msgspec.Struct):
    """Pulsar's SubscribeRate: times one consumer may subscribe in a period; 0 and -1 without limit."""

    per_consumer: Limit = msgspec.field(default=-1, name="subscribeThrottlingRatePerConsumer")
    period_s: Positive = msgspec.field(default=30, name="ratePeriodInSecond")


class InactiveTopicDocument(msgspec.Struct, kw_only=True):
    """Pulsar's InactiveTopicPolicies."""

    mode: InactiveMode = msgspec.field(default=INACTIVE_TOPIC_MODES[0], name="inactiveTopicDeleteMode")
    seconds: Count = msgspec.field(default=0, name="maxInactiveDurationSeconds")
    delete: bool = msgspec.field(default=False, name="deleteWhileInactive")


class AutoTopicCreationDocument(msgspec.Struct, rename="camel", omit_defaults=True):
    """Pulsar's AutoTopicCreationOverride; type and partitions have an effect only where creation is allowed."""

    allow_auto_topic_creation: bool
    topic_type: TopicType | None = None
    default_num_partitions: Positive | None = None


class AutoSubscriptionCreationDocument(msgspec.Struct, rename="camel"):
    """Pulsar's AutoSubscriptionCreationOverride."""

    allow_auto_subscription_creation: bool = False


def up(value: int, unit: int) -> int:
    """Return how many ``unit`` hold ``value``, rounded up; 0 and less stay as they are."""
    return -(-value // unit) if value > 0 else value


def scaled(number: int, unit: int) -> int:
    """Return ``number`` units in the core's unit. Raises :class:`ApiError` 400 for more than 64 bits hold."""
    if number <= 0:
        return number
    if number * unit >= 2**63:
        raise ApiError(400, f"{number} is too large")
    return number * unit


def check_choice(what: str, value: str, names: tuple[str, ...]) -> str:
    """Return ``value``. Raises :class:`ApiError` 400 if it is none of ``names``."""
    if value not in names:
        raise ApiError(400, f"{what} '{value}' is not one of {', '.join(names)}")
    return value


def _at_least(what: str, value: int, least: int) -> int:
    if value < least:
        raise PreconditionFailed(f"{what} must be {least} or more, not {value}")
    return value


def retention_from(document: RetentionDocument) -> Retention:
    """Convert a document. Raises :class:`ApiError` 400, in Pulsar's words, for a pair that contradicts itself."""
    minutes, megabytes = document.minutes, document.megabytes
    if megabytes < -1:
        raise ApiError(400, "Invalid retention policy: size limit must be >= -1")
    if minutes < -1:
        raise ApiError(400, "Invalid retention policy: time limit must be >= -1")
    if (minutes == 0) != (megabytes == 0):
        raise ApiError(
            400,
            "Invalid retention policy: Setting a single time or size limit to 0 is invalid when one of the limits has "
            "a non-zero value. Use the value of -1 instead of 0 to ignore a specific limit. To disable retention both "
            "limits must be set to 0.",
        )
    return Retention(time_ms=scaled(minutes, MINUTE_MS), size_bytes=scaled(megabytes, MB))


def retention_document(retention: Retention) -> RetentionDocument | None:
    """Return None where no level sets a retention; a limit of 0 that holds all the same is shown."""
    if retention.by_ledger and not retention.keeps_nothing:
        return None
    return RetentionDocument(up(retention.time_ms, MINUTE_MS), up(retention.size_bytes, MB))


def quota_from(kind: str, document: QuotaDocument) -> BacklogQuota:
    """Return a quota in bytes or ms; numbers of the other kind of quota are not looked at, as in Pulsar.

    Raises :class:`ApiError` or :class:`PreconditionFailed`.
    """
    policy = check_choice("policy", document.policy, BACKLOG_QUOTA_POLICIES)
    if kind == SIZE_QUOTA:
        limit = document.limit_size if document.limit_size is not None else document.limit
        name, unit, factor = "limitSize", "bytes", 1
    else:
        limit, name, unit, factor = document.limit_time, "limitTime", "seconds", SECOND_MS
    if limit is None:
        raise PreconditionFailed(f"a {kind} quota needs {name} in {unit} (-1 without limit)")
    if limit < -1:
        raise PreconditionFailed(f"{name} must be >= -1, not {limit}")
    if limit == 0:
        raise PreconditionFailed(f"a {kind} quota with {name} 0 would let nothing through; -1 is without limit")
    return BacklogQuota(limit=scaled(limit, factor), policy=policy)


def quota_document(kind: str, quota: BacklogQuota) -> QuotaDocument:
    """Return Pulsar's document; the other kind of limit is -1, as Pulsar's tools set it."""
    if kind == SIZE_QUOTA:
        return QuotaDocument(policy=quota.policy, limit=quota.limit, limit_size=quota.limit, limit_time=-1)
    return QuotaDocument(policy=quota.policy, limit=-1, limit_size=-1, limit_time=up(quota.limit, SECOND_MS))


def delayed_delivery_from(policies: Policies, document: DelayedDeliveryDocument) -> None:
    """Convert a document. Raises :class:`PreconditionFailed` for times below 0."""
    tick = _at_least("tickTime", document.tick_ms, 0)
    delay = _at_least("maxDeliveryDelayInMillis", document.max_delay_ms, 0)
    policies.delayed_delivery = document.active
    policies.max_delivery_delay_ms = delay
    policies.delayed_delivery_tick_ms = tick


def delayed_delivery_document(policies: Policies) -> DelayedDeliveryDocument | None:
    if policies.delayed_delivery is None and policies.max_delivery_delay_ms is None:
        return None
    tick = policies.delayed_delivery_tick_ms
    return DelayedDeliveryDocument(
        active=policies.delayed_delivery is not False,
        tick_ms=DEFAULT_TICK_MS if tick is None else tick,
        max_delay_ms=max(0, policies.max_delivery_delay_ms or 0),
    )


def publish_rate_from(document: PublishRateDocument) -> Rate:
    return Rate(
        _at_least("publishThrottlingRateInMsg", document.messages, -1),
        _at_least("publishThrottlingRateInByte", document.bytes, -1),
    )


def publish_rate_document(rate: Rate) -> PublishRateDocument:
    """Return the rate of a second; one of a longer period is rounded up to it."""
    return PublishRateDocument(up(rate.messages, rate.period_s), up(rate.bytes, rate.period_s))


def dispatch_rate_from(document: DispatchRateDocument) -> Rate:
    """Convert a document. Raises :class:`PreconditionFailed`."""
    if document.relative:
        raise PreconditionFailed("relativeToPublishRate is not supported: give the rate itself")
    return Rate(
        _at_least("dispatchThrottlingRateInMsg", document.messages, -1),
        _at_least("dispatchThrottlingRateInByte", document.bytes, -1),
        _at_least("ratePeriodInSecond", document.period_s, 1),
    )


def dispatch_rate_document(rate: Rate) -> DispatchRateDocument:
    return DispatchRateDocument(rate.messages, rate.bytes, False, rate.period_s)


def subscribe_rate_from(document: SubscribeRateDocument) -> SubscribeRate:
    return SubscribeRate(
        _at_least("subscribeThrottlingRatePerConsumer", document.per_consumer, -1),
        _at_least("ratePeriodInSecond", document.period_s, 1),
    )


def subscribe_rate_document(rate: SubscribeRate) -> SubscribeRateDocument:
    return SubscribeRateDocument(rate.per_consumer, rate.period_s)


def inactive_topic_from(document: InactiveTopicDocument) -> InactiveTopic:
    """Convert a document. Raises :class:`ApiError` or :class:`PreconditionFailed`."""
    mode = check_choice("inactiveTopicDeleteMode", document.mode, INACTIVE_TOPIC_MODES)
    # A topic would be deleted before its first client came.
    seconds = _at_least("maxInactiveDurationSeconds", document.seconds, 1 if document.delete else 0)
    return InactiveTopic(scaled(seconds, SECOND_MS), mode, document.delete)


def inactive_topic_document(inactive: InactiveTopic) -> InactiveTopicDocument:
    return InactiveTopicDocument(
        mode=inactive.mode, seconds=up(inactive.max_inactive_ms, SECOND_MS), delete=inactive.delete
    )


def auto_topic_creation_from(document: AutoTopicCreationDocument) -> AutoTopicCreation:
    """Convert a document. Raises :class:`PreconditionFailed` in Pulsar's words."""
    kind, partitions = document.topic_type, document.default_num_partitions
    if not document.allow_auto_topic_creation:
        return AutoTopicCreation(False)
    problem = ""
    if kind not in ("partitioned", "non-partitioned"):
        problem = f"Unknown topic type [{'null' if kind is None else kind}]"
    elif kind == "non-partitioned":
        if partitions is None:
            return AutoTopicCreation(True)
        problem = "[defaultNumPartitions] is not allowed to be set when the type is non-partition."
    elif partitions is None:
        problem = "[defaultNumPartitions] cannot be null when the type is partitioned."
    elif partitions < 1:
        problem = "[defaultNumPartitions] cannot be less than 1 for partition type."
    elif partitions <= MAX_PARTITIONS:
        return AutoTopicCreation(True, partitions)
    else:
        problem = f"[defaultNumPartitions] cannot be more than {MAX_PARTITIONS} for partition type."
    raise PreconditionFailed(f"Invalid configuration for autoTopicCreationOverride. the detail is {problem}")


def auto_topic_creation_document(creation: AutoTopicCreation) -> AutoTopicCreationDocument:
    if not creation.allow:
        return AutoTopicCreationDocument(False)
    if not creation.partitions:
        return AutoTopicCreationDocument(True, "non-partitioned")
    return AutoTopicCreationDocument(True, "partitioned", creation.partitions)
