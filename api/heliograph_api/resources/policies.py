"""Policies of topics, namespaces and brokers, and how the levels combine.

The topic's setting wins, then the namespace's, then the broker's default; limits of tenant and broker then cap the
result, and the lowest value wins (RabbitMQ calls such limits operator policies).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar, Final, Literal, get_args

import msgspec

from heliograph_api.values.durations import format_duration
from heliograph_api.values.sizes import format_size

UNLIMITED: Final = -1
MAX_PARTITIONS: Final = 10_000
QuotaPolicy = Literal["producer_request_hold", "producer_exception", "consumer_backlog_eviction"]
BACKLOG_QUOTA_POLICIES: Final[tuple[str, ...]] = get_args(QuotaPolicy)
SubscriptionType = Literal["Exclusive", "Shared", "Failover", "Key_Shared"]
SUBSCRIPTION_TYPES: Final[tuple[str, ...]] = get_args(SubscriptionType)
SchemaCompatibility = Literal[
    "ALWAYS_INCOMPATIBLE",
    "ALWAYS_COMPATIBLE",
    "BACKWARD",
    "FORWARD",
    "FULL",
    "BACKWARD_TRANSITIVE",
    "FORWARD_TRANSITIVE",
    "FULL_TRANSITIVE",
]
SCHEMA_COMPATIBILITIES: Final[tuple[str, ...]] = get_args(SchemaCompatibility)
#: Pulsar's word for a strategy nobody set.
UNDEFINED_COMPATIBILITY: Final = "UNDEFINED"
InactiveTopicMode = Literal["delete_when_no_subscriptions", "delete_when_subscriptions_caught_up"]
INACTIVE_TOPIC_MODES: Final[tuple[str, ...]] = get_args(InactiveTopicMode)


class Retention(msgspec.Struct, frozen=True):
    """What is kept of acknowledged data: ms and bytes, -1 without limit, both 0 nothing. Either limit ends it."""

    time_ms: int
    size_bytes: int
    #: Whether no level sets a retention; see :class:`RetentionByLedger`.
    by_ledger: ClassVar[bool] = False

    @property
    def keeps_nothing(self) -> bool:
        """Whether acknowledged data goes at once."""
        return self.time_ms == 0 or self.size_bytes == 0


class RetentionByLedger(Retention, frozen=True):
    """What levels come to if none sets a retention: acknowledged data stays as long as its ledger.

    The figures are those of the limits that cap it.
    """

    by_ledger: ClassVar[bool] = True


class BacklogQuota(msgspec.Struct, frozen=True):
    """A limit of the backlog (bytes or ms, -1 none) and what happens at it (one of BACKLOG_QUOTA_POLICIES)."""

    limit: int
    policy: str


class Rate(msgspec.Struct, frozen=True):
    """Messages and bytes allowed in ``period_s`` seconds; 0 or less: that one is not limited."""

    messages: int = -1
    bytes: int = -1
    period_s: int = 1


class SubscribeRate(msgspec.Struct, frozen=True):
    """How often one consumer may subscribe in ``period_s`` seconds; 0 or less: as often as it wants."""

    per_consumer: int
    period_s: int = 30


class InactiveTopic(msgspec.Struct, frozen=True):
    """Pulsar's inactive-topic policy: delete a topic without clients after ``max_inactive_ms``, if ``delete``.

    ``mode`` is one of INACTIVE_TOPIC_MODES: without subscriptions, or with subscriptions that are caught up.
    """

    max_inactive_ms: int
    mode: str = "delete_when_no_subscriptions"
    delete: bool = True


class AutoTopicCreation(msgspec.Struct, frozen=True):
    """Whether clients create topics by naming them; ``partitions`` 0: not partitioned."""

    allow: bool
    partitions: int = 0


class Policies(msgspec.Struct, omit_defaults=True):
    """What one level sets. ``None`` means: not set here, inherit.

    To set "none at all" against a level below, figures are -1 (``max_*``: 0 too, as in Pulsar) and
    ``dead_letter_topic`` is the empty text. Times are ms, sizes bytes.
    """

    retention: Retention | None = None
    backlog_quota_size: BacklogQuota | None = None
    backlog_quota_age: BacklogQuota | None = None
    message_ttl_ms: int | None = None
    dead_letter_topic: str | None = None
    expires_ms: int | None = None
    deduplication: bool | None = None
    delayed_delivery: bool | None = None
    max_producers: int | None = None
    max_consumers: int | None = None
    max_subscriptions: int | None = None
    max_message_size: int | None = None
    max_consumers_per_subscription: int | None = None
    max_unacked_per_consumer: int | None = None
    max_unacked_per_subscription: int | None = None
    max_topics: int | None = None
    max_delivery_delay_ms: int | None = None
    #: How late Pulsar's clients were told delayed messages may be. Kept for them to read: they are on time.
    delayed_delivery_tick_ms: int | None = None
    #: Whether batches are opened to look for messages with a TTL of their own.
    ttl_in_batches: bool | None = None
    subscription_expiration_ms: int | None = None
    inactive_topic: InactiveTopic | None = None
    publish_rate: Rate | None = None
    dispatch_rate: Rate | None = None
    subscription_dispatch_rate: Rate | None = None
    #: Rates of single subscriptions by name, which count before that of all; topics only.
    subscription_dispatch_rates: dict[str, Rate] | None = None
    subscribe_rate: SubscribeRate | None = None
    #: Bytes of backlog of the compaction cursor at which compaction starts by itself; 0 never.
    compaction_threshold: int | None = None
    auto_topic_creation: AutoTopicCreation | None = None
    auto_subscription_creation: bool | None = None
    #: Names of the subscription types consumers may use; an empty list allows all.
    subscription_types: list[str] | None = None
    encryption_required: bool | None = None
    schema_compatibility: str | None = None
    auto_update_schema: bool | None = None
    schema_validation_enforced: bool | None = None


NO_RETENTION_SET: Final = RetentionByLedger(UNLIMITED, UNLIMITED)
DEFAULTS: Final = Policies(retention=NO_RETENTION_SET, deduplication=False, delayed_delivery=True)
"""What holds where nobody says anything. Not to be changed in place."""

_DURATIONS: Final = ("message_ttl_ms", "expires_ms")
_QUOTAS: Final = ("backlog_quota_size", "backlog_quota_age")
# Of these 0 means "no limit", as in Pulsar.
_MAXIMA: Final = (
    "max_producers",
    "max_consumers",
    "max_subscriptions",
    "max_message_size",
    "max_consumers_per_subscription",
    "max_unacked_per_consumer",
    "max_unacked_per_subscription",
    "max_topics",
    "max_delivery_delay_ms",
    "subscription_expiration_ms",
    "compaction_threshold",
)
_RATES: Final = ("publish_rate", "dispatch_rate", "subscription_dispatch_rate")


def resolve(
    topic: Policies | None, namespace: Policies | None, broker: Policies, limits: Sequence[Policies] = ()
) -> Policies:
    """Return what holds for a topic. In the answer ``None`` means that there is no such policy or limit.

    So a message TTL, an expiry, a quota or a maximum in it is a figure to be enforced, never -1, and a maximum never
    0. ``retention`` is the one whose -1 stays; it is a :class:`RetentionByLedger` if no level sets it.
    """
    resolved = Policies()
    for field in Policies.__struct_fields__:
        for level in (topic, namespace, broker):
            value = getattr(level, field) if level is not None else None
            if value is not None:
                setattr(resolved, field, value)
                break
    _drop_nones(resolved)
    for limit in limits:
        _cap(resolved, limit)
    return resolved


def _drop_nones(policies: Policies) -> None:
    """Replace what says "none at all" by ``None``."""
    for field in _DURATIONS:
        value = getattr(policies, field)
        if value is not None and value < 0:
            setattr(policies, field, None)
    for field in _QUOTAS:
        quota = getattr(policies, field)
        if quota is not None and quota.limit < 0:
            setattr(policies, field, None)
    for field in _MAXIMA:
        value = getattr(policies, field)
        if value is not None and value <= 0:
            setattr(policies, field, None)
    for field in _RATES:
        rate = getattr(policies, field)
        if rate is not None and rate.messages <= 0 and rate.bytes <= 0:
            setattr(policies, field, None)
    if policies.subscribe_rate is not None and policies.subscribe_rate.per_consumer <= 0:
        policies.subscribe_rate = None
    if policies.inactive_topic is not None and not policies.inactive_topic.delete:
        policies.inactive_topic = None
    if not policies.dead_letter_topic:
        policies.dead_letter_topic = None


def _cap(policies: Policies, limit: Policies) -> None:
    """Lower ``policies`` to ``limit``; what ``limit`` does not name, or names as unlimited, stays."""
    if policies.retention is not None and limit.retention is not None:
        policies.retention = msgspec.structs.replace(
            policies.retention,
            time_ms=_lower(policies.retention.time_ms, limit.retention.time_ms),
            size_bytes=_lower(policies.retention.size_bytes, limit.retention.size_bytes),
        )
    for field in _QUOTAS:
        own, cap = getattr(policies, field), getattr(limit, field)
        # Where both name the same figure, the topic's own action stays.
        if cap is not None and cap.limit >= 0 and (own is None or cap.limit < own.limit):
            setattr(policies, field, cap)
    for field in _DURATIONS:
        own, cap = getattr(policies, field), getattr(limit, field)
        if cap is not None and cap >= 0 and (own is None or cap < own):
            setattr(policies, field, cap)
    for field in _MAXIMA:
        own, cap = getattr(policies, field), getattr(limit, field)
        if cap is not None and cap > 0 and (own is None or cap < own):
            setattr(policies, field, cap)
    for field in _RATES:
        own, cap = getattr(policies, field), getattr(limit, field)
        if cap is not None:
            setattr(policies, field, _lower_rate(own, cap))
    rates, cap = policies.subscription_dispatch_rates, limit.subscription_dispatch_rate
    if rates and cap is not None:
        policies.subscription_dispatch_rates = {name: _lower_rate(rate, cap) or rate for name, rate in rates.items()}


def subscription_rate(effective: Policies, subscription: str) -> Rate | None:
    """Return the dispatch rate one subscription of a topic with these effective policies keeps to, None for none."""
    rate = (effective.subscription_dispatch_rates or {}).get(subscription, effective.subscription_dispatch_rate)
    return rate if rate is not None and (rate.messages > 0 or rate.bytes > 0) else None


def _lower_rate(own: Rate | None, cap: Rate) -> Rate | None:
    """Return what of both lets less through, messages and bytes each for itself, in the period of ``own``."""
    if own is None:
        return cap if cap.messages > 0 or cap.bytes > 0 else None

    def lower(mine: int, other: int) -> int:
        scaled = other * own.period_s // cap.period_s if other > 0 else -1
        return scaled if mine <= 0 else mine if scaled <= 0 else min(mine, scaled)

    return Rate(lower(own.messages, cap.messages), lower(own.bytes, cap.bytes), own.period_s)


def _lower(one: int, other: int) -> int:
    if one < 0:
        return other
    return one if other < 0 else min(one, other)


def contradictions(policies: Policies) -> Iterator[tuple[str, str]]:
    """Yield (the field as a manifest writes it, what is wrong) for whatever in ``policies`` cannot be meant.

    Sets of one level and resolved ones can be asked alike.
    """
    retention = policies.retention
    if retention is None:
        return
    time, size = format_duration(retention.time_ms), format_size(retention.size_bytes)
    if (retention.time_ms == 0) != (retention.size_bytes == 0):
        yield (
            "retention",
            f"time {time} and size {size} contradict each other, as 0 keeps nothing; valid: both 0, or neither",
        )
        return
    quota = policies.backlog_quota_size
    # Retention 0/0 keeps no acknowledged data at all, -1 all of it: neither is a figure to compare with.
    if quota is not None and 0 < retention.size_bytes < quota.limit:
        yield (
            "retention.size",
            f"{size} is below backlogQuota.destinationStorage.limit {format_size(quota.limit)};"
            " valid: at least the quota, or infinite",
        )
    quota = policies.backlog_quota_age
    if quota is not None and 0 < retention.time_ms < quota.limit:
        yield (
            "retention.time",
            f"{time} is below backlogQuota.messageAge.limit {format_duration(quota.limit)};"
            " valid: at least the quota, or infinite",
        )
