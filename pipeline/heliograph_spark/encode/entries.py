"""Encodes messages one by one: the reference for the compiled module, which must give the same bytes."""

from __future__ import annotations

import base64
import struct
from typing import Any

import pyarrow as pa
from heliograph_api.protocol import wire_pb2 as wire
from heliograph_api.protocol.encoder import encode_command_with_entry
from heliograph_api.protocol.frames import FRAME_OVERHEAD, entry_head

from .messages import BatchedKeys, Head

_U32 = struct.Struct(">I")


def java_hash(key: str) -> int:
    """Return Java's ``String.hashCode`` of the key, without its sign: Pulsar's default for routing."""
    value = 0
    units = key.encode("utf-16-be")
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return value & 0x7FFFFFFF


def text_of(key: bytes) -> tuple[str, bool]:
    """Return a key as Java's clients send it, and whether that is base64: as text if it is UTF-8."""
    try:
        return key.decode(), False
    except UnicodeDecodeError:
        return base64.b64encode(key).decode("ascii"), True


class ListedRows:
    """The rows as Python's objects."""

    def __init__(self, messages: pa.RecordBatch) -> None:
        listed = {name: messages.column(name).to_pylist() for name in messages.schema.names}
        nothing: list[Any] = [None] * messages.num_rows
        self.values, self._keys, self._ordering_keys, self._properties, self._times = (
            listed.get(name, nothing) for name in ("value", "key", "ordering_key", "properties", "event_ms")
        )
        self._sequences = listed.get("sequence")

    def destinations(self, partitions: int, turn: int, stride: int) -> tuple[pa.Array, int]:
        """As :meth:`.framing.Messages.destinations`."""
        found = []
        for key in self._keys:
            if key is not None:
                found.append(java_hash(text_of(key)[0]) % partitions)
            elif stride:
                found.append(turn // stride % partitions)
                turn += 1
            else:
                found.append(turn % partitions)
        return pa.array(found, pa.int32()), turn

    def sequence(self, row: int, start: int, sequence: int) -> int:
        """Return the sequence id of a row; without a column of them, that of row ``start`` is ``sequence``."""
        return sequence + row - start if self._sequences is None else int(self._sequences[row])

    def keys(self, row: int) -> BatchedKeys:
        """Return the keys of a row."""
        key = self._keys[row]
        text, in_base64 = (None, False) if key is None else text_of(key)
        return BatchedKeys(text, in_base64, self._ordering_keys[row])

    def single(self, row: int, sequence: int) -> bytes:
        """Return a row as a message of a batch: the size of its metadata, its metadata and its payload."""
        value = self.values[row]
        metadata = wire.SingleMessageMetadata(payload_size=len(value or b""), sequence_id=sequence)
        self._describe(metadata, row)
        encoded = metadata.SerializeToString()
        return _U32.pack(len(encoded)) + encoded + (value or b"")

    def metadata(self, row: int, sequence: int, head: Head, publish_time: int) -> wire.MessageMetadata:
        """Return the metadata of a row that is an entry by itself."""
        metadata = new_metadata(head, sequence, publish_time)
        self._describe(metadata, row)
        return metadata

    def _describe(self, metadata: wire.MessageMetadata | wire.SingleMessageMetadata, row: int) -> None:
        set_keys(metadata, self.keys(row))
        for name, text in self._properties[row] or ():
            metadata.properties.add(key=name, value=text)
        if self._times[row]:
            metadata.event_time = self._times[row]
        if self.values[row] is None:
            metadata.null_value = True


def new_metadata(head: Head, sequence: int, publish_time: int) -> wire.MessageMetadata:
    """Return the metadata that all entries of a producer have."""
    metadata = wire.MessageMetadata(producer_name=head.producer_name, sequence_id=sequence, publish_time=publish_time)
    if head.schema_version:
        metadata.schema_version = head.schema_version
    return metadata


def set_keys(metadata: wire.MessageMetadata | wire.SingleMessageMetadata, keys: BatchedKeys) -> None:
    """Give metadata these keys."""
    if keys.key is not None:
        metadata.partition_key = keys.key
        if keys.in_base64:
            metadata.partition_key_b64_encoded = True
    if keys.ordering_key is not None:
        metadata.ordering_key = keys.ordering_key


class JoinedBatch:
    """A batch whose messages are joined when it is taken."""

    def __init__(self) -> None:
        self._messages: list[bytes] = []
        self.size = 0
        self.first = 0
        self.last = 0
        self.keys = BatchedKeys(None, False, None)

    @property
    def count(self) -> int:
        return len(self._messages)

    def add(self, rows: ListedRows, start: int, stop: int, sequence: int, most_messages: int, most_bytes: int) -> int:
        for row in range(start, stop):
            if len(self._messages) >= most_messages:
                return row
            number = rows.sequence(row, start, sequence)
            message = rows.single(row, number)
            if self.size + len(message) > most_bytes:
                return row
            if not self._messages:
                self.first, self.keys = number, rows.keys(row)
            self.last = number
            self._messages.append(message)
            self.size += len(message)
        return stop

    def take(self) -> bytes:
        taken = b"".join(self._messages)
        self._messages, self.size = [], 0
        return taken


def send_frame(head: Head, metadata: wire.MessageMetadata, payload: bytes | memoryview) -> bytes:
    """Return the frame of SEND with an entry."""
    entry = entry_head(metadata.SerializeToString(), payload)
    command = wire.BaseCommand(type=wire.BaseCommand.SEND)
    command.send.producer_id = head.producer_id
    command.send.sequence_id = metadata.sequence_id
    if metadata.HasField("num_messages_in_batch"):
        command.send.num_messages = metadata.num_messages_in_batch
        command.send.highest_sequence_id = metadata.highest_sequence_id
    if metadata.HasField("num_chunks_from_msg"):
        command.send.is_chunk = True
    return b"".join((encode_command_with_entry(command, len(entry) + len(payload)), entry, payload))


def single_frames(
    rows: ListedRows,
    start: int,
    stop: int,
    sequence: int,
    head: Head,
    publish_time: int,
    most_bytes: int,
    largest: int,
) -> tuple[bytes, list[int]]:
    """Return the frames of rows that are entries by themselves, not compressed, and where each frame ends.

    They are those from ``start`` up to before ``stop``, or up to the one with which there are ``most_bytes``; none
    from a value of more than ``largest`` bytes on, or a frame larger than that allows. ``sequence`` is as
    :meth:`.Batch.add` has it.
    """
    frames: list[bytes] = []
    ends: list[int] = []
    size = 0
    for row in range(start, stop):
        value = rows.values[row] or b""
        if len(value) > largest or size >= most_bytes:
            break
        metadata = rows.metadata(row, rows.sequence(row, start, sequence), head, publish_time)
        frame = send_frame(head, metadata, value)
        if len(frame) > largest + FRAME_OVERHEAD:
            break
        frames.append(frame)
        size += len(frame)
        ends.append(size)
    return b"".join(frames), ends
