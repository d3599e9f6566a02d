"""Kill -9 at random moments under load, many times on one data directory: every promise is kept.

``--rounds`` sets how often, ``--seed`` repeats a run's choices (what was under way when a kill came is a matter
of real time, and so never quite the same).
"""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.rest import keep_nothing, topic_stats
from tests.support.wire_client import ConnectionEndedError
from tests.support.wire_link import WireLink, publish_one

from .kill_load import LoadConsumer, LoadProducer, check_backlog
from .promises import Promises, SubscriptionPromises

TOPIC = "killed"
#: Small, so that ledgers roll and segments are rewritten and unlinked many times a round.
SETTINGS = {
    "HELIOGRAPH_LEDGER_MAX_ENTRIES": "500",
    "HELIOGRAPH_SEGMENT_BYTES": str(2 * 1024 * 1024),
    "HELIOGRAPH_MAX_UNACKED_PER_CONSUMER": "0",
    "HELIOGRAPH_MAX_UNACKED_PER_SUBSCRIPTION": "0",
}
#: The share of kills followed by a second one while the broker recovers.
KILLED_AGAIN = 0.25


class KillRounds:
    """The broker, its load and what it has promised, over all rounds."""

    def __init__(self, broker: BrokerProcess, rng: random.Random) -> None:
        self.broker = broker
        self.rng = rng
        self.individual = SubscriptionPromises("individual")
        self.cumulative = SubscriptionPromises("cumulative")
        self.promises = Promises({"individual": self.individual, "cumulative": self.cumulative})
        self.producers = [LoadProducer(f"p{index}", self.promises, rng, batches=index % 2 == 1) for index in range(4)]
        self.consumers = [
            LoadConsumer(self.individual, rng, cumulative=False),
            LoadConsumer(self.cumulative, rng, cumulative=True),
        ]
        self.starts: list[float] = []
        self.recounted = 0

    async def create_subscriptions(self) -> None:
        link = await WireLink.connect(self.broker.service_url)
        for name in self.promises.subscriptions:
            await link.subscribe(TOPIC, name)
        await link.ping()
        link.close()

    async def round(self, number: int) -> None:
        """Check what the broker has, put it under load, kill it at some moment, start it again."""
        for consumer in self.consumers:
            await consumer.open(self.broker.service_url, TOPIC)
        sentinel = f"sentinel-{number}"
        await publish_one(self.broker.service_url, TOPIC, sentinel)
        for consumer in self.consumers:
            delivered = await consumer.recount(sentinel)
            self.recounted += len(delivered)
            consumer.promises.check(delivered)
            await asyncio.to_thread(check_backlog, self.broker.http_url, TOPIC, consumer.promises.name, delivered)
        for producer in self.producers:
            await producer.open(self.broker.service_url, TOPIC)
        for consumer in self.consumers:
            consumer.start_acknowledging()
        for producer in self.producers:
            producer.start()
        # Skewed towards the first moments: acknowledgments of the backlog and the first groups are on their way.
        await asyncio.sleep(self.rng.random() ** 2 * 1.5)
        self.broker.kill9()
        links = [*(producer.link for producer in self.producers), *(consumer.link for consumer in self.consumers)]
        for link in links:
            link.muted = True
        for link in links:
            # Messages that the broker had sent before it died still arrive, and count.
            await asyncio.wait_for(link.ended.wait(), 60)
            link.check()
        if self.rng.random() < KILLED_AGAIN:
            await asyncio.to_thread(self.broker.kill_while_starting, self.rng.random())
        self.starts.append(await asyncio.to_thread(self.broker.start))


async def kill_rounds(broker: BrokerProcess, rounds: int, rng: random.Random) -> KillRounds:
    run = KillRounds(broker, rng)
    await asyncio.to_thread(keep_nothing, broker.http_url)
    await run.create_subscriptions()
    for number in range(rounds):
        try:
            await run.round(number)
        except (AssertionError, ConnectionEndedError, TimeoutError) as error:
            raise AssertionError(f"round {number}: {error!r}; log:\n{broker.log_tail()}") from error
    return run


@pytest.mark.timeout(0)  # --rounds sets how long it may take; every step has a deadline of its own
def test_promises_survive_kill_nine(tmp_path: Path, rounds: int, seed: int) -> None:
    broker = BrokerProcess(tmp_path / "data", environment=SETTINGS)
    broker.start()
    began = time.monotonic()
    try:
        run = asyncio.run(kill_rounds(broker, rounds, random.Random(seed)))
        stats = topic_stats(broker.http_url, f"public/default/{TOPIC}")
    finally:
        if broker.running:
            broker.kill9()
    print(
        f"{rounds} kills in {time.monotonic() - began:.0f} s: {run.promises.receipts} receipts in "
        f"{len(run.promises.ledgers)} ledgers, {sum(c.acks_answered for c in run.consumers)} acknowledgment receipts, "
        f"{run.recounted} entries recounted, {stats['storageSize']} bytes still stored of {run.promises.bytes} "
        f"receipted, slowest start {max(run.starts):.2f} s"
    )
    # The rounds mean something only if there was load, ledgers rolled and acknowledged data was trimmed.
    # A slow machine does less of it.
    assert run.promises.receipts > 10 * rounds
    assert len(run.promises.ledgers) > rounds / 20
    assert all(consumer.acks_answered > rounds for consumer in run.consumers)
    assert stats["storageSize"] < run.promises.bytes
    log = broker.log_path.read_text(errors="replace")
    assert "Traceback" not in log, broker.log_tail()
