"""Splits bundles, and tells where in one the topics are. One broker serves both halves, so only their names change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec
from aiohttp import web

from heliograph_broker.http.base.bundles import (
    MAX_BUNDLES,
    WHOLE_RANGE,
    bundle_boundaries,
    bundle_of,
    check_bundle,
    hash_of,
)
from heliograph_broker.http.base.context import BROKER, accepted, as_json, body_as, flag, namespace_of
from heliograph_broker.http.base.operations import Parameter, operation
from heliograph_broker.messaging.base.errors import PreconditionFailed
from heliograph_broker.messaging.broker.broker import Broker
from heliograph_broker.security.authorization.needs import Need

from .admin_namespace_operations import BUNDLE_PATH, bundle_topics

EQUALLY: Final = "range_equally_divide"
BY_TOPICS: Final = "topic_count_equally_divide"
AT_POSITIONS: Final = "specified_positions_divide"
_ALGORITHMS: Final = (EQUALLY, BY_TOPICS, AT_POSITIONS)
#: The name of the bundle with the most topics.
_LARGEST: Final = "LARGEST"
_ALGORITHM = Parameter("splitAlgorithmName", str, f"Where it is split; default: {EQUALLY}.", choices=_ALGORITHMS)
_UNLOAD = Parameter("unload", bool, "Unload its topics: their clients reconnect.")
_TOPICS = Parameter("topics", str, "Only these topics; may be given several times.")


class HashPositions(msgspec.Struct, rename="camel"):
    """Pulsar's TopicHashPositions: the hash of each topic's name in a bundle."""

    namespace: str
    bundle: str
    topic_hash_positions: dict[str, int]


def new_starts(algorithm: str, low: int, high: int, hashes: Sequence[int], positions: Sequence[int]) -> list[int]:
    """Return where a bundle is split, nowhere if it has too few topics for the algorithm; ``hashes`` are theirs."""
    if algorithm == EQUALLY:
        found = [low + (high - low) // 2]
    elif len(hashes) < 2:
        found = []
    elif algorithm == BY_TOPICS:
        ordered = sorted(hashes)
        middle = len(ordered) // 2
        found = [(ordered[middle - 1] + ordered[middle]) // 2]
    else:
        found = list(positions)
    return sorted({start for start in found if low < start < high})


def _largest(broker: Broker, namespace: str) -> str:
    record = broker.directory.namespace(namespace)
    topics = broker.directory.topics_by_namespace.get(namespace, {}).values()
    counts = Counter(bundle_of(topic.name, record) for topic in topics)
    if not counts:
        return "_".join(bundle_boundaries(record)[:2])
    return counts.most_common(1)[0][0]


@operation(
    f"Split a bundle, or {_LARGEST}, the one with the most topics; the body has the hashes for {AT_POSITIONS}.",
    query=(_ALGORITHM, _UNLOAD),
    body=list[int],
    example="[268435456]",
    needs=Need.SUPERUSER,
)
async def split(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    namespace, bundle = namespace_of(request), request.match_info["bundle"]
    algorithm = request.query.get(_ALGORITHM.name) or EQUALLY
    if algorithm not in _ALGORITHMS:
        raise PreconditionFailed(
            f"Unsupported namespace bundle split algorithm {algorithm}, supported algorithms are"
            f" [{', '.join(_ALGORITHMS)}]"
        )
    positions = await body_as(request, list[int]) or []
    if algorithm == AT_POSITIONS and not positions:
        raise PreconditionFailed(f"With {AT_POSITIONS} split algorithm, splitBoundaries must not be empty")
    record = broker.directory.namespace(namespace)
    if bundle == _LARGEST:
        bundle = _largest(broker, namespace)
    check_bundle(namespace, bundle, record)
    edges = bundle_boundaries(record)
    if bundle == WHOLE_RANGE and len(edges) > 2:
        raise PreconditionFailed(f"{namespace} has {len(edges) - 1} bundles: name one of them")
    topics = [
        topic
        for topic in broker.directory.topics_by_namespace.get(namespace, {}).values()
        if bundle_of(topic.name, record) == bundle
    ]
    low, high = (int(edge, 16) for edge in bundle.split("_"))
    hashes = [hash_of(topic.name) for topic in topics]
    starts = new_starts(algorithm, low, high, hashes, positions)
    if len(edges) - 1 + len(starts) > MAX_BUNDLES:
        raise PreconditionFailed(f"{namespace} would have more than {MAX_BUNDLES} bundles")
    broker.namespaces.split_bundle(namespace, starts)
    if flag(request, _UNLOAD.name):
        for topic in topics:
            broker.topics.unload(topic.name)
    return await accepted(broker)


@operation(
    "Get the hash of the name of each topic in a bundle.",
    query=(_TOPICS,),
    answers={200: HashPositions},
    needs=Need.ADMIN,
)
async def hash_positions(request: web.Request) -> web.Response:
    only = request.query.getall(_TOPICS.name, [])
    names = [topic.name for topic in bundle_topics(request) if not only or str(topic.name) in only]
    found = {str(name): hash_of(name) for name in names}
    return as_json(HashPositions(namespace_of(request), request.match_info["bundle"], found))


def routes() -> list[web.RouteDef]:
    return [
        web.put(f"{BUNDLE_PATH}/split", split),
        web.get(f"{BUNDLE_PATH}/topicHashPositions", hash_positions),
    ]
