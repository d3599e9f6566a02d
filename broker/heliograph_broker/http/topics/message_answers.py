"""A stored entry as Pulsar's admin API answers it: the payload as the body, everything else in headers.

The payload is decompressed; that of a batch stays a batch, which the Java client takes apart.
"""

from __future__ import annotations

import asyncio
import base64
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec
from aiohttp import web
from heliograph_api.protocol import wire_pb2 as wire
from heliograph_api.protocol.frames import parse_entry

from heliograph_broker.http.base.operations import Media
from heliograph_broker.messaging.messages.batches import BatchError, is_encrypted, open_payload
from heliograph_broker.storage.base.entry import Entry

_PREFIX: Final = "X-Pulsar-"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
#: The end of the year 9999.
_LAST_MS: Final = 253_402_300_799_999
BINARY: Final = "application/octet-stream"
#: Declares the answer of a path that returns a message.
MESSAGE: Final = {200: Media((BINARY,), bytes)}


def _time(ms: int) -> str:
    """Return a wall-clock time as Pulsar writes it: ISO 8601 in UTC, with the digits that the second has.

    Clients may send any number as a time.
    """
    time = _EPOCH + timedelta(milliseconds=min(max(ms, 0), _LAST_MS))
    return f"{time:%Y-%m-%dT%H:%M:%S}.{time.microsecond // 1000:03}".rstrip("0").rstrip(".") + "Z"


def _text(value: str) -> str:
    """Return a header's value: characters that would end or break it become blanks."""
    return value if value.isprintable() else "".join(each if each.isprintable() else " " for each in value)


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


async def message_answer(entry: Entry) -> web.Response:
    """Return the answer for ``entry``; one that cannot be opened (encrypted, corrupt) is answered as it is stored."""
    parsed = parse_entry(entry.frame)
    metadata = parsed.metadata
    stored = entry.frame[parsed.payload_offset :]
    try:
        # In a thread: a few bytes can hold a payload that takes long to open.
        payload = await asyncio.to_thread(lambda: bytes(open_payload(metadata, stored)))
    except BatchError as error:
        payload, problem = stored, str(error)
    else:
        problem = ""
    answer = web.Response(body=payload, content_type=BINARY)
    headers = {"Message-ID": f"{entry.ledger_id}:{entry.entry_id}", **_headers(metadata)}
    if metadata.HasField("num_messages_in_batch"):
        # All of the entry but its metadata.
        size = len(entry.frame) - metadata.ByteSize()
        headers |= {"num-batch-message": str(metadata.num_messages_in_batch), "batch-size": str(size)}
    for name, value in headers.items():
        answer.headers[_PREFIX + name] = value
    for key in metadata.encryption_keys:
        answer.headers.add(_PREFIX + "Base64-encryption-keys", _base64(key.SerializeToString()))
    if problem:
        answer.headers["X-Heliograph-Payload"] = _text(f"as stored: {problem}")
    return answer


def _headers(metadata: wire.MessageMetadata) -> dict[str, str]:
    headers = {
        "PROPERTY": _properties(metadata),
        "publish-time": _time(metadata.publish_time),
        "producer-name": _text(metadata.producer_name),
        "sequence-id": str(metadata.sequence_id),
        "Is-Encrypted": str(is_encrypted(metadata)).lower(),
        "txn-uncommitted": "false",
    }
    if metadata.event_time:
        headers["event-time"] = _time(metadata.event_time)
    if metadata.HasField("deliver_at_time"):
        headers["deliver-at-time"] = _time(metadata.deliver_at_time)
    if metadata.HasField("highest_sequence_id"):
        headers["highest-sequence-id"] = str(metadata.highest_sequence_id)
    if metadata.HasField("schema_version"):
        version = _base64(metadata.schema_version)
        # Pulsar's broker writes the one, its Java client reads the other.
        headers |= {"Base64-schema-version": version, "Base64-schema-version-b64encoded": version}
    if metadata.replicate_to:
        headers["replicated-to"] = _text(",".join(metadata.replicate_to))
    if metadata.HasField("replicated_from"):
        headers["replicated-from"] = _text(metadata.replicated_from)
    if metadata.compression != wire.NONE:
        headers["compression"] = wire.CompressionType.Name(metadata.compression)
    if metadata.HasField("uncompressed_size"):
        headers["uncompressed-size"] = str(metadata.uncompressed_size)
    if metadata.HasField("encryption_param"):
        headers["Base64-encryption-param"] = _base64(metadata.encryption_param)
    if metadata.HasField("encryption_algo"):
        headers["encryption-algo"] = _text(metadata.encryption_algo)
    if metadata.HasField("uuid"):
        headers["uuid"] = _text(metadata.uuid)
    if metadata.num_chunks_from_msg > 1:
        chunk, chunks = str(metadata.chunk_id), str(metadata.num_chunks_from_msg)
        headers |= {
            "chunk-id": chunk,
            "PROPERTY-CHUNK-ID": chunk,
            "num-chunks-from-msg": chunks,
            "PROPERTY-TOTAL-CHUNKS": chunks,
            "total-chunk-msg-size": str(metadata.total_chunk_msg_size),
        }
    if metadata.null_value:
        headers["null-value"] = "true"
    return headers | _keys(metadata)


def _properties(metadata: wire.MessageMetadata) -> str:
    """Return a message's properties as a JSON object, in ASCII: only that travels safely in a header."""
    encoded = msgspec.json.encode({each.key: each.value for each in metadata.properties}).decode()
    if encoded.isascii():
        return encoded
    return "".join(each if each.isascii() else _escaped(each) for each in encoded)


def _keys(metadata: wire.MessageMetadata) -> dict[str, str]:
    headers = {}
    if metadata.HasField("partition_key"):
        headers["partition-key"] = _text(metadata.partition_key)
        if metadata.partition_key_b64_encoded:
            headers["partition-key-b64-encoded"] = "true"
    if metadata.HasField("ordering_key"):
        headers["Base64-ordering-key"] = _base64(metadata.ordering_key)
    if metadata.null_partition_key:
        headers["null-partition-key"] = "true"
    return headers


def _escaped(character: str) -> str:
    """Return a character as JSON's escapes of its UTF-16 code units."""
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
