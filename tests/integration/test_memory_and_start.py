"""Anonymous memory stays bounded whatever consumers do, and a start reads next to nothing of what is stored.

RssAnon is what counts: LMDB's mapped pages belong to the page cache, which the kernel takes back as it likes. Right
after a start they are what it has read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import pytest
from heliograph_api.protocol import wire_pb2 as wire

from tests.support.broker_process import BrokerProcess
from tests.support.entries import make_entry
from tests.support.rest import topic_stats
from tests.support.wire_link import WireLink

pytestmark = pytest.mark.alone

MIB = 1024 * 1024
IDLE_BELOW = 100 * MIB
STALLED_BELOW = 250 * MIB
TOPICS = 10_000
TOPICS_COST_BELOW = 100 * MIB
BACKLOG_MESSAGES = 1_000_000
#: The backlog is more than 100 MiB.
BACKLOG_READ_BELOW = 5 * MIB


def anonymous_bytes(pid: int) -> int:
    """Return the anonymous resident memory of a process."""
    return _resident_bytes(pid, "RssAnon")


def _resident_bytes(pid: int, kind: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{kind}:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"/proc/{pid}/status has no {kind}")


@contextmanager
def peak_of(pid: int) -> Iterator[list[int]]:
    """Watch a process; the list's only element is the most anonymous memory it was seen with (bytes)."""
    peak = [anonymous_bytes(pid)]
    over = Event()

    def watch() -> None:
        while not over.wait(0.02):
            peak[0] = max(peak[0], anonymous_bytes(pid))

    watcher = Thread(target=watch)
    watcher.start()
    try:
        yield peak
    finally:
        over.set()
        watcher.join()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data") as running:
        yield running


class Flood:
    """Publishes entries over one connection, so many at a time without a receipt."""

    def __init__(self, link: WireLink, producer_id: int, window: int) -> None:
        self._link = link
        self._producer_id = producer_id
        self._window = asyncio.Semaphore(window)
        self._progress = asyncio.Event()
        self._sent = 0
        self._receipts = 0
        link.on_receipt = self._on_receipt

    @classmethod
    async def open(cls, service_url: str, topic: str, window: int) -> Flood:
        link = await WireLink.connect(service_url)
        return cls(link, await link.producer(topic), window)

    def _on_receipt(self, receipt: wire.CommandSendReceipt) -> None:
        self._receipts += 1
        self._window.release()
        self._progress.set()

    async def _receipted(self, target: int) -> None:
        while self._receipts < target:
            self._progress.clear()
            await self._progress.wait()

    async def publish(self, entry: bytes, count: int, messages: int = 1) -> None:
        """Publish ``entry`` so often and wait for all receipts."""
        target = self._receipts + count
        for _ in range(count):
            await asyncio.wait_for(self._window.acquire(), 120)
            self._link.check()
            self._link.publish(self._producer_id, entry, sequence_id=self._sent, messages=messages)
            self._sent += 1
        async with asyncio.timeout(120):
            await self._receipted(target)
        self._link.check()

    def close(self) -> None:
        self._link.close()


def test_an_idle_broker_is_small(broker: BrokerProcess) -> None:
    idle = anonymous_bytes(broker.pid)
    print(f"idle with {idle / MIB:.0f} MiB")
    assert idle < IDLE_BELOW


async def stall_without_permits(service_url: str, topic: str) -> WireLink:
    """A consumer that is connected and never asks for a message."""
    link = await WireLink.connect(service_url)
    await link.subscribe(topic, "stalled")
    return link


async def stall_without_acks(service_url: str, topic: str) -> WireLink:
    """A consumer that takes everything and acknowledges nothing."""
    link = await WireLink.connect(service_url)
    link.flow(await link.subscribe(topic, "stalled"), 1 << 30)
    return link


