"""GET …/subscription/{subscription}/messages: the unacknowledged messages that fit, each with its state."""

from __future__ import annotations

from typing import Literal

import msgspec
from aiohttp import web
from heliograph_api.values.durations import InvalidDuration, parse_duration
from heliograph_api.values.names import decode_subscription
from msgspec import UNSET, UnsetType

from heliograph_broker.http.base.await_result import found
from heliograph_broker.http.base.context import as_json
from heliograph_broker.http.base.errors import ApiError
from heliograph_broker.http.base.operations import Parameter, operation
from heliograph_broker.messaging.delivery.subscription import Subscription
from heliograph_broker.messaging.delivery.unacked_search import (
    SEARCH_ENTRIES,
    DeliveryState,
    FoundMessage,
    UnackedSearch,
)
from heliograph_broker.messaging.messages.message_match import Criteria
from heliograph_broker.security.authorization.needs import Need

from .admin_messages import one_topic
from .admin_topics import DOMAIN

_PATH = f"/heliograph/v1/{DOMAIN}/{{tenant}}/{{namespace}}/{{topic}}/subscription/{{subscription}}/messages"
_MOST = 1000
_DEFAULT = 100
_QUERY = (
    Parameter("key", str, "Only messages with this key."),
    Parameter("property", str, "Only messages with this property, name=value; may be repeated."),
    Parameter("olderThan", str, "Only messages that the broker received at least this long ago: 90s, 1h, 7d."),
    Parameter("newerThan", str, "Only messages that the broker received less than this long ago."),
    Parameter("id", str, "Only the entry or message with this id: ledger:entry or ledger:entry:index."),
    Parameter("limit", int, f"Number of messages, 1 to {_MOST}; {_DEFAULT} by default."),
    Parameter("after", str, "Continue where another search stopped: its 'next'."),
)


class UnackedMessage(msgspec.Struct, rename="camel", kw_only=True):
    """An unacknowledged message and its state. Timestamps are wall-clock ms; those that a message lacks are left out.

    ``id`` is ``ledger:entry``, or ``ledger:entry:index`` of a message in a batch. ``messages`` is more than 1 for a
    batch that only its consumers can open, which is shown as one; ``unopened`` says why. ``size`` are the bytes of the
    payload of a message in a batch, else of the entry. ``consumer`` has the message since ``sentTimestamp``, or holds
    its key.
    """

    id: str
    state: DeliveryState
    consumer: str | UnsetType = UNSET
    sent_timestamp: int | UnsetType = UNSET
    deliver_at_timestamp: int | UnsetType = UNSET
    redelivery_count: int
    key: str | None
    properties: dict[str, str]
    publish_timestamp: int
    receive_timestamp: int
    event_timestamp: int | UnsetType = UNSET
    producer_name: str
    sequence_id: int
    size: int
    messages: int
    encrypted: bool
    unopened: str | UnsetType = UNSET


class UnackedMessages(msgspec.Struct, rename="camel", kw_only=True):
    """Messages in the order of the topic. ``next`` is the place to continue from if the search stopped at a limit.

    ``stopped`` names the limit: ``limit``, the number of messages, or ``work``, the most that one request examines.
    Damaged entries are counted and left out.
    """

    messages: list[UnackedMessage]
    examined_entries: int
    unreadable_entries: int
    stopped: Literal["limit", "work"] | None
    next: str | None


def _document(each: FoundMessage) -> UnackedMessage:
    message = each.message
    index = f":{message.batch_index}" if message.batch_index >= 0 else ""
    return UnackedMessage(
        id="{}:{}".format(*each.position) + index,
        state=each.state,
        consumer=UNSET if each.consumer is None else each.consumer.name,
        sent_timestamp=each.since_ms or UNSET,
        deliver_at_timestamp=message.deliver_at_ms if message.deliver_at_ms > 0 else UNSET,
        redelivery_count=each.redeliveries,
        key=message.key,
        properties=message.properties,
        publish_timestamp=message.publish_ms,
        receive_timestamp=message.receive_ms,
        event_timestamp=message.event_ms or UNSET,
        producer_name=message.producer,
        sequence_id=message.sequence_id,
        size=message.size,
        messages=message.messages,
        encrypted=message.encrypted,
        unopened=message.unopened or UNSET,
    )


