"""Policies that are documents of their own: what they may say, and the way to the core's."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from .cel import DURATION, SIZE, Rule
from .fields import Count, Duration, DurationLimit, Model, Period, Size, SizeLimit
from .policies import (
    MAX_PARTITIONS,
    AutoTopicCreation,
    InactiveTopic,
    InactiveTopicMode,
    QuotaPolicy,
    Rate,
    Retention,
    SubscribeRate,
)


class RetentionSpec(Model):
    """What is kept of messages that every subscription has acknowledged, or that none waits for.

    They are kept until older than `time` or more than `size`, whichever is first. Both -1 keeps everything, both 0
    nothing; one of them 0 and the other not is refused.
    """

    cel_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            f"!{DURATION.valid('self.time')} || !{SIZE.valid('self.size')}"
            f" || ({DURATION.value('self.time')} == 0) == ({SIZE.value('self.size')} == 0)",
            "time and size contradict each other, as 0 keeps nothing; valid: both 0, or neither",
        ),
    )

    time: Duration
    """How long: a duration such as 3h or 7d; -1 forever, 0 not at all."""
    size: Size
    """How much of a topic (of each partition): a size such as 10Gi; -1 without limit, 0 nothing."""

    def policy(self) -> Retention:
        return Retention(self.time, self.size)


class SizeQuotaSpec(Model):
    """A limit of how many bytes the slowest subscription may be behind, and what happens then."""

    limit: SizeLimit
    """The size, above 0; -1 takes an inherited quota back."""
    policy: QuotaPolicy = "producer_request_hold"
    """What happens at the limit: producers wait (producer_request_hold), producers get an error
    (producer_exception), or the oldest messages are dropped (consumer_backlog_eviction)."""


class AgeQuotaSpec(Model):
    """A limit of how old the oldest message not acknowledged may get, and what happens then."""

    limit: DurationLimit
    """The duration, above 0; -1 takes an inherited quota back."""
    policy: QuotaPolicy = "producer_request_hold"
    """What happens at the limit: producers wait (producer_request_hold), producers get an error
    (producer_exception), or the oldest messages are dropped (consumer_backlog_eviction)."""


class BacklogQuotaSpec(Model):
    """Limits of what is not acknowledged yet, by size and by age; either may be left out."""

    destination_storage: SizeQuotaSpec | None = None
    """How many bytes the slowest subscription may be behind."""
    message_age: AgeQuotaSpec | None = None
    """How old the oldest message not acknowledged may get."""


class RateSpec(Model):
    """How much may pass in a period; what is 0 or left out is not limited."""

    messages: Count = 0
    """Messages in a period; 0: any number."""
    bytes: Size = 0
    """Bytes in a period, a size; 0 or -1: any number."""
    period: Period = 1000
    """What is counted in: whole seconds."""

    def policy(self) -> Rate:
        return Rate(self.messages, self.bytes, self.period // 1000)


class SubscribeRateSpec(Model):
    """How often one consumer may subscribe in a period."""

    per_consumer: Count
    """Times a consumer may subscribe in a period; 0: as often as it wants."""
    period: Period = 30_000
    """What is counted in: whole seconds."""

    def policy(self) -> SubscribeRate:
        return SubscribeRate(self.per_consumer, self.period // 1000)


class InactiveTopicSpec(Model):
    """Whether and after how long a topic is deleted that nobody is connected to."""

    max_inactive: DurationLimit
    """How long nobody was connected: a duration above 0; -1: never."""
    mode: InactiveTopicMode = "delete_when_no_subscriptions"
    """Which topics: those without subscriptions, or also those whose subscriptions are caught up."""
    delete: bool = True
    """false takes back an inherited policy."""

    def policy(self) -> InactiveTopic:
        # What never comes deletes nothing.
        return InactiveTopic(max(0, self.max_inactive), self.mode, self.delete and self.max_inactive > 0)


class AutoTopicCreationSpec(Model):
    """Whether clients make topics by naming them, and which."""

    allow: bool
    """Whether naming a topic there is not makes it."""
    partitions: int = Field(default=0, ge=0, le=MAX_PARTITIONS)
    """Partitions of topics made so; 0: they are not partitioned."""

    def policy(self) -> AutoTopicCreation:
        return AutoTopicCreation(self.allow, self.partitions if self.allow else 0)
