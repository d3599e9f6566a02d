"""What is suspended because it raised, and which entries are damaged: for people, and for the operator."""

from __future__ import annotations

import msgspec
from aiohttp import web

from heliograph_broker.messaging.broker import Broker
from heliograph_broker.messaging.containment import Suspension

from .admin_messages import one_topic
from .admin_topics import TOPIC_PATH
from .context import BROKER, as_json
from .exposition import Block, Sample, labels
from .operations import operation


class Suspended(msgspec.Struct, rename="camel"):
    """A duty that raised, of a topic or subscription, or of a part of the broker itself (then both are empty)."""

    topic: str
    subscription: str
    duty: str
    reason: str
    since_timestamp: int
    last_failure_timestamp: int
    failures: int


class DamagedRange(msgspec.Struct, rename="camel"):
    """Neighbouring entries, from the first position to the last; when they were found (wall-clock ms), and why."""

    ledger_id: int
    entry_id: int
    last_ledger_id: int
    last_entry_id: int
    entries: int
    reason: str
    found_timestamp: int


class Damaged(msgspec.Struct):
    """How many damaged entries were ever found, and where the newest are."""

    entries: int
    ranges: list[DamagedRange]


def _suspended(each: Suspension) -> Suspended:
    topic, subscription = each.names
    return Suspended(topic, subscription, each.duty, each.reason, each.since_ms, each.last_ms, each.failures)


def trouble_blocks(broker: Broker) -> list[Block]:
    """Return the families of what is suspended now, and of how often anything was."""
    cluster = broker.config.cluster_name
    containment = broker.containment
    now: list[Sample] = []
    for each in containment.all():
        topic, subscription = each.names
        now.append(("", labels(cluster=cluster, topic=topic, subscription=subscription, duty=each.duty), each.failures))
    ever: list[Sample] = [
        ("", labels(cluster=cluster, duty=duty), count) for duty, count in sorted(containment.failures.items())
    ]
    return [Block("heliograph_suspended", "gauge", now), Block("heliograph_duty_failures_total", "total", ever)]


@operation("Duties of the broker that failed and are suspended, the oldest first.", answers={200: list[Suspended]})
async def get_suspended(request: web.Request) -> web.Response:
    return as_json([_suspended(each) for each in request.app[BROKER].containment.all()])


@operation("Damaged entries found in a topic or one partition.", answers={200: Damaged})
async def get_damaged(request: web.Request) -> web.Response:
    damaged = one_topic(request, "A partitioned topic has no entries of its own").damaged
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
        web.get(f"{TOPIC_PATH}/damaged", get_damaged),
    ]
