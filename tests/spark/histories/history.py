"""Draws histories by their seeds, and runs them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple, Protocol

from heliograph_spark.plan.errors import PulsarSourceError
from heliograph_spark.run import source

from .model import Partition, Violation
from .queries import Batch, Stream
from .topic import Topic

#: Operations of a history.
LENGTH = 24
_WEIGHTS = {
    "publish": 6,
    "publish_batch": 3,
    "publish_chunks": 2,
    "trim": 6,
    "compact": 2,
    "recreate": 0.5,
    "add_partition": 1,
    "restart": 0.3,
    "kill": 0.4,
    "stream": 10,
    "stop": 2,
    "batch": 4,
}


class Topics(Protocol):
    """Creates topics on a broker."""

    def __call__(self, partitions: int, *, compacted: bool) -> Topic: ...


class Operation(NamedTuple):
    """One step; everything about it is drawn from ``seed``."""

    kind: str
    seed: int


class Result(NamedTuple):
    """The steps that were done, in words, and what was wrong."""

    lines: list[str]
    violation: AssertionError | None


def generate(seed: int, length: int = LENGTH) -> list[Operation]:
    draw = Random(seed)
    kinds = draw.choices(list(_WEIGHTS), list(_WEIGHTS.values()), k=length)
    return [Operation(kind, draw.getrandbits(32)) for kind in ["publish", *kinds]]


def run(topics: Topics, seed: int, operations: Sequence[Operation] | None = None) -> Result:
    """Run a history with a topic of ledgers of :data:`~.topic.LEDGER` entries."""
    history = _History(topics, Random(seed))
    try:
        for operation in generate(seed) if operations is None else operations:
            history.do(operation)
        history.finish()
    except AssertionError as violation:
        return Result(history.lines, violation)
    finally:
        history.close()
    return Result(history.lines, None)


def shrink(topics: Topics, seed: int, operations: list[Operation]) -> list[Operation]:
    """Leave out what is not needed for a violation."""
    at = 0
    while at < len(operations):
        fewer = operations[:at] + operations[at + 1 :]
        if run(topics, seed, fewer).violation is not None:
            operations = fewer
        else:
            at += 1
    return operations


class _History:
    """A topic, one or two streams, and what happens to them."""

    def __init__(self, topics: Topics, draw: Random) -> None:
        # Partitions that were added are seen at once.
        source.LOOKUP_INTERVAL_S = 0.0
        self.lines: list[str] = []
        self._topic = topics(draw.choice([0, 0, 1, 2]), compacted=draw.random() < 0.25)
        self._streams = [Stream(self._topic, self._options(draw, number)) for number in range(draw.choice([1, 2]))]
        self.lines += [f"stream {each.options}" for each in self._streams]

    def close(self) -> None:
        for each in self._streams:
            each.stop()
        self._topic.close()

    def _options(self, draw: Random, stream: int | None) -> dict[str, str]:
        broker = self._topic.broker
        options = {
            "service.url": broker.service_url,
            "admin.url": broker.http_url,
            "topic": self._topic.name,
            "failOnDataLoss": draw.choice(["true", "true", "false"]),
            "maxEntriesPerSplit": str(draw.choice([1, 3, 5, 7, 20, 1000])),
            "pollTimeoutMs": "60000",
        }
        if draw.random() < 0.3:
            options["minPartitions"] = str(draw.randint(1, 8))
        if self._topic.compacted and draw.random() < 0.7:
            options["pulsar.reader.readCompacted"] = "true"
        if draw.random() < 0.2:
            options["pulsar.reader.receiverQueueSize"] = "1"
        if stream is not None:
            options["startingOffsets"] = draw.choice(["earliest", "earliest", "latest"])
            if draw.random() < 0.5:
                options["predefinedSubscription"] = f"query-{stream}"
            if draw.random() < 0.4:
                options["maxBytesPerTrigger"] = str(draw.choice([1, 200, 600]))
        if draw.random() < 0.2:
            for name in ("admin.url", "minPartitions", "maxBytesPerTrigger"):
                options.pop(name, None)
        return options

    def do(self, operation: Operation) -> None:
        draw = Random(operation.seed)
        try:
            done = getattr(self, f"_{operation.kind}")(draw)
        except PulsarSourceError as error:
            raise Violation(f"{operation.kind}: {error}") from error
        self.lines.append(f"{operation.kind}: {done}")

    def finish(self) -> None:
        for each in self._streams:
            try:
                self.lines.append(f"the end: {each.finish()}")
            except PulsarSourceError as error:
                raise Violation(f"the end: {error}") from error

    # Publishing

    def _partition(self, draw: Random) -> Partition:
        return draw.choice(list(self._topic.partitions.values()))

    def _keys(self, draw: Random, most: int) -> list[str]:
        return [f"k{draw.randrange(5)}" for _ in range(draw.randint(1, most))]

    def _publish(self, draw: Random) -> str:
        partition = self._partition(draw)
        self._topic.publish(partition, self._keys(draw, 16))
        return f"{partition.name} up to {partition.entries[-1]}"

    def _publish_batch(self, draw: Random) -> str:
        partition = self._partition(draw)
        for _ in range(draw.randint(1, 3)):
            self._topic.publish_batch(partition, self._keys(draw, 5))
        return f"{partition.name} up to {partition.entries[-1]}"

    def _publish_chunks(self, draw: Random) -> str:
        if self._topic.compacted:
            return self._publish(draw)
        partition = self._partition(draw)
        chunks, whole = draw.choice([2, 3, 7, 15, 45]), draw.random() < 0.8
        self._topic.publish_chunks(partition, chunks, draw.choice([1, 3, 100]), whole=whole)
        return f"{chunks}, whole: {whole}, {partition.name} up to {partition.entries[-1]}"

    # What takes messages away

    def _trim(self, draw: Random) -> str:
        kind = draw.choice(["expire", "expire", "expire", "acknowledged", "ttl", "truncate"])
        by_entry = draw.random() < 0.5
        topic, partition = self._topic, self._partition(draw)
        subscriptions = [each.subscription for each in self._streams if each.subscription is not None]
        before = {name: set(each.gone) for name, each in topic.partitions.items()}
        stored = partition.stored()
        up_to = None
        if stored and draw.random() < 0.7:
            up_to = draw.choice(stored)
            if draw.random() < 0.5:
                # To the end of its ledger.
                up_to = max(place for place in stored if place[0] == up_to[0])
        if kind == "truncate":
            topic.truncate(partition)
        else:
            if kind == "ttl":
                topic.outlive()
            else:
                topic.expire(partition, up_to, subscriptions if kind == "expire" else [])
            topic.trim(by_entry=by_entry)
        gone = {name: each.gone - before[name] for name, each in topic.partitions.items()}
        if kind == "acknowledged":
            for stream in self._streams:
                if stream.subscription is not None:
                    stream.check_held(gone)
        counts = {name: len(each) for name, each in gone.items() if each}
        return f"{kind} of {partition.name} up to {up_to}, by {'entry' if by_entry else 'ledger'}: {counts} entries"

    def _compact(self, _: Random) -> str:
        if not self._topic.compacted:
            return "nothing"
        self._topic.compact()
        return "all"

    def _recreate(self, _: Random) -> str:
        self._topic.recreate()
        return "with nothing"

    def _add_partition(self, _: Random) -> str:
        self._topic.add_partition()
        return str(len(self._topic.partitions))

    def _restart(self, _: Random) -> str:
        self._topic.restart(killed=False)
        return "the broker"

    def _kill(self, _: Random) -> str:
        self._topic.restart(killed=True)
        return "the broker"

    # Reading

    def _meanwhile(self, draw: Random) -> Callable[[], None]:
        """Something that happens between two steps of a query, rarely."""

        def happen() -> None:
            drawn = draw.random()
            if drawn < 0.04:
                self.lines.append(f"  meanwhile trim: {self._trim(draw)}")
            elif drawn < 0.08:
                self.lines.append(f"  meanwhile publish: {self._publish(draw)}")
            elif drawn < 0.09:
                self.lines.append(f"  meanwhile kill: {self._kill(draw)}")

        return happen

    def _stream(self, draw: Random) -> str:
        stream = draw.choice(self._streams)
        return f"{self._streams.index(stream)}: {stream.step(draw, self._meanwhile(draw))}"

    def _stop(self, draw: Random) -> str:
        stream = draw.choice(self._streams)
        stream.stop()
        return str(self._streams.index(stream))

    def _batch(self, draw: Random) -> str:
        options = self._options(draw, None)
        for option in ("startingOffsets", "endingOffsets"):
            places = {}
            for name, partition in self._topic.partitions.items():
                there = [each for each in partition.messages if partition.has_all(each)]
                if there and draw.random() < 0.3:
                    places[name] = str(draw.choice(there).position)
            if places:
                options[option] = json.dumps(places)
        query = Batch(self._topic, options)
        chosen = {name: value for name, value in options.items() if name not in ("service.url", "topic")}
        return f"{query.run(self._meanwhile(draw))} with {chosen}"
