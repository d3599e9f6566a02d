"""Frames of any stream of bytes: the same ones, and the same mistake at the same place, however the stream is split."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from itertools import chain, cycle

import pytest
from heliograph_api.protocol import wire_pb2 as wire
from heliograph_api.protocol.encoder import Encoder
from heliograph_api.protocol.frame_reader import HANDSHAKE_FRAME_BYTES
from heliograph_api.protocol.frames import ChecksumMismatch, parse_entry
from heliograph_api.protocol.receive_buffer import SharedBuffer
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.entries import make_entry
from tests.support.frame_streams import LARGEST, LIMIT, MAX_READS, Frame, ReadingConnection, read_stream
from tests.support.wire_client import Type, encode
from tests.support.wire_specimens import CONNECT, SPECIMENS, flip, with_extreme_fields

EXAMPLES = settings(max_examples=200, deadline=None)
#: Sizes of one read after the other, repeated.
SPLITS = st.lists(st.one_of(st.integers(1, 12), st.integers(1, 5_000)), min_size=1, max_size=12)
#: Sizes of the buffer that connections share: smaller than a command, and larger than most streams here.
SHARED = st.sampled_from((16, 100, 1024, 1 << 18))
#: Entries from empty to larger than most shared buffers.
ENTRIES = st.one_of(st.integers(0, 3_000), st.just(LARGEST)).map(lambda size: make_entry(bytes(size), publish_time=1))
SENDS = st.builds(
    lambda entry, sequence_id: encode(Type.SEND, entry, producer_id=1, sequence_id=sequence_id),
    ENTRIES,
    st.integers(0, (1 << 64) - 1),
)
EXTREME = st.builds(
    lambda frame, seed: with_extreme_fields(frame, random.Random(seed)),
    st.sampled_from(list(SPECIMENS.values())),
    st.integers(0, 1 << 32),
).filter(lambda frame: len(frame) <= LIMIT)
GOOD = st.lists(st.one_of(st.sampled_from(list(SPECIMENS.values())), SENDS, EXTREME), max_size=8)


def taken_apart(frame: bytes) -> Frame:
    end = 8 + int.from_bytes(frame[4:8], "big")
    command = wire.BaseCommand.FromString(frame[8:end])
    return command.type, command.SerializePartialToString(), frame[end:]


@EXAMPLES
@given(frames=GOOD, splits=SPLITS, shared=SHARED, pauses=st.booleans())
@example(frames=list(SPECIMENS.values()), splits=[1], shared=16, pauses=False)
@example(frames=list(SPECIMENS.values()), splits=[7], shared=100, pauses=True)
def test_any_split_of_any_frames_gives_these_frames(
    frames: list[bytes], splits: list[int], shared: int, pauses: bool
) -> None:
    result = read_stream(b"".join([CONNECT, *frames]), splits, shared, pauses=pauses)
    assert result == ([taken_apart(frame) for frame in [CONNECT, *frames]], None)


@EXAMPLES
@given(frames=GOOD, kept=st.floats(0, 1), splits=SPLITS, shared=SHARED)
def test_the_beginning_of_a_frame_is_neither_a_frame_nor_a_mistake(
    frames: list[bytes], kept: float, splits: list[int], shared: int
) -> None:
    whole = [CONNECT, *frames]
    stream = b"".join(whole)
    stream = stream[: int(kept * len(stream))]
    complete, size = [], 0
    for frame in whole:
        size += len(frame)
        if size <= len(stream):
            complete.append(taken_apart(frame))
    assert read_stream(stream, splits, shared) == (complete, None)


@EXAMPLES
@given(
    streams=st.lists(st.tuples(GOOD, SPLITS), min_size=2, max_size=4),
    turns=st.lists(st.integers(0, 3), min_size=1, max_size=20),
    shared=SHARED,
)
def test_connections_that_share_a_buffer_do_not_mix(
    streams: list[tuple[list[bytes], list[int]]], turns: list[int], shared: int
) -> None:
    common = SharedBuffer(shared)
    connections = [ReadingConnection(common) for _ in streams]
    unsent = [b"".join([CONNECT, *frames]) for frames, _ in streams]
    sizes = [cycle(splits) for _, splits in streams]
    for turn in chain.from_iterable(cycle([turns, range(4)])):
        if not any(unsent):
            break
        number = turn % len(streams)
        if unsent[number]:
            data = unsent[number]
            size = max(len(data) // MAX_READS, next(sizes[number]))
            unsent[number] = data[connections[number].receive(data[:size]) :]
    for connection, (frames, _) in zip(connections, streams, strict=True):
        assert connection.error is None
        assert connection.frames == [taken_apart(frame) for frame in [CONNECT, *frames]]


def sized(body: bytes) -> bytes:
    return struct.pack(">II", len(body) + 4, len(body)) + body


def _too_large(excess: int) -> tuple[bytes, str]:
    size = min(LIMIT + excess, 0xFFFFFFFF)
    return struct.pack(">I", size), f"frame of {size} bytes, the largest allowed is {LIMIT}"


def _too_small(excess: int) -> tuple[bytes, str]:
    size = excess % 4
    return struct.pack(">II", size, excess), f"frame of {size} bytes has no command"


def _command_too_large(excess: int) -> tuple[bytes, str]:
    frame = SPECIMENS["lookup"]
    size = min(len(frame) - 8 + excess, 0xFFFFFFFF)
    return frame[:4] + struct.pack(">I", size) + frame[8:], "command does not fit its frame"


def _cut_short(excess: int) -> tuple[bytes, str]:
    # The type and the length of the lookup remain, and at most all but one byte of what follows.
    body = SPECIMENS["lookup"][8:]
    return sized(body[: 4 + excess % (len(body) - 4)]), "command does not decode: "


def _without_required_field(excess: int) -> tuple[bytes, str]:
    command = wire.BaseCommand(type=Type.SEEK)
    command.seek.consumer_id = excess
    return sized(command.SerializePartialToString()), "SEEK lacks a required field"


def _of_unknown_type(excess: int) -> tuple[bytes, str]:
    # A type of a later protocol is not known: it is as if there were none, which is the first of all types.
    return sized(b"\x08\x7f"), "CONNECT lacks a required field"


@EXAMPLES
@given(
    frames=GOOD,
    spoil=st.sampled_from(
        (_too_large, _too_small, _command_too_large, _cut_short, _without_required_field, _of_unknown_type)
    ),
    excess=st.integers(1, 0xFFFFFFFF),
    behind=st.lists(st.sampled_from(list(SPECIMENS.values())), max_size=2),
    splits=SPLITS,
    shared=SHARED,
)
def test_a_mistake_is_found_behind_the_frames_before_it(
    frames: list[bytes],
    spoil: Callable[[int], tuple[bytes, str]],
    excess: int,
    behind: list[bytes],
    splits: list[int],
    shared: int,
) -> None:
    spoiled, expected = spoil(excess)
    read_before, error = read_stream(b"".join([CONNECT, *frames, spoiled, *behind]), splits, shared)
    assert read_before == [taken_apart(frame) for frame in [CONNECT, *frames]]
    assert error is not None
    assert error.startswith(expected)


@EXAMPLES
@given(frame=st.sampled_from(sorted(set(SPECIMENS) - {"connect"})), splits=SPLITS, shared=SHARED)
def test_the_first_command_must_be_connect(frame: str, splits: list[int], shared: int) -> None:
    assert read_stream(SPECIMENS[frame] + CONNECT, splits, shared) == ([], "the first command must be CONNECT")


@EXAMPLES
@given(size=st.integers(HANDSHAKE_FRAME_BYTES + 1, 0xFFFFFFFF), splits=SPLITS, shared=SHARED)
def test_four_bytes_tell_that_a_frame_before_connect_is_too_large(size: int, splits: list[int], shared: int) -> None:
    expected = f"frame of {size} bytes before CONNECT, the largest allowed is {HANDSHAKE_FRAME_BYTES}"
    handled, error = read_stream(struct.pack(">I", size), splits, shared)
    assert handled == []
    assert error is not None
    # The rest names the other protocol if these bytes begin a message of one.
    assert error.partition(";")[0] == expected


@pytest.mark.parametrize(
    ("begins", "words"),
    [
        (b"\x16\x03\x01\x02\x00", "the client speaks TLS, and this port does not: its URL begins with pulsar://"),
        (b"GET /metrics HTTP/1.1\r\n", "the client speaks HTTP, which has a port of its own"),
    ],
)
def test_the_protocol_is_named_that_a_client_speaks_instead(begins: bytes, words: str) -> None:
    handled, error = read_stream(begins, [64], 1024)
    assert handled == []
    assert error is not None
    assert words in error


@settings(EXAMPLES, max_examples=600)
@given(
    stream=st.one_of(
        st.binary(max_size=500),
        st.builds(
            lambda frames, bits: flip(CONNECT + b"".join(frames), bits),
            GOOD,
            st.lists(st.integers(0, 1 << 14), min_size=1, max_size=8, unique=True),
        ),
    ),
    first=SPLITS,
    second=SPLITS,
    shared=SHARED,
)
def test_any_bytes_are_read_in_the_same_way_however_they_are_split(
    stream: bytes, first: list[int], second: list[int], shared: int
) -> None:
    assert read_stream(stream, first, shared) == read_stream(stream, second, 1 << 18, pauses=True)


@EXAMPLES
@given(bits=st.lists(st.integers(16, 1 << 14), min_size=1, max_size=8, unique=True), splits=SPLITS, shared=SHARED)
def test_a_spoiled_entry_does_not_spoil_the_frames_around_it(bits: list[int], splits: list[int], shared: int) -> None:
    entry = make_entry(b"content", publish_time=1)
    # Behind the magic number: without it there would be no checksum to verify.
    spoiled = entry[:2] + flip(entry[2:], bits)
    send = encode(Type.SEND, spoiled, producer_id=1, sequence_id=1)
    frames, error = read_stream(CONNECT + send + SPECIMENS["ping"], splits, shared)
    assert error is None
    assert [kind for kind, _, _ in frames] == [Type.CONNECT, Type.SEND, Type.PING]
    assert frames[1][2] == spoiled
    if spoiled != entry:
        with pytest.raises(ChecksumMismatch):
            parse_entry(frames[1][2])


U32 = st.integers(0, 0xFFFFFFFF)
U64 = st.integers(0, (1 << 64) - 1)
OFFSETS = st.integers(-1, (1 << 63) - 1)


@EXAMPLES
@given(
    messages=st.lists(
        st.tuples(
            U64,
            U64,
            U64,
            st.integers(-1, 1000),
            U32,
            U64,
            st.one_of(st.none(), st.integers(0, 1 << 200)),
            st.binary(max_size=300),
        ),
        max_size=5,
    ),
    receipts=st.lists(st.tuples(U64, U64, OFFSETS, OFFSETS), max_size=5),
    splits=SPLITS,
    shared=SHARED,
)
def test_what_the_encoder_returns_is_read_as_it_was_meant(
    messages: list[tuple[int, int, int, int, int, int, int | None, bytes]],
    receipts: list[tuple[int, int, int, int]],
    splits: list[int],
    shared: int,
) -> None:
    encoder = Encoder()
    sent = [encoder.message_head(*fields[:7], len(fields[7])) + fields[7] for fields in messages]
    stream = b"".join([CONNECT, *sent, encoder.receipts(7, receipts), encoder.success(1), encoder.ping()])
    frames, error = read_stream(stream, splits, shared)
    assert error is None
    kinds = [Type.CONNECT, *[Type.MESSAGE] * len(messages), *[Type.SEND_RECEIPT] * len(receipts)]
    assert [kind for kind, _, _ in frames] == [*kinds, Type.SUCCESS, Type.PING]
    read_messages = frames[1 : 1 + len(messages)]
    for (_, command, entry), fields in zip(read_messages, messages, strict=True):
        consumer_id, ledger_id, entry_id, partition, redelivered, epoch, remaining, content = fields
        message = wire.BaseCommand.FromString(command).message
        position = message.message_id
        assert (message.consumer_id, position.ledgerId, position.entryId) == (consumer_id, ledger_id, entry_id)
        assert (position.partition, message.redelivery_count) == (partition, redelivered)
        assert (message.consumer_epoch, entry) == (epoch, content)
        assert bool(message.ack_set) == (remaining is not None)
    for (_, command, _), expected in zip(frames[1 + len(messages) :], receipts, strict=False):
        receipt = wire.BaseCommand.FromString(command).send_receipt
        position = receipt.message_id
        found = (receipt.sequence_id, receipt.highest_sequence_id, position.ledgerId, position.entryId)
        assert found == tuple(number % (1 << 64) for number in expected)
