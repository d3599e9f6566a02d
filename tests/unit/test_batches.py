"""Entries taken apart and put together: frames of the official Python client, and payloads that lie.

``data/client_frames.json`` holds, for every codec and for encryption, what the official Python client (3.13) sent for
the four messages of MESSAGES, as one batch and one by one, in hexadecimal.
"""

from __future__ import annotations

import json
import random
import struct
import tracemalloc
from pathlib import Path

import pytest
from heliograph_api.protocol import wire_pb2 as wire
from heliograph_api.protocol.frames import parse_entry
from heliograph_broker.messaging.messages.batches import (
    BatchError,
    ChunkedPayload,
    CorruptPayload,
    EncryptedPayload,
    PayloadTooLarge,
    build_batch,
    build_frame,
    is_batch,
    open_batch,
    open_payload,
    single_entry,
)
from hypothesis import given
from hypothesis import strategies as st

from tests.support.entries import COMPRESS

MESSAGES = [(b"", "a"), (b"abc" * 200, "b"), (random.Random(7).randbytes(150), "a"), (b"last", "")]
CODECS = ["NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY"]
MIB = 1024 * 1024

FRAMES: dict[str, list[bytes]] = {
    name: [bytes.fromhex(frame) for frame in frames]
    for name, frames in json.loads((Path(__file__).parent / "data" / "client_frames.json").read_text()).items()
}


def taken_apart(frame: bytes) -> tuple[wire.MessageMetadata, bytes]:
    metadata, at = parse_entry(frame)
    return metadata, frame[at:]


def sample(codec: str, content: bytes, *, announced: int | None = None) -> tuple[wire.MessageMetadata, bytes]:
    """Return an entry with ``content`` compressed, as a client would, or lying about its size."""
    metadata = wire.MessageMetadata(
        producer_name="p",
        sequence_id=1,
        publish_time=2,
        compression=wire.CompressionType.Value(codec),
        uncompressed_size=len(content) if announced is None else announced,
        num_messages_in_batch=1,
    )
    return metadata, COMPRESS[codec](content)


@pytest.mark.parametrize("codec", CODECS)
def test_batch_of_the_official_client_opens_to_its_messages(codec: str) -> None:
    metadata, payload = taken_apart(FRAMES[f"{codec} batch"][0])
    messages = open_batch(metadata, payload)
    assert [(data, single.partition_key) for single, data in messages] == MESSAGES
    assert [single.event_time for single, _ in messages] == [1000, 1001, 1002, 1003]
    assert [[(p.key, p.value) for p in single.properties] for single, _ in messages] == [
        [("n", str(i))] for i in range(4)
    ]


@pytest.mark.parametrize("codec", CODECS)
def test_single_messages_of_the_official_client_open_to_their_payloads(codec: str) -> None:
    entries = [taken_apart(frame) for frame in FRAMES[f"{codec} single"]]
    assert [bytes(open_payload(metadata, payload)) for metadata, payload in entries] == [data for data, _ in MESSAGES]
    assert not any(is_batch(metadata) for metadata, _ in entries)


@pytest.mark.parametrize("kind", ["batch", "single"])
def test_encrypted_payload_is_refused_by_name(kind: str) -> None:
    metadata, payload = taken_apart(FRAMES[f"ENCRYPTED {kind}"][0])
    with pytest.raises(EncryptedPayload, match="encrypted"):
        open_payload(metadata, payload)


@pytest.mark.parametrize("codec", CODECS)
def test_frame_built_again_is_the_one_the_client_sent(codec: str) -> None:
    for kind in ("batch", "single"):
        for frame in FRAMES[f"{codec} {kind}"]:
            assert build_frame(*taken_apart(frame)) == frame


@pytest.mark.parametrize("codec", CODECS)
def test_batch_built_from_its_messages_opens_to_them_again(codec: str) -> None:
    metadata, payload = taken_apart(FRAMES[f"{codec} batch"][0])
    messages = open_batch(metadata, payload)
    frame = build_frame(*build_batch(metadata, messages[1:3]))
    again, content = taken_apart(frame)
    assert open_batch(again, content) == messages[1:3]
    assert again.compression == wire.NONE
    assert again.num_messages_in_batch == 2
    assert (again.producer_name, again.publish_time) == (metadata.producer_name, metadata.publish_time)
    assert metadata.num_messages_in_batch == 4


@pytest.mark.parametrize("codec", CODECS)
def test_batch_is_built_with_the_codec_it_had_if_asked_to(codec: str) -> None:
    metadata, payload = taken_apart(FRAMES[f"{codec} batch"][0])
    messages = open_batch(metadata, payload)
    built, content = build_batch(metadata, messages[:2], compress=True)
    assert built.compression == metadata.compression
    assert codec == "NONE" or len(content) < len(messages[1][1])
    assert open_batch(built, content) == messages[:2]


