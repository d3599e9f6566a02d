"""What a ``spec`` may say about policies, and the way to the core's policies."""

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
    """The policies that can be capped from above. What is left out is inherited, or not limited."""

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
    """What is kept of messages that every subscription has acknowledged, or that none waits for: until older than
    `time` or more than `size` of it, whichever is first; both 0 keeps nothing. Not below the backlog quota. If no level
    says, they stay as long as their ledger: by default for 50,000 entries, 2 GiB or 4 hours."""
    backlog_quota: BacklogQuotaSpec | None = None
    """Limits of what is not acknowledged yet, by size and by age, and what happens at them. None if no level says."""
    message_ttl: Duration | None = Field(default=None, alias="messageTTL")
    """A duration: older messages count as acknowledged. -1 takes an inherited one back; 0 is at once."""
    expires: UnusedFor | None = None
    """A duration: the topic is deleted when it was unused for so long. -1: never."""
    max_producers: Count | None = None
    """Producers at a time; 0: no limit."""
    max_consumers: Count | None = None
    """Consumers at a time; 0: no limit."""
    max_subscriptions: Count | None = None
    """Subscriptions of a topic; 0: no limit."""
    max_message_size: SizeLimit | None = None
    """A size: the largest message (or batch) a producer may send. The broker's own limit if no level says."""
    max_consumers_per_subscription: Count | None = None
    """Consumers of one subscription at a time; 0: no limit."""
    max_unacked_per_consumer: Count | None = None
    """Messages a consumer may hold and not have acknowledged; 0: no limit. 50000 if no level says."""
    max_unacked_per_subscription: Count | None = None
    """The same, for all consumers of a subscription together; 0: no limit. 200000 if no level says."""
    max_delivery_delay: DurationLimit | None = None
    """A duration: how far off a delivery time a producer may give. -1: any time."""
    subscription_expiration: UnusedFor | None = None
    """A duration: a subscription nobody uses is deleted after so long. -1: never."""
    publish_rate: RateSpec | None = None
    """How much may be published in a period."""
    dispatch_rate: RateSpec | None = None
    """How much a topic gives out in a period."""
    subscription_dispatch_rate: RateSpec | None = None
    """How much each subscription gives out in a period."""

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
    """Where expired messages go: the name of a topic. The empty text takes an inherited one back."""
    ttl_in_batches: bool | None = None
    """Open batches to look for messages with a TTL of their own. false if no level says."""
    deduplication: bool | None = None
    """Drop what a producer sends a second time. false if no level says."""
    delayed_delivery: bool | None = None
    """Heed the delivery time that producers give to messages. true if no level says."""
    inactive_topic: InactiveTopicSpec | None = None
    """Whether and after how long the topic is deleted when nobody is connected to it."""
    subscribe_rate: SubscribeRateSpec | None = None
    """How often one consumer may subscribe in a period."""
    compaction_threshold: Size | None = None
    """A size: compact when so much was published since the last time. 0: never."""
    auto_subscription_creation: bool | None = None
    """Whether subscribing with a new name makes a subscription. The broker's setting if no level says."""
    subscription_types: Unique[SubscriptionType] | None = None
    """Types a subscription may have; none named, or an empty list: all."""
    encryption_required: bool | None = None
    """Refuse messages that are not encrypted. false if no level says."""
    schema_compatibility: SchemaCompatibility | None = None
    """Which changes of a schema are compatible, in Pulsar's words. FULL if no level says."""
    auto_update_schema: bool | None = None
    """Whether producers may bring new versions of a schema. true if no level says."""
    schema_validation_enforced: bool | None = None
    """Refuse producers without a schema where there is one. false if no level says."""


class NamespacePolicySpec(PolicySpec):
    """What only a namespace may say: how many topics it may have, and how they come to be."""

    max_topics: Count | None = None
    """Topics there may be in the namespace, each partition counted; 0: no limit."""
    auto_topic_creation: AutoTopicCreationSpec | None = None
    """Whether clients make topics by naming them, and with how many partitions. The broker's setting if not said."""
