"""The values of policies that are more than a number, and the names that texts among them are chosen from."""

from __future__ import annotations

from typing import ClassVar, Final, Literal, get_args

import msgspec

UNLIMITED: Final = -1
MAX_PARTITIONS: Final = 10_000
#: The most subscriptions of one topic that have settings of their own.
MAX_SUBSCRIPTION_POLICIES: Final = 100
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
#: The strategies that can be set over REST; UNDEFINED is Pulsar's word for one that nobody set.
SETTABLE_COMPATIBILITIES: Final = ("UNDEFINED", *SCHEMA_COMPATIBILITIES)
#: The strategy of each value of Pulsar's older setting for updates by clients, which counts where none is set.
COMPATIBILITIES_OF_AUTO_UPDATES: Final = {
    "AutoUpdateDisabled": "ALWAYS_INCOMPATIBLE",
    "Backward": "BACKWARD",
    "Forward": "FORWARD",
    "Full": "FULL",
    "AlwaysCompatible": "ALWAYS_COMPATIBLE",
    "BackwardTransitive": "BACKWARD_TRANSITIVE",
    "ForwardTransitive": "FORWARD_TRANSITIVE",
    "FullTransitive": "FULL_TRANSITIVE",
}
#: The name of that setting among those that a namespace keeps.
SCHEMA_AUTO_UPDATE: Final = "schema_auto_update_compatibility_strategy"
InactiveTopicMode = Literal["delete_when_no_subscriptions", "delete_when_subscriptions_caught_up"]
INACTIVE_TOPIC_MODES: Final[tuple[str, ...]] = get_args(InactiveTopicMode)


class Retention(msgspec.Struct, frozen=True):
    """Retention of acknowledged data: ms and bytes, -1 without limit, both 0 nothing. Either limit ends it."""

    time_ms: int
    size_bytes: int
    #: Whether no level sets a retention; see :class:`RetentionByLedger`.
    by_ledger: ClassVar[bool] = False

    @property
    def keeps_nothing(self) -> bool:
        """Whether acknowledged data goes at once."""
        return self.time_ms == 0 or self.size_bytes == 0


class RetentionByLedger(Retention, frozen=True):
    """The retention of topics for which no level sets one: acknowledged data stays as long as its ledger.

    The values are those of the limits that cap it.
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
    """Number of times that one consumer may subscribe in ``period_s`` seconds; 0 or less: no limit."""

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
