"""The metrics of what policies do: quotas and their use, evictions, expiry, dead letters, rates, compaction.

Pulsar's say how often something happened; Heliograph's how many messages it concerned, and how near the limit is.
"""

from __future__ import annotations

from collections.abc import Callable

from heliograph_broker.messaging.base.records import CompactionRecord
from heliograph_broker.messaging.compaction.compaction import TopicCompaction
from heliograph_broker.messaging.delivery.subscription import Subscription
from heliograph_broker.messaging.policies.backlog_quota import QuotaState
from heliograph_broker.messaging.policies.rate_limits import throttle_counts

from .exposition import Value
from .topic_columns import Column, SubscriptionColumn, SubscriptionSnapshot, TopicSnapshot, of_cursor

_SIZE, _TIME = ',quota_type="size"', ',quota_type="time"'


_THROTTLED = "pulsar_subscription_dispatch_throttled"
_SUBSCRIPTION, _TOPIC, _BROKER = ',reason="subscription"', ',reason="topic"', ',reason="broker"'


def _of_quota(read: Callable[[QuotaState], int]) -> Callable[[TopicSnapshot], int]:
    """Return a count that only a stored topic has; any other says 0."""
    return lambda snapshot: read(snapshot.kept.quota) if snapshot.kept is not None else 0


def _size_ratio(snapshot: TopicSnapshot) -> Value | None:
    limit = snapshot.limits[0]
    if limit < 0 or snapshot.kept is None:
        return None
    used = snapshot.topic.statistics.backlog_size()
    return round(used / limit, 6) if limit else float(used > 0)


def _age_ratio(snapshot: TopicSnapshot) -> Value | None:
    limit = snapshot.age_limit_ms
    if limit < 0 or snapshot.kept is None:
        return None
    age = max(0, snapshot.oldest_ms)
    return round(age / limit, 6) if limit else float(age > 0)


def _size_exceeded(snapshot: TopicSnapshot) -> Value | None:
    return int(snapshot.kept.quota.size_exceeded) if snapshot.kept is not None and snapshot.limits[0] >= 0 else None


def _age_exceeded(snapshot: TopicSnapshot) -> Value | None:
    return int(snapshot.kept.quota.age_exceeded) if snapshot.kept is not None and snapshot.age_limit_ms >= 0 else None


def _of_compaction(read: Callable[[TopicCompaction, CompactionRecord], int]) -> Callable[[TopicSnapshot], Value | None]:
    """Return a value of the last compaction, where there was one."""

    def value(snapshot: TopicSnapshot) -> Value | None:
        record = snapshot.kept.compaction.record if snapshot.kept is not None else None
        return read(snapshot.kept.compaction, record) if snapshot.kept is not None and record is not None else None

    return value


POLICY_COLUMNS: tuple[Column, ...] = (
    Column("pulsar_publish_rate_limit_times", lambda snapshot: snapshot.topic.limits.publish_throttled),
    Column(
        "pulsar_storage_backlog_quota_exceeded_evictions_total", _of_quota(lambda q: q.evictions_size), _SIZE, "total"
    ),
    Column(
        "pulsar_storage_backlog_quota_exceeded_evictions_total", _of_quota(lambda q: q.evictions_age), _TIME, "total"
    ),
    Column("heliograph_backlog_quota_usage_ratio", _size_ratio, _SIZE, whole="max"),
    Column("heliograph_backlog_quota_usage_ratio", _age_ratio, _TIME, whole="max"),
    Column("heliograph_backlog_quota_exceeded", _size_exceeded, _SIZE),
    Column("heliograph_backlog_quota_exceeded", _age_exceeded, _TIME),
    Column("heliograph_backlog_quota_evicted_messages_total", _of_quota(lambda q: q.evicted_size), _SIZE, "counter"),
    Column("heliograph_backlog_quota_evicted_messages_total", _of_quota(lambda q: q.evicted_age), _TIME, "counter"),
    Column("heliograph_backlog_quota_refused_publishes_total", _of_quota(lambda q: q.refused_size), _SIZE, "counter"),
    Column("heliograph_backlog_quota_refused_publishes_total", _of_quota(lambda q: q.refused_age), _TIME, "counter"),
    Column("heliograph_backlog_quota_held_producers", _of_quota(lambda q: q.held_producers)),
    Column("pulsar_compaction_removed_event_count", _of_compaction(lambda last, _: last.removed)),
    Column("pulsar_compaction_duration_time_in_mills", _of_compaction(lambda last, _: last.duration_ms), whole="max"),
    Column("pulsar_compaction_compacted_entries_count", _of_compaction(lambda _, record: record.entries)),
    Column("pulsar_compaction_compacted_entries_size", _of_compaction(lambda _, record: record.size)),
)


def _counter(name: str, read: Callable[[Subscription], int]) -> SubscriptionColumn:
    return SubscriptionColumn(name, of_cursor(read), kind="counter", whole="sum")


def _ttl_seconds(snapshot: SubscriptionSnapshot) -> Value:
    ttl_ms = snapshot.cursor.expiry.ttl_ms if snapshot.cursor is not None else -1
    return ttl_ms / 1000 if ttl_ms >= 0 else -1


POLICY_SUBSCRIPTION_COLUMNS: tuple[SubscriptionColumn, ...] = (
    SubscriptionColumn("heliograph_subscription_message_ttl_seconds", _ttl_seconds),
    _counter("heliograph_skipped_entries_total", lambda sub: sub.acks.skipped_entries),
    _counter("heliograph_expired_messages_total", lambda sub: sub.expiry.msg_expired),
    _counter("heliograph_dead_lettered_messages_total", lambda sub: sub.expiry.dead_lettered),
    _counter("heliograph_dead_letter_loops_total", lambda sub: sub.expiry.dead_letter_loops),
    _counter("heliograph_dead_letter_failures_total", lambda sub: sub.expiry.dead_letter_failures),
    SubscriptionColumn(f"{_THROTTLED}_msg_events", of_cursor(lambda sub: throttle_counts(sub).messages), _SUBSCRIPTION),
    SubscriptionColumn(
        f"{_THROTTLED}_msg_events", of_cursor(lambda sub: throttle_counts(sub).messages_by_topic), _TOPIC
    ),
    SubscriptionColumn(f"{_THROTTLED}_msg_events", lambda snapshot: 0, _BROKER),
    SubscriptionColumn(f"{_THROTTLED}_bytes_events", of_cursor(lambda sub: throttle_counts(sub).bytes), _SUBSCRIPTION),
    SubscriptionColumn(
        f"{_THROTTLED}_bytes_events", of_cursor(lambda sub: throttle_counts(sub).bytes_by_topic), _TOPIC
    ),
    SubscriptionColumn(f"{_THROTTLED}_bytes_events", lambda snapshot: 0, _BROKER),
)
