"""A chunk: consecutive entries of one ledger in one LMDB value, under the key of the first of them.

An entry by itself costs a node and, from 2 KiB on, whole pages of its own; together they fill their pages. A value is
one of

    count (u32) · sums · count rows: entry header, end of its frame (u32, counted from the first frame on) · the frames
    count (u32) with the highest bit set · sums · base · count narrow rows, the last field of which is that end · frames

so that any row is found by arithmetic, and a header is read without touching a frame. Narrow rows hold differences to
the base; they are for entries without delay and TTL. Groups are written with whole headers, which costs the writer
less; rewriting narrows them where frames are so small that it matters.

The sums are two CRC32-C: of the frames, and of everything else with the key, so that headers are verified without
touching a frame. They are there if the second highest bit of the count is set. Chunks of older versions have none;
rewriting gives them theirs.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate

from crc32c import crc32c

from heliograph_broker.storage.base.entry import HEADER, SLOT, Entry, EntryHeader

_PAGE = 4096
_PAGE_HEADER = 16
#: Most bytes of a chunk of several entries: 16 pages of LMDB without the first one's header.
CHUNK_BYTES = 16 * _PAGE - _PAGE_HEADER
#: A value up to this size lies in a page with others, a larger one has pages of its own (bytes): three to a page.
_NODE = 1324
#: With a smaller share of rows, a full chunk is taken over as it is.
_LEAN = 1 / 10

KEY = struct.Struct(">QQ")
_COUNT = struct.Struct(">I")
_END = struct.Struct(">I")
_ROW = struct.Struct(HEADER.format + "I")
#: Base values, those of the first entry: receive_ms, publish_ms, total_messages; total_bytes before it.
_BASE = struct.Struct(">QQQQ")
#: Differences of receive_ms, publish_ms and total_messages; messages, key_hash, end. total_bytes follows from the end.
_NARROW_ROW = struct.Struct(">iiIIHI")
_NARROW = _I31 = 1 << 31
_SUMMED = 1 << 30
_FLAGS = _NARROW | _SUMMED
#: Checksum of the rows and all else but the frames, and checksum of the frames.
_SUMS = struct.Struct(">II")
_HEAD = _COUNT.size + _SUMS.size
_NARROW_HEAD = _HEAD + _BASE.size
#: Bytes of an entry beside its frame in a chunk that was rewritten.
ROW_BYTES = _NARROW_ROW.size
_SUMMED_ONE = _COUNT.pack(_SUMMED | 1)

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
        room -= size + _ROW.size
        if room < 0 or e.entry_id != expected:
            if rows:
                items.append(_join(e.ledger_id, first, rows, frames))
            rows = []
            frames = []
            first = e.entry_id
            end = 0
            room = CHUNK_BYTES - _HEAD - size - _ROW.size
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
                e.key_hash & SLOT,
                end,
            )
        )
        frames.append(frame)
    if rows:
        items.append(_join(entries[-1].ledger_id, first, rows, frames))
    return items


def _single(e: Entry) -> Item:
    """Return a chunk of one: with many topics, most of a group."""
    frame = e.frame
    key = KEY.pack(e.ledger_id, e.entry_id)
    row = _ROW.pack(
        e.receive_ms,
        e.publish_ms,
        e.deliver_at_ms,
        e.ttl_ms,
        e.total_messages,
        e.total_bytes,
        e.messages,
        e.key_hash & SLOT,
        len(frame),
    )
    sums = _SUMS.pack(crc32c(key + _SUMMED_ONE + row), crc32c(frame))
    return key, b"".join((_SUMMED_ONE, sums, row, frame))


def _join(ledger_id: int, first: int, rows: list[bytes], frames: list[bytes]) -> Item:
    return _summed(KEY.pack(ledger_id, first), _COUNT.pack(_SUMMED | len(rows)), b"".join(rows), b"".join(frames))


def _summed(key: bytes, count: bytes, rows: bytes, frames: bytes) -> Item:
    sums = _SUMS.pack(crc32c(key + count + rows), crc32c(frames))
    return key, b"".join((count, sums, rows, frames))


def count(value: memoryview) -> int:
    """Return how many entries a chunk has."""
    return int(_COUNT.unpack_from(value)[0]) & ~_FLAGS


def likely_count(value: memoryview) -> int:
    """Return how many entries a chunk has that may be damaged: what it says if its size agrees, or else 1."""
    return count(value) if _fits(value) else 1


def _fits(value: memoryview) -> bool:
    size = len(value)
    if size < _COUNT.size:
        return False
    entries = count(value)
    frames = _frames_at(value)
    return entries > 0 and frames <= size and frames + _END.unpack_from(value, frames - _END.size)[0] == size


def rows_are_sound(key: memoryview, value: memoryview) -> bool:
    """Return whether the headers of a chunk are what was written, as far as its checksum or its sizes say."""
    if not _fits(value):
        return False
    if not is_summed(value):
        return True
    found = crc32c(value[_HEAD : _frames_at(value)], crc32c(value[: _COUNT.size], crc32c(key)))
    return bool(found == _SUMS.unpack_from(value, _COUNT.size)[0])


def is_sound(key: memoryview, value: memoryview) -> bool:
    """As :func:`rows_are_sound`, of the frames as well."""
    if not rows_are_sound(key, value):
        return False
    if not is_summed(value):
        return True
    return bool(crc32c(value[_frames_at(value) :]) == _SUMS.unpack_from(value, _COUNT.size)[1])


def is_summed(value: memoryview) -> bool:
    """Return whether a chunk has checksums; one that an older version wrote has none."""
    return bool(_COUNT.unpack_from(value)[0] & _SUMMED)


def _rows_at(word: int) -> int:
    return _COUNT.size + (_SUMS.size if word & _SUMMED else 0) + (_BASE.size if word & _NARROW else 0)


#: receive_ms, publish_ms, deliver_at_ms, ttl_ms, total_messages, total_bytes, messages, key_hash, frame's start and end
_Row = tuple[int, int, int, int, int, int, int, int, int, int]


def _row(value: memoryview, index: int) -> _Row:
    word = _COUNT.unpack_from(value)[0]
    at = _rows_at(word)
    if word & _NARROW:
        receive, publish, messages_total, bytes_before = _BASE.unpack_from(value, at - _BASE.size)
        at += index * _NARROW_ROW.size
        start = _END.unpack_from(value, at - _END.size)[0] if index else 0
        since_receive, since_publish, since_messages, messages, key_hash, end = _NARROW_ROW.unpack_from(value, at)
        return (
            receive + since_receive,
            publish + since_publish,
            0,
            -1,
            messages_total + since_messages,
            bytes_before + end,
            messages,
            key_hash,
            start,
            end,
        )
    at += index * _ROW.size
    start = _END.unpack_from(value, at - _END.size)[0] if index else 0
    receive, publish, deliver_at, ttl, messages_total, bytes_total, messages, key_hash, end = _ROW.unpack_from(
        value, at
    )
    return receive, publish, deliver_at, ttl, messages_total, bytes_total, messages, key_hash, start, end


def _frames_at(value: memoryview) -> int:
    word = int(_COUNT.unpack_from(value)[0])
    return _rows_at(word) + (word & ~_FLAGS) * (_NARROW_ROW.size if word & _NARROW else _ROW.size)


def header_at(value: memoryview, first: int, index: int) -> EntryHeader:
    """Return the header of the entry ``index`` of a chunk whose first entry id is ``first``."""
    receive, publish, deliver_at, ttl, messages_total, bytes_total, messages, key_hash, start, end = _row(value, index)
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
    frames = _frames_at(value)
    *_, start, end = _row(value, index)
    return frames + start, frames + end


def entry_at(value: memoryview, ledger_id: int, first: int, index: int) -> Entry:
    """Return the entry ``index`` of a chunk; its frame is copied out of it."""
    receive, publish, deliver_at, ttl, messages_total, bytes_total, messages, key_hash, start, end = _row(value, index)
    frames = _frames_at(value)
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
        bytes(value[frames + start : frames + end]),
    )


class Repacker:
    """Makes full chunks of entries that come one by one or chunk by chunk, in the order of their keys."""

    __slots__ = ("_expected", "_first", "_frames", "_ledger", "_rows", "_size", "items")

    def __init__(self) -> None:
        #: Chunks that are ready to be written; the writer clears the list.
        self.items: list[Item] = []
        self._ledger = self._first = self._expected = -1
        self._rows: list[_Row] = []
        self._frames: list[bytes] = []
        #: Size of the chunk that is being made (bytes).
        self._size = _NARROW_HEAD

    def add(self, ledger_id: int, first: int, value: memoryview, low: int, high: int) -> int:
        """Take the entries ``low..high`` (indexes) of a chunk; return their bytes."""
        frames = _frames_at(value)
        whole = low == 0 and high == count(value) - 1 and is_summed(value)
        if whole and len(value) > CHUNK_BYTES * 3 // 4 and frames < _LEAN * len(value):
            self.flush()
            self.items.append((KEY.pack(ledger_id, first), bytes(value)))
            return len(value)
        taken = 0
        for index in range(low, high + 1):
            row = _row(value, index)
            start, end = row[8], row[9]
            size = end - start + ROW_BYTES
            if self._size + size > CHUNK_BYTES or ledger_id != self._ledger or first + index != self._expected:
                self.flush()
                self._ledger = ledger_id
                self._first = first + index
            self._expected = first + index + 1
            self._size += size
            self._rows.append(row)
            self._frames.append(bytes(value[frames + start : frames + end]))
            taken += size
        return taken

    def flush(self) -> None:
        """End the chunk that is being made."""
        if self._rows:
            at = 0
            for entries in _fitting([len(frame) + ROW_BYTES for frame in self._frames]):
                frames = self._frames[at : at + entries]
                self.items.append(_encode(self._ledger, self._first + at, self._rows[at : at + entries], frames))
                at += entries
            self._rows = []
            self._frames = []
            self._size = _NARROW_HEAD
        self._expected = -1


def _encode(ledger_id: int, first: int, rows: list[_Row], frames: list[bytes]) -> Item:
    ends = list(accumulate(map(len, frames)))
    receive, publish, _, _, messages_total, bytes_total, *_ = rows[0]
    bytes_before = bytes_total - ends[0]
    if all(
        row[2] == 0
        and row[3] == -1
        and -_I31 <= row[0] - receive < _I31
        and -_I31 <= row[1] - publish < _I31
        and 0 <= row[4] - messages_total < _I31
        and row[5] == bytes_before + end
        for row, end in zip(rows, ends, strict=True)
    ):
        packed = [
            _NARROW_ROW.pack(row[0] - receive, row[1] - publish, row[4] - messages_total, row[6], row[7], end)
            for row, end in zip(rows, ends, strict=True)
        ]
        base = _BASE.pack(receive, publish, messages_total, bytes_before)
        narrow = b"".join((base, *packed))
        return _summed(KEY.pack(ledger_id, first), _COUNT.pack(_FLAGS | len(rows)), narrow, b"".join(frames))
    return _join(ledger_id, first, [_ROW.pack(*row[:8], end) for row, end in zip(rows, ends, strict=True)], frames)


def _fitting(sizes: list[int]) -> list[int]:
    """Return how many entries of these sizes to put into each of one or more chunks, so that pages are filled.

    A chunk that is larger than a node may be has whole pages; what would begin another page for little is better in
    nodes, which share their pages.
    """
    pages = -(-(sum(sizes) + _NARROW_HEAD + _PAGE_HEADER) // _PAGE)
    room = (pages - 1) * _PAGE - _PAGE_HEADER - _NARROW_HEAD
    full = 0
    for size in sizes:
        room -= size
        if room < 0:
            break
        full += 1
    nodes: list[int] = []
    cost = space = 0
    for size in sizes[full:]:
        if size + _NARROW_HEAD > _NODE:
            return [len(sizes)]
        space -= size
        if space < 0:
            nodes.append(0)
            space = _NODE - _NARROW_HEAD - size
        nodes[-1] += 1
        # Nodes fill five sixths of a page or so.
        cost += size * 6 // 5
    return [full, *nodes] if full and cost < _PAGE else nodes if not full and cost < pages * _PAGE else [len(sizes)]
