"""/metrics in Prometheus text or OpenMetrics: Pulsar's names and labels, and Heliograph's own.

Written family by family (as both formats want it) and some hundred topics at a time, so that ten thousand
topics neither hold up the event loop nor are in memory as text all at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from aiohttp import web

from heliograph_broker.messaging.broker import AnyTopic

from .context import BROKER, RATES
from .loop_lag import LoopLag
from .operations import Media, operation
from .process_metrics import process_metrics
from .topic_metrics import FAMILIES, Family, Scrape, broker_families, namespace_families

LAG: web.AppKey[LoopLag] = web.AppKey("loop_lag", LoopLag)

_TEXT = "text/plain; version=0.0.4; charset=utf-8"
_OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_TOPICS_AT_ONCE = 200


def type_line(name: str, kind: str, openmetrics: bool) -> str:
    """Return the TYPE comment; OpenMetrics names a counter's family without the ``_total`` of its samples."""
    family = name.removesuffix("_total") if openmetrics and kind == "counter" else name
    return f"# TYPE {family} {kind}\n"


def _topic_lines(scrape: Scrape, family: Family, topics: list[AnyTopic]) -> Iterator[str]:
    """Yield the family's lines for some topics at a time."""
    for start in range(0, len(topics), _TOPICS_AT_ONCE):
        lines: list[str] = []
        for topic in topics[start : start + _TOPICS_AT_ONCE]:
            if not topic.closed:
                family.write(scrape, topic, lines)
        if lines:
            yield "".join(lines)


@operation(
    "The figures of the broker, in the format the Accept header asks for.", answers={200: Media((_TEXT, _OPENMETRICS))}
)
async def metrics(request: web.Request) -> web.StreamResponse:
    broker = request.app[BROKER]
    openmetrics = "application/openmetrics-text" in request.headers.get("Accept", "")
    response = web.StreamResponse(headers={"Content-Type": _OPENMETRICS if openmetrics else _TEXT})
    await response.prepare(request)
    await response.write(process_metrics(broker, request.app[LAG], openmetrics))
    scrape = Scrape(broker, request.app[RATES])
    topics = list(broker.topics.values())
    for single in (*broker_families(scrape, topics), *namespace_families(scrape)):
        name, kind, lines = single
        await response.write((type_line(name, kind, openmetrics) + "".join(lines)).encode())
        await asyncio.sleep(0)
    for family in FAMILIES:
        header = type_line(family.name, family.kind, openmetrics)
        for text in _topic_lines(scrape, family, topics):
            await response.write((header + text).encode())
            header = ""
            await asyncio.sleep(0)
    if openmetrics:
        await response.write(b"# EOF\n")
    await response.write_eof()
    return response


def routes() -> list[web.RouteDef]:
    return [web.get("/metrics", metrics), web.get("/metrics/", metrics)]
