"""Sends the messages of one task of a replay.

With a checkpoint the sequence ids count the messages of each partition of the target, in the order in which they go
there, under one name.

With a producer name each message has a sequence id that follows from its place in the topic it was archived from, and
goes out under a name that follows from its partition there, the beginning of the range and the number of partitions it
is sent to. So a run after a killed one gives every message the same name and number, whatever the machine, and however
much longer the archive or the range is by then; and another beginning gives other names, under which nothing counts as
sent yet.

A broker drops what is not above the last sequence id of a name, so each original partition has names of its own: each
of them has sent the first messages of its part when a run is killed, wherever the others are. A key whose messages
have several names waits until those of the one are stored before the next one goes on.
"""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Hashable, Sequence
from types import TracebackType
from typing import Any

from heliograph_api.protocol import wire_pb2 as wire

from heliograph_spark.encode.framing import Messages
from heliograph_spark.jobs.plan.pacing import Pacer
from heliograph_spark.plan.errors import PulsarSourceError
from heliograph_spark.plan.options import WriteOptions
from heliograph_spark.run.producers import open_producer
from heliograph_spark.run.topic_writer import PartitionWriter
from heliograph_spark.wire.brokers import shared
from heliograph_spark.wire.producer import Producer, Received, ignore_receipt, leave_all
from heliograph_spark.wire.window import Window

#: Split of the 63 bits of a sequence id; a broker rolls ledgers at 50,000 entries, a client batches 1,000.
_ENTRY_BITS = 20
_BATCH_BITS = 13
_LEDGER_BITS = 63 - _ENTRY_BITS - _BATCH_BITS
#: Above these bits a ledger id has the epoch of the store that made it: 0 in an Apache Pulsar.
_NUMBER_BITS = 40


def epoch_of(ledger: int) -> int:
    """Return the epoch in a ledger id; sequence ids count within one epoch, so each has producers of its own."""
    return ledger >> _NUMBER_BITS


def sequence_of(ledger: int, entry: int, batch: int) -> int:
    """Return a number that grows along a partition's messages of one epoch.

    Raises :class:`PulsarSourceError` for an id beyond what fits 63 bits.
    """
    within = batch + 1
    number = ledger & (1 << _NUMBER_BITS) - 1
    if number >> _LEDGER_BITS or entry >> _ENTRY_BITS or within >> _BATCH_BITS:
        raise PulsarSourceError(
            f"message {ledger}:{entry}:{batch} cannot have a sequence id: --producer-name knows numbers of ledgers"
            f" below 2^{_LEDGER_BITS}, entries below 2^{_ENTRY_BITS} and batches of less than 2^{_BATCH_BITS} messages"
        )
    return number << _ENTRY_BITS + _BATCH_BITS | entry << _BATCH_BITS | within


#: What a producer is for: partition, source and epoch.
_Which = tuple[int, str, int]


class UnderWay:
    """The messages without a receipt, counted by what has an order and the producer that sends it."""

    def __init__(self) -> None:
        self._counts: dict[Hashable, tuple[_Which, int]] = {}

    def with_another(self, ordered: Hashable, producer: _Which) -> _Which | None:
        """Return the producer, if it is another one, that has messages of this order without a receipt."""
        other = self._counts.get(ordered, (producer, 0))[0]
        return None if other == producer else other

    def begin(self, ordered: Hashable, producer: _Which) -> None:
        """Count a message."""
        self._counts[ordered] = producer, self._counts.get(ordered, (producer, 0))[1] + 1

    def end(self, ordered: Hashable) -> None:
        """Count a receipt."""
        producer, count = self._counts[ordered]
        if count > 1:
            self._counts[ordered] = producer, count - 1
        else:
            del self._counts[ordered]


