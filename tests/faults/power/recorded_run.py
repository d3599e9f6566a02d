"""A whole broker under load in this process, for ``strace`` to record: ``python -m tests.faults.power.recorded_run``.

Arguments: the data directory, the file of promises, a seed. Each promise the broker makes is written to that file, one
JSON line a write, at the moment a client knows it: in the recording the writes to the two places are in one order.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
import traceback
from collections import deque
from pathlib import Path
from random import Random

from heliograph_api.broker_config import BrokerConfig
from heliograph_api.protocol import wire_pb2 as wire
from heliograph_broker.standalone import Standalone
from heliograph_broker.storage.base.completion import completed

from tests.support.entries import make_entry
from tests.support.rest import call
from tests.support.wire_link import AckAnswer, WireLink

#: Small, so that ledgers and segments end, are trimmed, rewritten and unlinked all the time.
SETTINGS = {"ledger_max_entries": 20, "segment_bytes": 1024 * 1024}
SUBSCRIPTIONS = (("shared", wire.CommandSubscribe.Shared), ("failover", wire.CommandSubscribe.Failover))
LIVES = 2
LOAD_S = 3.0
#: A slow machine goes on until so many promises were given in a life: ledgers and segments end by what is written.
LEAST_PROMISES = 1000
#: Metadata that comes and goes again leaves free pages, which the next start takes away.
FILLING_RECORDS, FILLING_BYTES = 80, 80 * 1024
WITHIN_S = 120.0
#: The whole run takes some seconds without strace; a run that hangs ends with the place where it waited.
ENDED_WITHIN_S = 500.0


class Promise:
    """Writes what a client was promised."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self.given = 0

    def __call__(self, kind: str, *what: object) -> None:
        os.write(self._descriptor, json.dumps([kind, *what]).encode() + b"\n")
        self.given += 1


