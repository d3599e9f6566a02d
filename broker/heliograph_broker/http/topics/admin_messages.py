"""Single messages of a topic: by id, by place in a backlog, by time; and positions among them."""

from __future__ import annotations

from functools import partial

from aiohttp import web
from heliograph_api.protocol.frames import peek_metadata

from heliograph_broker.http.base.await_result import found
from heliograph_broker.http.base.context import BROKER, as_json, topic_of
from heliograph_broker.http.base.errors import ApiError
from heliograph_broker.http.base.message_ids import AnyPosition, MessageIdAnswer, number_in_path, required_position
from heliograph_broker.http.base.operations import Parameter, operation
from heliograph_broker.messaging.base.errors import PreconditionFailed, SubscriptionNotFound, TopicNotFound
from heliograph_broker.messaging.delivery.subscription import Subscription
from heliograph_broker.messaging.messages.batches import is_batch
from heliograph_broker.messaging.topic.topic import Topic
from heliograph_broker.security.authorization.needs import Need
from heliograph_broker.storage.base.entry import Entry

from .admin_subscriptions import subscription_of
from .admin_topics import TOPIC_PATH
from .message_answers import MESSAGE, message_answer

_INITIAL_POSITIONS = ("latest", "earliest")
_INITIAL_POSITION = Parameter(
    "initialPosition", str, "End to count from: earliest or latest (default).", choices=_INITIAL_POSITIONS
)
_MESSAGE_POSITION = Parameter(
    "messagePosition", int, "Number of the entry counted from that end; 1 (default) is the first."
)


def persistent_topic(request: web.Request) -> Topic:
    """Return the stored topic of the path. Raises :class:`TopicNotFound` if there is none that stores messages."""
    name = topic_of(request)
    topic = request.app[BROKER].directory.get_topic(name)
    if not topic.persistent:
        raise TopicNotFound(f"Topic {name} stores no messages")
    return topic


def one_topic(request: web.Request, refusal: str) -> Topic:
    """As :func:`persistent_topic`, refusing a partitioned topic with ``refusal``."""
    if str(topic_of(request)) in request.app[BROKER].directory.partitioned:
        raise ApiError(405, f"{refusal}: name one of its partitions")
    return persistent_topic(request)


async def _entry(topic: Topic, offset: int) -> Entry:
    """Return a kept entry. Raises :class:`ApiError` 404 if it was trimmed meanwhile."""
    # A client that reads a topic's messages uses it: it must not expire as unused.
    topic.used()
    if topic.log.first_offset <= offset < topic.log.end_offset:
        entries: list[Entry] = await found(partial(topic.log.read, offset, 1, 1))
        if entries:
            return entries[0]
    raise ApiError(404, "Message not found")


@operation("Get the message or batch with an id.", answers=MESSAGE, needs=Need.CONSUME)
async def get_by_id(request: web.Request) -> web.Response:
    topic = one_topic(request, "GetMessageById is not allowed on partitioned-topic")
    ledger = number_in_path(request, "ledger", "the ledger id of a message")
    entry = number_in_path(request, "entry", "the entry id of a message")
    offset = topic.log.offset_of(ledger, entry)
    if offset is None:
        raise ApiError(404, "Message id not found")
    return await message_answer(await _entry(topic, offset))


@operation(
    "Get the n-th entry (a message or batch) of a subscription's backlog; 1 is the oldest.",
    answers=MESSAGE,
    needs=Need.CONSUME,
)
async def peek(request: web.Request) -> web.Response:
    topic = one_topic(request, "Peek messages on a partitioned topic is not allowed")
    place = number_in_path(request, "position", "a number from 1 on", least=1)
    name = subscription_of(request)
    subscription = topic.subscriptions.get(name)
    if subscription is None:
        raise SubscriptionNotFound(f"Subscription {name} not found for topic {topic.name}")
    subscription.used()
    return await message_answer(await _entry(topic, unacked_offset(subscription, place)))


