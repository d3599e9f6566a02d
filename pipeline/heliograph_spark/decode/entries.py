"""Takes an entry apart: its payload decompressed, and its messages with their own metadata.

This is the reference for the compiled module, which must give the same messages for every entry that it accepts.
"""

from __future__ import annotations

import binascii
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from google.protobuf.message import DecodeError
from heliograph_api.protocol import wire_pb2 as wire
from heliograph_api.protocol.ack_sets import MAX_BATCH_MESSAGES, remaining_of
from heliograph_api.protocol.compression import DecompressionError, decompress

from heliograph_spark.plan.errors import PulsarSourceError
from heliograph_spark.wire.entry_reader import ReceivedEntry

#: Limits of a decompressed payload: bytes, whatever it takes, and for each of its bytes. Clients measure messages
#: against the maximum size after compression, so an honest one may be larger than that; LZ4 reaches 255 times.
MAX_BYTES = 64 << 20
MAX_RATIO = 256
#: The largest payload in any case (bytes): what is kept of two of them still has offsets of 32 bits.
MAX_BYTES_IN_ALL = 1 << 30

_U32 = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry, or a message that was put together from several: then ``first_chunk`` is where its first one was."""

    ledger: int
    entry: int
    metadata: wire.MessageMetadata
    payload: bytes
    redelivery_count: int = 0
    ack_set: Sequence[int] = ()
    first_chunk: tuple[int, int] | None = None


class UndecodableMessage(PulsarSourceError):
    """A message, or with ``index`` -1 a whole entry, is not what its metadata says."""

    def __init__(self, ledger: int, entry: int, index: int, reason: str) -> None:
        super().__init__(ledger, entry, index, reason)
        self.ledger = ledger
        self.entry = entry
        self.index = index
        self.reason = reason
        #: The topic, where it is known.
        self.topic = ""

    def __str__(self) -> str:
        place = f"{self.ledger}:{self.entry}" + (f":{self.index}" if self.index >= 0 else "")
        return f"message {place}{' of ' * bool(self.topic)}{self.topic} cannot be read: {self.reason}"


class Message(NamedTuple):
    """A message without what all messages of its entry have in common, which ``entry.metadata`` says."""

    #: Its place in the batch, -1 for an entry that holds no batch.
    batch_index: int
    #: None for a message without a value.
    value: bytes | None
    #: As it was before base64; None where it was never set or is null.
    key: bytes | None
    ordering_key: bytes | None
    #: Milliseconds since 1970, 0 if it was never set.
    event_time: int
    sequence_id: int
    #: The last one counts if several have the same name.
    properties: dict[str, str]


def is_batch(metadata: wire.MessageMetadata) -> bool:
    """Return whether the payload holds messages with metadata of their own; a batch of one does, too."""
    return metadata.HasField("num_messages_in_batch")


def is_chunk(metadata: wire.MessageMetadata) -> bool:
    """Return whether the payload is only a part of a message."""
    return metadata.num_chunks_from_msg > 1


def open_payload(entry: ReceivedEntry, *, max_bytes: int = MAX_BYTES) -> bytes | memoryview:
    """Return the payload as it was before compression.

    ``max_bytes`` is its limit where that is more than :data:`MAX_RATIO` times its compressed bytes. Raises
    :class:`UndecodableMessage` for what is larger, encrypted, a chunk, or not what the metadata says.
    """
    metadata, payload = entry.metadata, entry.payload
    if metadata.encryption_keys:
        raise _undecodable(entry, "the payload is encrypted")
    if is_chunk(metadata):
        of = metadata.num_chunks_from_msg
        raise _undecodable(entry, f"it is chunk {metadata.chunk_id} of {of}, which are read together only")
    if metadata.compression == wire.NONE:
        return payload
    size = metadata.uncompressed_size
    most = min(max(max_bytes, MAX_RATIO * len(payload)), MAX_BYTES_IN_ALL)
    if size > most:
        raise _undecodable(entry, f"payload of {size} bytes uncompressed; at most {most} are opened")
    try:
        return decompress(metadata.compression, payload, size)
    except DecompressionError as error:
        raise _undecodable(entry, str(error)) from error


def messages_of(entry: ReceivedEntry, after: int = -1, up_to: int | None = None) -> Iterator[Message]:
    """Yield the messages of an entry in order, of a batch those after index ``after`` up to and with ``up_to``.

    Messages that are acknowledged already or that a compaction removed are left out, but have an index all the same.
    Raises :class:`UndecodableMessage` at the first one that cannot be read, and reads nothing after ``up_to``.
    """
    opened = open_payload(entry)
    if is_batch(entry.metadata):
        yield from messages_of_batch(entry, opened, after, up_to)
    else:
        yield message_of(entry, opened)


def message_of(entry: ReceivedEntry, opened: bytes | memoryview) -> Message:
    """Return the one message of an entry that holds no batch. Raises :class:`UndecodableMessage`."""
    metadata = entry.metadata
    return Message(
        -1,
        None if metadata.null_value else bytes(opened),
        _key(entry, -1, metadata),
        metadata.ordering_key if metadata.HasField("ordering_key") else None,
        metadata.event_time,
        metadata.sequence_id,
        _properties(metadata),
    )


def batch_size(entry: ReceivedEntry) -> int:
    """Return how many messages a batch says that it holds. Raises :class:`UndecodableMessage` for no such number."""
    count = entry.metadata.num_messages_in_batch
    if not 0 < count <= MAX_BATCH_MESSAGES:
        raise _undecodable(entry, f"a batch of {count} messages")
    return count


def unacknowledged(entry: ReceivedEntry) -> int | None:
    """Return a bit for each message of a batch that is to be read, None for all of them.

    Raises :class:`UndecodableMessage`.
    """
    try:
        return remaining_of(entry.ack_set)
    except (ValueError, struct.error) as error:
        raise _undecodable(entry, str(error)) from error


def messages_of_batch(
    entry: ReceivedEntry, opened: bytes | memoryview, after: int = -1, up_to: int | None = None
) -> Iterator[Message]:
    """As :func:`messages_of`, of a batch whose payload is open."""
    count, remaining = batch_size(entry), unacknowledged(entry)
    wanted = count if up_to is None else min(count, up_to + 1)
    view = memoryview(opened)
    end = len(view)
    at = 0
    for index in range(wanted):
        start = at + 4
        if start > end:
            raise _undecodable(entry, f"the batch ends after {index} of its {count} messages", index)
        start += _U32.unpack_from(view, at)[0]
        if start > end:
            raise _undecodable(entry, "its metadata goes beyond the batch", index)
        try:
            single = wire.SingleMessageMetadata.FromString(bytes(view[at + 4 : start]))
        except DecodeError as error:
            raise _undecodable(entry, f"its metadata cannot be parsed: {error}", index) from error
        if not single.HasField("payload_size"):
            raise _undecodable(entry, "its metadata has no payload_size", index)
        at = start + single.payload_size
        if not start <= at <= end:
            raise _undecodable(entry, "its payload goes beyond the batch", index)
        if index <= after or single.compacted_out or not (remaining is None or remaining >> index & 1):
            continue
        yield Message(
            index,
            None if single.null_value else bytes(view[start:at]),
            _key(entry, index, single),
            single.ordering_key if single.HasField("ordering_key") else None,
            single.event_time,
            # Some clients only number the batch.
            single.sequence_id if single.HasField("sequence_id") else entry.metadata.sequence_id,
            _properties(single),
        )


def _properties(metadata: wire.MessageMetadata | wire.SingleMessageMetadata) -> dict[str, str]:
    found = metadata.properties
    return {each.key: each.value for each in found} if found else {}


def _key(entry: ReceivedEntry, index: int, metadata: wire.MessageMetadata | wire.SingleMessageMetadata) -> bytes | None:
    if metadata.null_partition_key or not metadata.HasField("partition_key"):
        return None
    key = metadata.partition_key.encode()
    if not metadata.partition_key_b64_encoded:
        return key
    try:
        return binascii.a2b_base64(key, strict_mode=True)
    except binascii.Error as error:
        raise _undecodable(entry, f"its key is not base64, as it says: {error}", index) from error


def _undecodable(entry: ReceivedEntry, reason: str, index: int = -1) -> UndecodableMessage:
    return UndecodableMessage(entry.ledger, entry.entry, index, reason)
