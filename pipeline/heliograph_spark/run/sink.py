"""Writes rows to topics: at least once, or effectively once with a producer name on topics that deduplicate.

With ``pulsar.producer.producerName`` each of Spark's partitions sends under a name of its own, and the sequence id of
a message is its place in the micro-batch. A batch that is repeated after a crash sends the same ids again, and the
broker drops those it has. That rests on three things: a repeated batch has the same rows in the same order, a message
always goes to the same partition of the topic, and each message is one of the broker's entries (it drops or keeps a
batch of messages whole).
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pulsar
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, StructType

from heliograph_spark.plan.connection import connected
from heliograph_spark.plan.errors import PulsarSourceError, SchemaError, named
from heliograph_spark.plan.numbering import UNUSED, Numbering
from heliograph_spark.plan.options import WriteOptions, full_name
from heliograph_spark.plan.topics import deduplicates
from heliograph_spark.wire.brokers import shared

from .encoding import Encoder
from .producers import open_producer
from .schemas import VALUE, TopicSchema, field_types, schema_of_topic

if TYPE_CHECKING:
    import pyarrow as pa

#: Under these names Spark tells a task which query and which micro-batch it is part of.
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"


class Receipts:
    """Looks at every receipt of one producer; ``stored`` messages of the batch were in the topic before it began."""

    def __init__(self, topic: str, numbering: Numbering | None, stored: int) -> None:
        self.stored = stored
        self.taken = 0
        self.dropped = 0
        self._topic = topic
        self._numbering = numbering
        self._failure: str | None = None

    def __call__(self, result: Any, message_id: Any) -> None:
        if result != pulsar.Result.Ok:
            self._failure = self._failure or f"the broker did not take a message: {result}"
        elif message_id.ledger_id() >= 0:
            self.taken += 1
        else:
            self.dropped += 1
            # A client whose connection breaks sends again what it sent, so later ones may be dropped rightly.
            if self._numbering is not None and not self.stored and not self.taken:
                self._failure = self._failure or (
                    f"the broker has dropped a message as sent before, but had none under {self._numbering.name}:"
                    " another query sends under this name; choose another pulsar.producer.producerName"
                )

    def check(self) -> None:
        """Raise :class:`PulsarSourceError` if a message was not taken, or was dropped without a reason."""
        if self._failure is not None:
            raise PulsarSourceError(f"writing to {self._topic}: {self._failure}")


class Sender:
    """Sends the rows of one task, through one producer for each topic that they name."""

    def __init__(
        self,
        client: pulsar.Client,
        columns: StructType,
        options: WriteOptions,
        task: int = 0,
        numbering: Numbering | None = None,
    ) -> None:
        self._client = client
        self._columns = columns
        self._options = options
        self._task = task
        self._numbering = numbering
        self._rows = 0
        self._open: dict[str, tuple[pulsar.Producer, Encoder, Receipts]] = {}

    def send(self, batch: pa.RecordBatch) -> None:
        """Hand the rows to the client."""
        for row in batch.to_pylist(maps_as_pydicts="lossy"):
            topic = self._options.topic
            if topic is None:
                if not row["__topic"]:
                    raise PulsarSourceError("a row does not say in its column '__topic' where it goes")
                topic = full_name(row["__topic"])
            if topic not in self._open:
                encoder = self._encoder(topic)
                self._open[topic] = self._producer(topic, encoder)
            producer, encoder, receipts = self._open[topic]
            self._rows += 1
            sequence = None if self._numbering is None else self._numbering.before + self._rows
            try:
                content, metadata = encoder.content(row), encoder.metadata(row)
            except SchemaError as error:
                raise SchemaError(f"writing to {topic}: {error}") from error
            with named(f"writing to {topic}"):
                producer.send_async(content, receipts, sequence_id=sequence, **metadata)
            receipts.check()

    def finish(self) -> None:
        """Wait for every receipt. Raises :class:`PulsarSourceError` if one says that a message was not taken."""
        for topic, (producer, _, _) in self._open.items():
            with named(f"writing to {topic}"):
                producer.flush()
                producer.close()
        for topic, (_, _, receipts) in self._open.items():
            receipts.check()
            if receipts.dropped:
                text = f"{topic} has {receipts.dropped} of {receipts.dropped + receipts.taken} messages already"
                print(text, file=sys.stderr, flush=True)
            if self._numbering is not None:
                self._numbering.check_repeat(topic, receipts.stored, self._rows)

    def _encoder(self, topic: str) -> Encoder:
        """Return what encodes rows for the topic, by its own schema if it has one."""
        schema: TopicSchema | None = schema_of_topic(shared(self._options.connection), topic)
        try:
            if schema is not None and (schema.kind in ("NONE", "BYTES") or _are_bytes(self._columns, schema)):
                schema = None
            return Encoder(self._columns, topic_given=self._options.topic is not None, schema=schema)
        except SchemaError as error:
            raise SchemaError(f"writing to {topic}: {error}") from error

    def _producer(self, topic: str, encoder: Encoder) -> tuple[pulsar.Producer, Encoder, Receipts]:
        if self._numbering is None:
            producer = open_producer(self._client, topic, encoder.schema(), self._options)
            return producer, encoder, Receipts(topic, None, 0)
        producer = open_producer(self._client, topic, encoder.schema(), self._options, self._numbering.name, self._task)
        last = producer.last_sequence_id()
        if last == UNUSED:
            self._check_first_use(topic, self._numbering)
        return producer, encoder, Receipts(topic, self._numbering, self._numbering.stored(topic, last))

    def _check_first_use(self, topic: str, numbering: Numbering) -> None:
        connection = self._options.connection
        if connection.admin_url is not None and not deduplicates(connection, topic):
            raise PulsarSourceError(
                f"writing to {topic}: it does not deduplicate, which pulsar.producer.producerName rests on: set"
                " deduplication on the topic or leave the name out"
            )
        if numbering.earlier is not None:
            nothing = pulsar.schema.BytesSchema()
            before = open_producer(self._client, topic, nothing, self._options, numbering.earlier, self._task)
            last = before.last_sequence_id()
            before.close()
            numbering.check_earlier(topic, last)


def _are_bytes(columns: StructType, schema: TopicSchema) -> bool:
    """Whether the rows are messages as they are: bytes in ``value``, which is no field of the topic's own."""
    names = [name for name in columns.names if not name.startswith("__")]
    if names != [VALUE] or not isinstance(columns[VALUE].dataType, BinaryType):
        return False
    return not schema.in_avro or VALUE not in field_types(schema, ())


