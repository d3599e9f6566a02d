"""Subscriptions of a topic: list, create, delete; their properties; what their backlog is made of."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import msgspec
from aiohttp import web
from heliograph_api.values.names import decode_subscription

from heliograph_broker.http.base.access import require
from heliograph_broker.http.base.await_result import all_durable, found
from heliograph_broker.http.base.context import BROKER, accepted, as_json, body_as, flag, required_body, topic_of
from heliograph_broker.http.base.errors import ApiError
from heliograph_broker.http.base.message_ids import AnyPosition, PositionDocument, position_of
from heliograph_broker.http.base.operations import Parameter, operation
from heliograph_broker.messaging.base.entry_counts import EntryCounts
from heliograph_broker.messaging.base.errors import (
    NotAllowed,
    SubscriptionNotFound,
)
from heliograph_broker.messaging.base.names import COMPACTION, check_properties
from heliograph_broker.messaging.broker.admission import check_subscription_name
from heliograph_broker.messaging.delivery.subscription import Subscription
from heliograph_broker.messaging.topic.directory import AnyTopic
from heliograph_broker.security.authorization.needs import Need, Resource, on_topic
from heliograph_broker.usecases import subscriptions

from .admin_topics import TOPIC_PATH, concrete_names

SUBSCRIPTION_PATH = f"{TOPIC_PATH}/subscription/{{subscription}}"
#: Entries that one analysis looks at; Pulsar's stops at so many too (``subscriptionBacklogScanMaxEntries``).
ANALYSED_ENTRIES = 10_000

_FORCE = Parameter("force", bool, "Delete it even if consumers are connected; they are disconnected.")
_REPLICATED = Parameter(
    "replicated", bool, "Whether the subscription is replicated to other clusters; true is refused, as there are none."
)


class BacklogAnalysis(msgspec.Struct, rename="camel"):
    """Pulsar's AnalyzeSubscriptionBacklogResult; there are no filters, so all is accepted.

    ``aborted``: there are more entries than one analysis looks at. Ids are ``ledger:entry``, null in an empty backlog.
    """

    entries: int
    messages: int
    filter_accepted_entries: int
    filter_accepted_messages: int
    aborted: bool
    first_message_id: str | None
    last_message_id: str | None
    marker_messages: int = 0
    filter_rejected_entries: int = 0
    filter_rescheduled_entries: int = 0
    filter_rejected_messages: int = 0
    filter_rescheduled_messages: int = 0


def topics_of(request: web.Request) -> list[AnyTopic]:
    """Return the topic of the path, or all its partitions. Raises :class:`TopicNotFound`."""
    broker = request.app[BROKER]
    return [broker.directory.get_topic(name) for name in concrete_names(broker, topic_of(request))]


def subscription_of(request: web.Request) -> str:
    """Return the name of the path's subscription. Raises :class:`InvalidName`."""
    return decode_subscription(request.match_info["subscription"])


def with_subscription(request: web.Request) -> list[AnyTopic]:
    """Return those of :func:`topics_of` that have the path's subscription. Raises :class:`SubscriptionNotFound`."""
    name = subscription_of(request)
    holders = [topic for topic in topics_of(request) if name in topic.subscriptions]
    if not holders:
        raise SubscriptionNotFound(f"Subscription {name} not found for topic {topic_of(request)}")
    return holders


def stored_subscriptions(request: web.Request) -> list[Subscription]:
    """Return the path's subscription on each partition that has it. Raises :class:`NotAllowed` if nothing is stored."""
    return list(_stored(with_subscription(request), subscription_of(request)))


def clients_subscriptions(request: web.Request) -> list[Subscription]:
    """As :func:`stored_subscriptions`, to be changed. Raises :class:`NotAllowed` for that of the compaction, too.

    The compaction moves it: messages that it skips would be in no view.
    """
    check_subscription_name(subscription_of(request))
    return stored_subscriptions(request)


def require_deletion(request: web.Request, on: Resource) -> None:
    """Check the right to delete the path's subscription: that of the compaction ends it and deletes its view."""
    if subscription_of(request) == COMPACTION:
        require(request, Need.ADMIN, on)


def _stored(topics: list[AnyTopic], name: str) -> Iterator[Subscription]:
    for topic in topics:
        if not topic.persistent:
            raise NotAllowed("A subscription of a non-persistent topic has no position")
        yield topic.subscriptions[name]


@operation(
    "List the subscriptions of a topic or of any of its partitions.", answers={200: list[str]}, needs=Need.CONSUME
)
async def list_subscriptions(request: web.Request) -> web.Response:
    names: dict[str, None] = {}
    for topic in topics_of(request):
        names.update(dict.fromkeys(topic.subscriptions))
    return as_json(list(names))


