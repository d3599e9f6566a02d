"""Writes rows to topics: at least once, or effectively once with a producer name on topics that deduplicate.

With ``pulsar.producer.producerName`` each of Spark's partitions sends under a name of its own, and the sequence id of
a message is its place in the micro-batch. A batch that is repeated after a crash sends the same ids again, and the
broker drops those it has. That rests on two things: a repeated batch has the same rows in the same order, and a message
always goes to the same partition of the topic. Which messages share one of the broker's entries may be different each
time: up to the last id that the broker has had, each is an entry of its own.
"""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType

import pyarrow as pa
from heliograph_api.protocol import wire_pb2 as wire
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, StructType

from heliograph_spark.plan.errors import PulsarSourceError, SchemaError
from heliograph_spark.plan.numbering import UNUSED, Numbering
from heliograph_spark.plan.options import WriteOptions, full_name
from heliograph_spark.plan.topics import deduplicates
from heliograph_spark.wire.brokers import shared
from heliograph_spark.wire.failures import NotStored
from heliograph_spark.wire.producer import Producer, Received, ignore_receipt, leave_all
from heliograph_spark.wire.window import Window

from .encoding import Encoder
from .producers import open_producer
from .schemas import VALUE, TopicSchema, field_types, schema_of_topic
from .spark_versions import DataSourceStreamArrowWriter
from .tasks import micro_batch, this_task
from .topic_writer import TopicWriter, grouped

#: The most bytes of batches that wait for more rows, of all topics of a task.
_MOST_BUFFERED_BYTES = 32 << 20
_SEQUENCES = "sequence"


class Target:
    """A topic to which a task sends rows, and what its producers report of it."""

    def __init__(self, sender: Sender, topic: str) -> None:
        self.topic = topic
        self.encoder = sender.encoder(topic)
        #: The messages that the broker has stored, and those that it had before.
        self.taken = 0
        self.dropped = 0
        #: How many rows of the micro-batch the broker had when the task began.
        self.stored = 0
        self._sender = sender
        self._schema = self.encoder.schema()
        partitions = sender.brokers.partition_names(topic, create=True)
        numbered = sender.numbering is not None
        own = sender.task if numbered else None
        self.writer = TopicWriter(partitions, sender.settings, self._opened, own=own, numbered=numbered)

    def send(self, rows: pa.RecordBatch, sequences: pa.Array | None) -> None:
        """Send rows, with these sequence ids."""
        try:
            messages = self.encoder.messages(rows)
        except SchemaError as error:
            raise SchemaError(f"writing to {self.topic}: {error}") from error
        if sequences is not None:
            messages = messages.append_column(_SEQUENCES, sequences)
        self.writer.write(messages)

    def finished(self, rows: int) -> None:
        """Check what the broker has dropped; the task had so many rows for all topics, and each has its receipt."""
        if self.dropped:
            text = f"{self.topic} has {self.dropped} of {self.dropped + self.taken} messages already"
            print(text, file=sys.stderr, flush=True)
        if self._sender.numbering is not None:
            self._sender.numbering.check_repeat(self.topic, self.stored, rows)

    def _received(self, messages: int, dropped: bool) -> None:
        if dropped:
            self.dropped += messages
        else:
            self.taken += messages

    def _opened(self, partition: str) -> Producer:
        numbering = self._sender.numbering
        producer = self._sender.opened(partition, numbering.name if numbering else "", self._schema, self._received)
        if numbering is not None:
            if producer.last_sequence_id == UNUSED:
                self._sender.check_first_use(self.topic, partition, numbering)
            self.stored = max(self.stored, numbering.stored(self.topic, producer.last_sequence_id))
        return producer