def _send(
    batches: Iterator[pa.RecordBatch], columns: StructType, options: WriteOptions, numbering: Numbering | None
) -> WriterCommitMessage:
    with connected(options.connection) as client:
        sender = Sender(client, columns, options, _task().partitionId(), numbering)
        for batch in batches:
            sender.send(batch)
        sender.finish()
    return WriterCommitMessage()


def _task() -> TaskContext:
    task = TaskContext.get()
    assert task is not None
    return task


class BatchSink(DataSourceArrowWriter):
    """Writes the rows of a batch query; a task repeated after a failure sends nothing twice if it has a name."""

    def __init__(self, columns: StructType, options: WriteOptions) -> None:
        Encoder(columns, topic_given=options.topic is not None)
        self._columns = columns
        self._options = options
        # The next query starts its numbers again, which under the same name would be taken for this one's.
        self._own = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        name = self._options.producer_name
        numbering = Numbering(f"{name}-{self._own}-{_task().partitionId()}", 0) if name else None
        return _send(iterator, self._columns, self._options, numbering)


class StreamSink(DataSourceStreamArrowWriter):
    """Writes the rows of each micro-batch; what was sent before a crash and is sent again has the same sequence ids."""

    def __init__(self, columns: StructType, options: WriteOptions) -> None:
        Encoder(columns, topic_given=options.topic is not None)
        self._columns = columns
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        numbering = None
        if (name := self._options.producer_name) is not None:
            task = _task()
            query, batch = task.getLocalProperty(_QUERY_ID), task.getLocalProperty(_BATCH_ID)
            if query is None or batch is None:
                raise PulsarSourceError(
                    "pulsar.producer.producerName: Spark does not say which query and micro-batch this is"
                )
            numbering = Numbering.of_batch(name, query, task.partitionId(), int(batch))
        return _send(iterator, self._columns, self._options, numbering)
