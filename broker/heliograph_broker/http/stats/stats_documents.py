"""The statistics as Pulsar names them: what the handlers answer, and what the API's description says they answer.

Rates are per second over the last minute, sizes bytes, timestamps wall-clock ms with 0 for never; ages and limits that
there are none of are -1. Fields of what this broker does not have (transactions, offloading, replication, filters)
stay at what Pulsar shows of them when they are not used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType


class PublisherTotals(msgspec.Struct, rename="camel", kw_only=True):
    """The statistics of a producer; of a partitioned topic their sum over the partitions."""

    msg_rate_in: float
    msg_throughput_in: float
    average_msg_size: float
    chunked_message_rate: float
    producer_id: int
    supports_partial_producer: bool = False


class PublisherStats(PublisherTotals, rename="camel", kw_only=True):
    """One connected producer; ``msgDropRate`` on non-persistent topics only."""

    access_mode: str
    producer_name: str
    address: str
    connected_since: str
    client_version: str
    metadata: dict[str, str]
    msg_drop_rate: float | UnsetType = UNSET


class ConsumerTotals(msgspec.Struct, rename="camel", kw_only=True):
    """The statistics of a consumer; of a partitioned topic their sum over the partitions.

    Draining hashes are keys on their way from one consumer to another: here a key moves at once.
    """

    msg_rate_out: float
    msg_throughput_out: float
    bytes_out_counter: int
    msg_out_counter: int
    msg_rate_redeliver: float
    message_ack_rate: float
    chunked_message_rate: float = 0.0
    available_permits: int
    unacked_messages: int
    avg_messages_per_entry: int
    blocked_consumer_on_unacked_msgs: bool
    draining_hashes_count: int = 0
    draining_hashes_cleared_total: int = 0
    draining_hashes_unacked_messages: int = 0
    last_acked_timestamp: int
    last_consumed_timestamp: int
    first_messages_sent_timestamp: int
    last_consumed_flow_timestamp: int
    first_consumed_flow_timestamp: int
    last_acked_time: str
    last_consumed_time: str


class ConsumerStats(ConsumerTotals, rename="camel", kw_only=True):
    """One connected consumer; on Key_Shared with the hash ranges it holds."""

    consumer_name: str
    address: str
    connected_since: str
    client_version: str
    metadata: dict[str, str]
    draining_hashes: list[str] | UnsetType = UNSET
    key_hash_range_arrays: list[tuple[int, int]] | UnsetType = UNSET


class Ranges(msgspec.Struct, rename="camel", kw_only=True):
    """State beyond a mark-delete position: ranges acknowledged out of order, and delayed messages."""

    non_contiguous_deleted_messages_ranges: int
    non_contiguous_deleted_messages_ranges_serialized_size: int
    delayed_message_index_size_in_bytes: int


class SubscriptionTotals(Ranges, rename="camel", kw_only=True):
    """The backlog and the unacknowledged messages of a subscription. The backlog counts the messages in batches.

    ``backlogSize`` is -1 if it was not asked for, ``earliestMsgPublishTimeInBacklog`` 0. ``skippedEntries`` and
    ``skippedMessages``, which Pulsar's have not, were damaged, and acknowledged without a delivery.
    """

    msg_rate_out: float
    msg_throughput_out: float
    bytes_out_counter: int
    msg_out_counter: int
    msg_rate_redeliver: float
    message_ack_rate: float
    chunked_message_rate: float = 0.0
    msg_backlog: int
    backlog_size: int
    earliest_msg_publish_time_in_backlog: int
    msg_backlog_no_delayed: int
    blocked_subscription_on_unacked_msgs: bool
    msg_delayed: int
    msg_in_replay: int
    unacked_messages: int
    type: Literal["Exclusive", "Shared", "Failover", "Key_Shared", "None"] | UnsetType = UNSET
    active_consumer_name: str | UnsetType = UNSET
    msg_rate_expired: float
    msg_expired: int
    total_msg_expired: int
    last_expire_timestamp: int
    last_consumed_flow_timestamp: int
    last_consumed_timestamp: int
    last_acked_timestamp: int
    last_mark_delete_advanced_timestamp: int
    consumers: tuple[ConsumerTotals, ...]
    is_durable: bool
    is_replicated: bool = False
    allow_out_of_order_delivery: bool
    key_shared_mode: Literal["AUTO_SPLIT", "STICKY"] | UnsetType = UNSET
    consumers_after_mark_delete_position: dict[str, str] = {}
    draining_hashes_count: int = 0
    draining_hashes_cleared_total: int = 0
    draining_hashes_unacked_messages: int = 0
    subscription_properties: dict[str, str]
    msg_drop_rate: float | UnsetType = UNSET
    filter_processed_msg_count: int = 0
    filter_accepted_msg_count: int = 0
    filter_rejected_msg_count: int = 0
    filter_rescheduled_msg_count: int = 0
    dispatch_throttled_msg_events_by_subscription_limit: int
    dispatch_throttled_bytes_events_by_subscription_limit: int
    dispatch_throttled_msg_events_by_topic_limit: int
    dispatch_throttled_bytes_events_by_topic_limit: int
    dispatch_throttled_msg_events_by_broker_limit: int = 0
    dispatch_throttled_bytes_events_by_broker_limit: int = 0
    skipped_entries: int = 0
    skipped_messages: int = 0
    durable: bool
    replicated: bool = False


class SubscriptionStats(SubscriptionTotals, rename="camel", kw_only=True):
    """One subscription of a topic, or of one partition; ``msgDropRate`` on non-persistent topics only.

    ``idleReason``, which Pulsar's have not, is the one reason why nothing is delivered now.
    """

    idle_reason: str = ""
    idle_since_timestamp: int = 0
    consumers: tuple[ConsumerStats, ...]


class CompactionStats(msgspec.Struct, rename="camel", kw_only=True):
    """Results of the latest compactions."""

    last_compaction_removed_event_count: int = 0
    last_compaction_succeed_timestamp: int = 0
    last_compaction_failed_timestamp: int = 0
    last_compaction_duration_time_in_mills: int = 0


class ReplicatorStats(msgspec.Struct, rename="camel"):
    """Always empty: geo-replication is not supported."""


class SuspendedDuty(msgspec.Struct, rename="camel"):
    """A task of the broker that failed and will be retried; ``subscription`` is empty for a task of the topic itself.

    Timestamps are wall-clock ms.
    """

    subscription: str
    duty: str
    reason: str
    since_timestamp: int
    last_failure_timestamp: int
    failures: int


class TopicTotals(Ranges, rename="camel", kw_only=True):
    """Messages and bytes received, dispatched and stored.

    ``keptByLedgerMessages`` and ``keptByLedgerSize``, which Pulsar's have not, are what of it stays only as long as its
    ledger: no subscription has it in its backlog, and no retention is set. Nor have Pulsar's ``damagedEntries``, what
    could not be read or understood, and ``suspended``, what raised.
    """

    msg_rate_in: float
    msg_throughput_in: float
    msg_rate_out: float
    msg_throughput_out: float
    bytes_in_counter: int
    msg_in_counter: int
    system_topic_bytes_in_counter: int = 0
    bytes_out_counter: int
    msg_out_counter: int
    bytes_out_internal_counter: int = 0
    average_msg_size: float
    msg_chunk_published: bool
    storage_size: int
    kept_by_ledger_messages: int
    kept_by_ledger_size: int
    damaged_entries: int = 0
    suspended: tuple[SuspendedDuty, ...] = ()
    backlog_size: int
    backlog_quota_limit_size: int
    backlog_quota_limit_time: int
    oldest_backlog_message_age_seconds: int
    oldest_backlog_message_subscription_name: str | UnsetType = UNSET
    publish_rate_limited_times: int
    earliest_msg_publish_time_in_backlogs: int
    offloaded_storage_size: int = 0
    last_offload_ledger_id: int = 0
    last_offload_success_time_stamp: int = 0
    last_offload_failure_time_stamp: int = 0
    ongoing_txn_count: int = 0
    aborted_txn_count: int = 0
    committed_txn_count: int = 0
    publishers: tuple[PublisherTotals, ...]
    waiting_publishers: int
    subscriptions: Mapping[str, SubscriptionTotals]
    replication: dict[str, ReplicatorStats] = {}
    compaction: CompactionStats
    topic_creation_time_stamp: int
    last_publish_time_stamp: int
    msg_drop_rate: float | UnsetType = UNSET


class TopicStats(TopicTotals, rename="camel", kw_only=True):
    """A topic that is not partitioned, or one partition.

    ``msgDropRate`` is on non-persistent topics only, ``deduplicationStatus`` on persistent ones.
    """

    publishers: tuple[PublisherStats, ...]
    subscriptions: Mapping[str, SubscriptionStats]
    deduplication_status: Literal["Enabled", "Disabled"] | UnsetType = UNSET
    owner_broker: str


class PartitionsInfo(msgspec.Struct):
    """The number of partitions."""

    partitions: int
    deleted: bool = False


class PartitionedStats(TopicTotals, rename="camel", kw_only=True):
    """A partitioned topic: sums, and each partition on demand."""

    metadata: PartitionsInfo
    partitions: dict[str, TopicStats]


class LedgerStats(msgspec.Struct, rename="camel"):
    """The stored part of one ledger; ``metadata`` says on demand when it was begun and whether it is written to.

    ``first_entry`` is the id of the first stored entry: Pulsar deletes whole ledgers only, and does not have the field.
    """

    ledger_id: int
    entries: int
    size: int
    first_entry: int | UnsetType = UNSET
    offloaded: bool = False
    under_replicated: bool = False
    metadata: str | UnsetType = UNSET


class CursorStats(msgspec.Struct, rename="camel", kw_only=True):
    """A subscription's cursor; positions are ``ledger:entry``."""

    mark_delete_position: str
    read_position: str
    waiting_read_op: bool
    pending_read_ops: int
    messages_consumed_counter: int
    cursor_ledger: int = -1
    cursor_ledger_last_entry: int = -1
    individually_deleted_messages: str
    last_ledger_switch_timestamp: str
    state: Literal["Open", "NoLedger"]
    active: bool
    number_of_entries_since_first_not_acked_message: int
    total_non_contiguous_deleted_messages_range: int
    subscription_have_pending_read: bool
    subscription_have_pending_replay_read: bool = False
    properties: dict[str, int] = {}


class InternalStats(msgspec.Struct, rename="camel", kw_only=True):
    """Ledgers and cursors of one topic; a non-persistent one has only the counts, all of them 0."""

    entries_added_counter: int
    number_of_entries: int
    total_size: int
    current_ledger_entries: int
    current_ledger_size: int
    last_ledger_created_timestamp: str | UnsetType = UNSET
    waiting_cursors_count: int
    pending_add_entries_count: int
    last_confirmed_entry: str | UnsetType = UNSET
    state: Literal["LedgerOpened", "Terminated"] | UnsetType = UNSET
    ledgers: list[LedgerStats] | UnsetType = UNSET
    cursors: dict[str, CursorStats]
    properties: dict[str, str] | UnsetType = UNSET
    schema_ledgers: list[LedgerStats] | UnsetType = UNSET
    compacted_ledger: LedgerStats | UnsetType = UNSET


class PartitionedInternalStats(msgspec.Struct, rename="camel"):
    """The internal statistics of each partition."""

    metadata: PartitionsInfo
    partitions: dict[str, InternalStats]
