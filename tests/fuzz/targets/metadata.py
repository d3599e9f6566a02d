"""Entries: metadata of messages and of batches, payloads that lie about their size, and times to live in them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from time import process_time

from heliograph_api.protocol import wire_pb2 as wire
from heliograph_api.protocol.frames import EntryError, ParsedEntry, parse_entry, peek_metadata, read_entry
from heliograph_broker.messaging.base.errors import BrokerError
from heliograph_broker.messaging.messages import batches, message_ttl
from heliograph_broker.messaging.messages.entry_rules import EntryRules
from heliograph_broker.messaging.messages.key_hash import MAX_HASH, dispatch_hash, sticky_hash
from heliograph_broker.messaging.messages.key_partition import partition_of
from heliograph_broker.messaging.messages.message_match import Criteria, examine
from heliograph_broker.storage.base.entry import Entry

from tests.fuzz.target import Finding, Source, sized
from tests.support.entries import COMPRESS, batch_payload, make_batch, make_frame, make_message, seal

#: No entry may keep the event loop longer (s of the processor), on any machine.
_AT_ONCE_S = 2.0
_MAX_BYTES = 1 << 20
_CODECS = [(wire.CompressionType.Value(name), compress) for name, compress in COMPRESS.items()]
_RULES = EntryRules(100, 1000, True)
_BATCH = 16


def entry_of(source: Source) -> bytes:
    """Return the entry that an input means: raw, or of metadata and a payload that is compressed and sealed here."""
    kind = source.number()
    if kind & 1:
        return source.rest()
    claimed = source.number(2)
    metadata, payload = source.sized(), source.rest()
    if kind & _BATCH:
        # Each message after its size, which a changed byte would spoil.
        inner, parts = Source(payload), []
        while not inner.ended:
            single = inner.sized()
            parts += [len(single).to_bytes(4, "big"), single, inner.sized()]
        payload = b"".join(parts)
    if kind & 2:
        codec, compress = _CODECS[kind >> 2 & 3 or 4]
        size = len(payload) if kind & 32 else claimed << (kind >> 6) * 5
        # The last of two equal fields counts.
        metadata += wire.MessageMetadata(compression=codec, uncompressed_size=size).SerializePartialToString()
        payload = compress(payload)
    entry = seal(metadata, payload)
    return entry[6:] if kind & 4 and not kind & 2 else entry


def run(data: bytes) -> None:
    entry = entry_of(Source(data))
    began = process_time()
    _open(entry)
    if (took := process_time() - began) > _AT_ONCE_S:
        raise Finding(f"an entry of {len(entry)} bytes takes {took:.1f} s")


def _open(entry: bytes) -> None:
    stored = Entry(1, 2, 3, 4, 0, -1, 1, 0, 1, len(entry), entry)
    stored.offset = 7
    examine([stored], Criteria(), {7: None}, from_index=0, limit=50, max_weight=1 << 20, spread_keyless=True)
    try:
        read_entry(entry)
        parsed = parse_entry(entry)
    except EntryError:
        return
    metadata, offset = parsed
    if peek_metadata(entry) != metadata or metadata.SerializeToString() != read_entry(entry)[0].SerializeToString():
        raise Finding("metadata is not the same when it is read again")
    if not 0 <= sticky_hash(metadata) <= 2 * MAX_HASH + 1:
        raise Finding(f"a hash of {sticky_hash(metadata)}")
    if not 0 <= partition_of(metadata, 7, 3) < 7:
        raise Finding("no partition")
    stored.key_hash = 1
    dispatch_hash(stored, spread_keyless=False)
    refusal = _RULES.refusal(metadata, len(entry) - offset)
    if refusal is not None and not isinstance(refusal, BrokerError):
        raise Finding(f"refused by {refusal!r}")
    _times_to_live(metadata, entry)
    _batch(parsed, entry)


def _times_to_live(metadata: wire.MessageMetadata, entry: bytes) -> None:
    with suppress(message_ttl.InvalidMessageTtl):
        message_ttl.ttl_of(metadata.properties)
    may = message_ttl.may_hold_ttls(metadata, entry)
    try:
        found = message_ttl.ttls_in(metadata, entry)
    except message_ttl.InvalidMessageTtl:
        found = None
    stored = message_ttl.stored_ttls_in(metadata, entry)
    if found is not None and found != stored:
        raise Finding(f"times to live {found} when it is published, {stored} when it is stored")
    if not may and any(ttl >= 0 for ttl in stored):
        raise Finding(f"the times to live {stored} are overlooked")


def _batch(parsed: ParsedEntry, entry: bytes) -> None:
    metadata, payload = parsed.metadata, entry[parsed.payload_offset :]
    with suppress(batches.BatchError):
        opened = batches.open_payload(metadata, payload, max_bytes=_MAX_BYTES)
        if len(opened) > _MAX_BYTES:
            raise Finding(f"{len(opened)} bytes were opened, {_MAX_BYTES} are allowed")
    with suppress(batches.BatchError):
        batches.check_count(metadata, entry, parsed.payload_offset)
    try:
        messages = batches.open_batch_at_once(metadata, payload)
    except batches.BatchError:
        return
    if len(messages) != metadata.num_messages_in_batch and messages:
        raise Finding(f"{len(messages)} messages of {metadata.num_messages_in_batch}")
    if not messages:
        return
    again = batches.open_batch(*batches.build_batch(metadata, messages))
    if [(one.payload_size, content) for one, content in again] != [(len(content), content) for _, content in messages]:
        raise Finding("a batch that is put together again has other messages")
    single, content = batches.single_entry(metadata, messages[0])
    if parse_entry(batches.build_frame(single, content)).metadata != single:
        raise Finding("a message of a batch by itself has other metadata")


def _input(kind: int, metadata: bytes, payload: bytes, claimed: int = 0) -> bytes:
    return bytes([kind]) + claimed.to_bytes(2, "big") + sized(metadata) + payload


def seeds() -> Iterator[bytes]:
    single, frame = make_frame(
        b"value",
        key="k",
        sequence_id=5,
        publish_time=9,
        deliver_at=10,
        ttl="100",
        properties={"a": "b"},
        ordering_key=b"o",
        schema_version=b"\0\1",
        event_time=4,
    )
    yield b"\1" + frame
    yield _input(0, single.SerializeToString(), b"value")
    yield _input(4, single.SerializeToString(), b"value")
    chunk, frame = make_frame(b"c", chunk=(0, 2), uncompressed_size=5, total_chunk_msg_size=8)
    yield b"\1" + frame
    messages = [make_message(b"v", key="a", ttl="5"), make_message(b"", properties={"p": "q"}), make_message(b"w")]
    batch, frame = make_batch(*messages, key="b64=", partition_key_b64_encoded=True)
    yield b"\1" + frame
    parts = b"".join(sized(one.SerializeToString()) + sized(payload) for one, payload in messages)
    for codec in range(4):
        yield _input(2 | codec << 2 | _BATCH | 32, batch.SerializeToString(), parts)
        yield _input(2 | codec << 2 | 0xC0, batch.SerializeToString(), batch_payload(messages), 0xFFFF)
        yield _input(2 | codec << 2 | 32, single.SerializeToString(), b"value" * 9)
    yield _input(_BATCH, batch.SerializeToString(), parts)
    many, _ = make_batch(b"a", claimed=1 << 30)
    yield _input(2 | 32, many.SerializeToString(), bytes(100))
    locked, frame = make_frame(
        b"x", encryption_keys=[wire.EncryptionKeys(key="k", value=b"v")], num_messages_in_batch=3
    )
    yield b"\1" + frame
    yield b"\1\x0e\x02\0\0\0\2\x08\1" + frame
    del chunk, locked
