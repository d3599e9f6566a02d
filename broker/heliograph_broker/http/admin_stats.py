"""The paths of the statistics."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from heliograph_broker.messaging.errors import TopicNotFound

from .admin_brokers import own_address
from .admin_topics import TOPIC_PATH
from .context import BROKER, RATES, as_json, flag, topic_of
from .internal_stats import internal_stats
from .operations import Parameter, operation
from .partitioned_stats import partitioned_stats
from .stats import topic_stats
from .stats_documents import InternalStats, PartitionedStats, TopicStats

_EARLIEST = Parameter(
    "getEarliestTimeInBacklog", bool, "Also look up when the oldest message of each backlog was published."
)
_PER_PARTITION = Parameter("perPartition", bool, "Also give each partition's own figures (the default).")


@operation(
    "A topic's, or one partition's, producers, subscriptions and figures.",
    query=(_EARLIEST,),
    answers={200: TopicStats},
)
async def get_stats(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    topic = broker.get_topic(topic_of(request))
    earliest = flag(request, "getEarliestTimeInBacklog")
    return as_json(topic_stats(broker, topic, request.app[RATES], own_address(request), earliest))


@operation("Ledgers and cursors of a topic or partition.", answers={200: InternalStats})
async def get_internal_stats(request: web.Request) -> web.Response:
    return as_json(internal_stats(request.app[BROKER].get_topic(topic_of(request))))


@operation(
    "A partitioned topic's figures: the sums over its partitions, and theirs.",
    query=(_EARLIEST, _PER_PARTITION),
    answers={200: PartitionedStats},
)
async def get_partitioned_stats(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    name = topic_of(request)
    record = broker.partitioned.get(str(name))
    if record is None:
        raise TopicNotFound(f"Partitioned topic {name} not found")
    earliest = flag(request, "getEarliestTimeInBacklog")
    rates, owner = request.app[RATES], own_address(request)
    parts: dict[str, dict[str, Any]] = {}
    for index in range(record.partitions):
        topic = broker.get_topic(name.with_partition(index))
        parts[str(topic.name)] = topic_stats(broker, topic, rates, owner, earliest)
    return as_json(partitioned_stats(parts, record.partitions, flag(request, "perPartition", default=True)))


def routes() -> list[web.RouteDef]:
    return [
        web.get(f"{TOPIC_PATH}/stats", get_stats),
        web.get(f"{TOPIC_PATH}/internalStats", get_internal_stats),
        web.get(f"{TOPIC_PATH}/internal-stats", get_internal_stats),
        web.get(f"{TOPIC_PATH}/partitioned-stats", get_partitioned_stats),
    ]
