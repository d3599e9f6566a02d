"""Usage statistics from Spark's counts and the broker's: growth, skew, forecasts, and the sums of groups.

Everything here is of the size of the list of topics; the counts of keys come from Spark already summed up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .broker_stats import PartitionStats
from .forecast import Forecast, forecast

HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Counted:
    """Spark's counts of a partition; ``bytes`` are the messages' own, not as stored. Times in ms since 1970.

    ``series`` is bytes in each whole interval from ``first_ms`` on to the moment of the report.
    """

    messages: int = 0
    bytes: int = 0
    first_ms: int | None = None
    last_ms: int | None = None
    interval_s: int = 1
    series: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class BiggestKey:
    """A topic's keys: how many there are, and the one with most messages."""

    keys: int
    key: str | None
    messages: int


@dataclass(frozen=True, slots=True)
class PartitionUsage:
    """One partition in the report. Rates are per hour, shares of 1, times in seconds; None where there is none.

    ``seconds_to_quota`` is 0 once the quota is reached, and None if it has none or does not come near it;
    ``forecast_error`` belongs to it: the relative error on held-back data.
    """

    tenant: str
    namespace: str
    topic: str
    partition: str
    messages: int
    bytes: int
    stored_bytes: int
    first_ms: int | None
    last_ms: int | None
    messages_per_hour: float | None
    bytes_per_hour: float | None
    backlog_bytes: int
    quota_bytes: int | None
    quota_use: float | None
    backlog_age_s: int | None
    quota_age_s: int | None
    seconds_to_quota: float | None
    forecast_model: str | None
    forecast_error: float | None
    forecast_bias: float | None
    interval_s: int | None
    intervals: int


@dataclass(frozen=True, slots=True)
class TopicUsage:
    """A topic: its partitions together; the quota is that of the partition which reaches it first."""

    tenant: str
    namespace: str
    topic: str
    partitions: int
    messages: int
    bytes: int
    stored_bytes: int
    messages_per_hour: float | None
    bytes_per_hour: float | None
    keys: int
    biggest_key: str | None
    key_skew: float | None
    partition_skew: float | None
    backlog_bytes: int
    quota_bytes: int | None
    quota_use: float | None
    seconds_to_quota: float | None
    forecast_model: str | None
    forecast_error: float | None
    archived_messages: int | None
    archived_bytes: int | None


@dataclass(frozen=True, slots=True)
class GroupUsage:
    """A namespace or a tenant: its topics together, and the share of the biggest of them in the bytes."""

    name: str
    topics: int
    messages: int
    bytes: int
    stored_bytes: int
    bytes_per_hour: float
    topic_skew: float | None
    backlog_bytes: int
    quota_use: float | None
    seconds_to_quota: float | None


def partition_usage(stats: PartitionStats, counted: Counted, now_ms: int) -> tuple[PartitionUsage, Forecast | None]:
    """Return a partition's statistics and the forecast they rest on.

    Incoming traffic is forecast; what the slowest subscription is given goes on as it is now. The quota counts bytes as
    stored, so the forecast, of the messages' own bytes, is taken in the proportion of the two up to now.
    """
    _, _, tenant, namespace, _ = stats.partition.split("/", 4)
    found = forecast(counted.series, counted.interval_s)
    hours = None if counted.first_ms is None else max(now_ms - counted.first_ms, 1000) / 1000 / HOUR_S
    until = None
    if stats.limit_bytes is not None:
        left = stats.limit_bytes - stats.backlog_bytes
        if left <= 0:
            until = 0.0
        elif found is not None and stats.slowest is not None:
            stored = stats.stored_bytes / counted.bytes if stats.stored_bytes and counted.bytes else 1.0
            drained = stats.slowest.bytes_out_s * counted.interval_s
            intervals = found.intervals_until(left / stored, drained / stored)
            until = None if intervals is None else intervals * counted.interval_s
    usage = PartitionUsage(
        tenant=tenant,
        namespace=f"{tenant}/{namespace}",
        topic=stats.topic,
        partition=stats.partition,
        messages=counted.messages,
        bytes=counted.bytes,
        stored_bytes=stats.stored_bytes,
        first_ms=counted.first_ms,
        last_ms=counted.last_ms,
        messages_per_hour=None if hours is None else counted.messages / hours,
        bytes_per_hour=None if hours is None else counted.bytes / hours,
        backlog_bytes=stats.backlog_bytes,
        quota_bytes=stats.limit_bytes,
        quota_use=None if stats.limit_bytes is None else stats.backlog_bytes / stats.limit_bytes,
        backlog_age_s=stats.backlog_age_s,
        quota_age_s=stats.limit_s,
        seconds_to_quota=until,
        forecast_model=None if found is None else found.model,
        forecast_error=None if found is None else found.error,
        forecast_bias=None if found is None else found.bias,
        interval_s=counted.interval_s if counted.series else None,
        intervals=len(counted.series),
    )
    return usage, found


