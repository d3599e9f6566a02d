"""Reads the statistics of topics from a broker's REST API: partitions, contents, lagging subscriptions, limits.

Plain Pulsar paths, one question for each partition: what comes back grows with the number of topics, not with what is
in them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from heliograph_spark.plan.connection import ask_admin, topic_path
from heliograph_spark.plan.errors import JobError
from heliograph_spark.plan.options import Connection
from heliograph_spark.plan.topics import topic_of

_PRECISELY = "getPreciseBacklog=true&subscriptionBacklogSize=true&getEarliestTimeInBacklog=true"
#: Pulsar's own tenant, and how the topics begin that it keeps its own things in.
_SYSTEM_TENANT = "pulsar"
_SYSTEM_TOPIC = "__"


@dataclass(frozen=True, slots=True)
class Lag:
    """The unacknowledged messages of one subscription on a partition. ``bytes_out_s``: bytes dispatched per second."""

    partition: str
    subscription: str
    messages: int
    bytes: int
    consumers: int
    bytes_out_s: float


@dataclass(frozen=True, slots=True)
class PartitionStats:
    """The broker's statistics of a partition, or of a topic without any. Limits are None where there is none.

    ``backlog_bytes`` is the slowest subscription's, which is what the quota counts; ``backlog_age_s`` is None if
    nothing waits.
    """

    partition: str
    topic: str
    stored_bytes: int
    backlog_bytes: int
    backlog_age_s: int | None
    limit_bytes: int | None
    limit_s: int | None
    lags: tuple[Lag, ...]

    @property
    def slowest(self) -> Lag | None:
        """The subscription that the quota counts."""
        return max(self.lags, key=lambda each: each.bytes, default=None)


def find_partitions(connection: Connection, tenants: Sequence[str]) -> list[str]:
    """Return the persistent partitions (and topics without any) of the tenants, or of all, sorted.

    The broker's own are left out.

    Raises :class:`JobError`, naming it, if there is no such tenant, and :class:`OptionError` without ``admin.url``.
    """
    known = ask_admin(connection, "tenants") or []
    if others := [each for each in tenants if each not in known]:
        raise JobError(f"there is no tenant {others[0]!r}; there are {', '.join(sorted(known))}")
    found: set[str] = set()
    for tenant in tenants or [each for each in known if each != _SYSTEM_TENANT]:
        for namespace in ask_admin(connection, f"namespaces/{tenant}") or []:
            found.update(ask_admin(connection, f"persistent/{namespace}") or [])
            found.update(
                _of_partitioned(connection, ask_admin(connection, f"persistent/{namespace}/partitioned") or [])
            )
    return sorted(each for each in found if not each.rsplit("/", 1)[-1].startswith(_SYSTEM_TOPIC))


def _of_partitioned(connection: Connection, topics: Iterable[str]) -> Iterable[str]:
    """Also among these, a partition that nobody has used yet may be missing where the broker lists what is open."""
    for topic in topics:
        answer = ask_admin(connection, f"{topic_path(topic)}/partitions") or {}
        for number in range(answer.get("partitions", 0)):
            yield f"{topic}-partition-{number}"


def stats_of(connection: Connection, partition: str) -> PartitionStats | None:
    """Return the broker's statistics of it; None if it is gone (or was never used)."""
    answer = ask_admin(connection, f"{topic_path(partition)}/stats?{_PRECISELY}")
    return None if answer is None else read_stats(partition, answer)


def read_stats(partition: str, answer: dict[str, Any]) -> PartitionStats:
    """Understand the answer to ``…/stats``."""
    lags = tuple(
        Lag(
            partition,
            name,
            int(each["msgBacklog"]),
            max(0, int(each.get("backlogSize", 0))),
            len(each.get("consumers", ())),
            float(each.get("msgThroughputOut", 0.0)),
        )
        for name, each in sorted(answer["subscriptions"].items())
    )
    return PartitionStats(
        partition,
        topic_of(partition),
        int(answer["storageSize"]),
        max((each.bytes for each in lags), default=max(0, int(answer.get("backlogSize", 0)))),
        _positive(answer.get("oldestBacklogMessageAgeSeconds"), zero=True),
        _positive(answer.get("backlogQuotaLimitSize")),
        _positive(answer.get("backlogQuotaLimitTime")),
        lags,
    )


def _positive(value: Any, *, zero: bool = False) -> int | None:
    return int(value) if value is not None and (value > 0 or (zero and value == 0)) else None
