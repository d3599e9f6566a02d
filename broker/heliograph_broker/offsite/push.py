"""Uploads the backup of a running broker in parts, while the broker makes it; little of it is in memory at a time."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import secrets
import tarfile
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, suppress
from types import TracebackType
from typing import Final, Self

from heliograph_api.admin.admin_client import AdminClient

from heliograph_broker.storage.copies.backup import FORMAT_NAME, BackupError, Manifest
from heliograph_broker.storage.copies.restore import check_stream
from heliograph_broker.storage.disk.identity import Format, parse_format

from . import catalog
from .catalog import BackupRecord, Begun, Part
from .object_store import ObjectStore, StoreError

_PATH: Final = "/heliograph/v1/backup"
_SLICE: Final = 1024 * 1024


class _Check:
    """Reads the tar in a thread while it passes by: that it is complete, and each file what the tar's manifest says."""

    def __init__(self, label: str) -> None:
        self._reading, self._writing = os.pipe()
        self._label = label
        self._manifest: Manifest | None = None
        self._error: BackupError | None = None
        self._thread = threading.Thread(target=self._run, name="backup-check")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def feed(self, content: bytes) -> None:
        """Pass on the next bytes. Raises :class:`BackupError` if they cannot be of a backup."""
        view = memoryview(content)
        try:
            while view:
                view = view[os.write(self._writing, view[:_SLICE]) :]
        except BrokenPipeError:
            self.result()

    def result(self) -> Manifest:
        """Return the tar's manifest after its end. Raises :class:`BackupError`."""
        self._end()
        if self._error is not None:
            raise self._error
        assert self._manifest is not None
        return self._manifest

    def _end(self) -> None:
        if self._writing >= 0:
            os.close(self._writing)
            self._writing = -1
        self._thread.join()

    def _run(self) -> None:
        with open(self._reading, "rb") as file:
            try:
                self._manifest = check_stream(file, self._label)
                # The end of a tar is padded.
                while file.read(_SLICE):
                    pass
            except BackupError as error:
                self._error = error


async def push(
    client: AdminClient,
    store: ObjectStore,
    name: str,
    source: str | None,
    progress: Callable[[int], None] = lambda sent: None,
    *,
    again: bool = False,
) -> BackupRecord:
    """Upload a backup of ``client``'s broker as ``name``; ``progress`` gets the bytes uploaded so far.

    ``source`` is by default the id of the broker's store. What interrupted uploads of the same source left is deleted
    first. With ``again``, a complete backup of the same name and source is returned. Raises :class:`StoreError`,
    :class:`BackupError` and what the client raises; what was uploaded until then is no backup.
    """
    if name == catalog.LATEST:
        raise StoreError(f"{name} stands for the newest backup and cannot be the name of one; choose another name")
    existing = await asyncio.to_thread(catalog.find, store, name)
    if existing is not None and (not again or source not in (None, existing.source)):
        raise catalog.taken(store, name)
    if existing is not None and source is not None:
        return existing
    before = await _topics(client)
    parts: list[Part] = []
    mine: Begun | None = None
    with _Check(f"the broker's backup for {name}") as check:
        async with aclosing(client.stream(_PATH)) as stream, aclosing(_in_parts(stream, check)) as contents:
            async for content in contents:
                if mine is None:
                    mine = Begun(source or _store_id(content), secrets.token_hex(8))
                    if existing is not None:
                        if existing.source != mine.source:
                            raise catalog.taken(store, name)
                        return existing
                    # The broker makes one backup at a time: whatever else is unfinished here is no longer written to.
                    await asyncio.to_thread(catalog.delete_interrupted, store, mine)
                    await asyncio.to_thread(catalog.claim, store, name, mine)
                await asyncio.to_thread(catalog.check_claim, store, name, mine)
                await asyncio.to_thread(store.put, catalog.part_path(name, len(parts) + 1, mine.upload), content)
                parts.append(Part(len(content), hashlib.sha256(content).hexdigest()))
                progress(sum(part.size for part in parts))
        manifest = check.result()
    # A tar that is whole has a first part.
    assert mine is not None
    after = await _topics(client)
    record = BackupRecord(
        name=name,
        source=mine.source,
        point_in_time_ms=manifest.begun_ms,
        completed_ms=int(time.time() * 1000),
        version=manifest.version,
        format=manifest.format,
        size=sum(part.size for part in parts),
        parts=parts,
        topics={topic: sorted(before[topic] & after[topic]) for topic in sorted(before.keys() & after.keys())},
        damaged=manifest.damaged,
        upload=mine.upload,
    )
    await asyncio.to_thread(catalog.complete, store, record, mine)
    return record


def _store_id(first: bytes) -> str:
    """Return the id of the store whose tar begins with ``first``. Raises :class:`BackupError` if there is none."""
    found: Format | None = None
    with suppress(tarfile.TarError), tarfile.open(fileobj=io.BytesIO(first), mode="r|") as tar:
        member = tar.next()
        if member is not None and member.name == FORMAT_NAME and (file := tar.extractfile(member)) is not None:
            found = parse_format(file.read().decode(errors="replace"))
    if found is None or not found.store_id:
        raise BackupError("what the broker sends does not begin with the id of its store; name it with --source")
    return found.store_id


async def _in_parts(stream: AsyncIterator[bytes], check: _Check) -> AsyncGenerator[bytes]:
    buffer = bytearray()
    async for content in stream:
        check.feed(content)
        buffer += content
        while len(buffer) >= catalog.PART_BYTES:
            yield bytes(buffer[: catalog.PART_BYTES])
            del buffer[: catalog.PART_BYTES]
    if buffer:
        yield bytes(buffer)


async def _topics(client: AdminClient) -> dict[str, set[str]]:
    """Return the stored topics of the broker, partitions by their own names, each with its subscriptions."""
    found: dict[str, set[str]] = {}
    for name, topic in (await client.state()).topics.items():
        if not name.startswith("persistent://"):
            continue
        missing = set(topic.missing_partitions)
        own = [f"{name}-partition-{number}" for number in range(topic.partitions) if number not in missing]
        for each in own or [name]:
            found[each] = set(topic.behind)
    return found
