"""A chunk: consecutive entries of one ledger in one LMDB value, under the key of the first of them.

An entry by itself costs a node and, from 2 KiB on, whole pages of its own; together they fill their pages. A value is

    count (u32) · count rows: entry header, end of its frame (u32, counted from the first frame on) · the frames

so that any row is found by arithmetic, and a header is read without touching a frame.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate

from .entry import HEADER, Entry, EntryHeader

_PAGE = 4096
_PAGE_HEADER = 16
#: What a chunk of several entries has at most: 16 pages of LMDB without the first one's header (bytes).
CHUNK_BYTES = 16 * _PAGE - _PAGE_HEADER
#: A value up to this size lies in a page with others, a larger one has pages of its own (bytes): three to a page.
_NODE = 1324
#: What an entry costs in a chunk beside its frame (bytes).
ROW_BYTES = HEADER.size + 4

KEY = struct.Struct(">QQ")
_COUNT = struct.Struct(">I")
_END = struct.Struct(">I")
_ROW = struct.Struct(HEADER.format + "I")
_ONE = struct.Struct(">I" + HEADER.format.removeprefix(">") + "I")

Item = tuple[bytes, bytes]


def pack(entries: Sequence[Entry]) -> list[Item]:
    """Return the keys and chunks of one ledger's ``entries``, which are in order. Raises :class:`struct.error`."""
    if len(entries) == 1:
        return [_single(entries[0])]
    row = _ROW.pack
    items: list[Item] = []
    rows: list[bytes] = []
    frames: list[bytes] = []
    first = expected = end = room = 0
    for e in entries:
        frame = e.frame
        size = len(frame)
        room -= size + ROW_BYTES
        if room < 0 or e.entry_id != expected:
            if rows:
                items.append((KEY.pack(e.ledger_id, first), _join(rows, frames)))
            rows = []
            frames = []
            first = e.entry_id
            end = 0
            room = CHUNK_BYTES - _COUNT.size - size - ROW_BYTES
        expected = e.entry_id + 1
        end += size
        rows.append(
            row(
                e.receive_ms,
                e.publish_ms,
                e.deliver_at_ms,
                e.ttl_ms,
                e.total_messages,
                e.total_bytes,
                e.messages,
                e.key_hash,
                end,
            )
        )
        frames.append(frame)
    if rows:
        items.append((KEY.pack(entries[-1].ledger_id, first), _join(rows, frames)))
    return items


def _single(e: Entry) -> Item:
    """Return a chunk of one: with many topics, most of a group."""
    frame = e.frame
    return KEY.pack(e.ledger_id, e.entry_id), _ONE.pack(
        1,
        e.receive_ms,
        e.publish_ms,
        e.deliver_at_ms,
        e.ttl_ms,
        e.total_messages,
        e.total_bytes,
        e.messages,
        e.key_hash,
        len(frame),
    ) + frame


def _join(rows: list[bytes], frames: list[bytes]) -> bytes:
    return b"".join((_COUNT.pack(len(rows)), *rows, *frames))


def count(value: memoryview) -> int:
    """Return how many entries a chunk has."""
    return int(_COUNT.unpack_from(value)[0])


def header_at(value: memoryview, first: int, index: int) -> EntryHeader:
    """Return the header of the entry ``index`` of a chunk whose first entry id is ``first``."""
    at = _COUNT.size + index * _ROW.size
    receive, publish, deliver_at, ttl, messages_total, bytes_total, messages, key_hash, end = _ROW.unpack_from(
        value, at
    )
    start = _END.unpack_from(value, at - _END.size)[0] if index else 0
    return EntryHeader(
        first + index,
        receive,
        publish,
        deliver_at,
        ttl,
        messages_total,
        bytes_total,
        messages,
        key_hash,
        end - start,
    )


def frame_bounds(value: memoryview, index: int) -> tuple[int, int]:
    """Return where in the chunk the frame of the entry ``index`` begins and ends."""
    frames = _COUNT.size + count(value) * _ROW.size
    at = _COUNT.size + index * _ROW.size
    start = _END.unpack_from(value, at - _END.size)[0] if index else 0
    return frames + start, frames + _END.unpack_from(value, at + HEADER.size)[0]


