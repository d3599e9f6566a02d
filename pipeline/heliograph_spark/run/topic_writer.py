"""Sends messages to a topic: each to its partition, in batches or alone."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from heliograph_spark.encode.framing import Framing, Messages, new_batch
from heliograph_spark.encode.messages import Head
from heliograph_spark.plan.sending import SendSettings
from heliograph_spark.wire.frames import Frames
from heliograph_spark.wire.producer import Producer


def grouped(table: pa.RecordBatch, groups: pa.Array) -> Iterator[tuple[int, pa.RecordBatch, int, int]]:
    """Yield each of the ``groups``, which are numbers, with a record batch and where its rows are in that.

    Rows of one group keep their order.
    """
    ends = pc.min_max(groups)
    if ends["min"] == ends["max"]:
        if len(groups):
            yield groups[0].as_py(), table, 0, len(groups)
        return
    order = pc.array_sort_indices(groups)
    runs = pc.run_end_encode(groups.take(order))
    table = table.take(order)
    start = 0
    for group, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        yield group, table, start, end
        start = end


class PartitionWriter:
    """Sends the messages of one partition through an open producer.

    Messages that are ``numbered`` have a column of sequence ids, which go up. Those that the broker may have had are
    sent alone: it drops a batch whole that begins with one it has, and only where each is an entry of its own it keeps
    those that it has not.
    """

    def __init__(self, producer: Producer, settings: SendSettings, most_pending: int | None, *, numbered: bool) -> None:
        head = Head(producer.id, producer.name, producer.schema_version)
        largest = producer.max_message_size
        self._producer = producer
        self._framing = Framing(
            producer.topic, head, compression=settings.compression, largest=largest, chunks=settings.chunking_enabled
        )
        self._batch = new_batch() if settings.batching_enabled else None
        self._most_messages = min(settings.batching_max_messages, most_pending or settings.batching_max_messages)
        self._most_bytes = min(settings.batching_max_bytes, largest)
        self._most_pending = most_pending
        self._numbered = numbered
        #: The sequence id of the next message, if it has none.
        self._next = producer.last_sequence_id + 1
        #: When the batch was begun (monotonic, s).
        self.begun_at = 0.0

    @property
    def buffered_bytes(self) -> int:
        """The size of the batch that is not full yet."""
        return 0 if self._batch is None else self._batch.size

    def write(self, messages: Messages, start: int, stop: int) -> None:
        """Send rows of messages, or keep the last ones for a batch."""
        last = self._producer.last_sequence_id
        first = messages.sequence(start) if self._numbered else None
        if first is not None and first <= last:
            above = messages.above(start, stop, last)
            self._alone(messages, start, above)
            start = above
        if self._batch is None:
            self._alone(messages, start, stop)
            return
        while start < stop:
            if not self._batch.count:
                self.begun_at = time.monotonic()
            after = self._batch.add(messages.rows, start, stop, self._next, self._most_messages, self._most_bytes)
            self._next += after - start
            if after == start and not self._batch.count:
                after += 1
                self._alone(messages, start, after)
            elif after < stop or self._batch.count >= self._most_messages:
                self.flush()
            start = after

    def flush(self) -> None:
        """Send the batch."""
        if self._batch is not None and self._batch.count:
            self._send(self._framing.batch(self._batch))

    def _alone(self, messages: Messages, start: int, stop: int) -> None:
        while start < stop:
            upto = stop if self._most_pending is None else min(stop, start + self._most_pending)
            frames, after = self._framing.alone(messages, start, upto, self._next)
            self._next += after - start
            self._send(frames)
            start = after

    def _send(self, frames: Frames) -> None:
        most, producer = self._most_pending, self._producer
        if most is not None:
            while producer.pending_messages and producer.pending_messages + sum(frames.messages) > most:
                producer.wait()
        producer.send(frames)


class TopicWriter:
    """Sends messages to a topic of these ``partitions``, which has one if it is not partitioned.

    A message with a key goes where Java's clients send it. ``own`` is the number of the partition, modulo their number,
    for messages without one; without it these go to all partitions in turn. ``opened`` returns an open producer for a
    partition. Methods raise :class:`~heliograph_spark.plan.errors.PulsarSourceError`, naming the topic.
    """

    def __init__(
        self,
        partitions: list[str],
        settings: SendSettings,
        opened: Callable[[str], Producer],
        *,
        own: int | None = None,
        numbered: bool = False,
    ) -> None:
        self._partitions = partitions
        self._settings = settings
        self._opened = opened
        self._numbered = numbered
        self._writers: dict[int, PartitionWriter] = {}
        #: Rows without a key are counted; so many of them go to one partition before the next one.
        self._stride = 0 if own is not None else settings.batching_max_messages if settings.batching_enabled else 1
        self._turn = own if own is not None else random.randrange(len(partitions)) * self._stride

    def write(self, messages: pa.RecordBatch) -> None:
        """Send messages, or keep the last ones for batches."""
        count = len(self._partitions)
        if not messages.num_rows:
            return
        if count == 1:
            self._write(0, Messages(messages), 0, messages.num_rows)
            return
        found, self._turn = Messages(messages).destinations(count, self._turn, self._stride)
        table, rows = None, None
        for partition, table_of, start, stop in grouped(messages, found):
            if table_of is not table:
                table, rows = table_of, Messages(table_of)
            assert rows is not None
            self._write(partition, rows, start, stop)

    def _write(self, partition: int, messages: Messages, start: int, stop: int) -> None:
        if partition not in self._writers:
            producer = self._opened(self._partitions[partition])
            pending = self._settings.pending_of_partition(len(self._partitions))
            self._writers[partition] = PartitionWriter(producer, self._settings, pending, numbered=self._numbered)
        self._writers[partition].write(messages, start, stop)

    def flush(self, begun_before: float = float("inf")) -> None:
        """Send the batches that were begun before this time (monotonic, s)."""
        for writer in self._writers.values():
            if writer.begun_at < begun_before:
                writer.flush()

    @property
    def buffered_bytes(self) -> int:
        """The size of all batches that are not full yet."""
        return sum(writer.buffered_bytes for writer in self._writers.values())
