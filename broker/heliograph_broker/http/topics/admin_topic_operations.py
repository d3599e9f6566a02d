"""Operations on a topic: unload, terminate, truncate, compact; and its properties."""

from __future__ import annotations

from functools import partial
from typing import Literal

import msgspec
from aiohttp import web
from heliograph_api.values.names import TopicName

from heliograph_broker.http.base.await_result import all_durable
from heliograph_broker.http.base.context import BROKER, accepted, as_json, body_as, topic_of
from heliograph_broker.http.base.errors import ApiError
from heliograph_broker.http.base.message_ids import AnyPosition, MessageIdAnswer, position_of
from heliograph_broker.http.base.operations import Parameter, Refusal, operation
from heliograph_broker.messaging.base.errors import PreconditionFailed, TopicNotFound
from heliograph_broker.messaging.broker.broker import Broker
from heliograph_broker.messaging.broker.topic_properties import set_topic_properties, topic_properties
from heliograph_broker.messaging.topic import truncation
from heliograph_broker.messaging.topic.topic import Topic
from heliograph_broker.security.authorization.needs import Need
from heliograph_broker.usecases.compaction import start_compaction

from .admin_messages import persistent_topic
from .admin_topics import TOPIC_PATH, concrete_names

_KEY = Parameter("key", str, "The property to remove.", required=True)


class CompactionStatus(msgspec.Struct, rename="camel"):
    """Pulsar's LongRunningProcessStatus."""

    status: Literal["NOT_RUN", "RUNNING", "SUCCESS", "ERROR"]
    last_error: str


class OffloadStatus(msgspec.Struct, rename="camel"):
    """Pulsar's OffloadProcessStatus."""

    status: Literal["NOT_RUN"]
    last_error: str
    first_unoffloaded_message: MessageIdAnswer


def _stored(broker: Broker, name: TopicName) -> list[Topic]:
    """Return the topic, or all partitions. Raises :class:`TopicNotFound`, also of one that stores nothing."""
    topics: list[Topic] = []
    for concrete in concrete_names(broker, name):
        topic = broker.directory.get_topic(concrete)
        if not topic.persistent:
            raise TopicNotFound(f"Topic {name} stores no messages")
        topics.append(topic)
    return topics