class Producer:
    """Publishes to one topic with a window of unanswered entries."""

    def __init__(self, topic: str, rng: Random, promise: Promise) -> None:
        self.going_on = False
        self._topic = topic
        self._rng = rng
        self._promise = promise
        self._numbers = itertools.count(1)
        self._unanswered: deque[tuple[str, int]] = deque()

    async def open(self, url: str, life: int) -> None:
        self._life = life
        self._link = await WireLink.connect(url)
        self._link.on_receipt = self._receipted
        self._id = await self._link.producer(self._topic)
        # Only now: a timer of the life before would publish to its connection, which has ended.
        self.going_on = True
        for _ in range(8):
            self._publish()

    def _publish(self) -> None:
        if not self.going_on:
            return
        number = next(self._numbers)
        body = f"{self._topic}:{self._life}:{number} ".encode().ljust(self._rng.choice((200, 800, 2000, 5000)), b".")
        messages = self._rng.choice((1, 1, 4))
        if messages == 1:
            entry = make_entry(body, sequence_id=number)
        else:
            entry = make_entry([body[: len(body) // 3]] * messages, sequence_id=number)
        self._unanswered.append((entry.hex()[:16], messages))
        self._link.publish(self._id, entry, sequence_id=number, messages=messages)

    def _receipted(self, receipt: wire.CommandSendReceipt) -> None:
        at = receipt.message_id
        checksum, messages = self._unanswered.popleft()
        self._promise("stored", self._topic, at.ledgerId, at.entryId, checksum, messages)
        if self.going_on:
            # Slowly: what counts is the number of syncs, not of bytes.
            asyncio.get_running_loop().call_later(self._rng.random() * 0.2, self._publish)

    def finished(self) -> bool:
        self._link.check()
        return not self._unanswered

    def close(self) -> None:
        self._link.close()


class Consumer:
    """Acknowledges most of what comes; every other acknowledgment without a receipt, as clients do by default."""

    def __init__(self, topic: str, name: str, kind: int, rng: Random, promise: Promise) -> None:
        self._topic = topic
        self._name = name
        self._kind = kind
        self._rng = rng
        self._promise = promise
        self._asked: dict[int, list[list[int]]] = {}
        self._held: list[list[int]] = []

    async def open(self, url: str) -> None:
        self._link = await WireLink.connect(url)
        self._link.on_message = self._on_message
        self._link.on_ack = self._on_ack
        self._held = []
        self._asked = {}
        self._id = await self._link.subscribe(self._topic, self._name, subType=self._kind)
        self._promise("subscribed", self._topic, self._name)
        self._link.flow(self._id, 1 << 30)

    def _on_message(self, message: wire.CommandMessage, entry: bytes) -> None:
        self._held.append([message.message_id.ledgerId, message.message_id.entryId])
        if len(self._held) >= 12:
            self._acknowledge()

    def _acknowledge(self) -> None:
        cumulative = self._kind == wire.CommandSubscribe.Failover
        held, self._held = self._held, []
        if not cumulative:
            # Some stay for good: segments that hold little that is wanted are rewritten.
            held = [each for each in held if self._rng.random() > 0.04]
        if not held:
            return
        receipt = self._rng.random() < 0.5
        self._promise("asked", self._topic, self._name, held)
        ids = [wire.MessageIdData(ledgerId=ledger, entryId=entry) for ledger, entry in held]
        request = self._link.ack(self._id, ids[-1:] if cumulative else ids, cumulative=cumulative, receipt=receipt)
        if receipt:
            self._asked[request] = held

    def _on_ack(self, answer: AckAnswer) -> None:
        assert not answer.error, answer
        self._promise("settled", self._topic, self._name, self._asked.pop(answer.request_id))

    def finished(self) -> bool:
        self._link.check()
        return not self._asked

    def close(self) -> None:
        self._link.close()


async def run(data_dir: Path, promise: Promise, seed: int) -> None:
    rng = Random(seed)
    config = BrokerConfig(data_dir=str(data_dir), broker_port=0, http_port=0, disk_reserve_bytes=0, **SETTINGS)  # type: ignore[arg-type]
    topics = [f"persistent://public/default/t{number}" for number in range(3)]
    producers = {topic: Producer(topic, rng, promise) for topic in topics}
    consumers = {
        (topic, name): Consumer(topic, name, kind, rng, promise) for topic in topics for name, kind in SUBSCRIPTIONS
    }
    for life in range(LIVES):
        broker = Standalone(config, [])
        await broker.start()
        promise("ready", life)
        if life == 0:
            # By name: only then does what is acknowledged go at once.
            retention = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
            url = f"{broker.http_url}/admin/v2/namespaces/public/default/retention"
            await asyncio.to_thread(call, url, "POST", retention)
            promise("retention", 0)
        await _load(broker, list(producers.values()), list(consumers.values()), life, promise)
        store = broker.broker.store
        for key in range(FILLING_RECORDS):
            store.writer.put(b"filling/%d" % key, bytes(FILLING_BYTES))
        await asyncio.wait_for(completed(store.writer.after_commit), WITHIN_S)
        for key in range(FILLING_RECORDS):
            store.writer.delete(b"filling/%d" % key)
        await asyncio.wait_for(completed(store.writer.after_commit), WITHIN_S)
        await broker.stop()
        promise("stopped", life)


async def _load(
    broker: Standalone,
    producers: list[Producer],
    consumers: list[Consumer],
    life: int,
    promise: Promise,
) -> None:
    enough = promise.given + LEAST_PROMISES
    url = broker.broker_url
    for consumer in consumers:
        await consumer.open(url)
    for producer in producers:
        await producer.open(url, life)
    # A topic that comes and goes: its ledgers are dropped as a whole.
    passing = f"persistent://public/default/passing-{life}"
    link = await WireLink.connect(url)
    await link.subscribe(passing, "s")
    made = await link.producer(passing)
    for number in range(50):
        link.publish(made, make_entry(bytes(2000)), sequence_id=number)
    await link.ping()
    await asyncio.sleep(LOAD_S / 2)
    url = f"{broker.http_url}/admin/v2/persistent/public/default/passing-{life}?force=true"
    await asyncio.to_thread(call, url, "DELETE")
    await asyncio.sleep(LOAD_S / 2)
    while promise.given < enough:
        await link.ping()
    for producer in producers:
        producer.going_on = False
    clients: list[Producer | Consumer] = [*producers, *consumers]
    async with asyncio.timeout(WITHIN_S):
        while not all(client.finished() for client in clients):
            # An answered ping: what was sent before has been dealt with.
            await link.ping()
    link.close()
    for client in clients:
        client.close()


async def _run_in_time(data_dir: Path, promise: Promise, seed: int) -> None:
    async with asyncio.timeout(ENDED_WITHIN_S):
        await run(data_dir, promise, seed)


if __name__ == "__main__":
    try:
        asyncio.run(_run_in_time(Path(sys.argv[1]), Promise(Path(sys.argv[2])), int(sys.argv[3])))
    except BaseException:
        try:
            traceback.print_exc()
        finally:
            # The store's threads would keep the process, also if nobody reads what it prints.
            os._exit(1)