def test_message_of_a_batch_becomes_an_entry_of_its_own() -> None:
    metadata, payload = taken_apart(FRAMES["LZ4 batch"][0])
    metadata.schema_version = b"\0" * 8
    single, data = open_batch(metadata, payload)[1]
    built, content = single_entry(metadata, (single, data), sequence_id=77)
    again, at = parse_entry(build_frame(built, content))
    assert not is_batch(again)
    assert (again.partition_key, again.event_time, again.sequence_id) == ("b", 1001, 77)
    assert [(p.key, p.value) for p in again.properties] == [("n", "1")]
    assert again.schema_version == b"\0" * 8
    assert content == data
    assert build_frame(built, content)[at:] == data


def test_batch_of_nothing_is_not_built() -> None:
    with pytest.raises(ValueError, match="at least one"):
        build_batch(wire.MessageMetadata(producer_name="p", sequence_id=1, publish_time=2), [])


@pytest.mark.parametrize("codec", CODECS[1:])
@pytest.mark.parametrize("announced", [1, 2999, 3001])
def test_payload_of_another_size_than_announced_is_refused(codec: str, announced: int) -> None:
    with pytest.raises(CorruptPayload, match=f"{codec}.* {announced}"):
        open_payload(*sample(codec, b"abc" * 1000, announced=announced))


@pytest.mark.parametrize("codec", CODECS[1:])
def test_bomb_takes_no_more_memory_than_announced(codec: str) -> None:
    metadata, payload = sample(codec, bytes(64 * MIB), announced=MIB)
    tracemalloc.start()
    with pytest.raises(CorruptPayload):
        open_payload(metadata, payload)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * MIB


@pytest.mark.parametrize("codec", CODECS)
def test_payload_above_what_may_be_opened_is_refused_before_anything_is_read(codec: str) -> None:
    metadata, payload = sample(codec, bytes(2000))
    with pytest.raises(PayloadTooLarge, match="2000 bytes"):
        open_payload(metadata, payload, max_bytes=1999)
    assert bytes(open_payload(metadata, payload, max_bytes=2000)) == bytes(2000)


@pytest.mark.parametrize("codec", CODECS[1:])
@pytest.mark.parametrize("damage", [b"", b"\x00", b"\xff" * 40, b"not compressed at all"])
def test_what_is_not_compressed_so_is_refused(codec: str, damage: bytes) -> None:
    metadata, _ = sample(codec, b"x" * 100)
    with pytest.raises(CorruptPayload, match=codec):
        open_payload(metadata, damage)


def test_chunk_of_a_compressed_message_is_refused() -> None:
    metadata, payload = sample("ZSTD", b"x" * 100)
    metadata.num_chunks_from_msg = 3
    with pytest.raises(ChunkedPayload):
        open_payload(metadata, payload)


def batch_of(*parts: bytes, count: int) -> tuple[wire.MessageMetadata, bytes]:
    metadata = wire.MessageMetadata(producer_name="p", sequence_id=1, publish_time=2, num_messages_in_batch=count)
    return metadata, b"".join(parts)


def single(payload: bytes, *, announced: int | None = None) -> bytes:
    encoded = wire.SingleMessageMetadata(
        payload_size=len(payload) if announced is None else announced
    ).SerializeToString()
    return struct.pack(">I", len(encoded)) + encoded + payload


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (batch_of(single(b"a"), count=2), "ends after 1 of its 2"),
        (batch_of(single(b"a"), single(b"b"), count=1), "7 bytes after the last"),
        (batch_of(single(b"a", announced=2), count=1), "its payload does not fit"),
        (batch_of(single(b"a", announced=-1), count=1), "its payload does not fit"),
        (batch_of(b"\x00\x00\x00\x00", count=1), "lacks its payload_size"),
        (batch_of(b"\xff\xff\xff\xff", count=1), "its metadata does not fit"),
        (batch_of(b"\x00\x00\x00\x01\xff", count=1), "does not decode"),
        (batch_of(single(b"a"), count=1 << 30), "ends after 1 of its"),
    ],
)
def test_malformed_batch_is_refused_with_its_reason(entry: tuple[wire.MessageMetadata, bytes], reason: str) -> None:
    with pytest.raises(CorruptPayload, match=reason):
        open_batch(*entry)


def test_single_message_is_no_batch() -> None:
    with pytest.raises(CorruptPayload, match="not a batch"):
        open_batch(*taken_apart(FRAMES["NONE single"][1]))


@given(
    payload=st.binary(max_size=200),
    codec=st.sampled_from(CODECS),
    size=st.integers(min_value=0, max_value=1000),
    count=st.integers(min_value=-1, max_value=5),
)
def test_whatever_a_payload_holds_the_outcome_is_messages_or_a_named_error(
    payload: bytes, codec: str, size: int, count: int
) -> None:
    metadata, _ = sample(codec, b"", announced=size)
    metadata.num_messages_in_batch = count
    try:
        messages = open_batch(metadata, payload, max_bytes=500)
    except BatchError:
        return
    assert len(messages) == max(count, 0)
    assert sum(len(data) for _, data in messages) <= 500