async def stall_without_reading(service_url: str, topic: str) -> WireLink:
    """A consumer that asks for everything and then no longer reads its socket."""
    link = await stall_without_acks(service_url, topic)
    link.pause()
    return link


@pytest.mark.parametrize("stall", [stall_without_permits, stall_without_acks, stall_without_reading])
@pytest.mark.parametrize("size", [1024, 64 * 1024])
def test_a_stalled_subscription_does_not_grow_memory(
    broker: BrokerProcess, stall: Callable[[str, str], Awaitable[WireLink]], size: int
) -> None:
    """1 GiB is published: as batches of 1 KiB messages by size, or as single messages of 64 KiB."""

    async def flood() -> None:
        consumer = await stall(broker.service_url, "stalled")
        producer = await Flood.open(broker.service_url, "stalled", 200)
        if size == 1024:
            await producer.publish(make_entry([bytes(1024)] * 64), 1024 * MIB // (64 * 1024), 64)
        else:
            await producer.publish(make_entry(bytes(size)), 1024 * MIB // size)
        producer.close()
        consumer.check()
        assert not consumer.ended.is_set()
        consumer.close()

    with peak_of(broker.pid) as peak:
        asyncio.run(flood())
    print(f"{stall.__name__}, {size}: peak of {peak[0] / MIB:.0f} MiB")
    assert peak[0] < STALLED_BELOW


def test_many_small_messages_do_not_grow_memory(broker: BrokerProcess) -> None:
    """200,000 messages of 100 bytes, each an entry of its own, to a consumer that never acknowledges."""

    async def flood() -> None:
        consumer = await stall_without_acks(broker.service_url, "small")
        producer = await Flood.open(broker.service_url, "small", 2000)
        await producer.publish(make_entry(bytes(100)), 200_000)
        producer.close()
        consumer.close()

    with peak_of(broker.pid) as peak:
        asyncio.run(flood())
    print(f"small messages: peak of {peak[0] / MIB:.0f} MiB")
    assert peak[0] < STALLED_BELOW


def test_idle_topics_cost_little_and_a_start_reads_no_backlog(broker: BrokerProcess) -> None:
    """10,000 topics with a subscription each, and a start; then a million messages in one of them, and two starts."""

    async def create_topics() -> None:
        link = await WireLink.connect(broker.service_url)
        for first in range(0, TOPICS, 500):
            names = [f"idle-{number}" for number in range(first, first + 500)]
            await asyncio.gather(*(link.subscribe(name, "s") for name in names))
        link.close()

    async def fill() -> None:
        producer = await Flood.open(broker.service_url, "idle-0", 100)
        await producer.publish(make_entry([bytes(100)] * 100), BACKLOG_MESSAGES // 100, 100)
        producer.close()
        # Single entries too: they are what a start would have to count.
        producer = await Flood.open(broker.service_url, "idle-1", 2000)
        await producer.publish(make_entry(bytes(100)), 50_000)
        producer.close()

    before = anonymous_bytes(broker.pid)
    asyncio.run(create_topics())
    cost = anonymous_bytes(broker.pid) - before
    print(f"{TOPICS} topics cost {cost / MIB:.0f} MiB")
    assert cost < TOPICS_COST_BELOW
    broker.restart()
    without = _resident_bytes(broker.pid, "RssFile")
    asyncio.run(fill())
    for killed in (False, True):
        if killed:
            broker.kill9()
        took = broker.restart()
        read = _resident_bytes(broker.pid, "RssFile") - without
        held = anonymous_bytes(broker.pid)
        print(f"started in {took:.2f} s with {read / MIB:.1f} MiB of the backlog read, then {held / MIB:.0f} MiB")
        assert read < BACKLOG_READ_BELOW
        assert held < IDLE_BELOW + TOPICS_COST_BELOW
    stats = topic_stats(broker.http_url, "public/default/idle-0")
    assert stats["subscriptions"]["s"]["msgBacklog"] == BACKLOG_MESSAGES
