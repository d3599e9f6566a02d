"""The statistics of a partitioned topic: those of its partitions added up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

#: Of these the largest counts: ages and times of the last something.
_LARGEST = frozenset(
    {
        "oldestBacklogMessageAgeSeconds",
        "lastPublishTimeStamp",
        "lastExpireTimestamp",
        "lastConsumedFlowTimestamp",
        "lastConsumedTimestamp",
        "lastAckedTimestamp",
        "lastMarkDeleteAdvancedTimestamp",
        "lastOffloadLedgerId",
        "lastOffloadSuccessTimeStamp",
        "lastOffloadFailureTimeStamp",
        "firstMessagesSentTimestamp",
        "firstConsumedFlowTimestamp",
        "avgMessagesPerEntry",
    }
)
#: Of these the smallest that is not 0.
_EARLIEST = frozenset({"topicCreationTimeStamp", "earliestMsgPublishTimeInBacklogs", "earliestMsgPublishTimeInBacklog"})
#: The same for every partition.
_COMMON = frozenset({"backlogQuotaLimitSize", "backlogQuotaLimitTime", "producerId"})
#: Say nothing about the whole, and are not in Pulsar's document of it.
_OF_ONE = frozenset({"ownerBroker", "deduplicationStatus"})
#: A producer or consumer of a partitioned topic is one per partition: their sum has figures, no identity.
_PUBLISHER_FIELDS = (
    "msgRateIn",
    "msgThroughputIn",
    "averageMsgSize",
    "chunkedMessageRate",
    "producerId",
    "supportsPartialProducer",
)
_CONSUMER_FIELDS = (
    "msgRateOut",
    "msgThroughputOut",
    "bytesOutCounter",
    "msgOutCounter",
    "msgRateRedeliver",
    "messageAckRate",
    "chunkedMessageRate",
    "availablePermits",
    "unackedMessages",
    "avgMessagesPerEntry",
    "blockedConsumerOnUnackedMsgs",
    "drainingHashesCount",
    "drainingHashesClearedTotal",
    "drainingHashesUnackedMessages",
    "lastAckedTimestamp",
    "lastConsumedTimestamp",
    "firstMessagesSentTimestamp",
    "lastConsumedFlowTimestamp",
    "firstConsumedFlowTimestamp",
)


def _combined(name: str, values: Sequence[Any]) -> Any:
    first = values[0]
    if name in _COMMON or not isinstance(first, int | float):
        return first
    if isinstance(first, bool):
        # A subscription is durable if it is everywhere; anything else is so if it is so somewhere.
        return all(values) if name in ("isDurable", "durable") else any(values)
    if name in _LARGEST:
        return max(values)
    if name in _EARLIEST:
        return min((value for value in values if value), default=0)
    return sum(values)


def _add(parts: Sequence[dict[str, Any]], names: Iterable[str]) -> dict[str, Any]:
    return {name: _combined(name, [part[name] for part in parts if name in part]) for name in names}


def _by_index(lists: Sequence[list[dict[str, Any]]], names: tuple[str, ...]) -> list[dict[str, Any]]:
    """Add the first of every partition, the second of every one, and so on, as Pulsar does."""
    longest = max((len(parts) for parts in lists), default=0)
    return [_add([parts[index] for parts in lists if index < len(parts)], names) for index in range(longest)]


def _names(parts: Sequence[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for part in parts for name in part))


def partitioned_stats(partitions: dict[str, dict[str, Any]], count: int, per_partition: bool) -> dict[str, Any]:
    """Return the sum of ``partitions`` (stats by topic name), with each one's own on demand."""
    parts = list(partitions.values())
    stats = _add(parts, [name for name in _names(parts) if name not in _OF_ONE])
    stats["averageMsgSize"] = stats["bytesInCounter"] / stats["msgInCounter"] if stats["msgInCounter"] else 0.0
    stats["publishers"] = _by_index([part["publishers"] for part in parts], _PUBLISHER_FIELDS)
    for publisher in stats["publishers"]:
        rate = publisher["msgRateIn"]
        publisher["averageMsgSize"] = publisher["msgThroughputIn"] / rate if rate else 0.0
    subscriptions: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys(name for part in parts for name in part["subscriptions"]):
        same = [part["subscriptions"][name] for part in parts if name in part["subscriptions"]]
        subscriptions[name] = _add(same, _names(same))
        subscriptions[name]["consumers"] = _by_index([sub["consumers"] for sub in same], _CONSUMER_FIELDS)
    stats["subscriptions"] = subscriptions
    stats["metadata"] = {"partitions": count, "deleted": False}
    stats["partitions"] = partitions if per_partition else {}
    return stats
