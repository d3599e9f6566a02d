"""/metrics in Prometheus text or OpenMetrics: Pulsar's names and labels, and Heliograph's own.

Topics are looked at some at a time, then written family by family as both formats want it, again some at a time, so
that ten thousand of them neither hold up the event loop nor are in memory as text all at once.
"""

from __future__ import annotations

import asyncio
import sys
import time
import zlib
from collections.abc import Iterator, Sequence

from aiohttp import web

from heliograph_broker.http.base.access import AUTHORIZER
from heliograph_broker.http.base.context import BROKER, RATES
from heliograph_broker.http.base.operations import Media, operation
from heliograph_broker.security.authorization.needs import Need
from heliograph_broker.storage.commit.group_commit import GroupCommit

from .broker_metrics import broker_blocks, namespace_blocks
from .decision_metrics import decision_blocks
from .exposition import OPENMETRICS, TEXT, Value, accepts_gzip, header, prefers_openmetrics, write_block
from .loop_lag import LoopLag
from .process_metrics import disk_usage, process_metrics
from .scrape import Scrape, Table
from .trouble import trouble_blocks

LAG: web.AppKey[LoopLag] = web.AppKey("loop_lag", LoopLag)

_TURN_S = 0.002
_MAX_REST_S = 0.005
_SWITCH_INTERVAL_S = 0.0005
_TOPICS_AT_ONCE = 10
_LINES_AT_ONCE = 1000
#: Text is written when there is so much of it: compressing and sending cost something a time.
_WRITE_BYTES = 256 * 1024


class _Turns:
    """Lets others have the loop every two milliseconds, and the store's writer its turn at the interpreter.

    While entries wait for the store, for as long as was worked: a writer that has to wait for the interpreter after
    each of its system calls would hold up every receipt. For the same reason threads ask for it sooner meanwhile.
    Work is the thread's own time: on a busy machine, waiting for a processor is rest enough.
    """

    _usual_s = sys.getswitchinterval()
    _scrapes = 0

    def __init__(self, group_commit: GroupCommit) -> None:
        self._group_commit = group_commit
        self._began = 0.0

    def __enter__(self) -> _Turns:
        _Turns._scrapes += 1
        sys.setswitchinterval(min(_SWITCH_INTERVAL_S, self._usual_s))
        self._began = time.thread_time()
        return self

    def __exit__(self, *exception: object) -> None:
        _Turns._scrapes -= 1
        if not _Turns._scrapes:
            sys.setswitchinterval(self._usual_s)

    async def give(self) -> None:
        """Let others have their turn if this one has lasted long enough."""
        worked = time.thread_time() - self._began
        if worked >= _TURN_S:
            await asyncio.sleep(min(worked, _MAX_REST_S) if self._group_commit.pending_bytes else 0)
            self._began = time.thread_time()


class _Output:
    """Collects text, and sends it compressed (by a thread beside the loop) if the scraper takes that."""

    def __init__(self, response: web.StreamResponse, turns: _Turns, compress: bool) -> None:
        self._turns = turns
        self._response = response
        self._compressor = zlib.compressobj(1, wbits=31) if compress else None
        self._parts: list[str] = []
        self._size = 0

    async def write(self, text: str) -> None:
        self._parts.append(text)
        self._size += len(text)
        if self._size >= _WRITE_BYTES:
            await self._flush()
        await self._turns.give()

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


def _lines(name: str, more: str, labels: Sequence[str], values: Sequence[Value | None]) -> str:
    """Return a line for each of the values that are not None; ``labels`` lack the closing brace."""
    if None in values:
        known = [(own, value) for own, value in zip(labels, values, strict=True) if value is not None]
        return _lines(name, more, [own for own, _ in known], [value for _, value in known]) if known else ""
    end, first = more + "} ", values[0]
    if values.count(first) == len(values):
        # Most values of most topics are 0 at any time.
        between = f"{end}{first}\n{name}"
        return f"{name}{between.join(labels)}{end}{first}\n"
    pieces = [f"\n{name}"] * (4 * len(labels))
    pieces[0::4] = labels
    pieces[1::4] = [end] * len(labels)
    pieces[2::4] = map(str, values)
    pieces[-1] = "\n"
    return name + "".join(pieces)


def _families(table: Table, openmetrics: bool) -> Iterator[str]:
    """Yield the lines of a table, those of one family one after the other, some rows at a time."""
    slices = [slice(first, first + _LINES_AT_ONCE) for first in range(0, len(table.rows), _LINES_AT_ONCE)]
    chunks = []
    for each in slices:
        rows = table.rows[each]
        nothing = (0,) * len(rows)
        chunks.append((table.labels[each], [*zip(*rows, strict=True), *(nothing for _ in table.zeros)]))
        yield ""
    before = ""
    for index, column in enumerate((*table.columns, *table.zeros)):
        start = header(column.name, column.kind, openmetrics) if column.name != before else ""
        before = column.name
        for labels, columns in chunks:
            lines = _lines(column.name, column.more, labels, columns[index])
            if lines:
                yield start + lines
                start = ""


@operation(
    "Get the broker's metrics in the format that the Accept header asks for.",
    answers={200: Media((TEXT, OPENMETRICS))},
    needs=Need.MONITOR,
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
    disk = await asyncio.to_thread(disk_usage, broker.store)
    scrape = Scrape(broker, request.app[RATES])
    with _Turns(broker.store.writer) as turns:
        output = _Output(response, turns, compress)
        await output.write(process_metrics(broker, request.app[LAG], disk, openmetrics))
        topics = list(broker.directory.topics.values())
        for first in range(0, len(topics), _TOPICS_AT_ONCE):
            scrape.read_topics(topics[first : first + _TOPICS_AT_ONCE])
            await turns.give()
        blocks = (
            *broker_blocks(broker, scrape.broker()),
            *trouble_blocks(broker),
            *decision_blocks(request.app.get(AUTHORIZER), broker.config.cluster_name),
            *namespace_blocks(scrape),
        )
        for block in blocks:
            await output.write(write_block(block, openmetrics))
        for table in (scrape.topics, scrape.subscriptions):
            for text in _families(table, openmetrics):
                await output.write(text)
        if openmetrics:
            await output.write("# EOF\n")
        await output.end()
    return response


def routes() -> list[web.RouteDef]:
    return [web.get("/metrics", metrics), web.get("/metrics/", metrics)]
