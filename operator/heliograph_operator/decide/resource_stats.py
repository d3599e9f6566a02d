"""Statistics of a resource (backlog, storage, quota) for its status, and when a change of them is worth a write.

Every write of a status is a revision in etcd and an event for every watcher, and statistics change all the time. So a
large change is written at once and a small one after a while. The age of the oldest message always grows: the status
has its time, which is constant, and the age itself in steps that grow with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from heliograph_api.resources.archive_spec import SUBSCRIPTION
from heliograph_api.resources.broker_state import BrokerState, TopicState
from heliograph_api.values.names import SubscriptionName
from heliograph_api.values.readable import readable_duration, readable_size

from heliograph_operator.objects.conditions import QUOTA_EXCEEDED, Reason, Verdict, timestamp

#: Relative change that is written at once.
STEP: Final = 0.05
AGE_STEP: Final = 0.1
#: Change of a percentage, in points, that is written at once.
PERCENT_STEP: Final = 5
#: Time (s) after which any change is written: at the second refresh, so a status is at most 30 s old.
SMALL_CHANGE_S: Final = 20.0

_COUNTS: Final = ("partitions", "subscriptions", "topics", "namespaces", "consumers")
#: The fields of a status that :class:`ResourceStats` fills.
STATUS_FIELDS: Final = ("backlog", "storage", "quotaUsed", "quotaUsedPercent", *_COUNTS)


class ResourceStats(NamedTuple):
    """Exact statistics of one resource; -1 (counts: None) where one does not apply."""

    messages: int = 0
    bytes: int = 0
    oldest_age_ms: int = -1
    storage_bytes: int = 0
    used_percent: int = -1
    partitions: int | None = None
    subscriptions: int | None = None
    topics: int | None = None
    namespaces: int | None = None
    consumers: int | None = None
    oldest_received_ms: int = -1
    #: Messages in the backlog of the archive's subscription; None: there is no such subscription.
    archive_lag: int | None = None

    def shown(self) -> dict[str, Any]:
        """Return the fields of a status."""
        backlog: dict[str, Any] = {"messages": self.messages, "bytes": readable_size(self.bytes)}
        if self.oldest_age_ms >= 0:
            backlog["oldestAge"] = readable_duration(_whole(self.oldest_age_ms))
            backlog["oldestTime"] = timestamp(datetime.fromtimestamp(self.oldest_received_ms // 1000, UTC))
        fields: dict[str, Any] = {"backlog": backlog}
        if self.storage_bytes >= 0:
            fields["storage"] = {"bytes": readable_size(self.storage_bytes)}
        if self.used_percent >= 0:
            fields["quotaUsed"] = f"{self.used_percent}%"
            fields["quotaUsedPercent"] = self.used_percent
        for name in _COUNTS:
            if (count := getattr(self, name)) is not None:
                fields[name] = count
        if self.archive_lag is not None:
            fields["archive"] = {"lag": self.archive_lag}
        return fields


def _whole(ms: int) -> int:
    """Round an age down to seconds."""
    return ms // 1000 * 1000 if ms >= 1000 else 0


def totals_of(state: BrokerState) -> dict[str, ResourceStats]:
    """Return the statistics of every namespace (``tenant/own``) and every tenant of a broker."""
    topics: dict[str, list[TopicState]] = {name: [] for name in (*state.tenants, *state.namespaces)}
    for full, topic in state.topics.items():
        tenant, namespace, _ = full.partition("://")[2].split("/", 2)
        for name in (tenant, f"{tenant}/{namespace}"):
            topics.setdefault(name, []).append(topic)
    totals = {name: _sum(those) for name, those in topics.items()}
    for tenant in state.tenants:
        count = sum(name.startswith(f"{tenant}/") for name in state.namespaces)
        totals[tenant] = totals[tenant]._replace(namespaces=count)
    return totals


def stats_of(kind: str, name: str, state: BrokerState, totals: Mapping[str, ResourceStats]) -> ResourceStats | None:
    """Return the statistics of an object of a broker, None if it does not exist; ``totals`` are :func:`totals_of`."""
    if kind == "Subscription":
        return _of_subscription(SubscriptionName.parse(name), state)
    if kind != "Topic":
        return totals.get(name)
    topic = state.topics.get(name)
    return _of_topic(topic) if topic is not None else None


def _of_subscription(name: SubscriptionName, state: BrokerState) -> ResourceStats | None:
    topic = state.topics.get(str(name.topic))
    found = topic.subscription(name.local) if topic is not None else None
    if found is None:
        return None
    return ResourceStats(
        messages=found.messages,
        bytes=found.bytes,
        oldest_age_ms=found.oldest_age_ms,
        oldest_received_ms=found.oldest_received_ms,
        storage_bytes=-1,
        consumers=found.consumers,
    )


def _of_topic(topic: TopicState) -> ResourceStats:
    used = max(topic.size_used, topic.age_used)
    return ResourceStats(
        messages=topic.backlog_messages,
        bytes=topic.backlog_bytes,
        oldest_age_ms=topic.oldest_age_ms,
        oldest_received_ms=topic.oldest_received_ms,
        storage_bytes=topic.storage_bytes,
        used_percent=int(used * 100 + 1e-9) if used >= 0 else -1,
        partitions=topic.partitions,
        subscriptions=len(topic.subscriptions),
        archive_lag=topic.behind.get(SUBSCRIPTION, 0) if SUBSCRIPTION in topic.subscriptions else None,
    )


def _sum(topics: Iterable[TopicState]) -> ResourceStats:
    messages = size = storage = count = 0
    oldest = received = -1
    for topic in topics:
        messages += topic.backlog_messages
        size += topic.backlog_bytes
        storage += topic.storage_bytes
        if topic.oldest_age_ms > oldest:
            oldest, received = topic.oldest_age_ms, topic.oldest_received_ms
        count += 1
    return ResourceStats(messages, size, oldest, storage, topics=count, oldest_received_ms=received)


def quota_verdict(topic: TopicState) -> Verdict:
    """Return the QuotaExceeded condition of a topic."""
    if topic.size_exceeded:
        message = f"the backlog has reached its limit of {readable_size(topic.size_limit)}"
        return Verdict(QUOTA_EXCEEDED, "True", Reason.SIZE_QUOTA_EXCEEDED, message)
    if topic.age_exceeded:
        message = f"the oldest unacknowledged message is older than {readable_duration(topic.age_limit_ms)}"
        return Verdict(QUOTA_EXCEEDED, "True", Reason.AGE_QUOTA_EXCEEDED, message)
    if topic.size_limit < 0 and topic.age_limit_ms < 0:
        return Verdict(QUOTA_EXCEEDED, "False", Reason.NO_QUOTA, "there is no backlog quota")
    return Verdict(QUOTA_EXCEEDED, "False", Reason.QUOTA_WITHIN_LIMITS, "the backlog is below its limits")


def worth_writing(written: ResourceStats | None, now: ResourceStats, since_s: float) -> bool:
    """Whether ``now`` should replace the statistics ``written`` to a status ``since_s`` seconds ago."""
    if written is None:
        return True
    before, after = written.shown(), now.shown()
    if before == after:
        return False
    if any(getattr(written, name) != getattr(now, name) for name in _COUNTS):
        return True
    if (written.used_percent < 0) != (now.used_percent < 0):
        return True
    if abs(written.used_percent - now.used_percent) >= PERCENT_STEP:
        return True
    if (written.oldest_age_ms < 0) != (now.oldest_age_ms < 0):
        return True
    if any(_moved(getattr(written, name), getattr(now, name), STEP) for name in ("messages", "bytes", "storage_bytes")):
        return True
    if _moved(written.archive_lag or 0, now.archive_lag or 0, STEP):
        return True
    if _moved(written.oldest_age_ms, now.oldest_age_ms, AGE_STEP):
        return True
    before["backlog"].pop("oldestAge", None)
    after["backlog"].pop("oldestAge", None)
    return since_s >= SMALL_CHANGE_S and before != after


def _moved(before: int, now: int, step: float) -> bool:
    if before == now:
        return False
    return before <= 0 or now <= 0 or abs(now - before) >= step * before