class Sender:
    """Sends the rows of one task, through one producer for each partition of the topics that they name."""

    def __init__(
        self, columns: StructType, options: WriteOptions, task: int = 0, numbering: Numbering | None = None
    ) -> None:
        self.brokers = shared(options.connection)
        self.settings = options.sending
        self.task = task
        self.numbering = numbering
        self._columns = columns
        self._options = options
        self._rows = 0
        self._window = Window()
        self._producers: list[Producer] = []
        self._targets: dict[str, Target] = {}

    def __enter__(self) -> Sender:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        leave_all(self._producers, error)

    def send(self, batch: pa.RecordBatch) -> None:
        """Send the rows, or keep the last ones of each topic for a batch of messages."""
        sequences = None
        if self.numbering is not None:
            first = self.numbering.before + self._rows + 1
            sequences = pa.array(range(first, first + batch.num_rows), pa.int64())
        self._rows += batch.num_rows
        if self._options.topic is not None:
            self._target(self._options.topic).send(batch, sequences)
        else:
            self._send_by_topic(batch, sequences)
        self._flush(time.monotonic() - self.settings.batching_max_publish_delay_us / 1_000_000)
        if sum(target.writer.buffered_bytes for target in self._targets.values()) > _MOST_BUFFERED_BYTES:
            self._flush()

    def _send_by_topic(self, batch: pa.RecordBatch, sequences: pa.Array | None) -> None:
        topics = batch.column("__topic").dictionary_encode()
        names = topics.dictionary.to_pylist()
        if topics.null_count or "" in names:
            raise PulsarSourceError("a row does not say in its column '__topic' where it goes")
        if sequences is not None:
            batch = batch.append_column(_SEQUENCES, sequences)
        for number, rows, start, stop in grouped(batch, topics.indices):
            part = rows[start:stop]
            of_part = None
            if sequences is not None:
                # By its place: any name may be that of another column.
                of_part = part.column(part.num_columns - 1)
                part = part.select(list(range(part.num_columns - 1)))
            self._target(full_name(names[number])).send(part, of_part)

    def finish(self) -> None:
        """Send what was kept and wait for every receipt. Raises :class:`PulsarSourceError` if one does not come."""
        self._flush()
        self._window.flush()
        for producer in self._producers:
            producer.close()
        for target in self._targets.values():
            target.finished(self._rows)

    def _flush(self, begun_before: float = float("inf")) -> None:
        for target in self._targets.values():
            target.writer.flush(begun_before)

    def _target(self, topic: str) -> Target:
        if topic not in self._targets:
            self._targets[topic] = Target(self, topic)
        return self._targets[topic]

    def encoder(self, topic: str) -> Encoder:
        """Return what encodes rows for the topic, by its own schema if it has one."""
        schema: TopicSchema | None = schema_of_topic(self.brokers, topic)
        try:
            if schema is not None and (schema.kind in ("NONE", "BYTES") or _are_bytes(self._columns, schema)):
                schema = None
            return Encoder(self._columns, topic_given=self._options.topic is not None, schema=schema)
        except SchemaError as error:
            raise SchemaError(f"writing to {topic}: {error}") from error

    def opened(
        self, partition: str, name: str, schema: wire.Schema | None, received: Received = ignore_receipt
    ) -> Producer:
        """Return an open producer of a partition, which the end of the task closes."""
        producer = Producer(
            self.brokers,
            partition,
            self._window,
            name=name,
            schema=schema,
            receipt_within_s=self.settings.send_timeout_ms / 1000,
            received=received,
        )
        self._producers.append(open_producer(producer))
        return producer

    def check_first_use(self, topic: str, partition: str, numbering: Numbering) -> None:
        """Check that nothing stands against the first use of the name on a partition."""
        connection = self._options.connection
        if connection.admin_url is not None and not deduplicates(connection, topic):
            raise PulsarSourceError(
                f"writing to {topic}: it does not deduplicate, which pulsar.producer.producerName rests on: set"
                " deduplication on the topic or leave the name out"
            )
        if numbering.earlier is not None:
            before = self.opened(partition, numbering.earlier, None)
            last = before.last_sequence_id
            before.close()
            numbering.check_earlier(topic, last)


def _are_bytes(columns: StructType, schema: TopicSchema) -> bool:
    """Whether the rows are messages as they are: bytes in ``value``, which is no field of the topic's own."""
    names = [name for name in columns.names if not name.startswith("__")]
    if names != [VALUE] or not isinstance(columns[VALUE].dataType, BinaryType):
        return False
    return not schema.in_avro or VALUE not in field_types(schema, ())


@dataclass
class Written(WriterCommitMessage):
    """The end of a task; ``lost`` says which message the broker has lost, if it has."""

    lost: str | None = None


def write_rows(
    batches: Iterator[pa.RecordBatch],
    columns: StructType,
    options: WriteOptions,
    task: int,
    numbering: Numbering | None,
) -> Written:
    """Write the rows of one task. Raises :class:`PulsarSourceError`; then Spark may repeat the task."""
    try:
        with Sender(columns, options, task, numbering) as sender:
            for batch in batches:
                sender.send(batch)
            sender.finish()
    except NotStored as error:
        return Written(str(error))
    return Written()


def _check_written(messages: Sequence[WriterCommitMessage | None]) -> None:
    for message in messages:
        if isinstance(message, Written) and message.lost is not None:
            raise NotStored(message.lost)


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
        task = this_task().partitionId()
        numbering = Numbering(f"{name}-{self._own}-{task}", 0) if name else None
        return write_rows(iterator, self._columns, self._options, task, numbering)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Raise :class:`NotStored` if a task has lost a message."""
        _check_written(messages)


class StreamSink(DataSourceStreamArrowWriter):
    """Writes the rows of each micro-batch; what was sent before a crash and is sent again has the same sequence ids."""

    def __init__(self, columns: StructType, options: WriteOptions) -> None:
        Encoder(columns, topic_given=options.topic is not None)
        self._columns = columns
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        numbering = None
        task = this_task().partitionId()
        if (name := self._options.producer_name) is not None:
            if (part_of := micro_batch()) is None:
                raise PulsarSourceError(
                    "pulsar.producer.producerName: Spark does not say which query and micro-batch this is"
                )
            query, batch = part_of
            numbering = Numbering.of_batch(name, query, task, batch)
        return write_rows(iterator, self._columns, self._options, task, numbering)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Raise :class:`NotStored` if a task has lost a message."""
        _check_written(messages)
