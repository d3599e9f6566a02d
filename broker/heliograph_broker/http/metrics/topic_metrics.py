"""The columns of values that are written of topics and subscriptions, Pulsar's names first."""

from __future__ import annotations

from collections.abc import Callable

from heliograph_broker.http.base.rates import NO_FIGURES
from heliograph_broker.http.stats.stats import DELAYED_ENTRY_BYTES, blocked, in_replay
from heliograph_broker.messaging.base import histograms as figures

from .policy_metrics import POLICY_COLUMNS, POLICY_SUBSCRIPTION_COLUMNS
from .topic_columns import Column, SubscriptionColumn, SubscriptionLook, TopicLook, of_cursor, rounded

_WRITTEN = slice(figures.ENTRY_SIZE, figures.ENTRY_SIZE_SUM)


_LATENCY_SUFFIXES = ("le_0_5", "le_1", "le_5", "le_10", "le_20", "le_50", "le_100", "le_200", "le_1000", "overflow")
_SIZE_SUFFIXES = (
    "le_128", "le_512", "le_1_kb", "le_2_kb", "le_4_kb", "le_16_kb", "le_100_kb", "le_1_mb", "le_overflow",
)  # fmt: skip

#: What :func:`buckets` returns, in its order.
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

#: What Pulsar has and this broker does not: transactions, offloading, filters.
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


def buckets(look: TopicLook) -> tuple[int, ...]:
    """Return what the last minute added to the buckets, and the number and sum of each kind."""
    minute = look.minute
    if minute is NO_FIGURES:
        return _NO_BUCKETS
    entries = sum(minute[_WRITTEN])
    return (
        *minute[figures.WRITE_LATENCY : figures.WRITE_SUM_US],
        entries,
        minute[figures.WRITE_SUM_US],
        *minute[figures.LEDGER_LATENCY : figures.LEDGER_SUM_US],
        entries,
        minute[figures.LEDGER_SUM_US],
        *minute[_WRITTEN],
        entries,
        minute[figures.ENTRY_SIZE_SUM],
    )


def _average(look: TopicLook) -> float:
    return rounded(look.topic.bytes_in / look.topic.msg_in) if look.topic.msg_in else 0.0


TOPIC_COLUMNS: tuple[Column, ...] = (
    Column("pulsar_subscriptions_count", lambda look: len(look.looks)),
    Column("pulsar_producers_count", lambda look: len(look.topic.producers)),
    Column("pulsar_consumers_count", lambda look: sum(len(each.subscription.consumers) for each in look.looks)),
    Column("pulsar_rate_in", lambda look: rounded(look.rates[0])),
    Column("pulsar_rate_out", lambda look: rounded(look.sum_rate(0))),
    Column("pulsar_throughput_in", lambda look: rounded(look.rates[1])),
    Column("pulsar_throughput_out", lambda look: rounded(look.sum_rate(1))),
    Column("pulsar_average_msg_size", _average, whole=""),
    Column("pulsar_in_messages_total", lambda look: look.topic.msg_in, kind="total"),
    Column("pulsar_in_bytes_total", lambda look: look.topic.bytes_in, kind="total"),
    Column("pulsar_msg_backlog", lambda look: sum(each.subscription.backlog_messages for each in look.backlogged)),
    Column("pulsar_storage_size", lambda look: look.topic.stored_bytes),
    Column("pulsar_storage_logical_size", lambda look: look.topic.stored_bytes),
    Column("heliograph_damaged_entries", lambda look: look.kept.damaged.entries if look.kept is not None else 0),
    Column("heliograph_kept_by_ledger_messages", lambda look: look.by_ledger[0]),
    Column("heliograph_kept_by_ledger_bytes", lambda look: look.by_ledger[1]),
    Column("pulsar_storage_backlog_size", lambda look: look.topic.backlog_size()),
    Column(
        "pulsar_storage_backlog_age_seconds",
        lambda look: look.oldest_ms // 1000 if look.oldest_ms >= 0 else -1,
        whole="max",
    ),
    Column("pulsar_storage_backlog_quota_limit", lambda look: look.limits[0], whole=""),
    Column("pulsar_storage_backlog_quota_limit_time", lambda look: look.limits[1], whole=""),
    Column("pulsar_storage_write_rate", lambda look: rounded(sum(look.minute[_WRITTEN]) / look.seconds)),
    Column("pulsar_storage_read_rate", lambda look: rounded(sum(each.rates[6] for each in look.looks))),
    Column("pulsar_storage_read_cache_misses_rate", lambda look: rounded(look.minute[-1] / look.seconds)),
    Column(
        "pulsar_delayed_message_index_size_bytes",
        lambda look: DELAYED_ENTRY_BYTES * sum(each.delayed for each in look.looks),
    ),
    *POLICY_COLUMNS,
)


