"""The columns of values that are written of topics and subscriptions, Pulsar's names first."""

from __future__ import annotations

from collections.abc import Callable

from heliograph_broker.http.base.rates import NO_COUNTERS
from heliograph_broker.http.stats.stats import DELAYED_ENTRY_BYTES, blocked, in_replay
from heliograph_broker.messaging.base import histograms as histograms

from .policy_metrics import POLICY_COLUMNS, POLICY_SUBSCRIPTION_COLUMNS
from .topic_columns import Column, SubscriptionColumn, SubscriptionSnapshot, TopicSnapshot, of_cursor, rounded

_WRITTEN = slice(histograms.ENTRY_SIZE, histograms.ENTRY_SIZE_SUM)


_LATENCY_SUFFIXES = ("le_0_5", "le_1", "le_5", "le_10", "le_20", "le_50", "le_100", "le_200", "le_1000", "overflow")
_SIZE_SUFFIXES = (
    "le_128", "le_512", "le_1_kb", "le_2_kb", "le_4_kb", "le_16_kb", "le_100_kb", "le_1_mb", "le_overflow",
)  # fmt: skip

#: The columns that :func:`buckets` returns, in its order.
BUCKET_COLUMNS: tuple[Column, ...] = tuple(
    Column(f"{prefix}_{suffix}")
    for prefix, suffixes in (
        ("pulsar_storage_write_latency", _LATENCY_SUFFIXES),
        ("pulsar_storage_ledger_write_latency", _LATENCY_SUFFIXES),
        ("pulsar_entry_size", _SIZE_SUFFIXES),
    )
    for suffix in (*suffixes, "count", "sum")
)
_NO_BUCKETS = (0,) * len(BUCKET_COLUMNS)

#: Pulsar's columns for features that this broker does not have: transactions, offloading, filters.
ZERO_COLUMNS: tuple[Column, ...] = (
    Column("pulsar_storage_offloaded_size"),
    Column("pulsar_txn_tb_active_total"),
    Column("pulsar_txn_tb_aborted_total", kind="total"),
    Column("pulsar_txn_tb_committed_total", kind="total"),
)
ZERO_SUBSCRIPTION_COLUMNS: tuple[SubscriptionColumn, ...] = tuple(
    SubscriptionColumn(f"pulsar_subscription_filter_{what}_msg_count")
    for what in ("processed", "accepted", "rejected", "rescheduled")
)


def buckets(snapshot: TopicSnapshot) -> tuple[int, ...]:
    """Return the additions of the last minute to the buckets, and the number and sum of each kind."""
    minute = snapshot.minute
    if minute is NO_COUNTERS:
        return _NO_BUCKETS
    entries = sum(minute[_WRITTEN])
    return (
        *minute[histograms.WRITE_LATENCY : histograms.WRITE_SUM_US],
        entries,
        minute[histograms.WRITE_SUM_US],
        *minute[histograms.LEDGER_LATENCY : histograms.LEDGER_SUM_US],
        entries,
        minute[histograms.LEDGER_SUM_US],
        *minute[_WRITTEN],
        entries,
        minute[histograms.ENTRY_SIZE_SUM],
    )


def _average(snapshot: TopicSnapshot) -> float:
    statistics = snapshot.topic.statistics
    return rounded(statistics.bytes_in / statistics.msg_in) if statistics.msg_in else 0.0


TOPIC_COLUMNS: tuple[Column, ...] = (
    Column("pulsar_subscriptions_count", lambda snapshot: len(snapshot.subscriptions)),
    Column("pulsar_producers_count", lambda snapshot: len(snapshot.topic.producers)),
    Column(
        "pulsar_consumers_count",
        lambda snapshot: sum(len(each.subscription.consumers) for each in snapshot.subscriptions),
    ),
    Column("pulsar_rate_in", lambda snapshot: rounded(snapshot.rates[0])),
    Column("pulsar_rate_out", lambda snapshot: rounded(snapshot.sum_rate(0))),
    Column("pulsar_throughput_in", lambda snapshot: rounded(snapshot.rates[1])),
    Column("pulsar_throughput_out", lambda snapshot: rounded(snapshot.sum_rate(1))),
    Column("pulsar_average_msg_size", _average, whole=""),
    Column("pulsar_in_messages_total", lambda snapshot: snapshot.topic.statistics.msg_in, kind="total"),
    Column("pulsar_in_bytes_total", lambda snapshot: snapshot.topic.statistics.bytes_in, kind="total"),
    Column(
        "pulsar_msg_backlog",
        lambda snapshot: sum(each.subscription.acks.backlog_messages for each in snapshot.backlogged),
    ),
    Column("pulsar_storage_size", lambda snapshot: snapshot.topic.statistics.stored_bytes),
    Column("pulsar_storage_logical_size", lambda snapshot: snapshot.topic.statistics.stored_bytes),
    Column("heliograph_damaged_entries", lambda snapshot: snapshot.topic.statistics.damaged_entries),
    Column("heliograph_kept_by_ledger_messages", lambda snapshot: snapshot.by_ledger[0]),
    Column("heliograph_kept_by_ledger_bytes", lambda snapshot: snapshot.by_ledger[1]),
    Column("pulsar_storage_backlog_size", lambda snapshot: snapshot.topic.statistics.backlog_size()),
    Column(
        "pulsar_storage_backlog_age_seconds",
        lambda snapshot: snapshot.oldest_ms // 1000 if snapshot.oldest_ms >= 0 else -1,
        whole="max",
    ),
    Column("pulsar_storage_backlog_quota_limit", lambda snapshot: snapshot.limits[0], whole=""),
    Column("pulsar_storage_backlog_quota_limit_time", lambda snapshot: snapshot.limits[1], whole=""),
    Column("pulsar_storage_write_rate", lambda snapshot: rounded(sum(snapshot.minute[_WRITTEN]) / snapshot.seconds)),
    Column("pulsar_storage_read_rate", lambda snapshot: rounded(sum(each.rates[6] for each in snapshot.subscriptions))),
    Column("pulsar_storage_read_cache_misses_rate", lambda snapshot: rounded(snapshot.minute[-1] / snapshot.seconds)),
    Column(
        "pulsar_delayed_message_index_size_bytes",
        lambda snapshot: DELAYED_ENTRY_BYTES * sum(each.delayed for each in snapshot.subscriptions),
    ),
    *POLICY_COLUMNS,
)


