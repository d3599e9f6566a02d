"""Kill -9 while clients acknowledge as they do by default, without receipts, and ledgers roll every 50 entries.

Acknowledgments without a receipt are in memory for a moment, and so is what follows from them: what may be trimmed,
the backlog's counts. A kill in that moment may bring messages back, never more: nothing is lost, no count is wrong,
and everything can be acknowledged, skipped and given back afterwards.

``--rounds`` sets how often, ``--seed`` repeats a run's choices.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable
from pathlib import Path

import pytest
from heliograph_api.protocol import wire_pb2 as wire
from heliograph_api.protocol.frames import parse_entry

from tests.support.broker_process import BrokerProcess
from tests.support.polling import eventually, eventually_async
from tests.support.rest import call, topic_stats
from tests.support.wire_client import ConnectionEndedError, WireError
from tests.support.wire_link import WireLink, closing_links, publish_one

from .idle import check_idle
from .kill_load import LoadConsumer, LoadProducer, check_backlog
from .promises import PromiseBroken, Promises, SubscriptionPromises
from .resending import Audit, Resender

NAMESPACE = "public/killed"
#: Ledgers so small that one rolls in every moment, and with it the topic's record is written.
SETTINGS = {
    "HELIOGRAPH_LEDGER_MAX_ENTRIES": "50",
    "HELIOGRAPH_SEGMENT_BYTES": str(1024 * 1024),
    "HELIOGRAPH_MAX_UNACKED_PER_CONSUMER": "0",
    "HELIOGRAPH_MAX_UNACKED_PER_SUBSCRIPTION": "0",
}
#: The chance of a second kill while the broker starts: a quarter of all kills are then of that kind.
KILLED_AGAIN = 1 / 3
DRAINED_WITHIN_S = 180.0
#: Bytes of segments that may remain when nothing is stored any more.
EMPTY_SEGMENTS_BYTES = 4 * 1024 * 1024
Subscribe = wire.CommandSubscribe
#: Name, type, whether acknowledged cumulatively, consumers beside the one that recounts.
SUBSCRIPTIONS = (
    ("exclusive", Subscribe.Exclusive, True, 0),
    ("shared", Subscribe.Shared, False, 2),
    ("failover", Subscribe.Failover, True, 0),
    ("key-shared", Subscribe.Key_Shared, False, 1),
)


class KilledTopic:
    """One topic with a subscription of every type, its load and what it was promised."""

    def __init__(self, name: str, rng: random.Random) -> None:
        self.name = name
        self.path = f"persistent://{NAMESPACE}/{name}"
        self.promises = Promises({sub: SubscriptionPromises(f"{name}/{sub}") for sub, *_ in SUBSCRIPTIONS})
        self.producers = [
            LoadProducer(f"{name}-singles", self.promises, rng, batches=False, window=30, keys=8),
            LoadProducer(f"{name}-batches", self.promises, rng, batches=True, window=10),
        ]
        self.consumers: dict[str, LoadConsumer] = {}
        self.helpers: dict[str, list[LoadConsumer]] = {}
        for sub, kind, cumulative, helpers in SUBSCRIPTIONS:
            # The promises carry the topic's name for messages; the broker knows the subscription by its own.
            made = [
                LoadConsumer(self.promises.subscriptions[sub], rng, cumulative=cumulative, kind=kind, receipts=False)
                for _ in range(1 + helpers)
            ]
            self.consumers[sub], self.helpers[sub] = made[0], made[1:]
        self.recounted = 0

    @property
    def links(self) -> list[WireLink]:
        consumers = [*self.consumers.values(), *(helper for each in self.helpers.values() for helper in each)]
        return [*(producer.link for producer in self.producers), *(consumer.link for consumer in consumers)]

    async def recount(self, broker: BrokerProcess, sentinel: str) -> None:
        """Read everything every subscription is owed and compare it with the promises and the counts."""
        for sub, consumer in self.consumers.items():
            await consumer.open(broker.service_url, self.path, subscription=sub)
        await publish_one(broker.service_url, self.path, sentinel)
        for sub, consumer in self.consumers.items():
            delivered = await consumer.recount(sentinel)
            self.recounted += len(delivered)
            consumer.promises.check(delivered)
            await asyncio.to_thread(check_backlog, broker.http_url, self.name, sub, delivered, namespace=NAMESPACE)

    async def load(self, broker: BrokerProcess) -> None:
        for sub, helpers in self.helpers.items():
            for helper in helpers:
                await helper.open(broker.service_url, self.path, subscription=sub)
                helper.join()
        for producer in self.producers:
            await producer.open(broker.service_url, self.path)
        for consumer in self.consumers.values():
            consumer.start_acknowledging()
        for producer in self.producers:
            producer.start()

    def acknowledged(self) -> int:
        helpers = [helper for each in self.helpers.values() for helper in each]
        return sum(consumer.acknowledged for consumer in (*self.consumers.values(), *helpers))


class Expiring:
    """A topic whose messages expire unread and become dead letters, and who reads those."""

    def __init__(self, rng: random.Random) -> None:
        self.topic = f"persistent://{NAMESPACE}/expiring"
        self.letters_topic = f"persistent://{NAMESPACE}/letters"
        self.unread = SubscriptionPromises("expiring/unread")
        self.producer = LoadProducer("mortal", Promises({"unread": self.unread}), rng, batches=False, window=5)
        self.letters: set[bytes] = set()
        self._reader: WireLink | None = None
        self._consumer_id = 0

    @property
    def reader(self) -> WireLink:
        assert self._reader is not None
        return self._reader

    async def prepare(self, broker: BrokerProcess) -> None:
        link = await WireLink.connect(broker.service_url)
        await link.subscribe(self.topic, "unread", subType=Subscribe.Shared)
        await link.ping()
        link.close()
        await self.open(broker)
        admin = f"{broker.http_url}/admin/v2/persistent/{NAMESPACE}/expiring"
        await asyncio.to_thread(call, f"{admin}/deadLetterTopic", "POST", self.letters_topic)
        await asyncio.to_thread(call, f"{admin}/messageTTL?messageTTL=1", "POST")
        self.reader.close()

    async def open(self, broker: BrokerProcess) -> None:
        self._reader = link = await WireLink.connect(broker.service_url)
        link.on_message = self._on_letter
        self._consumer_id = await link.subscribe(self.letters_topic, "audit", subType=Subscribe.Shared)
        link.flow(self._consumer_id, 1 << 30)

    def _on_letter(self, message: wire.CommandMessage, entry: bytes) -> None:
        self.letters.add(entry[parse_entry(entry).payload_offset :].split(b" ")[0])
        self.reader.ack(self._consumer_id, [message.message_id])

    def missing(self) -> list[bytes]:
        """Return what was receipted and has no letter."""
        receipted = (b"%s:%d" % (each.producer.encode(), each.sequence_id) for each in self.unread.owed.values())
        return [body for body in receipted if body not in self.letters]


class DefaultAckRounds:
    """The broker, its topics and clients, over all rounds."""

    def __init__(self, broker: BrokerProcess, rng: random.Random) -> None:
        self.broker = broker
        self.rng = rng
        self.topics = [KilledTopic("first", rng), KilledTopic("second", rng)]
        once = f"persistent://{NAMESPACE}/once"
        self.resenders = [Resender("few", 3, once), Resender("many", 50, once)]
        self.audit = Audit(once)
        self.expiring = Expiring(rng)
        self.kills = self.kills_at_start = 0

    async def prepare(self) -> None:
        """Create what is used. Retention is set to 0/0 by name: only then what is acknowledged goes at once."""
        admin = f"{self.broker.http_url}/admin/v2"
        await asyncio.to_thread(call, f"{admin}/namespaces/{NAMESPACE}", "PUT", {})
        retention = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
        await asyncio.to_thread(call, f"{admin}/namespaces/{NAMESPACE}/retention", "POST", retention)
        link = await WireLink.connect(self.broker.service_url)
        for topic in self.topics:
            for sub, kind, *_ in SUBSCRIPTIONS:
                await link.subscribe(topic.path, sub, subType=kind)
        await link.ping()
        link.close()
        await self.audit.connect(self.broker.service_url)
        await asyncio.to_thread(call, f"{admin}/persistent/{NAMESPACE}/once/deduplicationEnabled", "POST", True)
        self.audit.link.close()
        await self.expiring.prepare(self.broker)

    async def round(self, number: int) -> None:
        """Check what the broker has, put it under load, kill it at some moment, start it again."""
        for topic in self.topics:
            await topic.recount(self.broker, f"sentinel-{number}")
        if number % 10 == 9:
            await asyncio.to_thread(check_idle, self.broker)
        for topic in self.topics:
            await topic.load(self.broker)
        await self.audit.connect(self.broker.service_url)
        for resender in self.resenders:
            await resender.connect(self.broker.service_url)
        await self.expiring.open(self.broker)
        await self.expiring.producer.open(self.broker.service_url, self.expiring.topic)
        self.expiring.producer.start()
        # Skewed towards the first moments: acknowledgments of the backlog and the first groups are on their way.
        await asyncio.sleep(self.rng.random() ** 2)
        self.broker.kill9()
        self.kills += 1
        links = [link for topic in self.topics for link in topic.links]
        links += [self.audit.link, *(resender.link for resender in self.resenders)]
        links += [self.expiring.reader, self.expiring.producer.link]
        for link in links:
            link.muted = True
        for link in links:
            # Messages that the broker had sent before it died still arrive, and count.
            await asyncio.wait_for(link.ended.wait(), 60)
            link.check()
        if self.rng.random() < KILLED_AGAIN:
            await asyncio.to_thread(self.broker.kill_while_starting, self.rng.random() * 1.5)
            self.kills_at_start += 1
        await asyncio.to_thread(self.broker.start)

    async def drain(self) -> None:
        """Acknowledge or skip everything: nothing may stay behind, neither now nor after a start in good order."""
        await self._finish_once()
        await self._finish_expiring()
        for topic in self.topics:
            await topic.recount(self.broker, "sentinel-last")
            for sub, consumer in topic.consumers.items():
                if sub == "key-shared":
                    path = f"{NAMESPACE}/{topic.name}/subscription/{sub}/skip_all"
                    await asyncio.to_thread(call, f"{self.broker.http_url}/admin/v2/persistent/{path}", "POST")
                else:
                    consumer.acknowledge_everything()
                await consumer.link.ping()
        await self._wait_until_empty()
        await asyncio.to_thread(check_idle, self.broker)
        await asyncio.to_thread(self.broker.restart)
        await self._wait_until_empty()
        for topic in self.topics:
            for sub, consumer in topic.consumers.items():
                await consumer.open(self.broker.service_url, topic.path, subscription=sub)
            await publish_one(self.broker.service_url, topic.path, "afterwards")
            for consumer in topic.consumers.values():
                delivered = await consumer.recount("afterwards")
                if len(delivered) != 1:
                    raise PromiseBroken(f"{consumer.promises.name}: {delivered[:5]} came back after a clean start")
        await asyncio.to_thread(check_idle, self.broker)

    async def _finish_once(self) -> None:
        await self.audit.connect(self.broker.service_url)
        for resender in self.resenders:
            resender.going_on = False
            await resender.connect(self.broker.service_url)
        await eventually_async(
            lambda: all(resender.idle for resender in self.resenders), within_s=DRAINED_WITHIN_S, what="all receipts"
        )
        receipted = sum(resender.receipted for resender in self.resenders)
        await eventually_async(
            lambda: len(self.audit.stored) >= receipted, within_s=DRAINED_WITHIN_S, what="all deduplicated messages"
        )
        for resender in self.resenders:
            resender.link.close()
            for sequence_id in range(1, resender.receipted + 1):
                positions = self.audit.stored.get((resender.name, sequence_id), set())
                assert len(positions) == 1, f"{resender.name}:{sequence_id} is stored at {sorted(positions)}"

    async def _finish_expiring(self) -> None:
        await self.expiring.open(self.broker)
        await eventually_async(
            lambda: not self.expiring.missing(), within_s=DRAINED_WITHIN_S, what="a letter of every expired message"
        )

    async def _wait_until_empty(self) -> None:
        await asyncio.to_thread(
            eventually, self._empty, within_s=DRAINED_WITHIN_S, what="empty", every_s=0.2, not_yet=(AssertionError,)
        )

    def _empty(self) -> bool:
        """No backlog, nothing stored, and the segments' space given back; an assertion names what is left."""
        left: list[str] = []
        for name in [*(topic.name for topic in self.topics), "once", "expiring", "letters"]:
            stats = topic_stats(self.broker.http_url, f"{NAMESPACE}/{name}")
            backlogs = {sub: (each["msgBacklog"], each["backlogSize"]) for sub, each in stats["subscriptions"].items()}
            if stats["storageSize"] or any(backlog != (0, 0) for backlog in backlogs.values()):
                left.append(f"{name}: {stats['storageSize']} bytes stored, backlogs {backlogs}")
        segments = sum(file.stat().st_blocks * 512 for file in (self.broker.data_dir / "segments").glob("*.lmdb"))
        if segments > EMPTY_SEGMENTS_BYTES:
            left.append(f"the segments take {segments} bytes")
        assert not left, "; ".join(left)
        return True


