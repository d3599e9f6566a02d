"""Makes the frames of one producer: of batches, of messages alone, and of messages in chunks."""

from __future__ import annotations

import time
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from heliograph_api.protocol import wire_pb2 as wire
from heliograph_api.protocol.compression import compress
from heliograph_api.protocol.frames import FRAME_OVERHEAD

from heliograph_spark.plan.errors import PulsarSourceError
from heliograph_spark.wire.frames import Frames

from .compiled import COMPILED, native
from .entries import JoinedBatch, ListedRows, new_metadata, send_frame, set_keys, single_frames
from .messages import Batch, Head

#: Messages alone are sent so many bytes at a time.
BLOCK_BYTES = 64 << 10
#: Messages alone that are compressed are looked at so many at a time.
_LISTED_ROWS = 256
#: Bytes of a chunk's metadata beside those of the message's.
_CHUNK_BYTES = 64


def new_batch(*, compiled: bool = COMPILED) -> Batch:
    """Return a batch without a message."""
    batch: Batch = native.EncodedBatch() if compiled else JoinedBatch()
    return batch


class Messages:
    """The messages of a record batch of :data:`.messages.MESSAGE_COLUMNS`."""

    def __init__(self, batch: pa.RecordBatch, *, compiled: bool = COMPILED) -> None:
        self.count = batch.num_rows
        #: As batches take them.
        self.rows: Any = native.EncodedRows(batch) if compiled else ListedRows(batch)
        self._batch = batch
        self._compiled = compiled
        self._sequences: pa.Array | None = batch.column("sequence") if "sequence" in batch.schema.names else None

    def destinations(self, partitions: int, turn: int, stride: int) -> tuple[pa.Array, int]:
        """Return the partition of each row as 32 bits, and the turn after them.

        That of a row with a key is where Java's clients send it. Rows without a key go to one partition after the
        other, ``stride`` of them at a time, beginning with row ``turn`` of such a sequence; with a stride of 0 all of
        them go to partition ``turn``, modulo their number.
        """
        found, turn = self.rows.destinations(partitions, turn, stride)
        if self._compiled:
            found = pa.Array.from_buffers(pa.int32(), self.count, [None, pa.py_buffer(found)])
        return found, turn

    def sequence(self, row: int) -> int | None:
        """Return the sequence id of a row, None if there is no column of them."""
        return None if self._sequences is None else int(self._sequences[row].as_py())

    def above(self, start: int, stop: int, last: int) -> int:
        """Return the first of these rows whose sequence id, by the column of them, is above ``last``, or ``stop``."""
        assert self._sequences is not None
        found = pc.index(pc.greater(self._sequences[start:stop], last), True).as_py()
        return stop if found < 0 else start + int(found)

    def frames(
        self, start: int, stop: int, sequence: int, head: Head, publish_time: int, largest: int
    ) -> tuple[bytes | memoryview, list[int]]:
        """Return frames as :func:`.entries.single_frames`, of about :data:`BLOCK_BYTES`."""
        encode = native.single_frames if self._compiled else single_frames
        found: tuple[bytes | memoryview, list[int]] = encode(
            self.rows, start, stop, sequence, head, publish_time, BLOCK_BYTES, largest
        )
        return found

    def sequences(self, start: int, count: int, sequence: int) -> list[int]:
        """Return the sequence ids of rows; without a column of them, that of row ``start`` is ``sequence``."""
        if self._sequences is None:
            return list(range(sequence, sequence + count))
        found: list[int] = self._sequences[start : start + count].to_pylist()
        return found

    def listed(self, start: int, stop: int) -> ListedRows:
        """Return rows as Python's objects."""
        return ListedRows(self._batch[start:stop])


