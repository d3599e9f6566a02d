"""A wall clock that is set under a running broker: an hour back, a year ahead for one publish, and back again.

What the broker does by itself goes on as before: acknowledgments become durable, acknowledged messages go, messages
expire, delayed ones are delivered and kept ones are deleted. Only the entries of that moment bear its stamp.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from heliograph_api.protocol import wire_pb2 as wire

from tests.support.entries import make_entry
from tests.support.polling import eventually
from tests.support.rest import apply, topic_stats
from tests.support.wire_link import WireLink, closing_links

from .idle import check_idle
from .shifted_broker import ShiftedBroker

HOUR_MS = 3_600_000
YEAR_MS = 365 * 24 * HOUR_MS
#: Retention by time of the topic `kept`, in steps that REST does not know.
KEPT_S = 10
NAMESPACE = "public/moved"
#: Policies count in seconds; the rest is for a busy machine.
WITHIN_S = 120.0
SETTINGS = {"HELIOGRAPH_LEDGER_MAX_ENTRIES": "50"}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[ShiftedBroker]:
    started = ShiftedBroker(tmp_path / "data", SETTINGS)
    started.start()
    yield started
    if started.running:
        started.kill9()


def topic(name: str) -> str:
    return f"persistent://{NAMESPACE}/{name}"


class Client:
    """One connection that publishes, and consumers that acknowledge everything as clients do by default."""

    def __init__(self, broker: ShiftedBroker) -> None:
        self._broker = broker
        self._producers: dict[str, int] = {}
        self._sequence = 0
        self._receipts = 0
        self.received: dict[str, list[bytes]] = {}

    async def open(self) -> None:
        self._link = await WireLink.connect(self._broker.service_url)
        self._link.on_receipt = self._on_receipt
        self._producers.clear()

    def _on_receipt(self, receipt: wire.CommandSendReceipt) -> None:
        self._receipts += 1

    async def consume(self, name: str) -> None:
        """Take and acknowledge everything of a topic over a connection of its own."""
        link = await WireLink.connect(self._broker.service_url)
        received = self.received.setdefault(name, [])

        def on_message(message: wire.CommandMessage, entry: bytes) -> None:
            received.append(entry[-20:].strip(b"."))
            link.ack(consumer, [message.message_id])

        link.on_message = on_message
        consumer = await link.subscribe(topic(name), "s", subType=wire.CommandSubscribe.Shared)
        link.flow(consumer, 1 << 30)

    async def publish(self, name: str, count: int, *, body: bytes = b"", delay_ms: int | None = None) -> None:
        """Publish to a topic and wait for the receipts."""
        if name not in self._producers:
            self._producers[name] = await self._link.producer(topic(name))
        wanted = self._receipts + count
        # The publisher's clock is right: it is the broker's that is set.
        delayed: dict[str, Any] = {} if delay_ms is None else {"deliver_at_time": self._broker.now_ms() + delay_ms}
        for _ in range(count):
            self._sequence += 1
            entry = make_entry(body.rjust(200, b"."), sequence_id=self._sequence, **delayed)
            self._link.publish(self._producers[name], entry, sequence_id=self._sequence)
        async with asyncio.timeout(WITHIN_S):
            while self._receipts < wanted:
                await self._link.ping()
                self._link.check()

    def backlog(self, name: str) -> int:
        return int(topic_stats(self._broker.http_url, f"{NAMESPACE}/{name}")["subscriptions"]["s"]["msgBacklog"])

    def stored(self, name: str) -> int:
        return int(topic_stats(self._broker.http_url, f"{NAMESPACE}/{name}")["storageSize"])


async def _prepare(broker: ShiftedBroker) -> Client:
    tenant = {"kind": "Tenant", "metadata": {"name": "public"}}
    namespace = {
        "kind": "Namespace",
        "metadata": {"name": "moved"},
        "spec": {"tenantRef": {"name": "public"}, "retention": {"time": "0", "size": "0"}},
    }
    kept = {
        "kind": "Topic",
        "metadata": {"name": "kept"},
        "spec": {"namespaceRef": {"name": "moved"}, "retention": {"time": f"{KEPT_S}s", "size": "infinite"}},
    }
    expiring = {
        "kind": "Topic",
        "metadata": {"name": "expiring"},
        "spec": {"namespaceRef": {"name": "moved"}, "messageTTL": "2s"},
    }
    await asyncio.to_thread(apply, broker.http_url, tenant, namespace, kept, expiring)
    client = Client(broker)
    await client.open()
    link = await WireLink.connect(broker.service_url)
    for name in ("acked", "expiring", "delayed", "kept"):
        await link.subscribe(topic(name), "s", subType=wire.CommandSubscribe.Shared)
    link.close()
    for name in ("acked", "delayed", "kept"):
        await client.consume(name)
    return client


async def _check_all_goes_on(broker: ShiftedBroker, client: Client, mark: bytes, *, left: int = 0) -> None:
    """Acknowledge, expire, delay: everything happens in its time. ``left`` bear the stamp of another moment."""
    await client.publish("acked", 120)
    await asyncio.to_thread(
        eventually, lambda: client.backlog("acked") == 0, within_s=WITHIN_S, what="everything acknowledged"
    )
    await asyncio.to_thread(
        eventually, lambda: client.stored("acked") == 0, within_s=WITHIN_S, what="what is acknowledged gone"
    )
    await client.publish("expiring", 30)
    await asyncio.to_thread(
        eventually, lambda: client.backlog("expiring") <= left, within_s=WITHIN_S, what=f"all expired but {left}"
    )
    await client.publish("delayed", 5, body=mark, delay_ms=1000)
    await asyncio.to_thread(
        eventually,
        lambda: client.received["delayed"].count(mark) == 5,
        within_s=WITHIN_S,
        what="delayed messages delivered",
    )
    await asyncio.to_thread(check_idle, broker)


async def _moved(broker: ShiftedBroker) -> None:
    client = await _prepare(broker)
    await _check_all_goes_on(broker, client, b"before")

    broker.set_clock(-HOUR_MS)
    await _check_all_goes_on(broker, client, b"hour-back")

    # Acknowledgments were flushed, an hour back or not: nothing comes again after a crash.
    broker.kill9()
    await asyncio.to_thread(broker.start)
    assert client.backlog("acked") == 0
    await client.open()
    for name in ("acked", "delayed", "kept"):
        await client.consume(name)

    broker.set_clock(0)
    await client.publish("kept", 20)
    broker.set_clock(YEAR_MS)
    for name in ("acked", "expiring", "delayed", "kept"):
        await client.publish(name, 1, body=b"year-ahead")
    broker.set_clock(0)
    # The one message expires when its own time has come; those after it in theirs.
    await _check_all_goes_on(broker, client, b"year-over", left=1)
    assert client.received["delayed"].count(b"year-ahead") == 1

    # Messages kept for some seconds are deleted after them: those that came after the stamp of next year, too.
    await client.publish("kept", 100)
    await asyncio.to_thread(
        eventually, lambda: client.backlog("kept") == 0, within_s=WITHIN_S, what="everything kept acknowledged"
    )
    await asyncio.to_thread(
        eventually, lambda: client.stored("kept") <= 300, within_s=WITHIN_S, what="what was kept long enough gone"
    )

    # The stamp is in the store: it does not come back to life with a start either.
    code = await asyncio.to_thread(broker.terminate)
    assert code == 0
    broker.set_clock(0)
    await asyncio.to_thread(broker.start)
    await client.open()
    for name in ("acked", "delayed", "kept"):
        await client.consume(name)
    await _check_all_goes_on(broker, client, b"restarted", left=1)


def test_a_clock_that_is_set_changes_nothing_but_the_stamps_of_that_moment(broker: ShiftedBroker) -> None:
    try:
        asyncio.run(closing_links(_moved(broker)))
    except (AssertionError, TimeoutError) as error:
        raise AssertionError(f"{error!r}; log:\n{broker.log_tail()}") from error
    assert "Traceback" not in broker.log_path.read_text(errors="replace"), broker.log_tail()
