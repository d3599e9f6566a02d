"""A segment: one LMDB environment that holds entries of many ledgers, written once and then only read.

Keys are ``ledger id · entry id`` (big-endian u64s), so a ledger's entries lie together in order. The file is named
``<order>-<generation>.lmdb``; rewriting a segment without its dead entries makes the next generation, which takes
its place by an atomic rename. At start the highest generation of each order counts and the others are removed.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import lmdb

from .data_dir import sync_directory
from .entry import HEADER, Entry, EntryHeader, decode_entry, decode_header

_KEY = struct.Struct(">QQ")

T = TypeVar("T")


class Run:
    """The entries ``first..last`` of one ledger in a segment; those from ``live_from`` on are still wanted.

    ``size`` counts their frames' bytes. Live bytes are estimated by the share of live entries.
    """

    __slots__ = ("first", "last", "live_from", "size")

    def __init__(self, first: int, last: int, size: int) -> None:
        self.first = first
        self.last = last
        self.size = size
        self.live_from = first

    @property
    def live_bytes(self) -> int:
        count = self.last - self.first + 1
        return self.size * max(0, self.last - self.live_from + 1) // count


class Segment:
    """One environment. ``runs`` and the byte counts belong to the event loop, the rest to whoever is named.

    The writer thread alone calls :meth:`write`; reader threads call the read methods between :meth:`acquire` and
    :meth:`release` of the loop, which keep the environment open under them.
    """

    __slots__ = ("_env", "_map_size", "_readers", "_retired", "generation", "order", "path", "runs", "written_bytes")

    def __init__(self, directory: Path, order: int, generation: int, map_size: int) -> None:
        self.order = order
        self.generation = generation
        self.path = directory / f"{order:08d}-{generation:04d}.lmdb"
        self.runs: dict[int, Run] = {}
        self.written_bytes = 0
        self._map_size = map_size
        self._env: lmdb.Environment | None = None
        self._readers = 0
        self._retired = False

    @property
    def live_bytes(self) -> int:
        return sum(run.live_bytes for run in self.runs.values())

    def environment(self) -> lmdb.Environment:
        """Return the environment, created or opened at first use."""
        if self._env is None:
            created = not self.path.exists()
            self._env = lmdb.open(
                str(self.path),
                map_size=self._map_size,
                subdir=False,
                lock=True,
                max_readers=64,
                metasync=True,
                sync=True,
            )
            if created:
                sync_directory(self.path.parent)
        return self._env

    def load_runs(self) -> None:
        """Find every ledger's first and last entry: two seeks a ledger."""
        with self.environment().begin(buffers=True) as txn, txn.cursor() as cursor:
            found = cursor.first()
            while found:
                ledger_id, first = _KEY.unpack(cursor.key())
                opening = decode_header(first, cursor.value())
                if not cursor.set_range(_KEY.pack(ledger_id + 1, 0)):
                    cursor.last()
                else:
                    cursor.prev()
                last = _KEY.unpack(cursor.key())[1]
                closing = decode_header(last, cursor.value())
                run = Run(first, last, closing.total_bytes - opening.total_bytes + opening.size)
                self.runs[ledger_id] = run
                self.written_bytes += run.size
                found = cursor.next()

    def write(self, entries: Sequence[Entry]) -> None:
        """Commit and sync ``entries`` as one transaction. Raises :class:`lmdb.Error` or :class:`OSError`."""
        key, header = _KEY.pack, HEADER.pack
        items = [
            (
                key(e.ledger_id, e.entry_id),
                header(
                    e.receive_ms,
                    e.publish_ms,
                    e.deliver_at_ms,
                    e.ttl_ms,
                    e.total_messages,
                    e.total_bytes,
                    e.messages,
                    e.key_hash,
                )
                + e.frame,
            )
            for e in entries
        ]
        with self.environment().begin(write=True) as txn, txn.cursor() as cursor:
            cursor.putmulti(items)

    def added(self, entries: Sequence[Entry]) -> None:
        """Account for entries that :meth:`write` made durable."""
        runs = self.runs
        total = 0
        for entry in entries:
            size = len(entry.frame)
            total += size
            run = runs.get(entry.ledger_id)
            if run is None:
                runs[entry.ledger_id] = Run(entry.entry_id, entry.entry_id, size)
            else:
                run.last = entry.entry_id
                run.size += size
        self.written_bytes += total

    # -- readers ---------------------------------------------------------------------------------------------

    def acquire(self) -> None:
        self._readers += 1

    def release(self) -> None:
        self._readers -= 1
        if self._retired and self._readers == 0:
            self._close()

    def retire(self) -> bool:
        """Close the environment as soon as nobody reads; return whether that is already so."""
        self._retired = True
        if self._readers == 0:
            self._close()
            return True
        return False

    def _close(self) -> None:
        if self._env is not None:
            self._env.close()
            self._env = None

    def read_entries(self, ledger_id: int, first: int, last: int, max_bytes: int) -> list[Entry]:
        """Return entries ``first..last`` up to ``max_bytes`` of frames, at least one if there is one."""
        found: list[Entry] = []
        taken = 0
        with self.environment().begin(buffers=True) as txn, txn.cursor() as cursor:
            if not cursor.set_range(_KEY.pack(ledger_id, first)):
                return found
            for key, value in cursor:
                ledger, entry_id = _KEY.unpack(key)
                if ledger != ledger_id or entry_id > last:
                    break
                taken += len(value) - HEADER.size
                if found and taken > max_bytes:
                    break
                found.append(decode_entry(ledger_id, entry_id, value))
        return found

    def read_headers(self, ledger_id: int, first: int, last: int) -> list[EntryHeader]:
        """Return the headers of entries ``first..last``."""
        found: list[EntryHeader] = []
        with self.environment().begin(buffers=True) as txn, txn.cursor() as cursor:
            if not cursor.set_range(_KEY.pack(ledger_id, first)):
                return found
            for key, value in cursor:
                ledger, entry_id = _KEY.unpack(key)
                if ledger != ledger_id or entry_id > last:
                    break
                found.append(decode_header(entry_id, value))
        return found

    def map_frames(
        self, ledger_id: int, first: int, last: int, function: Callable[[memoryview], T]
    ) -> list[tuple[int, T]]:
        """Return (entry id, ``function`` of the frame) of entries ``first..last``."""
        found: list[tuple[int, T]] = []
        with self.environment().begin(buffers=True) as txn, txn.cursor() as cursor:
            if not cursor.set_range(_KEY.pack(ledger_id, first)):
                return found
            for key, value in cursor:
                ledger, entry_id = _KEY.unpack(key)
                if ledger != ledger_id or entry_id > last:
                    break
                found.append((entry_id, function(memoryview(value)[HEADER.size :])))
        return found

    def header(self, ledger_id: int, entry_id: int) -> EntryHeader | None:
        with self.environment().begin(buffers=True) as txn:
            value = txn.get(_KEY.pack(ledger_id, entry_id))
            return None if value is None else decode_header(entry_id, value)

    def rewrite(self, wanted: Mapping[int, tuple[int, int]]) -> Segment:
        """Copy the ``wanted`` entries (ledger id -> first, last) into the next generation and sync it.

        The new file is there under its final name when this returns; the caller switches over and removes the old.
        """
        successor = Segment(self.path.parent, self.order, self.generation + 1, self._map_size)
        temporary = successor.path.with_suffix(".tmp")
        temporary.unlink(missing_ok=True)
        target = lmdb.open(str(temporary), map_size=self._map_size, subdir=False, lock=False, sync=False)
        try:
            with self.environment().begin(buffers=True) as source, source.cursor() as reader:
                for ledger_id in sorted(wanted):
                    first, last = wanted[ledger_id]
                    self._copy(reader, target, ledger_id, first, last)
            target.sync(True)
        finally:
            target.close()
        temporary.with_name(temporary.name + "-lock").unlink(missing_ok=True)
        temporary.rename(successor.path)
        sync_directory(self.path.parent)
        successor.load_runs()
        return successor

    @staticmethod
    def _copy(reader: lmdb.Cursor, target: lmdb.Environment, ledger_id: int, first: int, last: int) -> None:
        """Copy in transactions of a few MiB, so that dirty pages stay few."""
        more = reader.set_range(_KEY.pack(ledger_id, first))
        while more:
            taken = 0
            with target.begin(write=True) as txn:
                while more and taken < 4 * 1024 * 1024:
                    key, value = reader.item()
                    ledger, entry_id = _KEY.unpack(key)
                    if ledger != ledger_id or entry_id > last:
                        more = False
                        break
                    txn.put(bytes(key), bytes(value), append=True)
                    taken += len(value)
                    more = reader.next()

    def remove_files(self) -> None:
        """Unlink the segment's files; call it off the event loop."""
        self.path.unlink(missing_ok=True)
        self.path.with_name(self.path.name + "-lock").unlink(missing_ok=True)
