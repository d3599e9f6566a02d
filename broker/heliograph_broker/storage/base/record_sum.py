"""Checksums of metadata records: LMDB verifies none of what it stores.

A record is stored with a byte that no MessagePack value and no number has, and the CRC32-C of its key and content, at
its end. Records of versions before this one have none, and are read as they are. A damaged record keeps its end, so
that decoding fails: there are bytes too many.
"""

from __future__ import annotations

import struct

from crc32c import crc32c

_END = struct.Struct(">cI")
_MARK = b"\xc1"


def with_sum(key: bytes, content: bytes) -> bytes:
    """Return what is stored under ``key`` for a record's content."""
    return content + _END.pack(_MARK, crc32c(content, crc32c(key)))


def content_of(key: bytes, stored: bytes) -> bytes:
    """Return a record's content; of a damaged record all that is stored."""
    content = stored[: -_END.size]
    return content if stored[-_END.size :] == _END.pack(_MARK, crc32c(content, crc32c(key))) else stored


def number_in(content: bytes | None) -> int | None:
    """Return the number that a record of the store's own holds, None if there is none or it is damaged."""
    return int(content) if content is not None and content.isdigit() else None
