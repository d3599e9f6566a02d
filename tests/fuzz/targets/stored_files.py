"""Stored bytes: chunks of segments, records, FORMAT, and backups as archives and in object storage."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from hashlib import sha256

import msgspec
from heliograph_broker.offsite.catalog import find
from heliograph_broker.offsite.object_store import StoreError
from heliograph_broker.storage.base import record_sum
from heliograph_broker.storage.base.entry import Entry
from heliograph_broker.storage.copies import restore
from heliograph_broker.storage.copies.backup import BackupError
from heliograph_broker.storage.disk.identity import format_text, parse_format
from heliograph_broker.storage.segments import chunk, segment_records

from tests.fuzz.target import Finding, Source, sized

_KEY = chunk.KEY.pack(1, 5)
_MEMBERS = ("FORMAT", "metadata.lmdb", "segments/1-1-0.lmdb", "MANIFEST.json", "other")


def _chunk(source: Source) -> None:
    """A chunk whose checksums and sizes agree is read without an error; any other is found to be unsound."""
    value = memoryview(source.rest())
    key = memoryview(_KEY)
    count = chunk.likely_count(value)
    if not chunk.is_sound(key, value):
        if count != 1 and not chunk.rows_are_sound(key, value) and not len(value):
            raise Finding("entries in nothing")
        return
    if not chunk.is_summed(value):
        # Only sizes can be checked of the chunks of older versions.
        return
    entries = [chunk.entry_at(value, 1, 5, index) for index in range(count)]
    if sum(len(entry.frame) for entry in entries) > len(value):
        raise Finding(f"a chunk of {len(value)} bytes holds more than that")
    repacker = chunk.Repacker()
    repacker.add(1, 5, value, 0, count - 1)
    repacker.flush()
    for again_key, again in repacker.items:
        if not chunk.is_sound(memoryview(again_key), memoryview(again)):
            raise Finding("a chunk that is packed again is unsound")


def _records(source: Source) -> None:
    """Records of segments and numbers: those that are damaged are left out."""
    name, content = b"store/segment/" + source.take(source.number()), source.rest()
    if record_sum.content_of(name, record_sum.with_sum(name, content)) != content:
        raise Finding("a record with its sum is another")
    record_sum.number_in(record_sum.content_of(name, content))
    sound = segment_records.sound([(name, content)])
    missing = segment_records.MissingSegments(sound.items(), [])
    missing.keep({1: 3})
    missing.entries()


def _format(source: Source) -> None:
    found = parse_format(source.rest().decode(errors="replace"))
    if found is not None and found.store_id.strip() == found.store_id:
        again = parse_format(format_text(found.store_id))
        if again is None or again.store_id != found.store_id:
            raise Finding(f"{found} reads back as {again}")


def _raw_archive(source: Source) -> None:
    _check(source.rest())


def _archive(source: Source) -> None:
    """An archive of these members; its manifest lists those before it, unless its content is given."""
    written = io.BytesIO()
    files: dict[str, dict[str, object]] = {}
    with tarfile.open(fileobj=written, mode="w") as tar:
        while not source.ended:
            name = source.choose(_MEMBERS)
            content = source.sized()
            if name == "MANIFEST.json" and not content:
                document = {"format": "f", "version": "v", "begun_ms": 1, "files": files}
                content = json.dumps(document).encode()
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
            files[name] = {"size": len(content), "sha256": sha256(content).hexdigest()}
    _check(written.getvalue())


def _check(archive: bytes) -> None:
    try:
        restore.check_stream(io.BytesIO(archive), "the archive")
    except BackupError as error:
        if "the archive" not in str(error):
            raise Finding(f"does not name the archive: {error}") from error


class _Store:
    """An object storage with one object."""

    url = "memory://"

    def __init__(self, content: bytes) -> None:
        self._content = content

    def get(self, path: str) -> bytes:
        return self._content


def _catalog(source: Source) -> None:
    name = source.take(source.number() % 16).decode("utf-8", "replace")
    with suppress(StoreError):
        find(_Store(source.rest()), name)  # type: ignore[arg-type]


_KINDS: list[Callable[[Source], None]] = [_chunk, _records, _format, _raw_archive, _archive, _catalog]


def run(data: bytes) -> None:
    source = Source(data)
    source.choose(_KINDS)(source)


def seeds() -> Iterator[bytes]:
    frames = [b"", b"frame", b"x" * 90]
    entries = [
        Entry(1, 5 + at, 1000, 900, 0, -1, 2, 7, 10 + at, 50 + sum(map(len, frames[: at + 1])), frame)
        for at, frame in enumerate(frames)
    ]
    (item,) = chunk.pack(entries)
    yield b"\0" + item[1]
    yield b"\0" + chunk.pack(entries[:1])[0][1]
    repacker = chunk.Repacker()
    repacker.add(1, 5, memoryview(item[1]), 0, 2)
    repacker.flush()
    yield b"\0" + repacker.items[0][1]
    name = b"1-2-0.lmdb"
    yield bytes([1, len(name)]) + name + msgspec.msgpack.encode([(1, 2, 3), (4, 5, 6)])
    yield bytes([1, len(name)]) + name + segment_records.OPEN
    yield b"\2" + format_text("0" * 32).encode()
    yield b"\2" + format_text("").encode()
    parts = b"\0" + sized(format_text("0" * 32).encode()) + b"\1" + sized(b"m") + b"\2" + sized(b"s")
    yield b"\4" + parts + b"\3" + sized(b"")
    yield b"\4" + parts + b"\3" + sized(b'{"format": "f", "version": "v", "begun_ms": 1, "files": {}}')
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w:gz") as tar:
        member = tarfile.TarInfo("FORMAT")
        content = format_text("0" * 32).encode()
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))
    yield b"\3" + written.getvalue()
    yield b"\5\1a" + b'{"name": "a", "upload": "u", "parts": [], "point_in_time_ms": 1}'