@operation("Unload a topic or all its partitions: its clients reconnect.", needs=Need.ADMIN)
async def unload(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    for name in concrete_names(broker, topic_of(request)):
        broker.topics.unload(name)
    return await accepted(broker)


def _end(topic: Topic) -> MessageIdAnswer:
    """Return the id of the last message; where none is kept, the place before the first entry of the last ledger."""
    ledger_id, entry_id = topic.log.last_position()
    return MessageIdAnswer(ledger_id, entry_id if topic.log.first_offset < topic.log.end_offset else -1)


@operation(
    "Terminate a topic: no more messages are accepted, permanently. Returns the id of the last message.",
    answers={200: MessageIdAnswer, 406: Refusal},
    needs=Need.ADMIN,
)
async def terminate(request: web.Request) -> web.Response:
    name = topic_of(request)
    if str(name) in request.app[BROKER].directory.partitioned:
        raise ApiError(405, "Termination of a partitioned topic is not allowed: use terminate/partitions")
    if not name.is_persistent:
        raise ApiError(406, "Need to provide a persistent topic name")
    topic = persistent_topic(request)
    await all_durable([topic.terminate])
    return as_json(_end(topic))


@operation(
    "Terminate all partitions. Returns the last message's id of each, by the partition's number.",
    answers={200: dict[str, MessageIdAnswer]},
    needs=Need.ADMIN,
)
async def terminate_partitions(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    name = topic_of(request)
    if str(name) not in broker.directory.partitioned:
        raise ApiError(
            405,
            "Termination of a non-partitioned topic is not allowed using partitioned-terminate, please use terminate"
            " commands",
        )
    topics = _stored(broker, name)
    await all_durable([topic.terminate for topic in topics])
    return as_json({str(topic.name.partition): _end(topic) for topic in topics})


@operation("Delete all messages, acknowledged or not, in spite of retention.", needs=Need.ADMIN)
async def truncate(request: web.Request) -> web.Response:
    name = topic_of(request)
    if not name.is_persistent:
        raise PreconditionFailed("A non-persistent topic has nothing to truncate")
    await all_durable([partial(truncation.truncate, topic) for topic in _stored(request.app[BROKER], name)])
    return web.Response(status=204)


@operation(
    "Delete the messages that no subscription and no retention keeps; the broker does so at once anyway.",
    needs=Need.ADMIN,
)
async def trim(request: web.Request) -> web.Response:
    _stored(request.app[BROKER], topic_of(request))
    return await accepted(request.app[BROKER])


@operation("Start compaction of a topic or all its partitions: keep the last message of each key.", needs=Need.ADMIN)
async def compact(request: web.Request) -> web.Response:
    start_compaction(_stored(request.app[BROKER], topic_of(request)))
    return await accepted(request.app[BROKER])


@operation(
    "Get the status of the last compaction of a topic or partition.", answers={200: CompactionStatus}, needs=Need.ADMIN
)
async def compaction_status(request: web.Request) -> web.Response:
    status, error = persistent_topic(request).compaction.status()
    return as_json({"status": status, "lastError": error})


@operation(
    "Offload messages: refused, as there is no other storage to offload to.",
    body=AnyPosition,
    answers={412: Refusal},
    needs=Need.ADMIN,
)
async def offload(request: web.Request) -> web.Response:
    await position_of(request)
    persistent_topic(request)
    raise PreconditionFailed("Messages are stored by this broker itself: nothing can be offloaded")


@operation("Get the status of the last offload: never run.", answers={200: OffloadStatus}, needs=Need.ADMIN)
async def offload_status(request: web.Request) -> web.Response:
    persistent_topic(request)
    return as_json(OffloadStatus("NOT_RUN", "", MessageIdAnswer(-1, -1)))


# -- properties ----------------------------------------------------------------------------------------------------


def _with_properties(request: web.Request) -> TopicName:
    name = topic_of(request)
    if not name.is_persistent:
        raise ApiError(406, "Need to provide a persistent topic name")
    return name


@operation("Get the properties of a topic.", answers={200: dict[str, str], 406: Refusal}, needs=Need.LOOKUP)
async def get_properties(request: web.Request) -> web.Response:
    return as_json(topic_properties(request.app[BROKER], _with_properties(request)))


@operation(
    "Add to a topic's properties, or replace some.",
    body=dict[str, str],
    answers={204: None, 406: Refusal},
    example='{"owner": "payments-team"}',
    needs=Need.ADMIN,
)
async def put_properties(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    name = _with_properties(request)
    topic_properties(broker, name)
    added = await body_as(request, dict[str, str]) or {}
    set_topic_properties(broker, name, topic_properties(broker, name) | added)
    return await accepted(broker)


@operation("Remove one of a topic's properties.", query=(_KEY,), answers={204: None, 406: Refusal}, needs=Need.ADMIN)
async def remove_property(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    name = _with_properties(request)
    key = request.query.get("key")
    if key is None:
        raise ApiError(400, "query parameter key should name the property to remove")
    kept = {known: value for known, value in topic_properties(broker, name).items() if known != key}
    set_topic_properties(broker, name, kept)
    return await accepted(broker)


def routes() -> list[web.RouteDef]:
    return [
        web.put(f"{TOPIC_PATH}/unload", unload),
        web.post(f"{TOPIC_PATH}/terminate", terminate),
        web.post(f"{TOPIC_PATH}/terminate/partitions", terminate_partitions),
        web.delete(f"{TOPIC_PATH}/truncate", truncate),
        web.post(f"{TOPIC_PATH}/trim", trim),
        web.put(f"{TOPIC_PATH}/compaction", compact),
        web.get(f"{TOPIC_PATH}/compaction", compaction_status),
        web.put(f"{TOPIC_PATH}/offload", offload),
        web.get(f"{TOPIC_PATH}/offload", offload_status),
        web.get(f"{TOPIC_PATH}/properties", get_properties),
        web.put(f"{TOPIC_PATH}/properties", put_properties),
        web.delete(f"{TOPIC_PATH}/properties", remove_property),
    ]
