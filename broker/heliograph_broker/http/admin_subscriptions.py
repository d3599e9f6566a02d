"""Subscriptions of a topic: list, create, delete, skip all, reset to a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
from aiohttp import web

from heliograph_broker.messaging.admission import check_new_subscription
from heliograph_broker.messaging.broker import AnyTopic
from heliograph_broker.messaging.errors import BrokerError, Conflict, NotAllowed, SubscriptionNotFound
from heliograph_broker.messaging.subscription import Done, Subscription
from heliograph_broker.messaging.topic import Topic
from heliograph_broker.resources.names import check_subscription

from .admin_topics import TOPIC_PATH, concrete_names
from .context import BROKER, accepted, as_json, body_as, flag, topic_of
from .errors import ApiError

_LATEST = 2**63 - 1


class PositionDocument(msgspec.Struct):
    """Pulsar's message id; a ledger id of 2^63-1 is the latest position, -1 the earliest."""

    ledger_id: int = msgspec.field(name="ledgerId")
    entry_id: int = msgspec.field(name="entryId")


def _topics(request: web.Request) -> list[AnyTopic]:
    broker = request.app[BROKER]
    return [broker.get_topic(name) for name in concrete_names(broker, topic_of(request))]


async def list_subscriptions(request: web.Request) -> web.Response:
    """Durable and other subscriptions of the topic; of a partitioned one those of any partition."""
    names: dict[str, None] = {}
    for topic in _topics(request):
        names.update(dict.fromkeys(topic.subscriptions))
    return as_json(list(names))


async def create_subscription(request: web.Request) -> web.Response:
    """Create a durable subscription at a position (default: latest), on every partition or none."""
    broker = request.app[BROKER]
    position = await body_as(request, PositionDocument)
    topics = _topics(request)
    name = request.match_info["subscription"]
    check_subscription(name)
    if any(name in topic.subscriptions for topic in topics):
        raise Conflict("Subscription already exists for topic")
    for topic in topics:
        check_new_subscription(topic)
    for topic in topics:
        if not isinstance(topic, Topic):
            topic.create_subscription(name)
        elif position is None or position.ledger_id == _LATEST:
            topic.create_subscription(name, "latest", done=_ignore)
        elif position.ledger_id < 0:
            topic.create_subscription(name, "earliest", done=_ignore)
        else:
            start = topic.offset_at_or_after(position.ledger_id, position.entry_id)
            topic.create_subscription(name, start_offset=start, done=_ignore)
    return await accepted(broker)


def _ignore(error: BrokerError | None) -> None:
    """The cursor goes with this group, whose failure the request hears of by :func:`accepted`."""


async def delete_subscription(request: web.Request) -> web.Response:
    name = request.match_info["subscription"]
    force = flag(request, "force")
    found = _with_subscription(request, name)
    for topic in found:
        topic.delete_subscription(name, force)
    return await accepted(request.app[BROKER])


def _with_subscription(request: web.Request, name: str) -> list[AnyTopic]:
    found = [topic for topic in _topics(request) if name in topic.subscriptions]
    if not found:
        raise SubscriptionNotFound(f"Subscription {name} not found for topic {topic_of(request)}")
    return found


async def _on_each(request: web.Request, change: Callable[[Topic, Subscription, Done], None]) -> web.Response:
    """Start ``change`` on the subscription of every partition; answer when all are durable."""
    name = request.match_info["subscription"]
    loop = asyncio.get_running_loop()
    waiting: list[asyncio.Future[None]] = []
    for topic in _with_subscription(request, name):
        if not isinstance(topic, Topic):
            raise NotAllowed("A subscription of a non-persistent topic has no position")
        future: asyncio.Future[None] = loop.create_future()
        waiting.append(future)
        change(topic, topic.subscriptions[name], _resolver(future))
    await asyncio.gather(*waiting)
    return web.Response(status=204)


def _resolver(future: asyncio.Future[None]) -> Done:
    def done(error: BrokerError | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    return done


async def skip_all(request: web.Request) -> web.Response:
    """Acknowledge the whole backlog."""
    return await _on_each(request, lambda topic, sub, done: sub.acknowledge_up_to(topic.end_offset - 1, done))


async def reset_cursor(request: web.Request) -> web.Response:
    """Move to the first message published at or after a time (wall-clock ms); consumers reconnect."""
    text = request.match_info["timestamp"]
    if not text.isascii() or not text.isdigit():
        raise ApiError(400, f"the time to reset to should be ms since 1970, not '{text}'")
    timestamp = int(text)
    return await _on_each(
        request, lambda topic, sub, done: sub.seek(topic.first_published_at_or_after(timestamp), None, done)
    )


def routes() -> list[web.RouteDef]:
    path = f"{TOPIC_PATH}/subscription/{{subscription}}"
    return [
        web.get(f"{TOPIC_PATH}/subscriptions", list_subscriptions),
        web.put(path, create_subscription),
        web.delete(path, delete_subscription),
        web.post(f"{path}/skip_all", skip_all),
        web.post(f"{path}/resetcursor/{{timestamp}}", reset_cursor),
    ]
