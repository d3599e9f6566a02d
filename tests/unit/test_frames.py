"""Entries as they lie in SEND frames: checksum, metadata, and what is wrong with bad ones."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c
from heliograph_api.protocol import wire_pb2 as wire
from heliograph_api.protocol.ack_sets import MAX_ACK_SET_WORDS, ack_set_of, remaining_of
from heliograph_api.protocol.encoder import encode_command, encode_command_with_entry
from heliograph_api.protocol.frames import ChecksumMismatch, EntryError, parse_entry

from tests.support.entries import make_frame


def test_command_frame_counts_itself_out() -> None:
    ping = wire.BaseCommand(type=wire.BaseCommand.PING, ping=wire.CommandPing())
    frame = encode_command(ping)
    total, size = struct.unpack_from(">II", frame)
    assert total == len(frame) - 4
    assert size == len(frame) - 8
    assert wire.BaseCommand.FromString(frame[8:]) == ping


def test_message_frame_leaves_room_for_the_entry() -> None:
    message = wire.BaseCommand(type=wire.BaseCommand.PING)
    head = encode_command_with_entry(message, 100)
    assert struct.unpack_from(">I", head)[0] == len(head) - 4 + 100


def test_entry_with_checksum() -> None:
    sent, frame = make_frame(b"hello", messages=3, key="k")
    metadata, at = parse_entry(frame)
    assert metadata == sent
    assert frame[at:] == b"hello"


def test_entry_without_checksum_of_old_clients() -> None:
    sent, frame = make_frame(b"hello")
    metadata, at = parse_entry(frame[6:])
    assert metadata == sent
    assert frame[6:][at:] == b"hello"


def test_broker_entry_metadata_in_front_is_understood() -> None:
    sent, frame = make_frame(b"hello")
    extra = wire.BrokerEntryMetadata(broker_timestamp=1, index=2).SerializeToString()
    whole = struct.pack(">HI", 0x0E02, len(extra)) + extra + frame
    metadata, at = parse_entry(whole)
    assert metadata == sent
    assert whole[at:] == b"hello"


def test_any_flipped_bit_is_a_checksum_error() -> None:
    _, frame = make_frame(b"hello")
    for position in range(6, len(frame)):
        broken = bytearray(frame)
        broken[position] ^= 0x10
        with pytest.raises(ChecksumMismatch):
            parse_entry(bytes(broken))


@pytest.mark.parametrize("size", range(10))
def test_an_entry_cut_short_is_named(size: int) -> None:
    _, frame = make_frame(b"hello")
    with pytest.raises(EntryError):
        parse_entry(frame[:size])


def test_metadata_larger_than_the_entry() -> None:
    body = struct.pack(">I", 1000) + b"short"
    with pytest.raises(EntryError, match="metadata of 1000 bytes does not fit"):
        parse_entry(struct.pack(">HI", 0x0E01, crc32c(body)) + body)


def test_metadata_without_required_fields() -> None:
    encoded = wire.MessageMetadata(producer_name="p").SerializePartialToString()
    body = struct.pack(">I", len(encoded)) + encoded
    with pytest.raises(EntryError, match="lacks"):
        parse_entry(struct.pack(">HI", 0x0E01, crc32c(body)) + body)


@pytest.mark.parametrize("bits", [1, 0, (1 << 64) - 1, 1 << 63, 1 << 64, (1 << 130) - 5])
def test_ack_set_round_trip(bits: int) -> None:
    words = ack_set_of(bits)
    assert all(-(1 << 63) <= word < 1 << 63 for word in words)
    assert remaining_of(words) == bits


def test_no_ack_set_means_the_whole_entry() -> None:
    assert remaining_of([]) is None


def test_an_ack_set_of_the_largest_batch_and_no_larger() -> None:
    assert remaining_of([-1] * MAX_ACK_SET_WORDS) == (1 << 64 * MAX_ACK_SET_WORDS) - 1
    with pytest.raises(ValueError, match=f"at most {MAX_ACK_SET_WORDS} are allowed"):
        remaining_of([-1] * (MAX_ACK_SET_WORDS + 1))
