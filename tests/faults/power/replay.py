"""Replays a recording up to many moments, opens what a power cut then leaves, and compares it with the promises.

As a process of its own: ``python -m tests.faults.power.replay '{json of ReplayJob}'`` prints a JSON line before each
moment and after it, so that the caller knows the moment even if the process dies there.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path
from random import Random

import msgspec
from heliograph_broker.clock import VirtualClock
from heliograph_broker.messaging.clients.subscription_type import SubscriptionType
from heliograph_broker.messaging.topic.topic import Topic

from tests.support.core import Client, Core

from .disk_model import DiskModel
from .recorded_run import SETTINGS, SUBSCRIPTIONS
from .recording import Promised, Recording, Synced, Written

Position = tuple[int, int]


class ReplayJob(msgspec.Struct):
    """The recording's files, where to put the directories made of it, how many moments; every ``of``-th is ours."""

    trace: str
    data_dir: str
    promises: str
    scratch: str
    points: int
    seed: int
    worker: int
    of: int


class Broken(Exception):
    """A promise is not kept."""


class Ledger:
    """The promises up to a moment."""

    def __init__(self) -> None:
        self.subscribed: set[tuple[str, str]] = set()
        self.stored: dict[str, dict[Position, tuple[str, int]]] = {}
        self.asked: dict[tuple[str, str], set[Position]] = {}
        self.settled: dict[tuple[str, str], set[Position]] = {}
        self.retention = False

    def add(self, what: list[object]) -> None:
        match what:
            case ["subscribed", str(topic), str(name)]:
                self.subscribed.add((topic, name))
            case ["stored", str(topic), int(ledger), int(entry), str(checksum), int(messages)]:
                self.stored.setdefault(topic, {})[ledger, entry] = (checksum, messages)
            case ["asked", str(topic), str(name), list(positions)]:
                self.asked.setdefault((topic, name), set()).update((at[0], at[1]) for at in positions)
            case ["settled", str(topic), str(name), list(positions)]:
                self.settled.setdefault((topic, name), set()).update((at[0], at[1]) for at in positions)
            case ["retention", 0]:
                self.retention = True
            case ["ready" | "stopped", int()]:
                pass
            case _:
                raise ValueError(f"an unknown promise: {what}")

    def check(self, core: Core) -> int:
        """Compare with what a broker on the recovered directory delivers; return how many entries that is."""
        read = 0
        kinds = dict(SUBSCRIPTIONS)
        for topic_name, name in sorted(self.subscribed):
            topic = core.broker.directory.topics.get(topic_name)
            if not isinstance(topic, Topic) or name not in topic.subscriptions:
                raise Broken(f"subscription {name} of {topic_name} is gone")
            read += self._check_subscription(core, topic, name, SubscriptionType(kinds[name]))
        return read

    def _check_subscription(self, core: Core, topic: Topic, name: str, kind: SubscriptionType) -> int:
        subscription = topic.subscriptions[name]
        backlog = (subscription.acks.backlog_messages, subscription.acks.backlog_bytes)
        client = Client()
        consumer = core.consumer(subscription, kind, client, permits=1 << 30)
        core.advance(100)
        key = (str(topic.name), name)
        stored = self.stored.get(key[0], {})
        found: dict[Position, tuple[str, int]] = {}
        for _, entry, _, remaining in client.take():
            at = (entry.ledger_id, entry.entry_id)
            if at in found:
                raise Broken(f"{key}: {at} is delivered twice")
            if found and at < next(reversed(found)):
                raise Broken(f"{key}: {at} is delivered after {next(reversed(found))}")
            if remaining is not None:
                raise Broken(f"{key}: of {at} only a part is delivered, and nobody acknowledged the rest")
            found[at] = (bytes(entry.frame)[:8].hex(), entry.messages)
            if at in stored and stored[at] != found[at]:
                raise Broken(f"{key}: {at} is {found[at]}, stored was {stored[at]}")
        subscription.remove_consumer(consumer)
        lost = stored.keys() - found.keys() - self.asked.get(key, set())
        if lost:
            raise Broken(f"{key}: {len(lost)} of {len(stored)} receipted entries are lost, first {sorted(lost)[:3]}")
        returned = found.keys() & self.settled.get(key, set())
        if returned:
            raise Broken(
                f"{key}: {len(returned)} entries came back though their ack was confirmed: {sorted(returned)[:3]}"
            )
        messages = sum(count for _, count in found.values())
        if backlog[0] != messages:
            raise Broken(f"{key}: the backlog is reported as {backlog[0]} messages, {messages} are delivered")
        return len(found)


def moments(recording: Recording, points: int, rng: Random) -> list[int]:
    """Choose moments: after every change of a name and around it, the rest anywhere; each once if there are enough."""
    operations = recording.operations
    named = [
        number
        for number, operation in enumerate(operations)
        if not isinstance(operation, (Written, Promised))
        and not (isinstance(operation, Synced) and operation.path.endswith(".lmdb"))
    ]
    chosen = {near for number in named for near in (number, number + 1, number + 2) if near <= len(operations)}
    # The first moments of a data directory are few and all of them different.
    chosen.update(range(min(60, len(operations))))
    others = [number for number in range(len(operations) + 1) if number not in chosen]
    wanted = list(chosen)
    if len(wanted) > points:
        wanted = rng.sample(sorted(wanted), points)
    wanted += rng.sample(others, min(points - len(wanted), len(others)))
    while len(wanted) < points:
        # The same moment, with other luck.
        wanted.append(rng.randrange(len(operations) + 1))
    return sorted(wanted)


def replay(job: ReplayJob) -> None:
    recording = Recording(Path(job.trace), Path(job.data_dir), Path(job.promises))
    rng = Random(job.seed)
    disk = DiskModel(Path(job.data_dir))
    ledger = Ledger()
    at = 0
    clock_ms = int(time.time() * 1000)
    for index, moment in enumerate(moments(recording, job.points, rng)):
        while at < moment:
            operation = recording.operations[at]
            disk.do(operation)
            if isinstance(operation, Promised):
                ledger.add(operation.what)
            at += 1
        if index % job.of != job.worker:
            continue
        luck = f"{job.seed}/{index}"
        print(
            json.dumps({"moment": moment, "luck": luck, "operation": repr(recording.operations[max(0, at - 1)])[:200]})
        )
        sys.stdout.flush()
        directory = Path(job.scratch) / str(index)
        disk.crash(directory, Random(luck))
        read, error = 0, ""
        try:
            read = _recover(directory, ledger, clock_ms, twice=index % 10 < 2)
        except Exception as failure:  # whatever a recovered directory does to the broker is the result
            error = f"{type(failure).__name__}: {failure}"
        print(json.dumps({"read": read, "error": error}))
        sys.stdout.flush()
        shutil.rmtree(directory)


def _recover(directory: Path, ledger: Ledger, clock_ms: int, *, twice: bool) -> int:
    core = Core(directory, VirtualClock(clock_ms), **SETTINGS)
    try:
        read = ledger.check(core)
        # It is a broker like any other: it stores more, and keeps all of it over the next start.
        topic = core.topic("persistent://public/default/afterwards")
        client = Client()
        producer = core.producer(topic, client)
        core.publish(producer, b"afterwards")
        core.commit()
        if len(client.receipts) != 1 or client.errors:
            raise Broken(f"a message cannot be stored afterwards: {client.errors}")
        if twice:
            core.restart()
            ledger.check(core)
    finally:
        core.close()
    return read


if __name__ == "__main__":
    replay(msgspec.json.decode(sys.argv[1], type=ReplayJob))
