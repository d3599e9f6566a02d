"""Sends the messages of one task of a replay.

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
import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import pulsar

from heliograph_spark.jobs.plan.pacing import Pacer
from heliograph_spark.plan.errors import PulsarSourceError, named
from heliograph_spark.plan.options import WriteOptions
from heliograph_spark.run.encoding import Encoder
from heliograph_spark.run.producers import open_producer

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


class UnderWay:
    """The messages without a receipt, counted by what has an order and the producer that sends it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._counts: dict[Hashable, tuple[Hashable, int]] = {}
        self._failed = False

    def begin(self, ordered: Hashable, producer: Hashable) -> None:
        """Count a message, when those of the same order that another producer sends have their receipts.

        Returns at once after a failure: there is nothing to keep in order any more.
        """
        with self._changed:
            while not self._failed and self._counts.get(ordered, (producer, 0))[0] != producer:
                self._changed.wait()
            self._counts[ordered] = producer, self._counts.get(ordered, (producer, 0))[1] + 1

    def end(self, ordered: Hashable, *, stored: bool) -> None:
        """Count a receipt."""
        with self._changed:
            producer, count = self._counts[ordered]
            if count > 1:
                self._counts[ordered] = producer, count - 1
            else:
                del self._counts[ordered]
            self._failed = self._failed or not stored
            self._changed.notify_all()


class Resender:
    """The producers of one task for the ``partitions`` of a topic.

    ``series`` says what is sent, ``rates`` how fast each task may be.
    """

    def __init__(
        self,
        client: pulsar.Client,
        encoder: Encoder,
        writing: WriteOptions,
        partitions: Sequence[str],
        series: str = "",
        rates: dict[int, float] | None = None,
    ) -> None:
        self._client = client
        self._encoder = encoder
        self._writing = writing
        self._partitions = partitions
        self._series = hashlib.sha256(series.encode()).hexdigest()[:12]
        self._rates = rates or {}
        self._pacers: dict[int, Pacer] = {}
        #: By partition, source and epoch.
        self._producers: dict[tuple[int, str, int], pulsar.Producer] = {}
        self._under_way = UnderWay()
        self._sent = 0
        self._failure: str | None = None

    def check(self) -> None:
        """Open a producer and close it. Raises :class:`PulsarSourceError` if the broker does not allow it."""
        self._open(0, None).close()

    def send(self, row: dict[str, Any]) -> None:
        """Hand one message to the client, when its turn has come."""
        if row["task"] in self._rates:
            if row["task"] not in self._pacers:
                self._pacers[row["task"]] = Pacer(self._rates[row["task"]])
            self._pacers[row["task"]].wait()
        settings = {"partition_key": row["key"], "event_timestamp": row["event_ms"], "properties": row["properties"]}
        which = row["partition"], "", 0
        ordered: Hashable = None
        if self._writing.producer_name is not None:
            settings["sequence_id"] = sequence_of(row["ledger"], row["entry"], row["batch"])
            which = row["partition"], row["source"], epoch_of(row["ledger"])
            ordered = (row["source"],) if row["key"] is None else row["key"]
        producer = self._producer(which)
        if ordered is not None:
            self._under_way.begin(ordered, which)
        topic = self._partitions[row["partition"]]
        with named(f"writing to {topic}"):
            producer.send_async(row["content"], self._receipt_of(topic, ordered), **settings)
        self._check_receipts()

    def finish(self) -> int:
        """Wait for every receipt; how many messages were taken."""
        for (partition, _, _), producer in self._producers.items():
            with named(f"writing to {self._partitions[partition]}"):
                producer.flush()
                producer.close()
        self._check_receipts()
        return self._sent

    def _producer(self, which: tuple[int, str, int]) -> pulsar.Producer:
        if which not in self._producers:
            partition, source, epoch = which
            name = None
            if self._writing.producer_name is not None:
                origin = hashlib.sha256(source.encode()).hexdigest()[:8]
                name = f"{self._writing.producer_name}-{self._series}-{origin}"
                if epoch:
                    name += f"-{epoch}"
            self._producers[which] = self._open(partition, name)
        return self._producers[which]

    def _open(self, partition: int, name: str | None) -> pulsar.Producer:
        # Each of several tasks has partitions of its own: a producer of the whole topic would be on all of them.
        return open_producer(
            self._client, self._partitions[partition], self._encoder.schema(), self._writing, name, partition
        )

    def _receipt_of(self, topic: str, ordered: Hashable) -> Callable[[Any, Any], None]:
        def receipt(result: Any, _message_id: Any) -> None:
            stored = result == pulsar.Result.Ok
            if stored:
                self._sent += 1
            elif self._failure is None:
                self._failure = f"writing to {topic}: the broker did not take a message: {result}"
            if ordered is not None:
                self._under_way.end(ordered, stored=stored)

        return receipt

    def _check_receipts(self) -> None:
        if self._failure is not None:
            raise PulsarSourceError(self._failure)
