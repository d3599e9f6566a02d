"""Operations on backlogs: skip, clear, expire and reset, for one subscription or all of a topic."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from aiohttp import web

from heliograph_broker.http.base.access import every_subscription_of_path
from heliograph_broker.http.base.await_result import all_durable, found
from heliograph_broker.http.base.context import BROKER, topic_of
from heliograph_broker.http.base.errors import ApiError
from heliograph_broker.http.base.message_ids import AnyPosition, PositionDocument, number_in_path, required_position
from heliograph_broker.http.base.operations import operation
from heliograph_broker.messaging.acknowledgment.stored_topic import StoredTopic
from heliograph_broker.messaging.base.entry_counts import EntryCounts
from heliograph_broker.messaging.base.errors import Conflict, Done
from heliograph_broker.messaging.delivery.subscription import Subscription
from heliograph_broker.messaging.topic.directory import AnyTopic
from heliograph_broker.security.authorization.needs import Need

from .admin_subscriptions import SUBSCRIPTION_PATH, clients_subscriptions, topics_of
from .admin_topics import TOPIC_PATH


def backlogs(topics: Iterable[AnyTopic]) -> list[Subscription]:
    """Return the durable subscriptions of ``topics``; the broker's own, of compaction, are not touched."""
    return [
        subscription
        for topic in topics
        if topic.persistent
        for subscription in topic.subscriptions.values()
        if subscription.durable and subscription.counts_for_backlog
    ]


def _one(request: web.Request, refusal: str) -> Subscription:
    """Return the path's subscription of a topic that is not partitioned."""
    subscriptions = clients_subscriptions(request)
    if str(topic_of(request)) in request.app[BROKER].directory.partitioned:
        raise ApiError(405, f"{refusal}: name one of its partitions")
    return subscriptions[0]


@operation("Acknowledge a subscription's whole backlog, on all partitions.", needs=Need.CONSUME)
async def skip_all(request: web.Request) -> web.Response:
    stored = clients_subscriptions(request)
    for subscription in stored:
        subscription.used()
    await all_durable(subscription.acks.clear_backlog for subscription in stored)
    return web.Response(status=204)


@operation("Acknowledge the oldest messages of a subscription's backlog.", needs=Need.CONSUME)
async def skip(request: web.Request) -> web.Response:
    messages = number_in_path(request, "messages", "the number of messages to skip")
    subscription = _one(request, "Skip messages on a partitioned topic is not allowed")
    # As if a consumer had read them: the subscription does not expire as unused.
    subscription.used()
    await all_durable([partial(subscription.acks.skip, messages)])
    return web.Response(status=204)


# -- expiry --------------------------------------------------------------------------------------------------------


def _age_ms(request: web.Request) -> int:
    return number_in_path(request, "seconds", "an age in seconds") * 1000


@operation(
    "Expire messages of a subscription's backlog that are older than a number of seconds, on all partitions.",
    needs=Need.CONSUME,
)
async def expire(request: web.Request) -> web.Response:
    age = _age_ms(request)
    await all_durable(partial(each.expiry.expire_older_than, age) for each in clients_subscriptions(request))
    return web.Response(status=204)


@operation(
    "Expire messages of all subscriptions' backlogs that are older than a number of seconds.",
    needs=Need.CONSUME,
    on=every_subscription_of_path,
)
async def expire_all(request: web.Request) -> web.Response:
    age = _age_ms(request)
    await all_durable(partial(each.expiry.expire_older_than, age) for each in backlogs(topics_of(request)))
    return web.Response(status=204)


@operation(
    "Expire a subscription's backlog up to and including a message id.",
    body=AnyPosition,
    body_required=True,
    example='{"ledgerId": -1, "entryId": -1}',
    needs=Need.CONSUME,
)
async def expire_to(request: web.Request) -> web.Response:
    subscription = _one(request, "Expire message at position is not supported for partitioned-topic")
    position = await required_position(request)
    if position.is_latest:
        await all_durable([subscription.acks.clear_backlog])
        return web.Response(status=204)
    if (position.ledger_id, position.entry_id) > subscription.topic.log.last_position():
        raise Conflict(
            f"Expire message by position not issued on topic {subscription.topic.name} for subscription"
            f" {subscription.name}: {position.ledger_id}:{position.entry_id} is not the id of a message of it"
        )
    await all_durable([partial(subscription.expiry.expire_up_to, position.ledger_id, position.entry_id)])
    return web.Response(status=204)


# -- reset ---------------------------------------------------------------------------------------------------------


def _seek_to_time(subscription: Subscription, published_ms: int, done: Done) -> None:
    subscription.seek(subscription.topic.log.first_published_at_or_after(published_ms), None, done)


@operation(
    "Move a subscription to the first message published at or after a time, on all partitions.", needs=Need.CONSUME
)
async def reset_to_time(request: web.Request) -> web.Response:
    published = number_in_path(request, "timestamp", "a time in ms since 1970")
    await all_durable(partial(_seek_to_time, each, published) for each in clients_subscriptions(request))
    return web.Response(status=204)


@operation(
    "Move a subscription to a message id; consumers connect again and get that message first.",
    body=AnyPosition,
    body_required=True,
    example='{"ledgerId": -1, "entryId": -1}',
    needs=Need.CONSUME,
)
async def reset_to_position(request: web.Request) -> web.Response:
    subscription = _one(request, "Reset-cursor at position is not allowed for partitioned-topic")
    offset, remaining = await _target(subscription.topic, await required_position(request))
    await all_durable([partial(subscription.seek, offset, remaining)])
    return web.Response(status=204)


async def _target(topic: StoredTopic, position: PositionDocument) -> tuple[int, int | None]:
    """Return the offset to begin at, and of a batch which messages (bits, None: all)."""
    if position.is_earliest:
        return topic.log.first_offset, None
    if position.is_latest:
        return topic.log.end_offset, None
    offset = topic.log.offset_of(position.ledger_id, position.entry_id)
    if offset is None:
        return topic.log.offset_at_or_after(position.ledger_id, position.entry_id), None
    if position.batch_index < 0:
        return offset + position.entries_behind, None
    headers: list[EntryCounts] = await found(partial(topic.log.read_headers, offset, offset))
    messages = headers[0].messages if headers else 1
    first = position.batch_index + position.entries_behind
    if first >= messages:
        return offset + 1, None
    remaining = (1 << messages) - (1 << first)
    return offset, remaining if first else None


def routes() -> list[web.RouteDef]:
    return [
        web.post(f"{SUBSCRIPTION_PATH}/skip_all", skip_all),
        web.post(f"{SUBSCRIPTION_PATH}/skip/{{messages}}", skip),
        web.post(f"{SUBSCRIPTION_PATH}/expireMessages", expire_to),
        web.post(f"{SUBSCRIPTION_PATH}/expireMessages/{{seconds}}", expire),
        web.post(f"{TOPIC_PATH}/all_subscription/expireMessages/{{seconds}}", expire_all),
        web.post(f"{SUBSCRIPTION_PATH}/resetcursor", reset_to_position),
        web.post(f"{SUBSCRIPTION_PATH}/resetcursor/{{timestamp}}", reset_to_time),
    ]
