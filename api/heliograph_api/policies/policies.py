"""Combines the levels of policies.

A subscription's setting wins (of the policies it may set), then the topic's, then the namespace's, then the broker's
default; limits of tenant and broker then cap the result, and the lowest value wins (RabbitMQ calls such limits operator
policies).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from heliograph_api.values.durations import format_duration
from heliograph_api.values.sizes import format_size

from .policy_field import PolicyField
from .policy_kinds import is_unlimited, lower_rate
from .policy_table import POLICY_FIELDS, SUBSCRIPTION_FIELDS, Policies
from .policy_values import (
    BACKLOG_QUOTA_POLICIES,
    COMPATIBILITIES_OF_AUTO_UPDATES,
    INACTIVE_TOPIC_MODES,
    MAX_PARTITIONS,
    SCHEMA_AUTO_UPDATE,
    SCHEMA_COMPATIBILITIES,
    SETTABLE_COMPATIBILITIES,
    SUBSCRIPTION_TYPES,
    UNLIMITED,
    AutoTopicCreation,
    BacklogQuota,
    InactiveTopic,
    InactiveTopicMode,
    QuotaPolicy,
    Rate,
    Retention,
    RetentionByLedger,
    SchemaCompatibility,
    SubscribeRate,
    SubscriptionType,
)

NO_RETENTION_SET: Final = RetentionByLedger(UNLIMITED, UNLIMITED)
DEFAULTS: Final = Policies(retention=NO_RETENTION_SET, deduplication=False, delayed_delivery=True)
"""The policies that apply if no level sets them. Not to be changed in place."""


def resolve(
    topic: Policies | None, namespace: Policies | None, broker: Policies, limits: Sequence[Policies] = ()
) -> Policies:
    """Return what holds for a topic. In the answer ``None`` means that there is no such policy or limit.

    So a message TTL, an expiry, a quota or a maximum in it is a value to be enforced, never -1, and a maximum never
    0. ``retention`` is the one whose -1 stays; it is a :class:`RetentionByLedger` if no level sets it.

    Where neither topic nor namespace sets a schema compatibility strategy, the namespace's older setting for updates
    by clients counts, as in Pulsar.
    """
    levels = [level for level in (topic, namespace, broker) if level is not None]
    resolved = _combined(levels, limits)
    if all(level is None or level.schema_compatibility is None for level in (topic, namespace)):
        of_updates = (namespace.kept or {}).get(SCHEMA_AUTO_UPDATE) if namespace is not None else None
        if of_updates is not None:
            resolved.schema_compatibility = COMPATIBILITIES_OF_AUTO_UPDATES[of_updates]
    if topic is not None and topic.subscription_policies:
        resolved.subscription_policies = {
            name: _combined([own, *levels], limits, SUBSCRIPTION_FIELDS)
            for name, own in topic.subscription_policies.items()
        }
    return resolved


def _combined(
    levels: Sequence[Policies], limits: Sequence[Policies], fields: Mapping[str, PolicyField] = POLICY_FIELDS
) -> Policies:
    resolved = Policies()
    for field, row in fields.items():
        for level in levels:
            value = getattr(level, field)
            if value is not None:
                if not row.kind.is_none(value):
                    setattr(resolved, field, value)
                break
    for limit in limits:
        _cap(resolved, limit)
    return resolved


def _cap(policies: Policies, limit: Policies) -> None:
    """Lower ``policies`` to ``limit``; what ``limit`` does not name, or names as unlimited, stays."""
    for field, row in POLICY_FIELDS.items():
        cap = getattr(limit, field)
        if cap is not None and row.kind.capped is not None:
            setattr(policies, field, row.kind.capped(getattr(policies, field), cap))
    rates, cap = policies.subscription_dispatch_rates, limit.subscription_dispatch_rate
    if rates and cap is not None:
        policies.subscription_dispatch_rates = {name: lower_rate(rate, cap) or rate for name, rate in rates.items()}


def of_subscription(effective: Policies, subscription: str) -> Policies:
    """Return what holds for one subscription of a topic with these effective policies.

    It is ``effective`` itself unless the subscription has settings of its own; then it is only what subscriptions can
    set.
    """
    own = effective.subscription_policies
    return effective if own is None else own.get(subscription, effective)


def subscription_levels(effective: Policies) -> Iterator[Policies]:
    """Yield every level that holds for subscriptions of a topic with these effective policies.

    The first is that of subscriptions without settings of their own; the others need not exist.
    """
    yield effective
    yield from (effective.subscription_policies or {}).values()


def expires_messages(effective: Policies) -> bool:
    """Whether some subscription of a topic with these effective policies has a message TTL."""
    return any(level.message_ttl_ms is not None for level in subscription_levels(effective))


def subscription_rate(effective: Policies, subscription: str) -> Rate | None:
    """Return the dispatch rate one subscription of a topic with these effective policies keeps to, None for none."""
    rate = (effective.subscription_dispatch_rates or {}).get(subscription, effective.subscription_dispatch_rate)
    return None if rate is None or is_unlimited(rate) else rate


def contradictions(policies: Policies) -> Iterator[tuple[str, str]]:
    """Yield (the field as a manifest writes it, the problem) for each contradiction in ``policies``.

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
    # Retention 0/0 keeps no acknowledged data at all, -1 all of it: neither is a value to compare with.
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


__all__ = [
    "BACKLOG_QUOTA_POLICIES",
    "DEFAULTS",
    "INACTIVE_TOPIC_MODES",
    "MAX_PARTITIONS",
    "NO_RETENTION_SET",
    "SCHEMA_COMPATIBILITIES",
    "SETTABLE_COMPATIBILITIES",
    "SUBSCRIPTION_TYPES",
    "UNLIMITED",
    "AutoTopicCreation",
    "BacklogQuota",
    "InactiveTopic",
    "InactiveTopicMode",
    "Policies",
    "QuotaPolicy",
    "Rate",
    "Retention",
    "RetentionByLedger",
    "SchemaCompatibility",
    "SubscribeRate",
    "SubscriptionType",
    "contradictions",
    "expires_messages",
    "of_subscription",
    "resolve",
    "subscription_rate",
]
