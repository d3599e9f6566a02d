"""Streams of frames, written so that a changed byte rarely spoils more than one: sizes and checksums are added."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator

from heliograph_api.protocol.frames import EntryError, entry_head, metadata_range, parse_entry

from tests.support.wire_specimens import OPENING, SPECIMENS, with_extreme_fields

from .target import Source, sized

_FRAMES = [OPENING, *SPECIMENS.values()]
#: The kinds of parts that :func:`part` knows, and those of :func:`stream_of`, which has none of hundreds of kilobytes.
PARTS = 6
_SMALL_PARTS = 5
_COMMAND, _ENTRY, _SPOILED_ENTRY = 1, 2, 3


def part(kind: int, source: Source) -> bytes:
    """Return the bytes that a part of this kind, the rest of which ``source`` has, stands for."""
    match kind:
        case 0:
            return source.choose(_FRAMES)
        case 1:
            return _frame(source.sized())
        case 2:
            command, metadata, payload = source.sized(), source.sized(), source.sized()
            return _frame(command, entry_head(metadata, payload) + payload)
        case 3:
            command = source.sized()
            return _frame(command, source.sized())
        case 4:
            return source.sized()
        case _:
            # The first of all is no single frame.
            return with_extreme_fields(source.choose(_FRAMES[1:]), random.Random(source.number(2)))


def _frame(command: bytes, entry: bytes = b"") -> bytes:
    return struct.pack(">II", 4 + len(command) + len(entry), len(command)) + command + entry


def parts_of(stream: bytes) -> Iterator[bytes]:
    """Yield parts, each with the byte of its kind, that stand for the frames of a stream."""
    at = 0
    while at < len(stream):
        size, command_size = struct.unpack_from(">II", stream, at)
        command = stream[at + 8 : at + 8 + command_size]
        entry = stream[at + 8 + command_size : at + 4 + size]
        at += 4 + size
        try:
            offset = parse_entry(entry).payload_offset if entry else 0
        except EntryError:
            offset = 0
        if not entry:
            yield bytes([_COMMAND]) + sized(command)
        elif offset:
            begin, end = metadata_range(entry)
            yield bytes([_ENTRY]) + sized(command) + sized(entry[begin:end]) + sized(entry[offset:])
        else:
            yield bytes([_SPOILED_ENTRY]) + sized(command) + sized(entry)


def stream_of(source: Source) -> bytes:
    """Return the stream that all parts in ``source`` stand for."""
    frames = []
    while not source.ended:
        frames.append(part(source.number() % _SMALL_PARTS, source))
    return b"".join(frames)
