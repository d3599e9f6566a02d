"""Policies that are documents of their own: their fields, and their conversion to the core's policies."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from heliograph_api.policies.policy_values import (
    MAX_PARTITIONS,
    AutoTopicCreation,
    BacklogQuota,
    InactiveTopic,
    InactiveTopicMode,
    QuotaPolicy,
    Rate,
    Retention,
    SubscribeRate,
)

from .cel import DURATION, SIZE, Rule, where_both
from .fields import Count, Duration, DurationLimit, Model, Period, Size, SizeLimit


class PolicyDocument(Model):
    """A policy that has fields of its own."""

    def core(self) -> object:
        """Return the core's value of it."""
        raise NotImplementedError


class RetentionSpec(PolicyDocument):
    """Retention of messages that every subscription has acknowledged, or that no subscription waits for.

    They are kept until they are older than `time` or larger than `size` in total, whichever comes first. Both -1: keep
    all; both 0: keep none; one 0 and the other not is refused.
    """

    cel_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            where_both(DURATION, "self.time", SIZE, "self.size", "(v == 0) == (other == 0)"),
            "time and size contradict each other, as 0 keeps nothing; valid: both 0, or neither",
        ),
    )

    time: Duration
    """Maximum age: a duration such as 3h or 7d; -1: no limit, 0: keep none."""
    size: Size
    """Maximum size of each topic or partition: a size such as 10Gi; -1: no limit, 0: keep none."""

    def core(self) -> Retention:
        """Return the policy as the broker enforces it."""
        return Retention(self.time, self.size)


class _QuotaSpec(PolicyDocument):
    limit: int
    policy: QuotaPolicy = "producer_request_hold"
    """Action at the limit: producers wait (producer_request_hold), producers get an error (producer_exception), or the
    oldest messages are dropped (consumer_backlog_eviction)."""

    def core(self) -> BacklogQuota:
        """Return the policy as the broker enforces it."""
        return BacklogQuota(self.limit, self.policy)


class SizeQuotaSpec(_QuotaSpec):
    """Limit of the slowest subscription's backlog in bytes, and what happens at the limit."""

    limit: SizeLimit
    """The size, above 0; -1 removes an inherited quota."""


class AgeQuotaSpec(_QuotaSpec):
    """Limit of the age of the oldest unacknowledged message, and what happens at the limit."""

    limit: DurationLimit
    """The duration, above 0; -1 removes an inherited quota."""


class BacklogQuotaSpec(Model):
    """Limits of unacknowledged messages by size and by age; either may be left out."""

    destination_storage: SizeQuotaSpec | None = None
    """Limit of the slowest subscription's backlog in bytes."""
    message_age: AgeQuotaSpec | None = None
    """Limit of the age of the oldest unacknowledged message."""


class RateSpec(PolicyDocument):
    """A limit of messages and bytes per period; 0 or left out: no limit."""

    messages: Count = 0
    """Messages per period; 0: no limit."""
    bytes: Size = 0
    """Bytes per period, a size; 0 or -1: no limit."""
    period: Period = 1000
    """The period: whole seconds."""

    def core(self) -> Rate:
        """Return the policy as the broker enforces it; its period is in seconds."""
        return Rate(self.messages, self.bytes, self.period // 1000)


class SubscribeRateSpec(PolicyDocument):
    """Limit of the subscribe requests of one consumer per period."""

    per_consumer: Count
    """Subscribe requests of a consumer per period; 0: no limit."""
    period: Period = 30_000
    """The period: whole seconds."""

    def core(self) -> SubscribeRate:
        """Return the policy as the broker enforces it; its period is in seconds."""
        return SubscribeRate(self.per_consumer, self.period // 1000)


class InactiveTopicSpec(PolicyDocument):
    """Whether, and after which time, a topic without connected clients is deleted."""

    max_inactive: DurationLimit
    """Time without connected clients: a duration above 0; -1: never."""
    mode: InactiveTopicMode = "delete_when_no_subscriptions"
    """Topics that are deleted: only those without subscriptions, or also those whose subscriptions have no backlog."""
    delete: bool = True
    """false removes an inherited policy."""

    def core(self) -> InactiveTopic:
        """Return the policy as the broker enforces it."""
        # A time that never comes deletes nothing.
        return InactiveTopic(max(0, self.max_inactive), self.mode, self.delete and self.max_inactive > 0)


class AutoTopicCreationSpec(PolicyDocument):
    """Whether producing or subscribing creates missing topics, and of which type."""

    allow: bool
    """Whether producing or subscribing to a missing topic creates it."""
    partitions: int = Field(default=0, ge=0, le=MAX_PARTITIONS)
    """Number of partitions of these topics; 0: they are not partitioned."""

    def core(self) -> AutoTopicCreation:
        """Return the policy as the broker enforces it."""
        return AutoTopicCreation(self.allow, self.partitions if self.allow else 0)
