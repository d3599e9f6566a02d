"""Frames of Pulsar's binary protocol: how commands and entries lie on the wire. No I/O.

A simple frame is ``[total_size u32][command_size u32][command]``; a payload frame carries, after the command,
an entry ``[0x0e01][crc32c u32][metadata_size u32][metadata][payload]`` (magic and checksum may be absent in
frames of very old clients). All integers are big-endian; ``total_size`` does not count itself.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from crc32c import crc32c

from .wire_pb2 import MessageMetadata

MAGIC_CRC32C = 0x0E01
MAGIC_BROKER_ENTRY_METADATA = 0x0E02
#: Bytes of a frame beside the largest message: command, metadata, sizes; as Pulsar allows.
FRAME_OVERHEAD = 10 * 1024

_COPIED_BELOW_BYTES = 16 * 1024

_U32 = struct.Struct(">I")
_MAGIC_AND_CRC = struct.Struct(">HI")
_MAGIC_CRC_AND_SIZE = struct.Struct(">HII")


class FrameError(ValueError):
    """The bytes are not a frame of the protocol; the connection cannot go on."""


class EntryError(ValueError):
    """The entry inside a well-formed SEND frame is unusable (sizes, metadata)."""


class ChecksumMismatch(EntryError):
    """The CRC32-C that the client sent is not that of the bytes that arrived."""


class ParsedEntry(NamedTuple):
    """Metadata of an entry and where its payload starts (byte offset into the entry)."""

    metadata: MessageMetadata
    payload_offset: int


def metadata_range(entry: bytes | memoryview) -> tuple[int, int]:
    """Return where the metadata begins and ends in an entry that :func:`parse_entry` found good."""
    at = 0
    if entry[0] << 8 | entry[1] == MAGIC_BROKER_ENTRY_METADATA:
        at = 6 + int(_U32.unpack_from(entry, 2)[0])
    if entry[at] << 8 | entry[at + 1] == MAGIC_CRC32C:
        at += 6
    (size,) = _U32.unpack_from(entry, at)
    return at + 4, at + 4 + size


def peek_metadata(entry: bytes | memoryview) -> MessageMetadata:
    """Return the metadata of an entry that :func:`parse_entry` found good before; the payload is not looked at."""
    begin, end = metadata_range(entry)
    return MessageMetadata.FromString(bytes(entry[begin:end]))


def read_entry(entry: bytes | memoryview) -> tuple[MessageMetadata, int]:
    """Verify the checksum of an entry; return its metadata and where its payload starts (byte offset into the entry).

    For entries that a broker has accepted: whether the metadata has its required fields is not looked at. Raises
    :class:`ChecksumMismatch`, or :class:`EntryError` if sizes or metadata are malformed.
    """
    try:
        at = 6
        magic, expected, metadata_size = _MAGIC_CRC_AND_SIZE.unpack_from(entry)
        if magic == MAGIC_BROKER_ENTRY_METADATA:
            at = 12 + int(_U32.unpack_from(entry, 2)[0])
            magic, expected, metadata_size = _MAGIC_CRC_AND_SIZE.unpack_from(entry, at - 6)
        if magic == MAGIC_CRC32C:
            # Copying takes less time than a view of the rest, unless that is long.
            rest = entry[at:] if len(entry) < _COPIED_BELOW_BYTES else memoryview(entry)[at:]
            if crc32c(rest) != expected:
                raise ChecksumMismatch(f"CRC32-C of the entry is not {expected:#010x}, which the client sent")
        else:
            at -= 6
            (metadata_size,) = _U32.unpack_from(entry, at)
        at += 4
    except struct.error:
        raise EntryError(f"entry of {len(entry)} bytes ends inside its header") from None
    end = at + metadata_size
    if end > len(entry):
        raise EntryError(f"metadata of {metadata_size} bytes does not fit an entry of {len(entry)} bytes")
    try:
        return MessageMetadata.FromString(bytes(entry[at:end])), end
    except Exception as error:  # protobuf's DecodeError class differs by implementation
        raise EntryError(f"message metadata does not decode: {error}") from error


def entry_head(metadata: bytes, payload: bytes | memoryview) -> bytes:
    """Return all of an entry but its payload: magic, CRC32-C, size of the metadata, and the encoded metadata."""
    checked = _U32.pack(len(metadata)) + metadata
    return _MAGIC_AND_CRC.pack(MAGIC_CRC32C, crc32c(payload, crc32c(checked))) + checked


def parse_entry(entry: bytes) -> ParsedEntry:
    """Verify the checksum of an entry as published and decode its metadata, which must be complete.

    Raises :class:`ChecksumMismatch`, or :class:`EntryError` if sizes or metadata are malformed.
    """
    metadata, payload_offset = read_entry(entry)
    if not metadata.IsInitialized():
        raise EntryError("message metadata lacks producer_name, sequence_id or publish_time")
    return ParsedEntry(metadata, payload_offset)
