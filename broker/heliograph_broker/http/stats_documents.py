"""The shape of the statistics, for their description: Pulsar's names and the JSON types of what is behind them.

The documents themselves are built as plain mappings by :mod:`.stats`, :mod:`.partitioned_stats` and
:mod:`.internal_stats`; a test reads real ones with these types.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType


class PublisherFigures(msgspec.Struct, rename="camel", kw_only=True):
    """The figures of a producer; of a partitioned topic their sum over the partitions. Rates are per second."""

    msg_rate_in: float
    msg_throughput_in: float
    average_msg_size: float
    chunked_message_rate: float
    producer_id: int
    supports_partial_producer: bool


class PublisherStats(PublisherFigures, rename="camel", kw_only=True):
    """One connected producer."""

    access_mode: str
    producer_name: str
    address: str
    connected_since: str
    client_version: str
    metadata: dict[str, str]


class ConsumerFigures(msgspec.Struct, rename="camel", kw_only=True):
    """The figures of a consumer; of a partitioned topic their sum over the partitions. Timestamps are ms, 0 never."""

    msg_rate_out: float
    msg_throughput_out: float
    bytes_out_counter: int
    msg_out_counter: int
    msg_rate_redeliver: float
    message_ack_rate: float
    chunked_message_rate: float
    available_permits: int
    unacked_messages: int
    avg_messages_per_entry: int
    blocked_consumer_on_unacked_msgs: bool
    last_acked_timestamp: int
    last_consumed_timestamp: int
    first_messages_sent_timestamp: int
    last_consumed_flow_timestamp: int
    first_consumed_flow_timestamp: int


class ConsumerStats(ConsumerFigures, rename="camel", kw_only=True):
    """One connected consumer; on Key_Shared with the hash ranges it holds."""

    consumer_name: str
    address: str
    connected_since: str
    client_version: str
    metadata: dict[str, str]
    last_acked_time: str
    last_consumed_time: str
    key_hash_range_arrays: list[tuple[int, int]] | UnsetType = UNSET


class SubscriptionFigures(msgspec.Struct, rename="camel", kw_only=True):
    """What a subscription has been given and has not acknowledged, in messages and bytes."""

    msg_rate_out: float
    msg_throughput_out: float
    bytes_out_counter: int
    msg_out_counter: int
    msg_rate_redeliver: float
    message_ack_rate: float
    msg_backlog: int
    backlog_size: int
    earliest_msg_publish_time_in_backlog: int
    msg_backlog_no_delayed: int
    blocked_subscription_on_unacked_msgs: bool
    msg_delayed: int
    msg_in_replay: int
    unacked_messages: int
    type: Literal["Exclusive", "Shared", "Failover", "Key_Shared"] | UnsetType = UNSET
    active_consumer_name: str | UnsetType = UNSET
    msg_rate_expired: float
    total_msg_expired: int
    last_expire_timestamp: int
    last_consumed_flow_timestamp: int
    last_consumed_timestamp: int
    last_acked_timestamp: int
    last_mark_delete_advanced_timestamp: int
    consumers: tuple[ConsumerFigures, ...]
    is_durable: bool
    is_replicated: bool
    allow_out_of_order_delivery: bool
    key_shared_mode: Literal["AUTO_SPLIT", "STICKY"] | UnsetType = UNSET
    msg_drop_rate: float | UnsetType = UNSET
    subscription_properties: dict[str, str]
    durable: bool
    replicated: bool


class SubscriptionStats(SubscriptionFigures, rename="camel", kw_only=True):
    """One subscription of a topic, or of one partition."""

    consumers: tuple[ConsumerStats, ...]


class CompactionStats(msgspec.Struct, rename="camel"):
    """The latest compactions; times in ms, 0 for never."""

    last_compaction_removed_event_count: int
    last_compaction_succeed_timestamp: int
    last_compaction_failed_timestamp: int
    last_compaction_duration_time_in_mills: int


class TopicFigures(msgspec.Struct, rename="camel", kw_only=True):
    """What came in, what went out and what is kept; limits and ages without a value are -1."""

    msg_rate_in: float
    msg_throughput_in: float
    msg_rate_out: float
    msg_throughput_out: float
    bytes_in_counter: int
    msg_in_counter: int
    bytes_out_counter: int
    msg_out_counter: int
    average_msg_size: float
    msg_chunk_published: bool
    storage_size: int
    backlog_size: int
    backlog_quota_limit_size: int
    backlog_quota_limit_time: int
    oldest_backlog_message_age_seconds: int
    publish_rate_limited_times: int
    earliest_msg_publish_time_in_backlogs: int
    publishers: tuple[PublisherFigures, ...]
    waiting_publishers: int
    subscriptions: Mapping[str, SubscriptionFigures]
    topic_creation_time_stamp: int
    last_publish_time_stamp: int


class TopicStats(TopicFigures, rename="camel", kw_only=True):
    """A topic that is not partitioned, or one partition."""

    publishers: tuple[PublisherStats, ...]
    subscriptions: Mapping[str, SubscriptionStats]
    deduplication_status: Literal["Enabled", "Disabled"]
    compaction: CompactionStats
    owner_broker: str


class PartitionsInfo(msgspec.Struct):
    """How many partitions there are."""

    partitions: int
    deleted: bool


class PartitionedStats(TopicFigures, rename="camel", kw_only=True):
    """A partitioned topic: sums, and each partition on demand."""

    metadata: PartitionsInfo
    partitions: dict[str, TopicStats]


class LedgerStats(msgspec.Struct, rename="camel"):
    """What is kept of one ledger."""

    ledger_id: int
    entries: int
    size: int
    offloaded: bool
    under_replicated: bool


class CursorStats(msgspec.Struct, rename="camel"):
    """Where a subscription stands; positions are ``ledger:entry``."""

    mark_delete_position: str
    read_position: str
    messages_consumed_counter: int
    individually_deleted_messages: str
    state: str
    active: bool
    number_of_entries_since_first_not_acked_message: int
    total_non_contiguous_deleted_messages_range: int
    properties: dict[str, int]


class InternalStats(msgspec.Struct, rename="camel"):
    """Ledgers and cursors of one topic."""

    entries_added_counter: int
    number_of_entries: int
    total_size: int
    current_ledger_entries: int
    current_ledger_size: int
    last_ledger_created_timestamp: str
    last_confirmed_entry: str
    state: str
    ledgers: list[LedgerStats]
    cursors: dict[str, CursorStats]
    properties: dict[str, str]
    compacted_ledger: LedgerStats
