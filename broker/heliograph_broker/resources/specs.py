"""What a ``spec`` may say about policies, and the way to the core's policies."""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from .fields import (
    Contradiction,
    Count,
    Duration,
    Model,
    OptionalTopic,
    Period,
    QuotaPolicy,
    Size,
    UnusedFor,
    above_zero,
    unique,
)
from .policies import (
    AutoTopicCreation,
    BacklogQuota,
    InactiveTopic,
    Policies,
    Rate,
    Retention,
    SubscribeRate,
    contradictions,
)

MAX_PARTITIONS: Final = 10_000


class RetentionSpec(Model):
    """What is kept of acknowledged data: until it is older than ``time`` or more than ``size``, whichever is first.

    Both -1 keeps everything, both 0 nothing; one of them 0 and the other not is refused.
    """

    time: Duration
    size: Size

    def policy(self) -> Retention:
        return Retention(self.time, self.size)


class SizeQuotaSpec(Model):
    """Bytes a topic's slowest subscription may be behind, and what happens then."""

    limit: Annotated[Size, AfterValidator(above_zero)]
    policy: QuotaPolicy = "producer_request_hold"


class AgeQuotaSpec(Model):
    """Age the oldest message not acknowledged may reach, and what happens then."""

    limit: Annotated[Duration, AfterValidator(above_zero)]
    policy: QuotaPolicy = "producer_request_hold"


class BacklogQuotaSpec(Model):
    """Limits of what is not acknowledged yet, by size and by age; either may be left out."""

    destination_storage: SizeQuotaSpec | None = None
    message_age: AgeQuotaSpec | None = None


class RateSpec(Model):
    """Messages and bytes (0 or left out: any number) that may pass in a ``period``."""

    messages: Count = 0
    bytes: Size = 0
    period: Period = 1000

    def policy(self) -> Rate:
        return Rate(self.messages, self.bytes, self.period // 1000)


class SubscribeRateSpec(Model):
    """How often one consumer may subscribe in a ``period``; 0: as often as it wants."""

    per_consumer: Count
    period: Period = 30_000

    def policy(self) -> SubscribeRate:
        return SubscribeRate(self.per_consumer, self.period // 1000)


class InactiveTopicSpec(Model):
    """Whether (``delete``) and after how long a topic is deleted that nobody is connected to."""

    max_inactive: Annotated[Duration, AfterValidator(above_zero)]
    mode: Literal["delete_when_no_subscriptions", "delete_when_subscriptions_caught_up"] = (
        "delete_when_no_subscriptions"
    )
    delete: bool = True

    def policy(self) -> InactiveTopic:
        # What never comes deletes nothing.
        return InactiveTopic(max(0, self.max_inactive), self.mode, self.delete and self.max_inactive > 0)


class AutoTopicCreationSpec(Model):
    """Whether clients create topics by naming them; ``partitions`` 0: topics that are not partitioned."""

    allow: bool
    partitions: int = Field(default=0, ge=0, le=MAX_PARTITIONS)

    def policy(self) -> AutoTopicCreation:
        return AutoTopicCreation(self.allow, self.partitions if self.allow else 0)


SubscriptionType = Literal["Exclusive", "Shared", "Failover", "Key_Shared"]
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

#: Fields whose value the core takes as it is, by its own name for them if that is another.
_PLAIN: Final = {
    "message_ttl": "message_ttl_ms",
    "expires": "expires_ms",
    "max_producers": "",
    "max_consumers": "",
    "max_subscriptions": "",
    "max_message_size": "",
    "max_consumers_per_subscription": "",
    "max_unacked_per_consumer": "",
    "max_unacked_per_subscription": "",
    "max_delivery_delay": "max_delivery_delay_ms",
    "subscription_expiration": "subscription_expiration_ms",
    "dead_letter_topic": "",
    "ttl_in_batches": "",
    "deduplication": "",
    "delayed_delivery": "",
    "compaction_threshold": "",
    "auto_subscription_creation": "",
    "subscription_types": "",
    "encryption_required": "",
    "schema_compatibility": "",
    "auto_update_schema": "",
    "schema_validation_enforced": "",
    "max_topics": "",
}
#: Fields that are documents of their own, with a ``policy()`` for the core.
_DOCUMENTS: Final = (
    "retention",
    "publish_rate",
    "dispatch_rate",
    "subscription_dispatch_rate",
    "subscribe_rate",
    "inactive_topic",
    "auto_topic_creation",
)


class LimitsSpec(Model):
    """The policies that can be capped from above. What is left out is inherited, or not limited."""

    retention: RetentionSpec | None = None
    backlog_quota: BacklogQuotaSpec | None = None
    message_ttl: Duration | None = Field(default=None, alias="messageTTL")
    expires: UnusedFor | None = None
    max_producers: Count | None = None
    max_consumers: Count | None = None
    max_subscriptions: Count | None = None
    max_message_size: Annotated[Size, AfterValidator(above_zero)] | None = None
    max_consumers_per_subscription: Count | None = None
    max_unacked_per_consumer: Count | None = None
    max_unacked_per_subscription: Count | None = None
    max_delivery_delay: Annotated[Duration, AfterValidator(above_zero)] | None = None
    subscription_expiration: UnusedFor | None = None
    publish_rate: RateSpec | None = None
    dispatch_rate: RateSpec | None = None
    subscription_dispatch_rate: RateSpec | None = None

    @model_validator(mode="after")
    def _no_contradictions(self) -> Self:
        if found := list(contradictions(self.policies())):
            raise Contradiction(found)
        return self

    def policies(self) -> Policies:
        """Return the policies in the core's units (ms, bytes)."""
        policies = Policies()
        for field, own_name in _PLAIN.items():
            value = getattr(self, field, None)
            if value is not None:
                setattr(policies, own_name or field, value)
        for field in _DOCUMENTS:
            value = getattr(self, field, None)
            if value is not None:
                setattr(policies, field, value.policy())
        quota = self.backlog_quota or BacklogQuotaSpec()
        if (size := quota.destination_storage) is not None:
            policies.backlog_quota_size = BacklogQuota(size.limit, size.policy)
        if (age := quota.message_age) is not None:
            policies.backlog_quota_age = BacklogQuota(age.limit, age.policy)
        return policies


class PolicySpec(LimitsSpec):
    """The policies a Topic, a Namespace or a cluster's defaults may set. What is left out is inherited."""

    dead_letter_topic: OptionalTopic | None = None
    ttl_in_batches: bool | None = None
    deduplication: bool | None = None
    delayed_delivery: bool | None = None
    inactive_topic: InactiveTopicSpec | None = None
    subscribe_rate: SubscribeRateSpec | None = None
    compaction_threshold: Size | None = None
    auto_subscription_creation: bool | None = None
    subscription_types: Annotated[list[SubscriptionType], AfterValidator(unique)] | None = None
    encryption_required: bool | None = None
    schema_compatibility: SchemaCompatibility | None = None
    auto_update_schema: bool | None = None
    schema_validation_enforced: bool | None = None


class NamespacePolicySpec(PolicySpec):
    """What only a namespace may say: how many topics it may have, and how they come to be."""

    max_topics: Count | None = None
    auto_topic_creation: AutoTopicCreationSpec | None = None
