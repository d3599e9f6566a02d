"""Identifies the store of a file: FORMAT, the metadata and every segment carry the id of their store.

Files are copied, restored and mounted by hand, and a store that is put together from parts of two, or without one of
its parts, would take what the others have for garbage or hand out the same ledger ids again. So a start compares the
ids and refuses by name. A copy of a whole store has its id: it is the same store at another place.

All functions here only read, except :func:`stamp`.
"""

from __future__ import annotations

import struct

import lmdb
import msgspec
from crc32c import crc32c

#: The version that is written.
FORMAT_VERSION = 3
#: The versions that can be read: a directory of version 2 becomes one of 3 when it is opened.
KNOWN_VERSIONS = (2, 3)
_NAME = "heliograph"
_STORE = "store"
_METADATA_KEY = b"store/identity"
#: The key in a segment; it sorts before every ledger, as none has the id 0.
SEGMENT_KEY = bytes(16)
#: Stands for a damaged id: the entries of the segment may be sound all the same.
UNREADABLE = "unreadable"
_SUM = struct.Struct(">I")


class Identity(msgspec.Struct, frozen=True):
    """A store's id (128 random bits in hexadecimal) and when it was created (wall-clock ms)."""

    store_id: str
    created_ms: int


class Format(msgspec.Struct, frozen=True):
    """The contents of the file FORMAT; ``store_id`` is empty in version 2."""

    version: int
    store_id: str

    def __str__(self) -> str:
        return f"{_NAME} {self.version}"


def known_formats() -> list[str]:
    """Return the formats of data directories that can be read, as :class:`Format` prints them."""
    return [str(Format(version, "")) for version in KNOWN_VERSIONS]


def parse_format(content: str) -> Format | None:
    """Return the parsed content of FORMAT, None if its version is unknown."""
    lines = content.strip().splitlines()
    for version in KNOWN_VERSIONS:
        if lines[:1] == [f"{_NAME} {version}"]:
            if version == 2 and len(lines) == 1:
                return Format(version, "")
            if version > 2 and len(lines) == 2 and lines[1].startswith(f"{_STORE} "):
                return Format(version, lines[1].removeprefix(f"{_STORE} "))
    return None


def format_text(store_id: str) -> str:
    """Return FORMAT's content for a store; without an id that of version 2."""
    if not store_id:
        return f"{_NAME} 2\n"
    return f"{_NAME} {FORMAT_VERSION}\n{_STORE} {store_id}\n"


def of_metadata(environment: lmdb.Environment) -> Identity | None:
    """Return the identity in a store's metadata, None if it has none. Raises :class:`lmdb.Error`."""
    with environment.begin() as transaction:
        value = transaction.get(_METADATA_KEY)
    return None if value is None else msgspec.json.decode(value, type=Identity)


def of_segment(environment: lmdb.Environment) -> str | None:
    """Return the id of the store a segment belongs to, :data:`UNREADABLE` or None if it does not say.

    Raises :class:`lmdb.Error`.
    """
    with environment.begin() as transaction:
        value = transaction.get(SEGMENT_KEY)
    return None if value is None else parse_segment_value(value)


def segment_value(store_id: str) -> bytes:
    """Return the value in a segment that identifies its store: the id and its CRC32-C."""
    encoded = store_id.encode()
    return encoded + _SUM.pack(crc32c(encoded))


def parse_segment_value(value: bytes | memoryview) -> str:
    """Return the store's id in a segment's value, :data:`UNREADABLE` if it is damaged."""
    encoded = bytes(value[: -_SUM.size])
    if bytes(value[-_SUM.size :]) != _SUM.pack(crc32c(encoded)):
        return UNREADABLE
    return encoded.decode()


def stamp(environment: lmdb.Environment, identity: Identity) -> None:
    """Write the identity into a store's metadata; it is durable on return. Raises :class:`lmdb.Error`."""
    with environment.begin(write=True) as transaction:
        transaction.put(_METADATA_KEY, msgspec.json.encode(identity))
