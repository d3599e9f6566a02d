"""Topics and partitions: /admin/v2/persistent and /admin/v2/non-persistent."""

from __future__ import annotations

import msgspec
from aiohttp import web

from heliograph_broker.messaging.admission import auto_topic_creation
from heliograph_broker.messaging.broker import Broker
from heliograph_broker.messaging.errors import PreconditionFailed, TopicNotFound
from heliograph_broker.resources.names import TopicName

from .context import BROKER, accepted, as_json, body_as, flag, namespace_of, required_body, topic_of

DOMAIN = "{domain:persistent|non-persistent}"
NAMESPACE_PATH = f"/admin/v2/{DOMAIN}/{{tenant}}/{{namespace}}"
TOPIC_PATH = f"{NAMESPACE_PATH}/{{topic}}"


class PartitionsDocument(msgspec.Struct):
    """Pulsar's PartitionedTopicMetadata."""

    partitions: int
    properties: dict[str, str] | None = None


async def list_topics(request: web.Request) -> web.Response:
    """The concrete topics of one domain: partitions each by name."""
    broker = request.app[BROKER]
    namespace = namespace_of(request)
    broker.namespace(namespace)
    persistent = request.match_info["domain"] == "persistent"
    return as_json(broker.list_topics(namespace, "PERSISTENT" if persistent else "NON_PERSISTENT"))


async def list_partitioned(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    namespace = namespace_of(request)
    broker.namespace(namespace)
    prefix = f"{request.match_info['domain']}://{namespace}/"
    return as_json(sorted(name for name in broker.partitioned if name.startswith(prefix)))


async def create_topic(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    name = topic_of(request)
    properties = await body_as(request, dict[str, str])
    broker.create_topic(name, properties)
    return await accepted(broker)


async def delete_topic(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    name = topic_of(request)
    if str(name) in broker.partitioned:
        raise PreconditionFailed(f"Topic {name} is partitioned: delete {request.path}/partitions")
    broker.delete_topic(name, force=flag(request, "force"))
    return await accepted(broker)


async def _partitions(request: web.Request) -> PartitionsDocument:
    """Return the body: a number, or Pulsar's document."""
    body = await required_body(request, msgspec.Raw, "4")
    if bytes(body).lstrip().startswith(b"{"):
        return await required_body(request, PartitionsDocument, "4")
    return PartitionsDocument(await required_body(request, int, "4"))


async def create_partitioned(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    name = topic_of(request)
    document = await _partitions(request)
    broker.create_partitioned_topic(name, document.partitions, document.properties)
    return await accepted(broker)


async def update_partitions(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    name = topic_of(request)
    broker.update_partitions(name, (await _partitions(request)).partitions)
    return await accepted(broker)


async def get_partitions(request: web.Request) -> web.Response:
    """The number of partitions; 0 without. A client's look-up may bring a topic into being by the rules."""
    broker = request.app[BROKER]
    name = topic_of(request)
    broker.namespace(name.namespace_name)
    if not broker.exists(name):
        if not (flag(request, "checkAllowAutoCreation") and broker.may_auto_create(name)):
            raise TopicNotFound(f"Topic {name} not found")
        partitions = auto_topic_creation(broker, name).partitions
        if partitions > 0 and name.partition < 0:
            broker.create_partitioned_topic(name, partitions)
    answer: dict[str, object] = {"partitions": broker.partitions_of(name), "deleted": False}
    record = broker.partitioned.get(str(name))
    if record is not None and record.properties:
        answer["properties"] = record.properties
    return as_json(answer)


async def delete_partitioned(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    broker.delete_partitioned_topic(topic_of(request), force=flag(request, "force"))
    return await accepted(broker)


def concrete_names(broker: Broker, name: TopicName) -> list[TopicName]:
    """Return the topic itself or all its partitions. Raises :class:`TopicNotFound`."""
    partitions = broker.partitions_of(name)
    if partitions:
        return [name.with_partition(index) for index in range(partitions)]
    return [broker.get_topic(name).name]


def routes() -> list[web.RouteDef]:
    return [
        web.get(NAMESPACE_PATH, list_topics),
        # Before the topic's path: Pulsar has a list where a topic named "partitioned" would be.
        web.get(f"{NAMESPACE_PATH}/partitioned", list_partitioned),
        web.put(TOPIC_PATH, create_topic),
        web.delete(TOPIC_PATH, delete_topic),
        web.put(f"{TOPIC_PATH}/partitions", create_partitioned),
        web.post(f"{TOPIC_PATH}/partitions", update_partitions),
        web.get(f"{TOPIC_PATH}/partitions", get_partitions),
        web.delete(f"{TOPIC_PATH}/partitions", delete_partitioned),
    ]
