"""Entries taken apart and put together again: compressed payloads, and the single messages of a batch.

A batch's payload is, once decompressed, ``[size u32][SingleMessageMetadata][payload]`` for each message. Clients
compress it as a whole. Its ``uncompressed_size`` is the producer's word, so it is capped: what does not fit is refused,
however little it takes on the wire.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from google.protobuf.message import DecodeError
from heliograph_api.protocol import wire_pb2 as wire
from heliograph_api.protocol.compression import DecompressionError, decompress
from heliograph_api.protocol.compression import compress as compress_payload
from heliograph_api.protocol.frames import entry_head

#: Limit of a decompressed payload (bytes), unless the caller gives another. Clients measure their batches against the
#: maximum message size after compression, so this is well above that.
MAX_UNCOMPRESSED_BYTES = 64 * 1024 * 1024

#: Limits of what is opened on the event loop, where everything else waits meanwhile: decompressed bytes, whatever the
#: payload takes, for each of its bytes, and in all; and single messages, likewise. The limits without regard to the
#: payload are those of official clients' batches (128 KiB, 1,000 messages) and more.
_AT_ONCE_BYTES = 128 * 1024
_AT_ONCE_RATIO = 128
_AT_ONCE_BYTES_IN_ALL = 5 * 1024 * 1024
_AT_ONCE_MESSAGES = 2048
_AT_ONCE_BYTES_A_MESSAGE = 4
_AT_ONCE_MESSAGES_IN_ALL = 16 * 1024

#: A batch that says it has so many messages that each takes fewer bytes of the payload is opened and counted.
COUNTED_BELOW_BYTES = 8
#: The least that a message of a batch takes, uncompressed: its metadata's size, and metadata with a payload_size.
_SMALLEST_MESSAGE_BYTES = 6

SingleMessage = tuple[wire.SingleMessageMetadata, bytes]

_U32 = struct.Struct(">I")


class BatchError(ValueError):
    """Base of what keeps an entry from being opened; ``str(error)`` is the reason for people."""


class EncryptedPayload(BatchError):
    """Only the consumers have the key."""


class ChunkedPayload(BatchError):
    """The entry is a part of a message that was compressed as a whole."""


class PayloadTooLarge(BatchError):
    """The payload says, or turns out, to be larger than may be opened."""


class CorruptPayload(BatchError):
    """The payload is not what its metadata says: codec, size or the messages in it."""


def is_batch(metadata: wire.MessageMetadata) -> bool:
    """Return whether the payload holds single messages with metadata of their own (a batch of one does too)."""
    return metadata.HasField("num_messages_in_batch")


def is_encrypted(metadata: wire.MessageMetadata) -> bool:
    return len(metadata.encryption_keys) > 0


def open_payload(
    metadata: wire.MessageMetadata, payload: bytes, *, max_bytes: int = MAX_UNCOMPRESSED_BYTES
) -> bytes | memoryview:
    """Return the payload as it was before compression, at most ``max_bytes`` of it.

    Raises :class:`BatchError`: encrypted, a chunk, too large, or not what its metadata says.
    """
    if is_encrypted(metadata):
        raise EncryptedPayload("the payload is encrypted")
    if metadata.compression == wire.NONE:
        if len(payload) > max_bytes:
            raise PayloadTooLarge(f"payload of {len(payload)} bytes; at most {max_bytes} are opened")
        return payload
    if metadata.num_chunks_from_msg > 1:
        raise ChunkedPayload("the payload is one chunk of a compressed message")
    size = metadata.uncompressed_size
    if size > max_bytes:
        raise PayloadTooLarge(f"payload of {size} bytes uncompressed; at most {max_bytes} are opened")
    try:
        return decompress(metadata.compression, payload, size)
    except DecompressionError as error:
        raise CorruptPayload(str(error)) from error


def open_batch(
    metadata: wire.MessageMetadata, payload: bytes, *, max_bytes: int = MAX_UNCOMPRESSED_BYTES
) -> list[SingleMessage]:
    """Return metadata and payload of every single message of a batch, in the order of their batch indexes.

    ``payload`` is the entry's, as published; ``max_bytes`` bounds its decompressed size. Raises
    :class:`BatchError` as :func:`open_payload` does, and :class:`CorruptPayload` for a payload that is no batch.
    """
    if not is_batch(metadata):
        raise CorruptPayload("the entry is a single message, not a batch")
    opened = open_payload(metadata, payload, max_bytes=max_bytes)
    view = memoryview(opened)
    end = len(view)
    at = 0
    messages: list[SingleMessage] = []
    try:
        for _ in range(metadata.num_messages_in_batch):
            (size,) = _U32.unpack_from(view, at)
            start = at + 4 + size
            if start > end:
                raise CorruptPayload(f"message {len(messages)} of the batch: its metadata does not fit the payload")
            single = wire.SingleMessageMetadata.FromString(bytes(view[at + 4 : start]))
            if not single.IsInitialized():
                raise CorruptPayload(f"message {len(messages)} of the batch lacks its payload_size")
            at = start + single.payload_size
            if not start <= at <= end:
                raise CorruptPayload(f"message {len(messages)} of the batch: its payload does not fit")
            messages.append((single, bytes(view[start:at])))
    except struct.error:
        raise CorruptPayload(
            f"the batch ends after {len(messages)} of its {metadata.num_messages_in_batch} messages"
        ) from None
    except DecodeError as error:
        raise CorruptPayload(f"message {len(messages)} of the batch: metadata does not decode: {error}") from error
    if at != end:
        raise CorruptPayload(f"{end - at} bytes after the last message of the batch")
    return messages


def max_bytes_at_once(payload_bytes: int) -> int:
    """Return how large a payload of ``payload_bytes`` may be, decompressed, to be opened on the event loop."""
    opened = max(_AT_ONCE_BYTES, _AT_ONCE_RATIO * payload_bytes)
    return max(payload_bytes, min(_AT_ONCE_BYTES_IN_ALL, opened))


def open_batch_at_once(metadata: wire.MessageMetadata, payload: bytes) -> list[SingleMessage]:
    """As :func:`open_batch`, but in a time that no client can make long: for callers on the event loop.

    Raises :class:`PayloadTooLarge` for a batch with more bytes or messages, which a few bytes can hold.
    """
    messages = metadata.num_messages_in_batch
    most = min(_AT_ONCE_MESSAGES_IN_ALL, max(_AT_ONCE_MESSAGES, len(payload) // _AT_ONCE_BYTES_A_MESSAGE))
    if messages > most and not is_encrypted(metadata):
        raise PayloadTooLarge(f"batch of {messages} messages in {len(payload)} bytes; at most {most} are opened")
    return open_batch(metadata, payload, max_bytes=max_bytes_at_once(len(payload)))


def check_count(metadata: wire.MessageMetadata, entry: bytes, payload_offset: int) -> None:
    """Raise :class:`BatchError` if the batch in ``entry`` cannot hold as many messages as it says.

    Each takes some bytes. Where it says that they are fewer than is usual, uncompressed or not, the batch is opened
    and counted; one that only its consumers can open, or that would take long, must at least say that it is large
    enough. Callers ask only where a message has less than :data:`COUNTED_BELOW_BYTES` of the payload.
    """
    if not is_batch(metadata):
        return
    payload = entry[payload_offset:]
    try:
        open_batch_at_once(metadata, payload)
    except (EncryptedPayload, PayloadTooLarge):
        messages = metadata.num_messages_in_batch
        size = len(payload) if metadata.compression == wire.NONE else metadata.uncompressed_size
        if messages * _SMALLEST_MESSAGE_BYTES > min(size, MAX_UNCOMPRESSED_BYTES):
            raise CorruptPayload(f"a batch of {messages} messages does not fit {size} bytes") from None


def build_batch(
    metadata: wire.MessageMetadata, messages: Iterable[SingleMessage], *, compress: bool = False
) -> tuple[wire.MessageMetadata, bytes]:
    """Return metadata and payload of a batch of ``messages``; neither argument is changed.

    It is not compressed, or with ``compress`` as ``metadata`` says. What else ``metadata`` says (producer, sequence
    ids, times, schema version, key of the batch) stays.
    """
    parts: list[bytes] = []
    count = 0
    for single, payload in messages:
        if single.payload_size != len(payload) or not single.HasField("payload_size"):
            copy = wire.SingleMessageMetadata()
            copy.CopyFrom(single)
            copy.payload_size = len(payload)
            single = copy
        encoded = single.SerializeToString()
        parts += (_U32.pack(len(encoded)), encoded, payload)
        count += 1
    if not count:
        raise ValueError("a batch holds at least one message")
    built = wire.MessageMetadata()
    built.CopyFrom(metadata)
    built.num_messages_in_batch = count
    joined = b"".join(parts)
    if compress and built.compression != wire.NONE:
        built.uncompressed_size = len(joined)
        return built, bytes(compress_payload(built.compression, joined))
    _set_uncompressed(built, len(joined))
    return built, joined


def single_entry(
    metadata: wire.MessageMetadata, message: SingleMessage, sequence_id: int | None = None
) -> tuple[wire.MessageMetadata, bytes]:
    """Return metadata and payload of an entry that holds one message of a batch and is no batch itself.

    Key, properties, event time and null markers are the message's own; the rest is what ``metadata`` says of the
    batch. ``sequence_id`` replaces that of the message.
    """
    single, payload = message
    built = wire.MessageMetadata()
    built.CopyFrom(metadata)
    for of_batch in (
        "num_messages_in_batch",
        "highest_sequence_id",
        "properties",
        "partition_key",
        "partition_key_b64_encoded",
        "ordering_key",
        "event_time",
        "null_value",
        "null_partition_key",
    ):
        built.ClearField(of_batch)
    built.properties.extend(single.properties)
    if single.HasField("partition_key"):
        built.partition_key = single.partition_key
        built.partition_key_b64_encoded = single.partition_key_b64_encoded
    if single.HasField("ordering_key"):
        built.ordering_key = single.ordering_key
    if single.event_time:
        built.event_time = single.event_time
    if single.null_value:
        built.null_value = True
    if single.null_partition_key:
        built.null_partition_key = True
    if sequence_id is not None:
        built.sequence_id = sequence_id
    elif single.HasField("sequence_id"):
        built.sequence_id = single.sequence_id
    _set_uncompressed(built, len(payload))
    return built, payload


def _set_uncompressed(metadata: wire.MessageMetadata, size: int) -> None:
    metadata.ClearField("compression")
    metadata.uncompressed_size = size


def build_frame(metadata: wire.MessageMetadata, payload: bytes) -> bytes:
    """Return the entry as a client sends it: magic, CRC32-C, size of the metadata, metadata, payload."""
    return entry_head(metadata.SerializeToString(), payload) + payload