async def default_ack_rounds(broker: BrokerProcess, rounds: int, rng: random.Random) -> DefaultAckRounds:
    run = DefaultAckRounds(broker, rng)
    await _explained(broker, "preparing", run.prepare())
    for number in range(rounds):
        await _explained(broker, f"round {number}", run.round(number))
    await _explained(broker, "at the end", run.drain())
    return run


async def _explained(broker: BrokerProcess, what: str, step: Awaitable[None]) -> None:
    try:
        await step
    except (AssertionError, ConnectionEndedError, WireError, TimeoutError, OSError) as error:
        raise AssertionError(f"{what}: {error!r}; log:\n{broker.log_tail()}") from error


@pytest.mark.long
@pytest.mark.timeout(0)  # --rounds sets how long it may take; every step has a deadline of its own
def test_acknowledgments_without_receipts_survive_kill_nine(tmp_path: Path, rounds: int, seed: int) -> None:
    broker = BrokerProcess(tmp_path / "data", environment=SETTINGS)
    broker.start()
    began = time.monotonic()
    try:
        run = asyncio.run(closing_links(default_ack_rounds(broker, rounds, random.Random(seed))))
    finally:
        if broker.running:
            broker.kill9()
    receipts = sum(topic.promises.receipts for topic in run.topics)
    ledgers = len(set().union(*(topic.promises.ledgers for topic in run.topics)))
    acknowledged = sum(topic.acknowledged() for topic in run.topics)
    print(
        f"{run.kills} kills and {run.kills_at_start} while starting in {time.monotonic() - began:.0f} s: {receipts} "
        f"receipts in {ledgers} ledgers, {acknowledged} entries acknowledged without a receipt, "
        f"{sum(topic.recounted for topic in run.topics)} recounted, {len(run.expiring.letters)} letters, "
        f"{sum(resender.repeated for resender in run.resenders)} duplicates dropped"
    )
    # The rounds mean something only if there was load, ledgers rolled and letters were written.
    # A slow machine does less of it.
    assert receipts > 10 * rounds
    assert ledgers > rounds / 5
    assert acknowledged > 10 * rounds
    assert run.expiring.letters
    assert "Traceback" not in broker.log_path.read_text(errors="replace"), broker.log_tail()