@operation(
    "Create a durable subscription on all partitions or none, from a position on (default: the latest).",
    body=AnyPosition,
    query=(_REPLICATED,),
    needs=Need.CONSUME,
)
async def create_subscription(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    position = await position_of(request)
    if flag(request, "replicated"):
        raise ApiError(405, "Subscriptions cannot be replicated: there is one cluster")
    where, start = "latest", None
    if position is not None and position.is_earliest:
        where = "earliest"
    elif position is not None and not position.is_latest:
        start = (position.ledger_id, position.entry_id + position.entries_behind)
    subscriptions.create_subscription(
        broker,
        topic_of(request),
        subscription_of(request),
        position=where,
        start_id=start,
        properties=None if position is None else position.properties,
    )
    return await accepted(broker)


@operation("Delete a subscription from all partitions or none.", query=(_FORCE,), needs=Need.CONSUME)
async def delete_subscription(request: web.Request) -> web.Response:
    name = subscription_of(request)
    require_deletion(request, on_topic(topic_of(request)))
    subscriptions.delete_subscription(with_subscription(request), name, force=flag(request, "force"))
    return await accepted(request.app[BROKER])


# -- properties ----------------------------------------------------------------------------------------------------


@operation("Get the properties of a subscription.", answers={200: dict[str, str]}, needs=Need.CONSUME)
async def get_properties(request: web.Request) -> web.Response:
    merged: dict[str, str] = {}
    for subscription in stored_subscriptions(request):
        merged.update(subscription.properties)
    return as_json(merged)


@operation(
    "Replace a subscription's properties.",
    body=dict[str, str],
    example='{"owner": "payments-team"}',
    needs=Need.CONSUME,
)
async def put_properties(request: web.Request) -> web.Response:
    stored = clients_subscriptions(request)
    properties = await body_as(request, dict[str, str]) or {}
    check_properties(properties)
    for subscription in stored:
        subscription.properties = dict(properties)
    await all_durable(partial(each.topic.cursor_moved, each) for each in stored)
    return web.Response(status=204)


# -- replication ---------------------------------------------------------------------------------------------------


@operation(
    "Get whether the subscription is replicated, for each partition: always false.",
    answers={200: dict[str, bool]},
    needs=Need.CONSUME,
)
async def get_replicated(request: web.Request) -> web.Response:
    return as_json({str(topic.name): False for topic in with_subscription(request)})


@operation(
    "Set whether a subscription is replicated: only false, as there is one cluster.",
    body=bool,
    body_required=True,
    example="false",
    needs=Need.CONSUME,
)
async def set_replicated(request: web.Request) -> web.Response:
    with_subscription(request)
    if await required_body(request, bool, "false"):
        raise ApiError(405, "Subscriptions cannot be replicated: there is one cluster")
    return web.Response(status=204)


# -- the backlog ---------------------------------------------------------------------------------------------------


@operation(
    f"Analyze a subscription's backlog entry by entry, from a position on; at most {ANALYSED_ENTRIES} entries.",
    body=AnyPosition,
    answers={200: BacklogAnalysis},
    needs=Need.CONSUME,
)
async def analyze_backlog(request: web.Request) -> web.Response:
    stored = stored_subscriptions(request)
    position = await position_of(request)
    if len(stored) > 1 or str(topic_of(request)) in request.app[BROKER].directory.partitioned:
        raise ApiError(405, "Analyze backlog on a partitioned topic is not allowed: name one of its partitions")
    return as_json(await _analysis(stored[0], position))


async def _analysis(subscription: Subscription, position: PositionDocument | None) -> BacklogAnalysis:
    topic = subscription.topic
    at = max(subscription.acks.cursor.first_unacked(), topic.log.first_offset)
    if position is not None and not position.is_earliest:
        at = max(at, topic.log.offset_at_or_after(position.ledger_id, position.entry_id + position.entries_behind))
    end = min(topic.log.end_offset, at + ANALYSED_ENTRIES)
    aborted = end < topic.log.end_offset
    entries = messages = 0
    seen: list[int] = []
    while at < end:
        headers: list[EntryCounts] = await found(partial(topic.log.read_headers, at, end - 1))
        if not headers:
            break
        for entry in headers:
            unacked = subscription.acks.unacked_bits(entry.offset, entry.messages).bit_count()
            if unacked:
                entries += 1
                messages += unacked
                seen = [seen[0] if seen else entry.offset, entry.offset]
        at = headers[-1].offset + 1
    first, last = ("{}:{}".format(*topic.log.position(offset)) for offset in seen) if seen else (None, None)
    return BacklogAnalysis(entries, messages, entries, messages, aborted, first, last)


def routes() -> list[web.RouteDef]:
    return [
        web.get(f"{TOPIC_PATH}/subscriptions", list_subscriptions),
        web.put(SUBSCRIPTION_PATH, create_subscription),
        web.delete(SUBSCRIPTION_PATH, delete_subscription),
        web.get(f"{SUBSCRIPTION_PATH}/properties", get_properties),
        web.put(f"{SUBSCRIPTION_PATH}/properties", put_properties),
        web.get(f"{SUBSCRIPTION_PATH}/replicatedSubscriptionStatus", get_replicated),
        web.post(f"{SUBSCRIPTION_PATH}/replicatedSubscriptionStatus", set_replicated),
        web.post(f"{SUBSCRIPTION_PATH}/analyzeBacklog", analyze_backlog),
    ]
