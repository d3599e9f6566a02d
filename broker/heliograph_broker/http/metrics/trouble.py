"""REST and metrics of suspended duties and damaged entries."""

from __future__ import annotations

import msgspec
from aiohttp import web

from heliograph_broker.http.base.context import BROKER, as_json
from heliograph_broker.http.base.operations import operation
from heliograph_broker.http.stats.stats_documents import SuspendedDuty
from heliograph_broker.http.topics.admin_messages import one_topic
from heliograph_broker.http.topics.admin_topics import TOPIC_PATH
from heliograph_broker.messaging.broker.broker import Broker
from heliograph_broker.security.authorization.needs import Need

from .exposition import Block, Sample, labels


class Suspended(SuspendedDuty, rename="camel", kw_only=True):
    """One suspended duty. For a part of the broker itself, ``topic`` and ``subscription`` are empty."""

    topic: str


class DamagedRange(msgspec.Struct, rename="camel"):
    """A range of damaged entries, from its first to its last position; ``foundTimestamp`` is wall-clock ms."""

    ledger_id: int
    entry_id: int
    last_ledger_id: int
    last_entry_id: int
    entries: int
    reason: str
    found_timestamp: int


class QuarantinedLedger(msgspec.Struct, rename="camel"):
    """A ledger that is kept although no topic names it; ``sinceTimestamp`` is when (wall-clock ms).

    ``bytes`` are those of its messages.
    """

    ledger_id: int
    first_entry_id: int
    last_entry_id: int
    bytes: int
    reason: str
    since_timestamp: int


class Damaged(msgspec.Struct):
    """The number of damaged entries found so far, and the positions of the latest."""

    entries: int
    ranges: list[DamagedRange]


def trouble_blocks(broker: Broker) -> list[Block]:
    """Return the metrics of the duties suspended now and of all failures since the start."""
    cluster = broker.config.cluster_name
    containment = broker.containment
    now: list[Sample] = []
    for each in containment.all():
        topic, subscription = each.names
        now.append(("", labels(cluster=cluster, topic=topic, subscription=subscription, duty=each.task), each.failures))
    ever: list[Sample] = [
        ("", labels(cluster=cluster, duty=duty), count) for duty, count in sorted(containment.failures.items())
    ]
    return [Block("heliograph_suspended", "gauge", now), Block("heliograph_duty_failures_total", "total", ever)]


@operation(
    "List the tasks of the broker that failed and are suspended, the oldest first.",
    answers={200: list[Suspended]},
    needs=Need.MONITOR,
)
async def get_suspended(request: web.Request) -> web.Response:
    return as_json(
        [
            Suspended(
                each.names[1],
                each.task,
                each.reason,
                each.since_ms,
                each.last_ms,
                each.failures,
                topic=each.names[0],
            )
            for each in request.app[BROKER].containment.all()
        ]
    )


@operation(
    "List the quarantined ledgers: kept, but not served.", answers={200: list[QuarantinedLedger]}, needs=Need.MONITOR
)
async def get_quarantine(request: web.Request) -> web.Response:
    store = request.app[BROKER].store
    found = []
    for ledger_id, size in sorted(store.ledgers.quarantined.items()):
        bounds = store.segments.bounds(ledger_id)
        if bounds is not None:
            since_ms = store.ledgers.quarantined_since[ledger_id]
            found.append(QuarantinedLedger(ledger_id, *bounds, size, "no topic record refers to it", since_ms))
    return as_json(found)


@operation("List the damaged entries found in a topic or partition.", answers={200: Damaged}, needs=Need.LOOKUP)
async def get_damaged(request: web.Request) -> web.Response:
    damaged = one_topic(request, "A partitioned topic has no entries of its own").log.damaged
    return as_json(
        Damaged(
            damaged.entries,
            [
                DamagedRange(
                    each.ledger_id,
                    each.entry_id,
                    each.last_ledger_id,
                    each.last_entry_id,
                    each.last_offset - each.offset + 1,
                    each.reason,
                    each.found_ms,
                )
                for each in damaged.ranges
            ],
        )
    )


def routes() -> list[web.RouteDef]:
    return [
        web.get("/heliograph/v1/suspended", get_suspended),
        web.get("/heliograph/v1/quarantine", get_quarantine),
        web.get(f"{TOPIC_PATH}/damaged", get_damaged),
    ]
