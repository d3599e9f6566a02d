"""The policies in a ``spec``, and their conversion to the core's policies."""

from __future__ import annotations

from typing import ClassVar, Final, Self

from pydantic import Field, model_validator

from .cel import DURATION, SIZE, Rule, in_order
from .fields import (
    Contradiction,
    Count,
    Duration,
    DurationLimit,
    Model,
    OptionalTopic,
    Size,
    SizeLimit,
    Unique,
    UnusedFor,
)
from .policies import BacklogQuota, Policies, SchemaCompatibility, SubscriptionType, contradictions
from .policy_parts import (
    AutoTopicCreationSpec,
    BacklogQuotaSpec,
    InactiveTopicSpec,
    RateSpec,
    RetentionSpec,
    SubscribeRateSpec,
)

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


def _not_below(quantity: str, quota: str, rule: str) -> Rule:
    """Return the rule that the retention's ``quantity`` is not below the backlog ``quota``."""
    return Rule(
        f"!has(self.retention) || !has(self.backlogQuota) || !has(self.backlogQuota.{quota}) || ({rule})",
        f"the retention is below backlogQuota.{quota}.limit; valid: at least the quota, or infinite",
        f".retention.{quantity}",
    )


class LimitsSpec(Model):
    """The policies that tenant and cluster can limit. A field that is left out is inherited, or not limited."""

    cel_rules: ClassVar[tuple[Rule, ...]] = (
        _not_below(
            "size",
            "destinationStorage",
            in_order(SIZE, "self.retention.size", "self.backlogQuota.destinationStorage.limit"),
        ),
        _not_below(
            "time", "messageAge", in_order(DURATION, "self.retention.time", "self.backlogQuota.messageAge.limit")
        ),
    )

    retention: RetentionSpec | None = None
    """Retention of messages that every subscription has acknowledged, or that no subscription waits for: until they are
    older than `time` or larger than `size` in total, whichever comes first; both 0: none. Not below the backlog quota.
    If no level sets it, they stay as long as their ledger: by default for 50,000 entries, 2 GiB or 4 hours."""
    backlog_quota: BacklogQuotaSpec | None = None
    """Limits of unacknowledged messages by size and by age, and what happens at them. Default: none."""
    message_ttl: Duration | None = Field(default=None, alias="messageTTL")
    """A duration: older messages expire, which acknowledges them. -1 removes an inherited one; 0: at once."""
    expires: UnusedFor | None = None
    """A duration: the topic is deleted after this time without use. -1: never."""
    max_producers: Count | None = None
    """Maximum connected producers; 0: no limit."""
    max_consumers: Count | None = None
    """Maximum connected consumers; 0: no limit."""
    max_subscriptions: Count | None = None
    """Maximum subscriptions of a topic; 0: no limit."""
    max_message_size: SizeLimit | None = None
    """A size: the largest message (or batch) a producer may send. Default: the broker's setting."""
    max_consumers_per_subscription: Count | None = None
    """Maximum connected consumers of one subscription; 0: no limit."""
    max_unacked_per_consumer: Count | None = None
    """Maximum unacknowledged messages of a consumer; 0: no limit. Default: 50000."""
    max_unacked_per_subscription: Count | None = None
    """Maximum unacknowledged messages of all consumers of a subscription; 0: no limit. Default: 200000."""
    max_delivery_delay: DurationLimit | None = None
    """A duration: the longest delay that a producer may give to a message. -1: no limit."""
    subscription_expiration: UnusedFor | None = None
    """A duration: a subscription is deleted after this time without use. -1: never."""
    publish_rate: RateSpec | None = None
    """Publish rate limit."""
    dispatch_rate: RateSpec | None = None
    """Dispatch rate limit of the topic."""
    subscription_dispatch_rate: RateSpec | None = None
    """Dispatch rate limit of each subscription."""

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
    """The policies that a Topic, a Namespace or a cluster's defaults may set. A field that is left out is inherited."""

    dead_letter_topic: OptionalTopic | None = None
    """Dead-letter topic of expired messages: the name of a topic. The empty text removes an inherited one."""
    ttl_in_batches: bool | None = None
    """Whether the TTL of single messages in batches is honoured. Default: false."""
    deduplication: bool | None = None
    """Whether messages that a producer sends twice are stored once. Default: false."""
    delayed_delivery: bool | None = None
    """Whether delayed delivery is enabled. Default: true."""
    inactive_topic: InactiveTopicSpec | None = None
    """Whether, and after which time, the topic is deleted when no client is connected."""
    subscribe_rate: SubscribeRateSpec | None = None
    """Limit of the subscribe requests of one consumer per period."""
    compaction_threshold: Size | None = None
    """A size: compact when this much was published since the last compaction. 0: never."""
    auto_subscription_creation: bool | None = None
    """Whether subscribing creates a missing subscription. Default: the broker's setting."""
    subscription_types: Unique[SubscriptionType] | None = None
    """Allowed subscription types; left out or an empty list: all."""
    encryption_required: bool | None = None
    """Whether messages that are not encrypted are refused. Default: false."""
    schema_compatibility: SchemaCompatibility | None = None
    """Schema compatibility strategy, by Pulsar's names. Default: FULL."""
    auto_update_schema: bool | None = None
    """Whether producers may add schema versions automatically. Default: true."""
    schema_validation_enforced: bool | None = None
    """Whether producers without a schema are refused on topics that have one. Default: false."""


class NamespacePolicySpec(PolicySpec):
    """The policies of a Namespace: those of topics, and two that only a namespace has."""

    max_topics: Count | None = None
    """Maximum topics in the namespace, each partition counted; 0: no limit."""
    auto_topic_creation: AutoTopicCreationSpec | None = None
    """Whether producing or subscribing creates missing topics, and with how many partitions. Default: the broker's
    setting.
    """
