"""The paths of the statistics."""

from __future__ import annotations

from collections.abc import Iterator

from aiohttp import web

from heliograph_broker.http.base.context import BROKER, RATES, as_json, flag, grown, topic_of
from heliograph_broker.http.base.operations import Parameter, operation
from heliograph_broker.http.brokers.admin_brokers import own_address
from heliograph_broker.http.topics.admin_topics import TOPIC_PATH
from heliograph_broker.messaging.base.errors import TopicNotFound
from heliograph_broker.messaging.topic.directory import AnyTopic
from heliograph_broker.security.authorization.needs import Need

from .internal_stats import internal_stats
from .partitioned_stats import partitioned_stats
from .stats import StatsOptions, topic_stats
from .stats_documents import InternalStats, PartitionedInternalStats, PartitionedStats, PartitionsInfo, TopicStats

_OPTIONS = (
    Parameter("getPreciseBacklog", bool, "Ignored: the backlog is always exact."),
    Parameter("subscriptionBacklogSize", bool, "Whether to include the size of each backlog in bytes (default: true)."),
    Parameter("getEarliestTimeInBacklog", bool, "Include the publish time of the oldest message of each backlog."),
    Parameter("excludePublishers", bool, "Exclude the producers."),
    Parameter("excludeConsumers", bool, "Exclude the consumers."),
)
_METADATA = Parameter("metadata", bool, "Whether to include the metadata of each ledger, as text.")
_PER_PARTITION = Parameter("perPartition", bool, "Whether to include each partition's statistics (default: true).")


def _options(request: web.Request) -> StatsOptions:
    """Read the query. Raises :class:`~.errors.ApiError` 400 for a flag that is none."""
    flag(request, "getPreciseBacklog")
    return StatsOptions(
        earliest_publish=flag(request, "getEarliestTimeInBacklog"),
        subscription_backlog_size=flag(request, "subscriptionBacklogSize", default=True),
        publishers=not flag(request, "excludePublishers"),
        consumers=not flag(request, "excludeConsumers"),
    )


def _partitions(request: web.Request) -> Iterator[AnyTopic]:
    """Yield the partitions of the path's topic. Raises :class:`TopicNotFound` if it is not partitioned."""
    broker = request.app[BROKER]
    name = topic_of(request)
    count = broker.directory.partitions_of(name)
    if not count:
        raise TopicNotFound(f"Partitioned topic {name} not found")
    for index in range(count):
        yield broker.directory.get_topic(name.with_partition(index))


@operation(
    "Get the statistics of a topic or partition, with its producers and subscriptions.",
    query=_OPTIONS,
    answers={200: TopicStats},
    needs=Need.LOOKUP,
)
async def get_stats(request: web.Request) -> web.Response:
    topic = request.app[BROKER].directory.get_topic(topic_of(request))
    return as_json(topic_stats(topic, request.app[RATES], own_address(request), _options(request)))


@operation(
    "Get the ledgers and cursors of a topic or partition.",
    query=(_METADATA,),
    answers={200: InternalStats},
    needs=Need.LOOKUP,
)
async def get_internal_stats(request: web.Request) -> web.Response:
    topic = request.app[BROKER].directory.get_topic(topic_of(request))
    return as_json(internal_stats(topic, metadata=flag(request, _METADATA.name)))


@operation(
    "Get the statistics of a partitioned topic: the sums, and each partition's.",
    query=(*_OPTIONS, _PER_PARTITION),
    answers={200: PartitionedStats},
    needs=Need.LOOKUP,
)
async def get_partitioned_stats(request: web.Request) -> web.Response:
    rates, owner, options = request.app[RATES], own_address(request), _options(request)
    await grown(request.app[BROKER], topic_of(request))
    per_partition = flag(request, "perPartition", default=True)
    parts = {str(topic.name): topic_stats(topic, rates, owner, options) for topic in _partitions(request)}
    return as_json(partitioned_stats(parts, per_partition))


@operation("Get the ledgers and cursors of each partition.", answers={200: PartitionedInternalStats}, needs=Need.LOOKUP)
async def get_partitioned_internal_stats(request: web.Request) -> web.Response:
    await grown(request.app[BROKER], topic_of(request))
    parts = {str(topic.name): internal_stats(topic) for topic in _partitions(request)}
    return as_json(PartitionedInternalStats(PartitionsInfo(len(parts)), parts))


def routes() -> list[web.RouteDef]:
    return [
        web.get(f"{TOPIC_PATH}/stats", get_stats),
        web.get(f"{TOPIC_PATH}/internalStats", get_internal_stats),
        web.get(f"{TOPIC_PATH}/internal-stats", get_internal_stats),
        web.get(f"{TOPIC_PATH}/partitioned-stats", get_partitioned_stats),
        web.get(f"{TOPIC_PATH}/partitioned-internalStats", get_partitioned_internal_stats),
    ]
