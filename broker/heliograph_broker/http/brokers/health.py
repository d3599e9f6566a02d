"""/health/live and /health/ready: whether this process answers, and whether it can store messages."""

from __future__ import annotations

import asyncio

import msgspec
from aiohttp import web

from heliograph_broker.http.base.context import BROKER, as_json, committed
from heliograph_broker.http.base.errors import ApiError
from heliograph_broker.http.base.operations import Refusal, operation
from heliograph_broker.messaging.broker.broker import Broker
from heliograph_broker.security.authorization.needs import Need
from heliograph_broker.storage.base.completion import completed

WRITER_TIMEOUT_S = 5.0
#: Ticks are due 20 times a second. After this time (s) without one, nothing is flushed, delayed or expired on time.
TICK_TIMEOUT_S = 10.0
#: Deleting what never exists sends a commit through the writer thread that leaves nothing to sync.
_PROBE_KEY = b"probe/ready"


class Live(msgspec.Struct):
    """The process answers."""

    status: str


class Ready(msgspec.Struct):
    """The broker can store messages; ``topics`` is the number of topics served, partitions counted one by one."""

    status: str
    topics: int


async def check_ready(broker: Broker) -> None:
    """Check readiness. Raises :class:`ApiError` 503 with the problem."""
    if broker.store.writer.failure is not None:
        raise ApiError(503, f"the store has failed and the broker is stopping: {broker.store.writer.failure}")
    since_tick = broker.clock.monotonic() - broker.ticks.ended_at
    if since_tick > TICK_TIMEOUT_S:
        raise ApiError(
            503, f"the broker's timer last ran {since_tick:.0f} s ago: writes, deliveries and expiry are late"
        )
    if broker.store.space.full:
        raise ApiError(503, "the disk is full: new messages are refused until space is freed")
    broker.store.writer.delete(_PROBE_KEY)
    try:
        async with asyncio.timeout(WRITER_TIMEOUT_S):
            # The broker stays ready if only the records of a single topic cannot be written.
            await committed(broker, ())
            try:
                await completed(broker.store.writer.probe_segment)
            except Exception as error:
                raise ApiError(503, f"the open segment cannot be written: {error}") from error
    except TimeoutError as error:
        raise ApiError(503, f"the store has not committed anything for {WRITER_TIMEOUT_S:g} s") from error


@operation("Check whether the process answers.", answers={200: Live}, needs=Need.NOTHING)
async def live(request: web.Request) -> web.Response:
    return as_json(Live("live"))


@operation("Check whether the broker can store messages.", answers={200: Ready, 503: Refusal}, needs=Need.NOTHING)
async def ready(request: web.Request) -> web.Response:
    await check_ready(request.app[BROKER])
    return as_json(Ready("ready", len(request.app[BROKER].directory.topics)))


def routes() -> list[web.RouteDef]:
    return [web.get("/health/live", live), web.get("/health/ready", ready)]