def entry_at(value: memoryview, ledger_id: int, first: int, index: int) -> Entry:
    """Return the entry ``index`` of a chunk; its frame is copied out of it."""
    receive, publish, deliver_at, ttl, messages_total, bytes_total, messages, key_hash = HEADER.unpack_from(
        value, _COUNT.size + index * _ROW.size
    )
    start, end = frame_bounds(value, index)
    return Entry(
        ledger_id,
        first + index,
        receive,
        publish,
        deliver_at,
        ttl,
        messages,
        key_hash,
        messages_total,
        bytes_total,
        bytes(value[start:end]),
    )


class Repacker:
    """Makes full chunks of entries that come one by one or chunk by chunk, in the order of their keys."""

    __slots__ = ("_expected", "_first", "_frames", "_headers", "_ledger", "_size", "items")

    def __init__(self) -> None:
        #: What is ready to be written; whoever writes it clears it.
        self.items: list[Item] = []
        self._ledger = self._first = self._expected = -1
        self._headers: list[bytes] = []
        self._frames: list[bytes] = []
        #: Of the chunk that is being made (bytes).
        self._size = _COUNT.size

    def add(self, ledger_id: int, first: int, value: memoryview, low: int, high: int) -> int:
        """Take the entries ``low..high`` (indexes) of a chunk; return their bytes."""
        whole = low == 0 and high == count(value) - 1
        if whole and len(value) > CHUNK_BYTES * 3 // 4:
            self.flush()
            self.items.append((KEY.pack(ledger_id, first), bytes(value)))
            return len(value)
        taken = 0
        for index in range(low, high + 1):
            start, end = frame_bounds(value, index)
            size = end - start + _ROW.size
            if self._size + size > CHUNK_BYTES or ledger_id != self._ledger or first + index != self._expected:
                self.flush()
                self._ledger = ledger_id
                self._first = first + index
            self._expected = first + index + 1
            self._size += size
            at = _COUNT.size + index * _ROW.size
            self._headers.append(bytes(value[at : at + HEADER.size]))
            self._frames.append(bytes(value[start:end]))
            taken += size
        return taken

    def flush(self) -> None:
        """End the chunk that is being made."""
        if self._headers:
            at = 0
            for entries in _fitting([len(frame) + _ROW.size for frame in self._frames]):
                self._emit(at, at + entries)
                at += entries
            self._headers = []
            self._frames = []
            self._size = _COUNT.size
        self._expected = -1

    def _emit(self, low: int, high: int) -> None:
        frames = self._frames[low:high]
        ends = accumulate(map(len, frames))
        rows = [header + _END.pack(end) for header, end in zip(self._headers[low:high], ends, strict=True)]
        self.items.append((KEY.pack(self._ledger, self._first + low), _join(rows, frames)))


def _fitting(sizes: list[int]) -> list[int]:
    """Return how many entries of these sizes to put into each of one or more chunks, so that pages are filled.

    A chunk that is larger than a node may be has whole pages; what would begin another page for little is better in
    nodes, which share their pages.
    """
    pages = -(-(sum(sizes) + _COUNT.size + _PAGE_HEADER) // _PAGE)
    room = (pages - 1) * _PAGE - _PAGE_HEADER - _COUNT.size
    full = 0
    for size in sizes:
        room -= size
        if room < 0:
            break
        full += 1
    nodes: list[int] = []
    cost = space = 0
    for size in sizes[full:]:
        if size + _COUNT.size > _NODE:
            return [len(sizes)]
        space -= size
        if space < 0:
            nodes.append(0)
            space = _NODE - _COUNT.size - size
        nodes[-1] += 1
        # Nodes fill five sixths of a page or so.
        cost += size * 6 // 5
    return [full, *nodes] if full and cost < _PAGE else nodes if not full and cost < pages * _PAGE else [len(sizes)]
