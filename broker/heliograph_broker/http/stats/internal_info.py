"""Pulsar's internal info of a topic: its stored ledgers and cursors."""

from __future__ import annotations

import msgspec
from aiohttp import web

from heliograph_broker.http.base.context import as_json
from heliograph_broker.http.base.operations import operation
from heliograph_broker.http.topics.admin_messages import one_topic
from heliograph_broker.http.topics.admin_topics import TOPIC_PATH
from heliograph_broker.messaging.topic.topic import Topic
from heliograph_broker.security.authorization.needs import Need

from .stats import iso


class LedgerInfo(msgspec.Struct, rename="camel", omit_defaults=True):
    """A ledger; ``timestamp`` is when it was begun (ms), ``entries`` are known of closed ledgers."""

    ledger_id: int
    timestamp: int
    is_offloaded: bool
    entries: int = 0


class PositionInfo(msgspec.Struct, rename="camel"):
    """An entry's id; entry id -1 is the place before a ledger's first entry."""

    ledger_id: int
    entry_id: int


class CursorInfo(msgspec.Struct, rename="camel", omit_defaults=True):
    """A durable subscription; its acknowledgements are part of the broker's metadata, in no ledger (-1).

    It was modified when its mark-delete position last advanced since the broker started.
    """

    version: int
    creation_date: str
    modification_date: str
    cursors_ledger_id: int
    mark_delete: PositionInfo
    properties: dict[str, str] = {}


class TopicInfo(msgspec.Struct, rename="camel", omit_defaults=True):
    """Pulsar's ManagedLedgerInfo. Subscriptions by name; a terminated topic says where it ends.

    ``version`` is that of the topic's set of records; the list of its ledgers was modified when the newest began.
    """

    version: int
    creation_date: str
    modification_date: str
    ledgers: list[LedgerInfo]
    cursors: dict[str, CursorInfo]
    properties: dict[str, str] = {}
    terminated_position: PositionInfo | None = None


def topic_info(topic: Topic) -> TopicInfo:
    """Return the document of a stored topic."""
    open_ledger = topic.log.ledgers[-1] if topic.log.ledgers else None
    version = topic.records.version
    return TopicInfo(
        version,
        iso(topic.created_ms),
        iso(open_ledger.created_ms if open_ledger is not None else topic.created_ms),
        [
            LedgerInfo(each.ledger_id, each.created_ms, False, 0 if each is open_ledger else each.entries)
            for each in topic.log.ledgers
        ],
        {
            name: CursorInfo(
                version,
                iso(each.created_ms),
                iso(max(each.created_ms, each.acks.last_mark_delete_ms)),
                -1,
                PositionInfo(*topic.log.position(each.acks.cursor.mark_delete)),
                each.properties,
            )
            for name, each in topic.subscriptions.items()
            if each.durable
        },
        topic.properties,
        PositionInfo(*topic.log.last_position()) if topic.terminated else None,
    )


@operation(
    "Get the stored metadata of the ledgers and cursors of a topic or partition.",
    answers={200: TopicInfo},
    needs=Need.LOOKUP,
)
async def get_internal_info(request: web.Request) -> web.Response:
    return as_json(topic_info(one_topic(request, "A partitioned topic has no ledgers of its own")))


def routes() -> list[web.RouteDef]:
    return [web.get(f"{TOPIC_PATH}/internal-info", get_internal_info)]
