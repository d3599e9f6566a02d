"""Topics and partitions: /admin/v2/persistent and /admin/v2/non-persistent."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from aiohttp import web
from heliograph_api.values.names import TopicName

from heliograph_broker.http.base.bundles import check_bundle, in_bundle
from heliograph_broker.http.base.context import (
    BROKER,
    accepted,
    as_json,
    body_as,
    flag,
    grown,
    namespace_of,
    topic_of,
)
from heliograph_broker.http.base.errors import ApiError
from heliograph_broker.http.base.operations import Parameter, Refusal, operation
from heliograph_broker.messaging.base.errors import Conflict
from heliograph_broker.messaging.broker.broker import Broker
from heliograph_broker.security.authorization.needs import Need
from heliograph_broker.usecases.topics import partitions_for_client

from .topic_grants import forget_grants

DOMAIN = "{domain:persistent|non-persistent}"
NAMESPACE_PATH = f"/admin/v2/{DOMAIN}/{{tenant}}/{{namespace}}"
TOPIC_PATH = f"{NAMESPACE_PATH}/{{topic}}"


_BUNDLE = Parameter("bundle", str, "Only the topics of this bundle, a range of hashes such as 0x00000000_0x40000000.")
_FORCE = Parameter("force", bool, "Delete it even if it has subscriptions; connected clients are disconnected.")
SYSTEM = Parameter("includeSystemTopic", bool, "List system topics, too.")
_CREATE = Parameter(
    "checkAllowAutoCreation", bool, "Create a missing topic if automatic topic creation allows it, as for clients."
)

Partitions = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]


class PartitionsDocument(msgspec.Struct):
    """Pulsar's PartitionedTopicMetadata."""

    partitions: Partitions
    properties: dict[str, str] | None = None
    #: what clients read back, and so may send
    deleted: bool = False


_AnyPartitions: Any = Partitions | PartitionsDocument


class PartitionsAnswer(msgspec.Struct, omit_defaults=True):
    """The same as an answer."""

    partitions: int
    deleted: bool
    properties: dict[str, str] = {}


@operation(
    "List the topics of a namespace and domain, each partition by its name.",
    query=(_BUNDLE, SYSTEM),
    answers={200: list[str]},
    needs=Need.LOOKUP,
)
async def list_topics(request: web.Request) -> web.Response:
    """Return the concrete topics of one domain: partitions each by name."""
    broker = request.app[BROKER]
    namespace = namespace_of(request)
    record = broker.directory.namespace(namespace)
    persistent = request.match_info["domain"] == "persistent"
    mode = "PERSISTENT" if persistent else "NON_PERSISTENT"
    topics = broker.directory.list_topics(namespace, mode, system=flag(request, SYSTEM.name))
    bundle = request.query.get("bundle")
    if bundle is not None:
        check_bundle(namespace, bundle, record)
        topics = [name for name in topics if in_bundle(TopicName.parse(name), bundle, record)]
    return as_json(topics)