class Resender:
    """The producers of one task for the ``partitions`` of a topic, with the ``schema`` of what is sent.

    ``series`` says what is sent, where sequence ids follow from the positions; where they count the messages of each
    partition it is None. ``rates`` says how fast each task may be. Methods raise :class:`PulsarSourceError`, naming
    the partition, if the broker does not take the messages.
    """

    def __init__(
        self,
        schema: wire.Schema | None,
        writing: WriteOptions,
        partitions: Sequence[str],
        series: str | None = None,
        rates: dict[int, float] | None = None,
    ) -> None:
        self._schema = schema
        self._writing = writing
        self._partitions = partitions
        self._series = None if series is None else hashlib.sha256(series.encode()).hexdigest()[:12]
        self._rates = rates or {}
        self._pacers: dict[int, Pacer] = {}
        self._window = Window()
        self._producers: list[Producer] = []
        self._writers: dict[_Which, PartitionWriter] = {}
        #: What each message without a receipt is ordered with, by producer, in the order in which they were sent.
        self._orders: dict[_Which, deque[Hashable]] = {}
        #: The producer that was used last, by the number of the partition.
        self._last: dict[int, _Which] = {}
        self._under_way = UnderWay()
        self._sent = 0
        self._kept_s = writing.sending.batching_max_publish_delay_us / 1_000_000

    def __enter__(self) -> Resender:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        leave_all(self._producers, error)

    def check(self) -> None:
        """Open a producer and close it. Raises :class:`PulsarSourceError` if the broker does not allow it."""
        self._open(0, "", ignore_receipt).close()

    def last_sequences(self) -> list[int]:
        """Return the last sequence id that the broker has of this producer's name in each partition, -1 for none.

        Waits while a run before this one still has the name. Raises :class:`PulsarSourceError`.
        """
        found = []
        for partition in range(len(self._partitions)):
            producer = self._open(partition, self._writing.producer_name or "", ignore_receipt)
            found.append(producer.last_sequence_id)
            producer.close()
        return found

    def sleep(self, seconds: float) -> None:
        """Let the broker have what was sent before this time passes."""
        self._flush()
        time.sleep(seconds)

    def send(self, row: dict[str, Any], messages: Messages, at: int) -> None:
        """Send row ``at`` of the messages, when its turn has come, or keep it for a batch for a moment.

        ``row`` says which task, partition and source it is of, its ledger id, and its key.
        """
        if row["task"] in self._rates:
            if row["task"] not in self._pacers:
                self._pacers[row["task"]] = Pacer(self._rates[row["task"]], sleep=self.sleep)
            self._pacers[row["task"]].wait()
        which: _Which = row["partition"], "", 0
        ordered: Hashable = None
        if self._series is not None and self._writing.producer_name is not None:
            which = row["partition"], row["source"], epoch_of(row["ledger"])
            ordered = (row["source"],) if row["key"] is None else row["key"]
            while (other := self._under_way.with_another(ordered, which)) is not None:
                self._writers[other].flush()
                self._window.wait()
            self._under_way.begin(ordered, which)
        if which not in self._writers:
            self._writers[which] = self._opened(which)
        # Those of one partition take turns: what was sent before comes before this.
        if (before := self._last.get(which[0], which)) != which:
            self._writers[before].flush()
        self._last[which[0]] = which
        self._orders[which].append(ordered)
        self._writers[which].write(messages, at, at + 1)
        self._flush(time.monotonic() - self._kept_s)

    def finish(self) -> int:
        """Wait for every receipt; how many messages were taken."""
        self._flush()
        self._window.flush()
        for producer in self._producers:
            producer.close()
        return self._sent

    def _flush(self, begun_before: float = float("inf")) -> None:
        for writer in self._writers.values():
            if writer.begun_at < begun_before:
                writer.flush()

    def _opened(self, which: _Which) -> PartitionWriter:
        partition, source, epoch = which
        name = self._writing.producer_name or ""
        numbered = bool(name)
        if numbered and self._series is not None:
            origin = hashlib.sha256(source.encode()).hexdigest()[:8]
            name += f"-{self._series}-{origin}"
            if epoch:
                name += f"-{epoch}"
        orders: deque[Hashable] = deque()
        self._orders[which] = orders

        def received(messages: int, _dropped: bool) -> None:
            self._sent += messages
            for _ in range(messages):
                if (ordered := orders.popleft()) is not None:
                    self._under_way.end(ordered)

        producer = self._open(partition, name, received)
        pending = self._writing.sending.pending_of_partition(len(self._partitions))
        return PartitionWriter(producer, self._writing.sending, pending, numbered=numbered)

    def _open(self, partition: int, name: str, received: Received) -> Producer:
        producer = Producer(
            shared(self._writing.connection),
            self._partitions[partition],
            self._window,
            name=name,
            schema=self._schema,
            receipt_within_s=self._writing.sending.send_timeout_ms / 1000,
            received=received,
        )
        self._producers.append(open_producer(producer))
        return producer
