"""Sends the messages of one task of a replay.

With a producer name each message has a sequence id that follows from its place in the topic it was archived from, and
goes out under a name that follows from its partition there, its bucket and the beginning of the range. So a run after
a killed one gives every message the same name and number, whatever the machine, and however much longer the archive or
the range is by then; and another beginning gives other names, under which nothing counts as sent yet.
"""

from __future__ import annotations

import hashlib
from typing import Any

import pulsar

from heliograph_spark.jobs.plan.pacing import Pacer
from heliograph_spark.plan.errors import PulsarSourceError, named
from heliograph_spark.plan.options import WriteOptions
from heliograph_spark.run.encoding import Encoder
from heliograph_spark.run.producers import open_producer

#: Messages of one key are in one bucket, and a bucket in one task; more tasks than this do not send.
BUCKETS = 16
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


class Resender:
    """The producers of one task; ``series`` says what is sent, ``rates`` how fast each task may be."""

    def __init__(
        self,
        client: pulsar.Client,
        encoder: Encoder,
        writing: WriteOptions,
        target: str,
        series: str = "",
        rates: dict[int, float] | None = None,
    ) -> None:
        self._client = client
        self._encoder = encoder
        self._writing = writing
        self._target = target
        self._series = hashlib.sha256(series.encode()).hexdigest()[:12]
        self._rates = rates or {}
        self._pacers: dict[int, Pacer] = {}
        #: By source, epoch and bucket.
        self._producers: dict[tuple[str, int, int], pulsar.Producer] = {}
        self._epoch = 0
        self._sent = 0
        self._failure: Any = None

    def check(self) -> None:
        """Open a producer and close it. Raises :class:`PulsarSourceError` if the broker does not allow it."""
        self._open(None, 0).close()

    def send(self, row: dict[str, Any]) -> None:
        """Hand one message to the client, when its turn has come."""
        if row["task"] in self._rates:
            if row["task"] not in self._pacers:
                self._pacers[row["task"]] = Pacer(self._rates[row["task"]])
            self._pacers[row["task"]].wait()
        settings = {"partition_key": row["key"], "event_timestamp": row["event_ms"], "properties": row["properties"]}
        if self._writing.producer_name is not None:
            settings["sequence_id"] = sequence_of(row["ledger"], row["entry"], row["batch"])
        producer = self._producer(row["source"], epoch_of(row["ledger"]), row["bucket"])
        with named(f"writing to {self._target}"):
            producer.send_async(row["content"], self._received, **settings)
        self._check_receipts()

    def finish(self) -> int:
        """Wait for every receipt; how many messages were taken."""
        for producer in self._producers.values():
            with named(f"writing to {self._target}"):
                producer.flush()
                producer.close()
        self._check_receipts()
        return self._sent

    def _producer(self, source: str, epoch: int, bucket: int) -> pulsar.Producer:
        if self._writing.producer_name is None:
            source, epoch, bucket = "", 0, 0
        if epoch != self._epoch:
            # Another producer goes on with the same keys: what the one before it sent has to be stored first.
            for before in self._producers.values():
                with named(f"writing to {self._target}"):
                    before.flush()
            self._epoch = epoch
        known = (source, epoch, bucket)
        if known not in self._producers:
            name = None
            if self._writing.producer_name is not None:
                origin = hashlib.sha256(source.encode()).hexdigest()[:8]
                name = f"{self._writing.producer_name}-{self._series}-{origin}-{bucket}"
                if epoch:
                    name += f"-{epoch}"
            self._producers[known] = self._open(name, bucket)
        return self._producers[known]

    def _open(self, name: str | None, bucket: int) -> pulsar.Producer:
        return open_producer(self._client, self._target, self._encoder.schema(), self._writing, name, bucket)

    def _received(self, result: Any, _message_id: Any) -> None:
        if result == pulsar.Result.Ok:
            self._sent += 1
        elif self._failure is None:
            self._failure = result

    def _check_receipts(self) -> None:
        if self._failure is not None:
            raise PulsarSourceError(f"writing to {self._target}: the broker did not take a message: {self._failure}")