@operation("List the non-persistent topics of a bundle.", answers={200: list[str]}, needs=Need.LOOKUP)
async def list_of_bundle(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    namespace, bundle = namespace_of(request), request.match_info["bundle"]
    record = broker.directory.namespace(namespace)
    check_bundle(namespace, bundle, record)
    topics = broker.directory.list_topics(namespace, "NON_PERSISTENT")
    return as_json([name for name in topics if in_bundle(TopicName.parse(name), bundle, record)])


@operation(
    "List the partitioned topics of a namespace and domain.",
    query=(SYSTEM,),
    answers={200: list[str]},
    needs=Need.LOOKUP,
)
async def list_partitioned(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    namespace = namespace_of(request)
    broker.directory.namespace(namespace)
    prefix = f"{request.match_info['domain']}://{namespace}/"
    return as_json(broker.directory.list_partitioned(prefix, system=flag(request, SYSTEM.name)))


@operation(
    "Create a topic that is not partitioned; the body holds its properties.", body=dict[str, str], needs=Need.ADMIN
)
async def create_topic(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    name = topic_of(request)
    properties = await body_as(request, dict[str, str])
    broker.topics.create(name, properties)
    return await accepted(broker)


@operation("Delete a topic, or one partition, with its messages.", query=(_FORCE,), needs=Need.ADMIN)
async def delete_topic(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    name = topic_of(request)
    if str(name) in broker.directory.partitioned:
        raise Conflict(
            f"{name} is a partitioned topic, instead of calling delete topic, please call delete-partitioned-topic."
        )
    broker.topics.delete(name, force=flag(request, "force"))
    forget_grants(broker, name)
    return await accepted(broker)


async def _partitions(request: web.Request) -> PartitionsDocument:
    """Return the body: a number, or Pulsar's document. No partitions at all are asked for by null, as in Pulsar."""
    if not (await request.read()).strip():
        raise ApiError(400, "the request needs a JSON body, for example 4")
    body = await body_as(request, _AnyPartitions)
    if isinstance(body, PartitionsDocument):
        return body
    return PartitionsDocument(body or 0)


@operation(
    "Create a partitioned topic.",
    body=_AnyPartitions,
    body_required=True,
    answers={204: None, 406: Refusal},
    example="4",
    needs=Need.ADMIN,
)
async def create_partitioned(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    name = topic_of(request)
    document = await _partitions(request)
    if document.partitions <= 0:
        raise ApiError(406, "Number of partitions should be more than 0")
    broker.partitioned.create(name, document.partitions, document.properties)
    await grown(broker, name)
    return await accepted(broker)


@operation(
    "Increase the number of partitions of a topic.",
    body=_AnyPartitions,
    body_required=True,
    example="4",
    needs=Need.ADMIN,
)
async def update_partitions(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    name = topic_of(request)
    if str(name) in broker.directory.topics:
        raise Conflict(f"Topic {name} is not the partitioned topic.")
    broker.partitioned.extend(name, (await _partitions(request)).partitions)
    await grown(broker, name)
    return await accepted(broker)


@operation(
    "Get the number of partitions of a topic; 0: it is not partitioned.",
    query=(_CREATE,),
    answers={200: PartitionsAnswer},
    needs=Need.LOOKUP,
)
async def get_partitions(request: web.Request) -> web.Response:
    """Return the number of partitions; 0 without. A client's look-up may bring a topic into being by the rules."""
    broker = request.app[BROKER]
    name = topic_of(request)
    may_create = flag(request, "checkAllowAutoCreation")
    partitions = partitions_for_client(broker, name, broker.partitioned.create if may_create else None)
    record = broker.directory.partitioned.get(str(name))
    return as_json(PartitionsAnswer(partitions, False, record.properties if record is not None else {}))


@operation("Delete a partitioned topic with its messages.", query=(_FORCE,), needs=Need.ADMIN)
async def delete_partitioned(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    name = topic_of(request)
    if str(name) in broker.directory.topics:
        raise Conflict(
            f"{name} is a non-partitioned topic. Instead of calling delete-partitioned-topic please call delete."
        )
    broker.partitioned.delete(name, force=flag(request, "force"))
    forget_grants(broker, name)
    return await accepted(broker)


@operation("Create the missing partitions of a topic.", needs=Need.ADMIN)
async def create_missed_partitions(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    broker.partitioned.create_missing(topic_of(request))
    return await accepted(broker)


def concrete_names(broker: Broker, name: TopicName) -> list[TopicName]:
    """Return the topic itself or all its partitions, none of which is to come. Raises :class:`TopicNotFound`."""
    if not broker.directory.partitions_of(name):
        broker.directory.get_topic(name)
    return broker.topics.growth.completed(name)


def routes() -> list[web.RouteDef]:
    return [
        web.get(NAMESPACE_PATH, list_topics),
        web.get("/admin/v2/non-persistent/{tenant}/{namespace}/{bundle:0x[^/]*}", list_of_bundle),
        # Before the topic's path: Pulsar has a list where a topic named "partitioned" would be.
        web.get(f"{NAMESPACE_PATH}/partitioned", list_partitioned),
        web.put(TOPIC_PATH, create_topic),
        web.delete(TOPIC_PATH, delete_topic),
        web.put(f"{TOPIC_PATH}/partitions", create_partitioned),
        web.post(f"{TOPIC_PATH}/partitions", update_partitions),
        web.get(f"{TOPIC_PATH}/partitions", get_partitions),
        web.delete(f"{TOPIC_PATH}/partitions", delete_partitioned),
        web.post(f"{TOPIC_PATH}/createMissedPartitions", create_missed_partitions),
    ]
