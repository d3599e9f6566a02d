"""Anonymous memory stays bounded whatever consumers do, and a start stays short whatever is stored.

RssAnon is what counts: LMDB's mapped pages belong to the page cache, which the kernel takes back as it likes.
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
START_BELOW_S = 5.0
IDLE_START_BELOW_S = 2.0


def anonymous_bytes(pid: int) -> int:
    """Return the anonymous resident memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"/proc/{pid}/status has no RssAnon")


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


def test_an_idle_broker_is_small_and_soon_ready(tmp_path: Path) -> None:
    starts: list[float] = []
    while len(starts) < 3 or (min(starts) >= IDLE_START_BELOW_S and len(starts) < 12):
        number = len(starts)
        broker = BrokerProcess(tmp_path / f"data-{number}")
        starts.append(broker.start())
        try:
            idle = anonymous_bytes(broker.pid)
        finally:
            broker.close()
        print(f"ready in {starts[-1]:.2f} s, idle with {idle / MIB:.0f} MiB")
        assert idle < IDLE_BELOW
    # Some starts may be disturbed by whatever else the machine does.
    assert min(starts) < IDLE_START_BELOW_S


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


def test_idle_topics_cost_little_and_a_start_with_them_and_a_backlog_is_short(broker: BrokerProcess) -> None:
    """10,000 topics with a subscription each; then a million messages in one of them; then a start."""

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
    asyncio.run(fill())
    starts: list[float] = []
    while len(starts) < 3 or (min(starts) >= START_BELOW_S and len(starts) < 8):
        if starts:
            broker.kill9()
        starts.append(broker.restart())
    held = anonymous_bytes(broker.pid)
    print(f"started in {', '.join(f'{start:.2f} s' for start in starts)}, then {held / MIB:.0f} MiB")
    assert min(starts) < START_BELOW_S
    assert held < IDLE_BELOW + TOPICS_COST_BELOW
    stats = topic_stats(broker.http_url, "public/default/idle-0")
    assert stats["subscriptions"]["s"]["msgBacklog"] == BACKLOG_MESSAGES