class Framing:
    """Makes the frames of a producer of ``topic`` whose entries have ``head``.

    ``compression`` is the number of a codec in the protocol. A message, compressed, of more than ``largest`` bytes is
    sent in chunks or, without ``chunks``, refused. Methods raise :class:`PulsarSourceError`, naming the topic, for such
    a message.
    """

    def __init__(
        self, topic: str, head: Head, *, compression: int = wire.NONE, largest: int, chunks: bool = False
    ) -> None:
        self._topic = topic
        self._head = head
        self._compression = compression
        self._largest = largest
        self._chunks = chunks

    def batch(self, batch: Batch) -> Frames:
        """Return the frame of a batch, and take its messages."""
        count, last = batch.count, batch.last
        metadata = new_metadata(self._head, batch.first, _now_ms())
        set_keys(metadata, batch.keys)
        metadata.num_messages_in_batch = count
        metadata.highest_sequence_id = last
        payload = self._compressed(metadata, batch.take())
        frame = send_frame(self._head, metadata, payload)
        self._check(len(payload), len(frame))
        return Frames(frame, [len(frame)], [metadata.sequence_id], [count])

    def alone(self, messages: Messages, start: int, stop: int, sequence: int) -> tuple[Frames, int]:
        """Return frames of the first of these rows, which are entries by themselves, and the row after them.

        ``sequence`` is the sequence id of row ``start``, and those after it follow, unless there is a column of them.
        """
        if self._compression == wire.NONE:
            data, ends = messages.frames(start, stop, sequence, self._head, _now_ms(), self._largest)
            if ends:
                count = len(ends)
                return Frames(data, ends, messages.sequences(start, count, sequence), [1] * count), start + count
        return self._one_by_one(messages, start, min(stop, start + _LISTED_ROWS), sequence)

    def _one_by_one(self, messages: Messages, start: int, stop: int, sequence: int) -> tuple[Frames, int]:
        rows = messages.listed(start, stop)
        frames: list[bytes] = []
        numbers: list[int] = []
        counts: list[int] = []
        size = row = 0
        while row < stop - start and size < BLOCK_BYTES:
            found = self._message(rows, row, rows.sequence(row, 0, sequence))
            frames += found
            numbers += [rows.sequence(row, 0, sequence)] * len(found)
            counts += [0] * (len(found) - 1) + [1]
            size += sum(map(len, found))
            row += 1
        ends = []
        end = 0
        for frame in frames:
            end += len(frame)
            ends.append(end)
        return Frames(b"".join(frames), ends, numbers, counts), start + row

    def _message(self, rows: ListedRows, row: int, sequence: int) -> list[bytes]:
        """Return the frame of a message, or those of its chunks."""
        metadata = rows.metadata(row, sequence, self._head, _now_ms())
        payload = self._compressed(metadata, rows.values[row] or b"")
        if len(payload) > self._largest and self._chunks:
            return self._in_chunks(metadata, payload)
        frame = send_frame(self._head, metadata, payload)
        self._check(len(payload), len(frame))
        return [frame]

    def _in_chunks(self, metadata: wire.MessageMetadata, payload: bytes | memoryview) -> list[bytes]:
        metadata.uuid = f"{metadata.producer_name}-{metadata.sequence_id}"
        metadata.total_chunk_msg_size = len(payload)
        room = self._largest - metadata.ByteSize() - _CHUNK_BYTES
        if room <= 0:
            raise self._too_large(f"a message with keys and properties of {metadata.ByteSize()} bytes")
        metadata.num_chunks_from_msg = -(-len(payload) // room)
        frames = []
        for chunk in range(metadata.num_chunks_from_msg):
            metadata.chunk_id = chunk
            frames.append(send_frame(self._head, metadata, memoryview(payload)[chunk * room : (chunk + 1) * room]))
        return frames

    def _compressed(self, metadata: wire.MessageMetadata, payload: bytes | memoryview) -> bytes | memoryview:
        if self._compression != wire.NONE:
            metadata.compression = self._compression  # type: ignore[assignment]
            metadata.uncompressed_size = len(payload)
        return compress(self._compression, payload)

    def _check(self, payload: int, frame: int) -> None:
        if payload > self._largest:
            hint = "; pulsar.producer.chunkingEnabled=true sends it in chunks"
            raise self._too_large(f"a message of {payload} bytes", hint)
        if frame > self._largest + FRAME_OVERHEAD:
            raise self._too_large(f"a message of {payload} bytes with keys and properties of {frame - payload}")

    def _too_large(self, what: str, hint: str = "") -> PulsarSourceError:
        return PulsarSourceError(
            f"writing to {self._topic}: {what}: the broker takes at most {self._largest} bytes, and {FRAME_OVERHEAD}"
            f" for the rest{hint}"
        )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