def unacked_offset(subscription: Subscription, place: int) -> int:
    """Return the offset of the ``place``-th unacknowledged entry, the topic's end if there are fewer."""
    cursor = subscription.acks.cursor
    low = max(cursor.mark_delete + 1, subscription.topic.log.first_offset)
    before = low - 1
    high = subscription.topic.log.end_offset
    acked = cursor.acked
    acked_before = acked.rank(before) if acked and before >= 0 else 0
    while low < high:
        middle = (low + high) // 2
        acked_to = acked.rank(middle) if acked else 0
        if middle - before - (acked_to - acked_before) >= place:
            high = middle
        else:
            low = middle + 1
    return low


@operation(
    "Get an entry (a message or batch) of the topic, counted from either end; needs no subscription.",
    query=(_INITIAL_POSITION, _MESSAGE_POSITION),
    answers=MESSAGE,
    needs=Need.CONSUME,
)
async def examine(request: web.Request) -> web.Response:
    topic = one_topic(request, "Examine messages on a partitioned topic is not allowed")
    start = request.query.get("initialPosition", "latest").lower()
    if start not in _INITIAL_POSITIONS:
        raise ApiError(400, f"initialPosition should be latest or earliest, not '{start}'")
    text = request.query.get("messagePosition", "1")
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        raise ApiError(400, f"messagePosition should be a number from 1 on, not '{text}'")
    # As in Pulsar, 0 is the first one too.
    place = max(int(text), 1)
    kept = topic.log.end_offset - topic.log.first_offset
    if not kept:
        raise PreconditionFailed("Could not examine messages due to the total message is zero")
    if place > kept:
        raise ApiError(404, f"Message not found: the topic keeps {kept} entries")
    return await message_answer(
        await _entry(topic, topic.log.first_offset + place - 1 if start == "earliest" else topic.log.end_offset - place)
    )


@operation(
    "Get the id of the last stored message; ledger and entry are -1 if there is none.",
    answers={200: MessageIdAnswer},
    needs=Need.CONSUME,
)
async def last_message_id(request: web.Request) -> web.Response:
    topic = persistent_topic(request)
    offset = topic.log.end_offset - 1
    if offset < topic.log.first_offset:
        return as_json(MessageIdAnswer(-1, -1, topic.name.partition))
    entry = await _entry(topic, offset)
    metadata = peek_metadata(memoryview(entry.frame))
    batch_index = metadata.num_messages_in_batch - 1 if is_batch(metadata) else -1
    return as_json(MessageIdAnswer(*topic.log.position(offset), topic.name.partition, batch_index))


@operation(
    "Get the id of the first message published at or after a time.", answers={200: MessageIdAnswer}, needs=Need.CONSUME
)
async def id_by_time(request: web.Request) -> web.Response:
    topic = one_topic(request, "Get message ID by timestamp on a partitioned topic is not allowed")
    published = number_in_path(request, "timestamp", "a time in ms since 1970")
    offset = topic.log.first_published_at_or_after(published)
    return as_json(MessageIdAnswer(*topic.log.position(offset), topic.name.partition))


@operation(
    "Get the size in bytes of the messages after a message id.",
    body=AnyPosition,
    body_required=True,
    example='{"ledgerId": -1, "entryId": -1}',
    answers={200: int},
    needs=Need.CONSUME,
)
async def backlog_size(request: web.Request) -> web.Response:
    topic = one_topic(request, "calculate backlog size is not allowed for partitioned-topic")
    position = await required_position(request)
    offset = topic.log.first_offset
    if not position.is_earliest:
        offset = topic.log.offset_at_or_after(position.ledger_id, position.entry_id + 1)
    _, acked_bytes = await found(partial(topic.log.totals_before, offset))
    return as_json(max(0, topic.log.total_bytes - acked_bytes))


def routes() -> list[web.RouteDef]:
    return [
        web.get(f"{TOPIC_PATH}/lastMessageId", last_message_id),
        web.get(f"{TOPIC_PATH}/messageid/{{timestamp}}", id_by_time),
        web.get(f"{TOPIC_PATH}/examinemessage", examine),
        web.get(f"{TOPIC_PATH}/ledger/{{ledger}}/entry/{{entry}}", get_by_id),
        web.get(f"{TOPIC_PATH}/subscription/{{subscription}}/position/{{position}}", peek),
        web.put(f"{TOPIC_PATH}/backlogSize", backlog_size),
    ]
