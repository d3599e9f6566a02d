"""/metrics in Prometheus text or OpenMetrics: Pulsar's names and labels, and Heliograph's own.

Topics are looked at some at a time, then written family by family as both formats want it, again some at a time, so
that ten thousand of them neither hold up the event loop nor are in memory as text all at once.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterator, Sequence

from aiohttp import web

from .broker_metrics import broker_blocks, namespace_blocks
from .context import BROKER, RATES
from .exposition import OPENMETRICS, TEXT, accepts_gzip, header, prefers_openmetrics, write_block
from .loop_lag import LoopLag
from .operations import Media, operation
from .process_metrics import disk_usage, process_metrics
from .scrape import Rows, Scrape
from .topic_columns import Column, SubscriptionColumn
from .topic_metrics import SUBSCRIPTION_COLUMNS, TOPIC_COLUMNS

LAG: web.AppKey[LoopLag] = web.AppKey("loop_lag", LoopLag)

_LOOKS_AT_ONCE = 25
_LINES_AT_ONCE = 1000
#: Text is written when there is so much of it: compressing and sending cost something a time.
_WRITE_BYTES = 256 * 1024


class _Output:
    """Collects text, and sends it compressed (by a thread beside the loop) if the scraper takes that."""

    def __init__(self, response: web.StreamResponse, compress: bool) -> None:
        self._response = response
        self._compressor = zlib.compressobj(1, wbits=31) if compress else None
        self._parts: list[str] = []
        self._size = 0

    async def write(self, text: str) -> None:
        """Take some text, and let others have the loop."""
        self._parts.append(text)
        self._size += len(text)
        if self._size >= _WRITE_BYTES:
            await self._flush()
        await asyncio.sleep(0)

    async def _flush(self) -> None:
        data = "".join(self._parts).encode()
        self._parts.clear()
        self._size = 0
        compressor = self._compressor
        if compressor is not None:
            data = await asyncio.get_running_loop().run_in_executor(None, compressor.compress, data)
        if data:
            await self._response.write(data)

    async def end(self) -> None:
        await self._flush()
        if self._compressor is not None:
            await self._response.write(self._compressor.flush())
        await self._response.write_eof()


def _families(columns: Sequence[Column | SubscriptionColumn], rows: Rows, openmetrics: bool) -> Iterator[str]:
    """Yield the lines of the columns, those of one family one after the other, some rows at a time."""
    labels, values = rows
    before = ""
    for index, column in enumerate(columns):
        name, end = column.name, f"{column.more}}} "
        start = header(name, column.kind, openmetrics) if name != before else ""
        before = name
        for first in range(0, len(labels), _LINES_AT_ONCE):
            of_these = zip(labels[first : first + _LINES_AT_ONCE], values[first : first + _LINES_AT_ONCE], strict=True)
            lines = [f"{name}{own}{end}{row[index]}\n" for own, row in of_these if row[index] is not None]
            if lines:
                yield start + "".join(lines)
                start = ""


@operation(
    "The figures of the broker, in the format the Accept header asks for.", answers={200: Media((TEXT, OPENMETRICS))}
)
async def metrics(request: web.Request) -> web.StreamResponse:
    broker = request.app[BROKER]
    openmetrics = prefers_openmetrics(request.headers.get("Accept", ""))
    compress = accepts_gzip(request.headers.get("Accept-Encoding", ""))
    response = web.StreamResponse(headers={"Content-Type": OPENMETRICS if openmetrics else TEXT})
    response.headers["Vary"] = "Accept, Accept-Encoding"
    if compress:
        response.headers["Content-Encoding"] = "gzip"
    await response.prepare(request)
    output = _Output(response, compress)
    disk = await asyncio.to_thread(disk_usage, broker.store)
    await output.write(process_metrics(broker, request.app[LAG], disk, openmetrics))
    scrape = Scrape(broker, request.app[RATES])
    topics = list(broker.topics.values())
    for first in range(0, len(topics), _LOOKS_AT_ONCE):
        for topic in topics[first : first + _LOOKS_AT_ONCE]:
            if not topic.closed:
                scrape.look(topic)
        await asyncio.sleep(0)
    blocks = [*broker_blocks(broker, scrape.totals), *namespace_blocks(scrape)]
    await output.write("".join(write_block(block, openmetrics) for block in blocks))
    for text in _families(TOPIC_COLUMNS, scrape.topics, openmetrics):
        await output.write(text)
    for text in _families(SUBSCRIPTION_COLUMNS, scrape.subscriptions, openmetrics):
        await output.write(text)
    if openmetrics:
        await output.write("# EOF\n")
    await output.end()
    return response


def routes() -> list[web.RouteDef]:
    return [web.get("/metrics", metrics), web.get("/metrics/", metrics)]
