"""Rewrites the live entries of neighbouring segments into one file that replaces them.

The copy is made under another name, synced, and renamed as the last step; only then, and after the event loop has
switched to it, are the originals unlinked. So whenever the process dies, the directory holds the originals, or the
successor (with some of the originals, which its numbers cover and the next start removes).

It goes in small steps with pauses, so that publishing gets its share of the interpreter and the disk.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import lmdb

from heliograph_broker.storage.base.damage import DamagedEntries

from .chunk import Repacker
from .segment import Segment

#: Copied without a pause (bytes): some 0.3 ms of the interpreter.
_STEP_BYTES = 256 * 1024
#: Committed and synced at once (bytes).
_SLICE_BYTES = 1024 * 1024
#: Maximum copy rate (bytes per second).
_RATE = 40 * 1024 * 1024

#: Pauses for some seconds; returns whether to go on.
Pause = Callable[[float], bool]
Wanted = Mapping[int, tuple[int, int]]


class Abandoned(Exception):
    """The store is being closed; the originals stay."""


class Rewriting:
    """One copy under way. :meth:`run` is called in the background, everything else on the event loop."""

    __slots__ = ("_due", "_pause", "_since_pause", "damaged", "sources", "successor", "wanted")

    def __init__(self, sources: Sequence[Segment], successor: Segment, pause: Pause) -> None:
        self.sources = sources
        self.successor = successor
        #: By source, ledger id -> first and last entry to copy.
        self.wanted: list[Wanted] = [source.wanted() for source in sources]
        #: Entries that could not be copied, by their source.
        self.damaged: dict[Segment, list[DamagedEntries]] = {}
        self._pause = pause
        self._since_pause = 0
        self._due = 0.0

    def run(self) -> Segment:
        """Return the successor, complete and synced under its final name.

        Raises :class:`Abandoned`, :class:`lmdb.Error` or :class:`OSError`; no part of a copy is left then.
        """
        path = self.successor.path
        disk = self.successor.disk
        temporary = path.with_suffix(".tmp")
        disk.remove(temporary)
        try:
            target = self.successor.create(temporary)
            try:
                self._copy(target)
                target.sync(True)
            finally:
                target.close()
            disk.rename(temporary, path)
        except BaseException:
            disk.remove(temporary)
            raise
        try:
            disk.sync_directory(path.parent)
            self.successor.load_runs()
        except BaseException:
            self.successor.close()
            raise
        return self.successor

    def _copy(self, target: lmdb.Environment) -> None:
        packer = Repacker()
        self._due = time.monotonic()
        taken = 0
        for ledger_id in sorted(set().union(*self.wanted)):
            for source, wanted in zip(self.sources, self.wanted, strict=True):
                if ledger_id not in wanted:
                    continue
                for value, first, low, high in self._readable(source, ledger_id, *wanted[ledger_id]):
                    size = packer.add(ledger_id, first, value, low, high)
                    taken += size
                    if taken >= _SLICE_BYTES:
                        self._put(target, packer)
                        taken = 0
                    self._yield_to_traffic(size)
        packer.flush()
        self._put(target, packer)

    def _readable(
        self, source: Segment, ledger_id: int, first: int, last: int
    ) -> Iterator[tuple[memoryview, int, int, int]]:
        """Yield the chunks of a source, verified, and skip damaged entries."""
        while first <= last:
            try:
                yield from source.reader.chunks(ledger_id, first, last)
            except DamagedEntries as error:
                # A new one: this one's traceback would keep the transaction and its place for readers.
                self.damaged.setdefault(source, []).append(error.within(error.last_entry))
                first = error.last_entry + 1
            else:
                return

    @staticmethod
    def _put(target: lmdb.Environment, packer: Repacker) -> None:
        if not packer.items:
            return
        with target.begin(write=True) as txn, txn.cursor() as cursor:
            cursor.putmulti(packer.items, append=True)
        target.sync(True)
        packer.items.clear()

    def _yield_to_traffic(self, size: int) -> None:
        """Pause after every step, for as long as the rate asks for and at least as long as the step took."""
        self._since_pause += size
        if self._since_pause < _STEP_BYTES:
            return
        now = time.monotonic()
        self._due = max(self._due + self._since_pause / _RATE, now + 0.001)
        self._since_pause = 0
        if not self._pause(self._due - now):
            raise Abandoned("the store is being closed")
