"""The statistics of a partitioned topic: those of its partitions added up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET

from .stats import iso
from .stats_documents import (
    CompactionStats,
    ConsumerTotals,
    PartitionedStats,
    PartitionsInfo,
    PublisherTotals,
    SubscriptionStats,
    SubscriptionTotals,
    TopicStats,
    TopicTotals,
)

#: The largest of these counts: ages and times of the last something.
_LARGEST = frozenset(
    {
        "oldest_backlog_message_age_seconds",
        "last_publish_time_stamp",
        "last_expire_timestamp",
        "last_consumed_flow_timestamp",
        "last_consumed_timestamp",
        "last_acked_timestamp",
        "last_mark_delete_advanced_timestamp",
        "last_offload_ledger_id",
        "last_offload_success_time_stamp",
        "last_offload_failure_time_stamp",
        "last_compaction_succeed_timestamp",
        "last_compaction_failed_timestamp",
        "last_compaction_duration_time_in_mills",
        "first_messages_sent_timestamp",
        "first_consumed_flow_timestamp",
        "avg_messages_per_entry",
    }
)
#: The smallest of these that is not 0.
_EARLIEST = frozenset(
    {"topic_creation_time_stamp", "earliest_msg_publish_time_in_backlogs", "earliest_msg_publish_time_in_backlog"}
)
#: The same for every partition.
_COMMON = frozenset({"backlog_quota_limit_size", "backlog_quota_limit_time", "producer_id"})

F = TypeVar("F", bound=msgspec.Struct)


def _combined(name: str, values: Sequence[Any]) -> Any:
    known = [value for value in values if value is not UNSET]
    first = known[0] if known else UNSET
    if name in _COMMON or not isinstance(first, int | float):
        return first
    if isinstance(first, bool):
        # A subscription is durable if it is everywhere; anything else is so if it is so somewhere.
        return all(known) if name in ("is_durable", "durable") else any(known)
    if name in _LARGEST:
        return max(known)
    if name in _EARLIEST:
        return min((value for value in known if value), default=0)
    if name == "backlog_size" and first < 0:
        return first
    return sum(known)


def _sums(parts: Sequence[msgspec.Struct], kind: type[msgspec.Struct]) -> dict[str, Any]:
    return {
        name: _combined(name, [getattr(part, name) for part in parts])
        for name in kind.__struct_fields__
        if hasattr(parts[0], name)
    }


def _by_index(lists: Sequence[Sequence[msgspec.Struct]], kind: type[F]) -> tuple[F, ...]:
    """Add the first of every partition, the second of every one, and so on, as Pulsar does."""
    longest = max((len(parts) for parts in lists), default=0)
    columns = [[parts[index] for parts in lists if index < len(parts)] for index in range(longest)]
    return tuple(kind(**_sums(column, kind)) for column in columns)


def _publishers(parts: Sequence[TopicStats]) -> tuple[PublisherTotals, ...]:
    publishers = _by_index([part.publishers for part in parts], PublisherTotals)
    for publisher in publishers:
        rate = publisher.msg_rate_in
        publisher.average_msg_size = publisher.msg_throughput_in / rate if rate else 0.0
    return publishers


def _consumers(parts: Sequence[SubscriptionStats]) -> tuple[ConsumerTotals, ...]:
    consumers = _by_index([part.consumers for part in parts], ConsumerTotals)
    for consumer in consumers:
        consumer.last_acked_time = iso(consumer.last_acked_timestamp)
        consumer.last_consumed_time = iso(consumer.last_consumed_timestamp)
    return consumers


def _subscription(same: Sequence[SubscriptionStats]) -> SubscriptionTotals:
    totals = _sums(same, SubscriptionTotals)
    totals["consumers"] = _consumers(same)
    return SubscriptionTotals(**totals)


def partitioned_stats(partitions: dict[str, TopicStats], per_partition: bool) -> PartitionedStats:
    """Return the sum of ``partitions`` (stats by topic name, at least one), with each one's own on demand."""
    parts = list(partitions.values())
    totals = _sums(parts, TopicTotals)
    messages = totals["msg_in_counter"]
    totals["average_msg_size"] = totals["bytes_in_counter"] / messages if messages else 0.0
    totals["publishers"] = _publishers(parts)
    oldest = max(parts, key=lambda part: part.oldest_backlog_message_age_seconds)
    totals["oldest_backlog_message_subscription_name"] = oldest.oldest_backlog_message_subscription_name
    names = dict.fromkeys(name for part in parts for name in part.subscriptions)
    totals["subscriptions"] = {
        name: _subscription([part.subscriptions[name] for part in parts if name in part.subscriptions])
        for name in names
    }
    totals["suspended"] = tuple(each for part in parts for each in part.suspended)
    totals["compaction"] = CompactionStats(**_sums([part.compaction for part in parts], CompactionStats))
    return PartitionedStats(
        **totals, metadata=PartitionsInfo(len(parts)), partitions=partitions if per_partition else {}
    )
