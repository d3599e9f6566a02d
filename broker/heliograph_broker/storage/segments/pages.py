"""Finds the entries in a segment's file page by page, without the tree that leads to them.

A damaged page of the tree hides everything below it, and pages that make no sense may end a process that follows them.
Here each page is parsed on its own, and nothing outside the file is accessed. A segment's chunks are written once and
never deleted, so that an older copy of a page that lies about holds nothing wrong; but chunks may come twice, in any
order, and the caller has to verify each. The layout is LMDB's of version 0.9 on a machine of 64 bits, little-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from .chunk import KEY

#: Page number, padding, flags, and the bounds of the free space or, of overflow pages, how many there are (u32).
_PAGE = struct.Struct("<QHHHH")
_OVERFLOW_COUNT = struct.Struct("<I")
#: Size of the value (low, high), flags, size of the key.
_NODE = struct.Struct("<HHHH")
_PGNO = struct.Struct("<Q")
_META_MAGIC = struct.Struct("<I")
_MAGIC = 0xBEEFC0DE
#: Place in a meta page, which is 0 or 1, of the size of pages.
_PAGE_SIZE_AT = 16 + 24
_LEAF, _OVERFLOW = 0x02, 0x04
#: Flag: the value has pages of its own.
_BIG = 0x01
_USUAL_PAGE = 4096


class Found(NamedTuple):
    """A key of a ledger's chunk, and where in the file its value lies."""

    ledger_id: int
    first: int
    at: int
    size: int


def chunks(data: memoryview) -> Iterator[Found | int]:
    """Yield what looks like a chunk, and every now and then up to which byte of ``data`` it has looked."""
    size = _page_size(data)
    page = 0
    pages = len(data) // size
    while page < pages:
        at = page * size
        number, _, flags, lower, upper = _PAGE.unpack_from(data, at)
        if number != page:
            flags = 0
        if flags & _OVERFLOW:
            # Their content must not be parsed as pages: a message may contain anything.
            page += max(1, _OVERFLOW_COUNT.unpack_from(data, at + 12)[0])
        else:
            if flags & _LEAF and _PAGE.size <= lower <= upper <= size:
                yield from _nodes(data, at, size, (lower - _PAGE.size) // 2)
            page += 1
        if page % 256 == 0:
            yield min(page * size, len(data))
    yield len(data)


def _nodes(data: memoryview, at: int, size: int, count: int) -> Iterator[Found]:
    for (offset,) in struct.iter_unpack("<H", data[at + _PAGE.size : at + _PAGE.size + 2 * count]):
        if offset + _NODE.size + KEY.size > size:
            continue
        low, high, flags, key_size = _NODE.unpack_from(data, at + offset)
        if key_size != KEY.size:
            continue
        length = low | high << 16
        key_at = at + offset + _NODE.size
        ledger_id, first = KEY.unpack_from(data, key_at)
        value_at = key_at + KEY.size
        if flags & _BIG:
            if value_at + _PGNO.size > at + size:
                continue
            value_at = _PGNO.unpack_from(data, value_at)[0] * size + _PAGE.size
        elif value_at + length > at + size:
            continue
        if value_at + length <= len(data):
            yield Found(ledger_id, first, value_at, length)


def _page_size(data: memoryview) -> int:
    """Return how large the pages are: as the first page says, or else the usual size."""
    if len(data) >= _PAGE_SIZE_AT + 4 and _META_MAGIC.unpack_from(data, _PAGE.size)[0] == _MAGIC:
        found = int(_META_MAGIC.unpack_from(data, _PAGE_SIZE_AT)[0])
        if 512 <= found <= 65536 and found & (found - 1) == 0:
            return found
    return _USUAL_PAGE
