"""Messages that cannot be read are published to another topic, and are no rows: ``badRecords=deadLetter``.

A task that is repeated publishes them again. Its producers have the names they had before and the sequence ids follow
from where the messages are, so a topic that deduplicates keeps one of each. A broker drops what is not above the last
sequence id under a name; therefore no two splits have a name in common, nor two ledgers of a split, in which entries
are numbered from zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from heliograph_spark.decode.kept_values import BAD_RECORD
from heliograph_spark.encode.columns import messages
from heliograph_spark.encode.messages import MESSAGE_COLUMNS
from heliograph_spark.plan.errors import PulsarSourceError
from heliograph_spark.plan.options import ReadOptions
from heliograph_spark.plan.ranges import Range
from heliograph_spark.plan.sending import SendSettings
from heliograph_spark.plan.topics import topic_of
from heliograph_spark.wire.brokers import shared
from heliograph_spark.wire.producer import Producer
from heliograph_spark.wire.window import Window

from .producers import open_producer
from .schemas import BAD_RECORD_FIELD, METADATA
from .topic_writer import TopicWriter, grouped

#: The properties that Pulsar's clients give a dead letter; those that a message has already stay, as with Java's.
REAL_TOPIC = "REAL_TOPIC"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
REAL_SUBSCRIPTION = "REAL_SUBSCRIPTION"
#: A property of our own: why the message cannot be read.
REASON = "BAD_RECORD_REASON"

#: The reason has at most so many characters: it may quote the message.
_REASON_CHARACTERS = 1000
#: A sequence id has so many bits for the place in a batch, of which there are at most 2^20, and for none.
_INDEX_BITS = 21
_PLACE = ("__ledger", "__entry", "__batchIndex", "__partition")
#: A letter is larger than its message by the properties that name its origin, so it may not fit into one entry.
_SENDING = SendSettings(batching_enabled=False, chunking_enabled=True)
_NEEDED = (*_PLACE, "__key", "__orderingKey", "__eventTime", "__messageProperties")


def columns_with_bad(columns: StructType) -> StructType:
    """Return the columns to read for a query's ``columns``, so that :func:`without_bad` can publish what is bad."""
    further = [METADATA[name] for name in _NEEDED if name not in columns.names]
    return StructType([*columns.fields, *further, BAD_RECORD_FIELD])


def without_bad(
    batches: Iterable[pa.RecordBatch], names: Sequence[str], letters: DeadLetters
) -> Iterator[pa.RecordBatch]:
    """Yield the rows that could be read, in the columns of these names; the others are published.

    The last rows come when the broker has taken all letters. Raises :class:`PulsarSourceError` if it has not.
    """
    held: pa.RecordBatch | None = None
    for batch in batches:
        bad = batch.column(BAD_RECORD)
        kept = batch.select(names)
        if bad.null_count < len(bad):
            letters.send(batch.select([*_NEEDED, BAD_RECORD]).filter(pc.is_valid(bad)))
            kept = kept.filter(pc.is_null(bad))
        if len(kept):
            if held is not None:
                yield held
            held = kept
    letters.finish()
    if held is not None:
        yield held


class DeadLetters:
    """Publishes the letters of one split, ``wanted``, of a query; connects when the first one comes.

    The options have a rule for them. Each method raises :class:`PulsarSourceError`, naming the dead-letter topic, if a
    letter cannot be published.
    """

    def __init__(self, options: ReadOptions, wanted: Range, query: str) -> None:
        assert options.dead_letters is not None
        self._connection = options.connection
        self._origin = topic_of(wanted.topic)
        self._topic = options.dead_letters.topic_for(self._origin)
        self._subscription = options.dead_letters.subscription
        self._name = f"heliograph-dead-letters-{query}-{wanted.topic}-{wanted.start}"
        self._window = Window()
        self._ledger = -1
        self._writer: TopicWriter | None = None
        self._producers: list[Producer] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for producer in self._producers:
            producer.leave()

    def send(self, bad: pa.RecordBatch) -> None:
        """Send rows that cannot be read, in the order of the topic."""
        with _named(self._topic):
            for ledger, rows, start, stop in grouped(bad, bad.column("__ledger")):
                part = rows[start:stop]
                self._writer_of(ledger, part.column("__partition")[0].as_py()).write(self._letters(part))

    def finish(self) -> None:
        """Wait until the broker has taken every letter."""
        with _named(self._topic):
            self._window.flush()
            for producer in self._producers:
                producer.close()
        self._producers.clear()
        self._writer = None

    def _writer_of(self, ledger: int, partition: int) -> TopicWriter:
        if self._writer is None or ledger != self._ledger:
            self.finish()
            partitions = shared(self._connection).partition_names(self._topic, create=True)
            self._writer = TopicWriter(partitions, _SENDING, self._opened, own=max(0, partition), numbered=True)
            self._ledger = ledger
        return self._writer

    def _opened(self, partition: str) -> Producer:
        name = f"{self._name}-{self._ledger}"
        producer = open_producer(Producer(shared(self._connection), partition, self._window, name=name))
        self._producers.append(producer)
        return producer

    def _letters(self, bad: pa.RecordBatch) -> pa.RecordBatch:
        rows = bad.select([*_PLACE, "__messageProperties", BAD_RECORD]).to_pylist(maps_as_pydicts="lossy")
        properties = pa.array([list(self._properties(row).items()) for row in rows], MESSAGE_COLUMNS["properties"])
        keys = {name: bad.column(name) for name in ("__key", "__orderingKey", "__eventTime")}
        letters = messages(bad.column(BAD_RECORD).field("value"), {**keys, "__messageProperties": properties})
        # The place in a batch begins with -1, for none.
        numbers = [(row["__entry"] << _INDEX_BITS) + row["__batchIndex"] + 2 for row in rows]
        return letters.append_column("sequence", pa.array(numbers, pa.int64()))

    def _properties(self, row: dict[str, Any]) -> dict[str, str]:
        ledger, entry, index, partition = (row[name] for name in _PLACE)
        own = {
            REAL_TOPIC: self._origin,
            ORIGIN_MESSAGE_ID: f"{ledger}:{entry}:{partition}" + (f":{index}" if index >= 0 else ""),
        }
        if self._subscription is not None:
            own[REAL_SUBSCRIPTION] = self._subscription
        properties: dict[str, str] = own | dict(row["__messageProperties"])
        properties[REASON] = row[BAD_RECORD]["reason"][:_REASON_CHARACTERS]
        return properties


@contextmanager
def _named(topic: str) -> Iterator[None]:
    try:
        yield
    except PulsarSourceError as error:
        raise PulsarSourceError(f"publishing what cannot be read to {topic}: {error}") from error
