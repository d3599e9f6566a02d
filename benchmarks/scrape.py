"""Measures the duration of /metrics with many topics, and its effect on publishers: ``benchmarks/run-scrape``.

A broker of its own gets 10,000 topics with a subscription each, of which some hold a backlog. A publisher sends at a
fixed rate throughout; its latencies while nobody scrapes are compared with those while /metrics is read without pause.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import aiohttp
import typer
import uvloop
from heliograph_api.protocol import wire_pb2 as wire

from tests.support.broker_process import BrokerProcess

from .latencies import shown
from .scenarios import cpu_seconds
from .wire_load import Publisher, Type, WireJob

#: Reads and drops everything; this process publishes meanwhile and must not be kept from it.
_READER = """
import sys, time, urllib.request
began, size = time.monotonic(), 0
request = urllib.request.Request(sys.argv[1], headers={"Accept-Encoding": sys.argv[2]})
with urllib.request.urlopen(request) as answer:
    while data := answer.read(1 << 20):
        size += len(data)
print(time.monotonic() - began, size)
"""
#: Topics are made this many at a time: a partitioned topic each.
_PARTITIONS = 1000
_RATE = 1000.0
_QUIET_S = 10.0


async def _create_topics(http: aiohttp.ClientSession, topics: int) -> None:
    for start in range(0, topics, _PARTITIONS):
        path = f"/admin/v2/persistent/public/default/wide-{start}"
        for where, body in (("/partitions", str(min(_PARTITIONS, topics - start))), ("/subscription/s", "")):
            async with http.put(path + where, data=body) as answer:
                answer.raise_for_status()


async def _publisher(url: str, topic: str, messages: int, rate: float) -> Publisher:
    job = WireJob(service_url=url, topic=topic, payload_bytes=1024, messages=messages, rate=rate)
    address = urlsplit(url)
    assert address.hostname is not None
    assert address.port is not None
    _, publisher = await asyncio.get_running_loop().create_connection(
        lambda: Publisher(job), address.hostname, address.port
    )
    await publisher.opened(
        Type(type=Type.PRODUCER, producer=wire.CommandProducer(topic=topic, producer_id=1, request_id=1))
    )
    return publisher


async def _fill(url: str, topics: int, share: int) -> None:
    """Publish ten messages to every ``share``-th topic, so that these have metrics other than 0."""
    for index in range(0, topics, share):
        start = index // _PARTITIONS * _PARTITIONS
        publisher = await _publisher(url, f"wide-{start}-partition-{index - start}", 10, 0.0)
        publisher.start()
        await publisher.done.wait()
        publisher.close()


async def _scrape(url: str, encoding: str) -> tuple[float, int]:
    """Let another process read /metrics, as a scraper does; return seconds and bytes on the wire."""
    reader = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _READER, f"{url}/metrics", encoding, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await reader.communicate()
    if reader.returncode:
        raise RuntimeError(f"the scraper ended with {reader.returncode}")
    seconds, size = output.split()
    return float(seconds), int(size)


async def measure(broker: BrokerProcess, topics: int, scrapes: int) -> list[str]:
    """Return the results as the rows of a Markdown table."""
    async with aiohttp.ClientSession(broker.http_url, auto_decompress=False) as http:
        await _create_topics(http, topics)
        await _fill(broker.service_url, topics, share=10)
        publisher = await _publisher(broker.service_url, "measured", 10_000_000, _RATE)
        publisher.start()
        before_cpu = cpu_seconds(broker.pid)
        await asyncio.sleep(_QUIET_S)
        quiet_cpu = (cpu_seconds(broker.pid) - before_cpu) / _QUIET_S
        rows = []
        quiet = list(publisher.latencies_ms)
        rows.append(f"| nobody scrapes | | | | {shown(quiet)} |")
        for encoding in ("identity", "gzip"):
            before, before_cpu = len(publisher.latencies_ms), cpu_seconds(broker.pid)
            taken = [await _scrape(broker.http_url, encoding) for _ in range(scrapes)]
            during = publisher.latencies_ms[before:]
            seconds = [each[0] for each in taken]
            cpu = (cpu_seconds(broker.pid) - before_cpu) / scrapes - quiet_cpu * statistics.mean(seconds)
            rows.append(
                f"| scraped without pause, {encoding} | {statistics.median(seconds):.2f} / {max(seconds):.2f} "
                f"| {cpu:.2f} | {taken[-1][1] / 1e6:.1f} "
                f"| {shown(during)} |"
            )
        publisher.close()
        return rows


def main(
    topics: Annotated[int, typer.Option(help="Topics, each with one subscription.")] = 10_000,
    scrapes: Annotated[int, typer.Option(help="Scrapes of each kind, one after the other.")] = 5,
) -> None:
    """Print a table: seconds a scrape takes, its size, and publish latency meanwhile."""
    with (
        tempfile.TemporaryDirectory(prefix="heliograph-scrape-") as scratch,
        BrokerProcess(Path(scratch) / "data") as broker,
    ):
        rows = uvloop.run(measure(broker, topics, scrapes))
    print(
        f"| {topics:,} topics | scrape s, median / longest | broker CPU s a scrape | MB | publish ms p50 / p99 / max |"
    )
    print("|---|---|---|---|---|")
    print("\n".join(rows))


if __name__ == "__main__":
    typer.run(main)