def topic_usage(
    partitions: Iterable[PartitionUsage],
    keys: Mapping[str, BiggestKey],
    archived: Mapping[str, tuple[int, int]],
) -> list[TopicUsage]:
    """Return the topics of the partitions, sorted by name."""
    of_topic: dict[str, list[PartitionUsage]] = defaultdict(list)
    for each in partitions:
        of_topic[each.topic].append(each)
    found = []
    for topic, parts in sorted(of_topic.items()):
        first = min(parts, key=_quota_order)
        key = keys.get(topic, BiggestKey(0, None, 0))
        messages, size = sum(each.messages for each in parts), sum(each.bytes for each in parts)
        archived_messages, archived_bytes = archived.get(topic, (None, None))
        found.append(
            TopicUsage(
                tenant=first.tenant,
                namespace=first.namespace,
                topic=topic,
                partitions=len(parts),
                messages=messages,
                bytes=size,
                stored_bytes=sum(each.stored_bytes for each in parts),
                messages_per_hour=_sum(each.messages_per_hour for each in parts),
                bytes_per_hour=_sum(each.bytes_per_hour for each in parts),
                keys=key.keys,
                biggest_key=key.key,
                key_skew=key.messages / messages if messages and key.keys else None,
                partition_skew=max(each.bytes for each in parts) / size if size else None,
                backlog_bytes=sum(each.backlog_bytes for each in parts),
                quota_bytes=first.quota_bytes,
                quota_use=max((each.quota_use for each in parts if each.quota_use is not None), default=None),
                seconds_to_quota=first.seconds_to_quota,
                forecast_model=first.forecast_model,
                forecast_error=first.forecast_error,
                archived_messages=archived_messages,
                archived_bytes=archived_bytes,
            )
        )
    return found


def group_usage(topics: Sequence[TopicUsage], by: str) -> list[GroupUsage]:
    """Return the sums by ``namespace`` or ``tenant``, sorted by name."""
    of_group: dict[str, list[TopicUsage]] = defaultdict(list)
    for each in topics:
        of_group[getattr(each, by)].append(each)
    found = []
    for name, members in sorted(of_group.items()):
        size = sum(each.bytes for each in members)
        nearest = [each.seconds_to_quota for each in members if each.seconds_to_quota is not None]
        found.append(
            GroupUsage(
                name=name,
                topics=len(members),
                messages=sum(each.messages for each in members),
                bytes=size,
                stored_bytes=sum(each.stored_bytes for each in members),
                bytes_per_hour=_sum(each.bytes_per_hour for each in members) or 0.0,
                topic_skew=max(each.bytes for each in members) / size if size else None,
                backlog_bytes=sum(each.backlog_bytes for each in members),
                quota_use=max((each.quota_use for each in members if each.quota_use is not None), default=None),
                seconds_to_quota=min(nearest, default=None),
            )
        )
    return found


def _quota_order(each: PartitionUsage) -> tuple[float, float]:
    """Smaller is nearer to its quota; of those that never reach it, what is fuller comes first."""
    until = each.seconds_to_quota
    return float("inf") if until is None else until, -(each.quota_use or 0.0)


def _sum(values: Iterable[float | None]) -> float | None:
    known = [each for each in values if each is not None]
    return sum(known) if known else None