def _rate(index: int) -> Callable[[SubscriptionLook], float]:
    return lambda look: rounded(look.rates[index])


SUBSCRIPTION_COLUMNS: tuple[SubscriptionColumn, ...] = (
    SubscriptionColumn("pulsar_subscription_back_log", lambda look: look.subscription.backlog_messages),
    SubscriptionColumn(
        "pulsar_subscription_back_log_no_delayed",
        lambda look: max(0, look.subscription.backlog_messages - look.delayed),
    ),
    SubscriptionColumn("heliograph_subscription_backlog_bytes", lambda look: look.subscription.backlog_bytes),
    SubscriptionColumn(
        "heliograph_subscription_backlog_age_seconds", lambda look: look.age_ms / 1000 if look.age_ms >= 0 else -1
    ),
    SubscriptionColumn("pulsar_subscription_delayed", lambda look: look.delayed, whole="sum"),
    SubscriptionColumn(
        "pulsar_subscription_delayed_message_index_size_bytes", lambda look: DELAYED_ENTRY_BYTES * look.delayed
    ),
    SubscriptionColumn("pulsar_subscription_in_replay", lambda look: in_replay(look.subscription), whole="sum"),
    SubscriptionColumn("pulsar_subscription_unacked_messages", lambda look: look.subscription.unacked_messages),
    SubscriptionColumn("pulsar_subscription_blocked_on_unacked_messages", lambda look: int(blocked(look.subscription))),
    SubscriptionColumn("pulsar_subscription_consumers_count", lambda look: len(look.subscription.consumers)),
    SubscriptionColumn("pulsar_subscription_msg_rate_out", _rate(0)),
    SubscriptionColumn("pulsar_subscription_msg_throughput_out", _rate(1)),
    SubscriptionColumn("pulsar_subscription_msg_rate_redeliver", _rate(2)),
    SubscriptionColumn("pulsar_subscription_msg_ack_rate", _rate(3)),
    SubscriptionColumn("pulsar_subscription_msg_rate_expired", _rate(4)),
    SubscriptionColumn("pulsar_subscription_msg_drop_rate", _rate(5)),
    SubscriptionColumn("pulsar_out_messages_total", lambda look: look.subscription.msg_out, kind="total", whole="sum"),
    SubscriptionColumn("pulsar_out_bytes_total", lambda look: look.subscription.bytes_out, kind="total", whole="sum"),
    SubscriptionColumn("pulsar_subscription_total_msg_expired", of_cursor(lambda sub: sub.msg_expired)),
    SubscriptionColumn("pulsar_subscription_last_expire_timestamp", of_cursor(lambda sub: sub.last_expire_ms)),
    SubscriptionColumn("pulsar_subscription_last_acked_timestamp", of_cursor(lambda sub: sub.last_acked_ms)),
    SubscriptionColumn("pulsar_subscription_last_consumed_timestamp", of_cursor(lambda sub: sub.last_consumed_ms)),
    SubscriptionColumn(
        "pulsar_subscription_last_consumed_flow_timestamp", of_cursor(lambda sub: sub.last_consumed_flow_ms)
    ),
    SubscriptionColumn(
        "pulsar_subscription_last_mark_delete_advanced_timestamp", of_cursor(lambda sub: sub.last_mark_delete_ms)
    ),
    *POLICY_SUBSCRIPTION_COLUMNS,
)
