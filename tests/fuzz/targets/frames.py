"""Frames: any stream gives the same frames and the same mistake however it is split, and no other error."""

from __future__ import annotations

from collections.abc import Iterator

from tests.fuzz import corpus
from tests.fuzz.streams import parts_of, stream_of
from tests.fuzz.target import Finding, Source
from tests.support.frame_streams import LARGEST, read_stream
from tests.support.wire_specimens import CONNECT, OPENING, SPECIMENS

_SHARED = (16, 100, 1024)
_READS = 40


def run(data: bytes) -> None:
    source = Source(data)
    flags = source.number()
    splits = list(source.take(1 + flags % 4))
    stream = (b"" if flags & 4 else CONNECT) + (source.rest() if flags & 8 else stream_of(source))
    # Many reads of a byte or two each would only take long.
    splits = [1 + size + len(stream) // _READS for size in splits or [0]]
    whole = read_stream(stream, [len(stream) + 1], 1 << 16)
    found = read_stream(stream, splits, _SHARED[(flags >> 4) % len(_SHARED)], pauses=bool(flags & 128))
    if found != whole:
        raise Finding(f"read in parts {splits}: {found}; at once: {whole}")
    if sum(len(command) + len(entry) for _, command, entry in whole[0]) > len(stream):
        raise Finding(f"{len(stream)} bytes gave more than that: {whole}")


def seeds() -> Iterator[bytes]:
    for number, frame in enumerate(SPECIMENS.values()):
        yield bytes([number % 4 | number % 8 << 4, 3, 9, 200]) + b"".join(parts_of(frame))
    for recorded in corpus.load(corpus.RECORDED):
        yield bytes([0, 40]) + recorded
    yield bytes([8, 4]) + OPENING
    yield bytes([0x93, 1]) + b"".join(parts_of(OPENING))
    yield bytes([8, 4]) + (LARGEST * 2).to_bytes(4, "big")
    yield bytes([12, 4]) + (LARGEST * 2).to_bytes(4, "big")
