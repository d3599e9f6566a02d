"""Writes rows to topics: at least once, or effectively once with a producer name on topics that deduplicate.

With ``pulsar.producer.producerName`` each of Spark's partitions sends under a name of its own, and the sequence id of
a message is its place in the micro-batch. A batch that is repeated after a crash sends the same ids again, and the
broker drops those it has. That rests on three things: a repeated batch has the same rows in the same order, a message
always goes to the same partition of the topic, and each message is one of the broker's entries (it drops or keeps a
batch of messages whole).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pulsar
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from heliograph_spark.plan.connection import connected
from heliograph_spark.plan.errors import PulsarSourceError, named
from heliograph_spark.plan.options import WriteOptions, full_name

from .encoding import Encoder

if TYPE_CHECKING:
    import pyarrow as pa

#: Under this name Spark tells a task which micro-batch it is part of.
_BATCH_ID = "streaming.sql.batchId"
#: A micro-batch has fewer rows than this in one of Spark's partitions.
_ROWS_PER_BATCH = 1 << 32


class Router:
    """The partition of a topic for a message: by its key as Java clients do, else in turn, or always one's own."""

    def __init__(self, own: int | None) -> None:
        self._own = own
        self._turn = 0

    def __call__(self, message: pulsar.Message, partitions: int) -> int:
        if key := message.partition_key():
            return java_hash(key) % partitions
        if self._own is not None:
            return self._own % partitions
        self._turn += 1
        return self._turn % partitions


def java_hash(key: str) -> int:
    """Return Java's ``String.hashCode`` of the key, without its sign: Pulsar's default for routing."""
    value = 0
    units = key.encode("utf-16-be")
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return value & 0x7FFFFFFF


class _Sender:
    """Sends the rows of one task, through one producer for each topic that they name."""

    def __init__(self, client: pulsar.Client, encoder: Encoder, options: WriteOptions, task: int, first: int) -> None:
        self._client = client
        self._encoder = encoder
        self._options = options
        self._task = task
        self._sequence = first
        self._producers: dict[str, pulsar.Producer] = {}
        self._failure: tuple[str, Any] | None = None

    def _producer(self, topic: str) -> pulsar.Producer:
        if topic not in self._producers:
            # Chunks and the client's batches exclude each other, and each message with a sequence id is an entry.
            batched = self._options.producer_name is None and not self._options.producer.get("chunking_enabled")
            settings: dict[str, Any] = {
                "batching_enabled": batched,
                **self._options.producer,
            }
            if "compression_type" in settings:
                settings["compression_type"] = compression(settings["compression_type"])
            name = self._options.producer_name
            with named(f"writing to {topic}"):
                self._producers[topic] = self._client.create_producer(
                    topic,
                    producer_name=f"{name}-{self._task}" if name else None,
                    schema=self._encoder.schema(),
                    block_if_queue_full=True,
                    message_router=Router(self._task if name else None),
                    **settings,
                )
        return self._producers[topic]

    def send(self, batch: pa.RecordBatch) -> None:
        for row in batch.to_pylist(maps_as_pydicts="lossy"):
            topic = self._options.topic
            if topic is None:
                if not row["__topic"]:
                    raise PulsarSourceError("a row does not say in its column '__topic' where it goes")
                topic = full_name(row["__topic"])
            producer = self._producer(topic)
            self._sequence += 1
            sequence = self._sequence if self._options.producer_name else None
            with named(f"writing to {topic}"):
                producer.send_async(
                    self._encoder.content(row), self._sent(topic), sequence_id=sequence, **self._encoder.metadata(row)
                )
            self._check()

    def _sent(self, topic: str) -> Any:
        def receipt(result: Any, _message_id: Any) -> None:
            if result != pulsar.Result.Ok and self._failure is None:
                self._failure = topic, result

        return receipt

    def _check(self) -> None:
        if self._failure is not None:
            topic, result = self._failure
            raise PulsarSourceError(f"writing to {topic}: the broker did not take a message: {result}")

    def finish(self) -> None:
        """Wait for every receipt. Raises :class:`PulsarSourceError` if one says that a message was not taken."""
        for topic, producer in self._producers.items():
            with named(f"writing to {topic}"):
                producer.flush()
                producer.close()
        self._check()


def compression(name: str) -> Any:
    """Return the client's compression of that name. Raises :class:`PulsarSourceError`, naming those there are."""
    kinds = {each: getattr(pulsar.CompressionType, each) for each in ("NONE", "LZ4", "ZLib", "ZSTD", "SNAPPY")}
    for known, kind in kinds.items():
        if known.upper() == name:
            return kind
    raise PulsarSourceError(f"pulsar.producer.compressionType: {name!r} is none of {', '.join(kinds)}")


def _send(
    batches: Iterator[pa.RecordBatch], columns: StructType, options: WriteOptions, first: int
) -> WriterCommitMessage:
    task = TaskContext.get()
    assert task is not None
    encoder = Encoder(columns, topic_given=options.topic is not None)
    with connected(options.connection) as client:
        sender = _Sender(client, encoder, options, task.partitionId(), first)
        for batch in batches:
            sender.send(batch)
        sender.finish()
    return WriterCommitMessage()


class BatchSink(DataSourceArrowWriter):
    """Writes the rows of a batch query; a task repeated after a failure sends nothing twice if it has a name."""

    def __init__(self, columns: StructType, options: WriteOptions) -> None:
        Encoder(columns, topic_given=options.topic is not None)
        self._columns = columns
        name = options.producer_name
        # The next query starts its sequence again, which under the same name would be taken for this one's.
        self._options = replace(options, producer_name=f"{name}-{uuid.uuid4().hex}") if name else options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _send(iterator, self._columns, self._options, 0)


class StreamSink(DataSourceStreamArrowWriter):
    """Writes the rows of each micro-batch; what was sent before a crash and is sent again has the same sequence ids."""

    def __init__(self, columns: StructType, options: WriteOptions) -> None:
        Encoder(columns, topic_given=options.topic is not None)
        self._columns = columns
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        first = 0
        if self._options.producer_name is not None:
            task = TaskContext.get()
            batch = task.getLocalProperty(_BATCH_ID) if task is not None else None
            if batch is None:
                raise PulsarSourceError("pulsar.producer.producerName: Spark does not say which micro-batch this is")
            first = int(batch) * _ROWS_PER_BATCH
        return _send(iterator, self._columns, self._options, first)
