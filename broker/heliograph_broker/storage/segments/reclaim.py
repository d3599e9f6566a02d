"""Which segments are worth rewriting, so that the directory stays within a factor of the live bytes."""

from __future__ import annotations

from collections.abc import Sequence

from .segment import Segment

#: Space is won back while files take more than this many times the live bytes. The promise is 1.5; a copy under way
#: and what is written meanwhile come on top.
TARGET = 1.3
#: What may be wasted whatever is live (bytes).
FLOOR = 256 * 1024
#: A file is rewritten only if that frees this share of it.
WORTHWHILE = 0.12
#: So many small neighbours become one, or files would grow in number forever.
MERGE = 8
#: Small is a file with less than this share of a full segment.
_SMALL = 1 / MERGE


def wasteful(disk_bytes: int, live_bytes: int, segment_bytes: int) -> bool:
    """Return whether files of ``disk_bytes`` are more than ``live_bytes`` should take."""
    return disk_bytes > TARGET * live_bytes + min(FLOOR, segment_bytes // 8)


def worthwhile(segment: Segment) -> bool:
    """Return whether rewriting ``segment`` would free a good part of it."""
    return segment.file_bytes - segment.compact_bytes > WORTHWHILE * segment.file_bytes


def choose(sealed: Sequence[Segment], *, wasting: bool, segment_bytes: int, room: int) -> list[Segment]:
    """Return neighbours to rewrite as one file, none if nothing is worth it.

    Where space is wasted, begin with the file that frees most for each byte to be copied, and take the neighbours
    that are worth it as well, up to a full segment and to the ``room`` (bytes) that the copy may take.
    """
    if wasting:
        fitting = [
            (segment.compact_bytes / segment.file_bytes, at)
            for at, segment in enumerate(sealed)
            if worthwhile(segment) and segment.compact_bytes <= room
        ]
        if fitting:
            at = min(fitting)[1]
            return _with_neighbours(sealed, at, min(room, segment_bytes))
    return _small_neighbours(sealed, min(room, segment_bytes), segment_bytes)


def _with_neighbours(sealed: Sequence[Segment], at: int, most: int) -> list[Segment]:
    first = last = at
    size = sealed[at].compact_bytes
    while True:
        # The next one on either side that is worth it, the better one first.
        beside = [
            other
            for other in (first - 1, last + 1)
            if 0 <= other < len(sealed) and worthwhile(sealed[other]) and size + sealed[other].compact_bytes <= most
        ]
        if not beside:
            return list(sealed[first : last + 1])
        chosen = min(beside, key=lambda other: sealed[other].compact_bytes / sealed[other].file_bytes)
        size += sealed[chosen].compact_bytes
        first, last = min(first, chosen), max(last, chosen)


def _small_neighbours(sealed: Sequence[Segment], most: int, segment_bytes: int) -> list[Segment]:
    found: list[Segment] = []
    size = 0
    for segment in sealed:
        expected = segment.compact_bytes
        if segment.file_bytes > _SMALL * segment_bytes or size + expected > most:
            if len(found) >= MERGE:
                break
            found = []
            size = 0
            if segment.file_bytes > _SMALL * segment_bytes:
                continue
        found.append(segment)
        size += expected
    return found if len(found) >= MERGE else []