def _rate(index: int) -> Callable[[SubscriptionSnapshot], float]:
    return lambda snapshot: rounded(snapshot.rates[index])


SUBSCRIPTION_COLUMNS: tuple[SubscriptionColumn, ...] = (
    SubscriptionColumn("pulsar_subscription_back_log", lambda snapshot: snapshot.subscription.acks.backlog_messages),
    SubscriptionColumn(
        "pulsar_subscription_back_log_no_delayed",
        lambda snapshot: max(0, snapshot.subscription.acks.backlog_messages - snapshot.delayed),
    ),
    SubscriptionColumn(
        "heliograph_subscription_backlog_bytes", lambda snapshot: snapshot.subscription.acks.backlog_bytes
    ),
    SubscriptionColumn(
        "heliograph_subscription_backlog_age_seconds",
        lambda snapshot: snapshot.age_ms / 1000 if snapshot.age_ms >= 0 else -1,
    ),
    SubscriptionColumn("pulsar_subscription_delayed", lambda snapshot: snapshot.delayed, whole="sum"),
    SubscriptionColumn(
        "pulsar_subscription_delayed_message_index_size_bytes", lambda snapshot: DELAYED_ENTRY_BYTES * snapshot.delayed
    ),
    SubscriptionColumn("pulsar_subscription_in_replay", lambda snapshot: in_replay(snapshot.subscription), whole="sum"),
    SubscriptionColumn(
        "pulsar_subscription_unacked_messages", lambda snapshot: snapshot.subscription.acks.unacked_messages
    ),
    SubscriptionColumn(
        "pulsar_subscription_blocked_on_unacked_messages", lambda snapshot: int(blocked(snapshot.subscription))
    ),
    SubscriptionColumn("pulsar_subscription_consumers_count", lambda snapshot: len(snapshot.subscription.consumers)),
    SubscriptionColumn("pulsar_subscription_msg_rate_out", _rate(0)),
    SubscriptionColumn("pulsar_subscription_msg_throughput_out", _rate(1)),
    SubscriptionColumn("pulsar_subscription_msg_rate_redeliver", _rate(2)),
    SubscriptionColumn("pulsar_subscription_msg_ack_rate", _rate(3)),
    SubscriptionColumn("pulsar_subscription_msg_rate_expired", _rate(4)),
    SubscriptionColumn("pulsar_subscription_msg_drop_rate", _rate(5)),
    SubscriptionColumn(
        "pulsar_out_messages_total", lambda snapshot: snapshot.subscription.sent.msg_out, kind="total", whole="sum"
    ),
    SubscriptionColumn(
        "pulsar_out_bytes_total", lambda snapshot: snapshot.subscription.sent.bytes_out, kind="total", whole="sum"
    ),
    SubscriptionColumn("pulsar_subscription_total_msg_expired", of_cursor(lambda sub: sub.expiry.msg_expired)),
    SubscriptionColumn("pulsar_subscription_last_expire_timestamp", of_cursor(lambda sub: sub.expiry.last_expire_ms)),
    SubscriptionColumn("pulsar_subscription_last_acked_timestamp", of_cursor(lambda sub: sub.acks.last_acked_ms)),
    SubscriptionColumn("pulsar_subscription_last_consumed_timestamp", of_cursor(lambda sub: sub.sent.last_consumed_ms)),
    SubscriptionColumn(
        "pulsar_subscription_last_consumed_flow_timestamp", of_cursor(lambda sub: sub.last_consumed_flow_ms)
    ),
    SubscriptionColumn(
        "pulsar_subscription_last_mark_delete_advanced_timestamp", of_cursor(lambda sub: sub.acks.last_mark_delete_ms)
    ),
    *POLICY_SUBSCRIPTION_COLUMNS,
)