def _id(request: web.Request, name: str) -> tuple[int, int, int | None] | None:
    """Return ledger id, entry id and batch index (None without one) of a parameter, None if it is not given."""
    text = request.query.get(name)
    if text is None:
        return None
    parts = text.split(":")
    if len(parts) not in (2, 3) or not all(part.isascii() and part.isdigit() and len(part) <= 18 for part in parts):
        raise ApiError(400, f"{name} should be ledger:entry or ledger:entry:index, as in 12:3 or 12:3:0, not '{text}'")
    return int(parts[0]), int(parts[1]), int(parts[2]) if len(parts) == 3 else None


def _age_ms(request: web.Request, name: str) -> int | None:
    text = request.query.get(name)
    if text is None:
        return None
    try:
        age_ms = parse_duration(text)
    except InvalidDuration as error:
        raise ApiError(400, f"{name}: {error}") from error
    if age_ms < 0:
        raise ApiError(400, f"{name} should be a time such as 90s, 1h or 7d, not '{text}'")
    return age_ms


def _limit(request: web.Request) -> int:
    text = request.query.get("limit", str(_DEFAULT))
    if text.isascii() and text.isdigit() and len(text) <= 4 and 1 <= int(text) <= _MOST:
        return int(text)
    raise ApiError(400, f"limit should be a number from 1 to {_MOST}, not '{text}'")


def _properties(request: web.Request) -> dict[str, str]:
    properties: dict[str, str] = {}
    for pair in request.query.getall("property", []):
        name, separator, value = pair.partition("=")
        if not separator or not name:
            raise ApiError(400, f"property should be name=value, not '{pair}'")
        properties[name] = value
    return properties


def _search(request: web.Request, subscription: Subscription) -> UnackedSearch:
    """Return the search that the query describes. Raises :class:`ApiError` 400 with what would be right."""
    log = subscription.topic.log
    wanted, after = _id(request, "id"), _id(request, "after")
    criteria = Criteria(request.query.get("key"), _properties(request), wanted[2] if wanted is not None else None)
    offset, index = 0, 0
    if after is not None:
        offset = log.offset_at_or_after(after[0], after[1])
        index = (after[2] or 0) if log.offset_of(after[0], after[1]) == offset else 0
    older_ms, newer_ms = _age_ms(request, "olderThan"), _age_ms(request, "newerThan")
    search = UnackedSearch(subscription, criteria, limit=_limit(request), offset=offset, index=index)
    now_ms = subscription.topic.host.clock.now_ms()
    if wanted is not None:
        at = log.offset_of(wanted[0], wanted[1])
        # An entry that is not stored cannot be found.
        search.only(log.end_offset if at is None else at)
    if older_ms is not None:
        search.older_than(now_ms - older_ms)
    if newer_ms is not None:
        search.newer_than(now_ms - newer_ms)
    return search


@operation(
    f"Search the unacknowledged messages of a subscription without delivering them, at most {SEARCH_ENTRIES} entries.",
    query=_QUERY,
    answers={200: UnackedMessages},
    needs=Need.CONSUME,
)
async def find_messages(request: web.Request) -> web.Response:
    topic = one_topic(request, "Messages of a partitioned topic are searched by partition")
    topic.used()
    search = _search(request, topic.subscription(decode_subscription(request.match_info["subscription"])))
    while not search.finished:
        # Each step is one bounded read in a reader's thread; others have their turn in between.
        await found(search.step)
    stopped: Literal["limit", "work"] | None = None
    if search.more:
        stopped = "limit" if len(search.found) >= _limit(request) else "work"
    ledger_id, entry_id = topic.log.position(search.next_offset)
    index = f":{search.next_index}" if search.next_index else ""
    return as_json(
        UnackedMessages(
            messages=[_document(each) for each in search.found],
            examined_entries=search.examined,
            unreadable_entries=search.unreadable,
            stopped=stopped,
            next=f"{ledger_id}:{entry_id}{index}" if search.more else None,
        )
    )


def routes() -> list[web.RouteDef]:
    return [web.get(_PATH, find_messages)]
