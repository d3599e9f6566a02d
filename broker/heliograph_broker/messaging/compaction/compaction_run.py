"""One compaction under way: two passes over a topic, the result in a ledger of its own.

The source is what the last compaction left, and what came after it, up to the topic's end when the run began. It is
read in slices; keys are found, and batches rebuilt, on the store's background thread in jobs of a millisecond or
so, between which the event loop has its turn. A slice of the second pass is durable before the next is read. Nothing
refers to the new ledger until it is complete: a run that fails, or that a crash ends, leaves the last compaction as
it was.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import structlog

from heliograph_broker.messaging.base.records import CompactionRecord
from heliograph_broker.messaging.log.damaged import lost_range
from heliograph_broker.storage.base.completion import Completion
from heliograph_broker.storage.base.damage import DamagedEntries
from heliograph_broker.storage.base.entry import Entry

from .compacted_ledger import CompactedEntry, CompactedLedger, pack
from .latest_keys import LatestKeys

if TYPE_CHECKING:
    from heliograph_broker.messaging.log.subscribed_topic import SubscribedTopic

log = structlog.get_logger(__name__)

#: Limits of one read (entries, bytes of frames); a single larger entry comes whole.
SLICE_ENTRIES = 500
SLICE_BYTES = 256 * 1024
#: After so many messages a job ends: the threads share one interpreter, and a longer one would be felt by traffic.
JOB_MESSAGES = 256


class Cancelled(Exception):
    """The topic, or its compaction, went away."""


class CompactionRun:
    """Call :meth:`start` once; ``done`` gets the record of the new ledger, or what went wrong.

    It owns the new ledger until then and lets it go if it fails.
    """

    def __init__(
        self,
        topic: SubscribedTopic,
        previous: CompactedLedger | None,
        *,
        retain_null_key: bool,
        done: Completion[CompactionRecord],
    ) -> None:
        self._topic = topic
        self._store = topic.host.store
        self._previous = previous
        self._done = done
        self._keys = LatestKeys(retain_null_key=retain_null_key)
        self._horizon = -1
        self._total_messages = 0
        self._total_bytes = 0
        self._selecting = False
        self._cancelled = False
        self._finished = False
        #: The read position: an index of the previous ledger, then an offset of the topic.
        self._index = 0
        self._offset = 0
        #: The part of the slice that was not examined yet, and the kept part of the rest.
        self._slice: deque[CompactedEntry] = deque()
        self._kept: list[CompactedEntry] = []
        self._ledger_id = -1
        self._entries = 0
        self._bytes = 0
        self._waiting = 0
        self._bases: list[tuple[int, int]] = []
        self._last_offset = -1
        self._stepping = False
        self._step_again = False
        self.read_bytes = 0

    @property
    def removed(self) -> int:
        """Messages left out so far."""
        return self._keys.removed

    @property
    def written_bytes(self) -> int:
        return self._bytes

    def start(self) -> None:
        topic = self._topic
        self._horizon = topic.log.end_offset - 1
        self._total_messages = topic.log.total_messages
        self._total_bytes = topic.log.total_bytes
        self._rewind()
        self._step()

    def cancel(self) -> None:
        """End as soon as the operation under way has ended; ``done`` gets :class:`Cancelled`."""
        self._cancelled = True

    def _rewind(self) -> None:
        previous = self._previous
        self._index = 0
        self._offset = self._topic.log.first_offset
        if previous is not None:
            self._offset = max(self._offset, previous.horizon + 1)

    # -- steps -------------------------------------------------------------------------------------------------

    def _step(self) -> None:
        """Begin the next operation; each calls here again when it is done, perhaps before this returns."""
        self._step_again = True
        if self._stepping:
            return
        self._stepping = True
        try:
            while self._step_again and not self._finished:
                self._step_again = False
                self._begin()
        except Exception as error:
            log.exception("compaction failed", topic=str(self._topic.name))
            self._finish(error)
        finally:
            self._stepping = False

    def _begin(self) -> None:
        if self._cancelled or self._topic.closed or self._store.closed:
            self._finish(Cancelled("the topic's compaction was cancelled"))
        elif self._slice:
            self._process()
        elif self._kept:
            self._write()
        elif self._previous is not None and self._index < self._previous.entries:
            self._previous.read(self._index, SLICE_ENTRIES, SLICE_BYTES, self._take)
        elif self._offset <= self._horizon:
            self._topic.log.read(self._offset, SLICE_ENTRIES, SLICE_BYTES, self._take_originals)
        elif not self._selecting:
            self._selecting = True
            self._rewind()
            self._step_again = True
        else:
            self._finish(self._record())

    def _take_originals(self, result: list[Entry] | Exception) -> None:
        if isinstance(result, Exception):
            self._take(result)
        else:
            self._take([CompactedEntry(entry, len(entry.frame), None) for entry in result])

    def _take(self, result: list[CompactedEntry] | Exception) -> None:
        """Take a slice that was read."""
        try:
            around = self._goes_around(result)
        except Exception as error:
            self._finish(error)
            return
        if around:
            self._step()
            return
        if isinstance(result, Exception) or not result:
            self._finish(OSError(f"cannot read the topic: {result or 'an entry is missing'}"))
            return
        if self._previous is not None and self._index < self._previous.entries:
            self._index += len(result)
        else:
            result = [source for source in result if source.entry.offset <= self._horizon]
            self._offset = result[-1].entry.offset + 1
        self.read_bytes += sum(len(source.entry.frame) for source in result)
        self._slice.extend(result)
        self._step()

    def _goes_around(self, result: Sequence[object] | Exception) -> bool:
        """Continue after damaged entries, in both passes alike: their messages belong to no key any more."""
        if self._previous is not None and self._index < self._previous.entries:
            if not isinstance(result, DamagedEntries):
                return False
            log.error("compacted entries are lost", topic=str(self._topic.name), reason=str(result))
            self._index = result.last_entry + 1
            return True
        lost = lost_range(self._topic.log, self._offset, result)
        if lost is None:
            return False
        last, reason = min(lost[0], self._horizon), lost[1]
        self._topic.log.damaged.add(self._offset, last, reason)
        self._offset = last + 1
        return True

    def _process(self) -> None:
        """Look at some of the slice in the background."""
        job: list[CompactedEntry] = []
        messages = 0
        while self._slice and messages < JOB_MESSAGES:
            job.append(self._slice.popleft())
            messages += job[-1].entry.messages
        # Nothing else touches the keys while the job runs.
        if self._selecting:
            self._store.work(lambda: self._select(job), self._selected)
        else:
            self._store.work(lambda: self._scan(job), self._scanned)

    def _scan(self, sources: Sequence[CompactedEntry]) -> None:
        for source in sources:
            self._keys.scan(source)

    def _scanned(self, result: Exception | None) -> None:
        if isinstance(result, Exception):
            self._finish(result)
        else:
            self._step()

    def _select(self, sources: Sequence[CompactedEntry]) -> list[CompactedEntry]:
        return [kept for source in sources if (kept := self._keys.select(source)) is not None]

    def _selected(self, result: list[CompactedEntry] | Exception) -> None:
        if isinstance(result, Exception):
            self._finish(result)
        else:
            self._kept += result
            self._step()

    def _write(self) -> None:
        """Append what stays of the slice to the new ledger; :meth:`entries_durable` goes on from there."""
        kept, self._kept = self._kept, []
        if self._ledger_id < 0:
            self._ledger_id = self._store.ledgers.begin_provisional()
        self._waiting = len(kept)
        for each in kept:
            original = each.entry
            if not self._bases or self._bases[-1][0] != original.ledger_id:
                self._bases.append((original.ledger_id, original.offset - original.entry_id))
            entry = pack(each, self._ledger_id, self._entries, self._bytes)
            self._entries += 1
            self._bytes = entry.total_bytes
            self._last_offset = original.offset
            self._store.writer.append(self, entry)

    def entries_durable(self, entries: list[Entry]) -> None:
        """Continue after the new ledger's entries are synced."""
        self._waiting -= len(entries)
        if not self._waiting:
            self._step()

    def entries_failed(self, entries: list[Entry], error: Exception) -> None:
        """The disk is full or broken: the run is over, its ledger of no use."""
        self._finish(error)

    def _record(self) -> CompactionRecord:
        return CompactionRecord(
            ledger_id=self._ledger_id,
            horizon=self._horizon,
            entries=self._entries,
            size=self._bytes,
            ledgers=self._bases,
            last_offset=self._last_offset,
            last_batch_index=self._keys.last_batch_index,
            total_messages=self._total_messages,
            total_bytes=self._total_bytes,
        )

    def _finish(self, result: CompactionRecord | Exception) -> None:
        if self._finished:
            return
        self._finished = True
        if isinstance(result, Exception) and self._ledger_id >= 0:
            self._store.ledgers.delete(self._ledger_id)
        self._done(result)


class CompactionQueue:
    """Runs the compactions of a broker's topics one after the other: their key maps are not all in memory at once."""

    __slots__ = ("_running", "_waiting")

    def __init__(self) -> None:
        self._running: CompactionRun | None = None
        self._waiting: deque[CompactionRun] = deque()

    def submit(self, run: CompactionRun) -> None:
        """Begin ``run`` now, or when those before it are done."""
        if self._running is None:
            self._running = run
            run.start()
        else:
            self._waiting.append(run)

    def finished(self, run: CompactionRun) -> None:
        """Start the next run after ``run`` has ended."""
        if self._running is not run:
            if run in self._waiting:
                self._waiting.remove(run)
            return
        self._running = self._waiting.popleft() if self._waiting else None
        if self._running is not None:
            self._running.start()
