"""The log of a topic: its ledgers in the store, the place of each entry, and how entries are read.

Entries are addressed inside the core by *offset*, the dense index of an entry in its topic; clients see
(ledger id, entry id). :meth:`EntryLog.offset_of` and :meth:`EntryLog.position` map one to the other.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import structlog
from heliograph_api.values.names import TopicName

from heliograph_broker.clock import STEP_MS, monotonic_ms
from heliograph_broker.messaging.base import records
from heliograph_broker.messaging.base.entry_counts import EntryCounts
from heliograph_broker.messaging.base.histograms import TopicMetrics
from heliograph_broker.messaging.base.tail_cache import TopicTail
from heliograph_broker.storage.base.completion import Completion
from heliograph_broker.storage.base.damage import DamagedEntries
from heliograph_broker.storage.base.entry import Entry, EntryHeader
from heliograph_broker.storage.base.tombstones import Tombstone

from .damaged import DamagedList, LogView, totals_up_to, whole_runs

if TYPE_CHECKING:
    from heliograph_broker.messaging.base.log_host import LogHost

    from .record_set import Part, RecordSet

log = structlog.get_logger(__name__)

T = TypeVar("T")

_HEADERS_AT_ONCE = 10_000
_NO_LATEST_MS = 1 << 63


class LedgerInfo:
    """A ledger: entries ``base_offset .. base_offset + entries - 1`` of the topic.

    ``base_bytes`` are the topic's bytes before its first entry. ``opened_ms`` is when it was begun by monotonic time:
    setting the machine's clock must not close it.
    """

    __slots__ = ("base_bytes", "base_offset", "closed", "created_ms", "entries", "ledger_id", "opened_ms", "shift_ms")

    def __init__(
        self,
        ledger_id: int,
        base_offset: int,
        created_ms: int,
        opened_ms: int,
        entries: int = 0,
        base_bytes: int = 0,
        shift_ms: int = 0,
        *,
        closed: bool = False,
    ) -> None:
        #: Whether the next entry begins another ledger, however little is in this one.
        self.closed = closed
        self.ledger_id = ledger_id
        self.base_offset = base_offset
        self.created_ms = created_ms
        self.opened_ms = opened_ms
        #: Entries assigned, the ones not durable yet included.
        self.entries = entries
        self.base_bytes = base_bytes
        #: Shift of the clock since then: to be added to ``created_ms`` and the receive times of its entries.
        self.shift_ms = shift_ms


class EntryLog(LogView):
    """See the module. ``end_offset`` is one beyond the last durable entry, ``first_offset`` the first one kept.

    ``next_offset``, ``next_messages`` and ``next_bytes`` count submitted entries, durable or not.
    """

    __slots__ = (
        "_bases",
        "_by_id",
        "_latest_ms",
        "_topic_record",
        "damaged",
        "end_offset",
        "first_offset",
        "host",
        "last_receive_ms",
        "ledgers",
        "metrics",
        "name",
        "next_bytes",
        "next_messages",
        "next_offset",
        "records",
        "tail",
        "total_bytes",
        "total_messages",
        "trimmed_bytes",
        "trimmed_messages",
    )

    def __init__(
        self,
        host: LogHost,
        name: TopicName,
        record: records.TopicRecord,
        record_set: RecordSet,
        topic_record: Part,
    ) -> None:
        """Restore the log from ``record``. ``topic_record`` is the part of ``record_set`` that lists the ledgers."""
        self.host = host
        self.name = name
        self.records = record_set
        self._topic_record = topic_record
        self.damaged = DamagedList(self)
        self.tail = TopicTail()
        self.metrics = TopicMetrics()
        self.last_receive_ms = 0
        self.first_offset = record.first_offset
        self.trimmed_messages = record.trimmed_messages
        self.trimmed_bytes = record.trimmed_bytes
        self.ledgers: list[LedgerInfo] = []
        base = record.base_offset
        clock = host.clock
        for ledger in record.ledgers:
            opened_ms = monotonic_ms(clock) - max(0, clock.now_ms() - ledger.created_ms - ledger.shift_ms)
            self.ledgers.append(
                # Nothing is appended to it any more, as in Pulsar: if its last entries were lost with a file, ids that
                # clients hold would be given again.
                LedgerInfo(
                    ledger.ledger_id,
                    base,
                    ledger.created_ms,
                    opened_ms,
                    ledger.entries,
                    shift_ms=ledger.shift_ms,
                    closed=True,
                )
            )
            base += ledger.entries
        self._index_ledgers()
        self.total_messages = record.trimmed_messages
        self.total_bytes = record.trimmed_bytes
        self.end_offset = self.first_offset
        self._recover_end()
        if self.ledgers:
            self.ledgers[-1].base_bytes = self.totals_at(self.ledgers[-1].base_offset)[1]
        self.next_offset = self.end_offset
        self.next_messages = self.total_messages
        self.next_bytes = self.total_bytes
        now = clock.now_ms()
        if self.last_receive_ms > now + STEP_MS:
            # The clock was ahead, or is behind now. The next entry counts as later than all of them, whatever its
            # timestamps.
            self._roll_ledger(now)
            self.last_receive_ms = now

    def ledgers_changed(self) -> None:
        """Make the list of ledgers durable before anything that is published from now on."""
        self.records.commit(self._topic_record)

    def _recover_end(self) -> None:
        """Find the last durable entry and correct the counts of ledgers that a crash cut short.

        A ledger's record may be durable although the last entries of the ledger before it never became so.
        """
        store = self.host.store
        for ledger in reversed(self.ledgers):
            bounds = store.segments.bounds(ledger.ledger_id)
            if bounds is None or ledger.base_offset + bounds[1] < self.first_offset:
                continue
            self.end_offset = max(self.end_offset, ledger.base_offset + bounds[1] + 1)
            found = self._last_header(ledger.ledger_id, *bounds)
            if found is not None:
                # Nothing is known of entries after it whose headers are lost, so they are not counted.
                self.total_messages = found.total_messages
                self.total_bytes = found.total_bytes
                self.last_receive_ms = self.received_ms(self.end_offset - 1, found.receive_ms)
                break
        counts = [ledger.entries for ledger in self.ledgers[:-1]]
        self._fit_ledgers_to(self.end_offset)
        if counts != [ledger.entries for ledger in self.ledgers[:-1]]:
            # Durable before anything is published again: later ledgers would else be placed behind entries that
            # do not exist at the next start.
            self.ledgers_changed()

    def _last_header(self, ledger_id: int, first: int, last: int) -> EntryHeader | None:
        """Return the header of the last entry of ``first..last`` that is not lost."""
        for entry_id in range(last, first - 1, -1):
            try:
                header = self.host.store.reader.header(ledger_id, entry_id)
            except DamagedEntries:
                continue
            if header is not None:
                return header
        return None

    def _fit_ledgers_to(self, end_offset: int) -> None:
        """Make the ledgers hold exactly the entries below ``end_offset``."""
        base = self.ledgers[0].base_offset if self.ledgers else 0
        for ledger in self.ledgers:
            ledger.base_offset = base
            room = max(0, end_offset - base)
            ledger.entries = room if ledger is self.ledgers[-1] else min(ledger.entries, room)
            ledger.base_bytes = min(ledger.base_bytes, self.total_bytes)
            base += ledger.entries
        self._index_ledgers()

    def _index_ledgers(self) -> None:
        self._bases = [ledger.base_offset for ledger in self.ledgers]
        self._by_id = {ledger.ledger_id: ledger for ledger in self.ledgers}
        #: The latest that an entry of each ledger can have been received: before those of all later ledgers.
        self._latest_ms: list[int] = []
        latest = _NO_LATEST_MS
        for ledger in reversed(self.ledgers):
            self._latest_ms.append(latest)
            latest = min(latest, ledger.created_ms + ledger.shift_ms)
        self._latest_ms.reverse()

    def received_ms(self, offset: int, stamp_ms: int) -> int:
        """Return when the entry at ``offset``, whose header says ``stamp_ms``, was received by the clock as it is now.

        These times never go back along the topic, whatever happened to the machine's clock and in whichever life of
        the broker: expiry and retention search by them.
        """
        if len(self.ledgers) == 1:
            return stamp_ms + self.ledgers[0].shift_ms
        index = max(0, bisect_right(self._bases, offset) - 1)
        return min(stamp_ms + self.ledgers[index].shift_ms, self._latest_ms[index])

    def clock_moved(self, ms: int) -> None:
        """The broker's clock was moved by ``ms``: received messages keep their age."""
        for ledger in self.ledgers:
            ledger.shift_ms += ms
            # Its entries were stamped before the clock was moved: it gets no others.
            ledger.closed = True
        self.last_receive_ms += ms
        self._index_ledgers()
        self.ledgers_changed()

    @property
    def stored_messages(self) -> int:
        """Messages still kept: the backlog of the slowest subscription and what retention holds beyond it."""
        return self.total_messages - self.trimmed_messages

    @property
    def stored_bytes(self) -> int:
        """Bytes of the messages still kept."""
        return self.total_bytes - self.trimmed_bytes

    @property
    def has_in_flight(self) -> bool:
        """Whether entries were submitted that are not durable yet."""
        return self.next_offset > self.end_offset

    @property
    def base_offset(self) -> int:
        """The offset of the first entry of the first ledger, kept or not."""
        return self.ledgers[0].base_offset if self.ledgers else self.end_offset

    def ledger_records(self) -> list[records.LedgerRecord]:
        """Return the ledgers as the topic's record keeps them; the number of entries of the open one is not kept."""
        open_ledger = self.ledgers[-1] if self.ledgers else None
        return [
            records.LedgerRecord(
                ledger.ledger_id, ledger.created_ms, 0 if ledger is open_ledger else ledger.entries, ledger.shift_ms
            )
            for ledger in self.ledgers
        ]

    # -- positions -------------------------------------------------------------------------------------------

    def position(self, offset: int) -> tuple[int, int]:
        """Return (ledger id, entry id) of ``offset``; entry id -1 stands for "before the first of the ledger"."""
        if not self.ledgers:
            return -1, -1
        index = bisect_right(self._bases, offset) - 1
        if index < 0:
            return self.ledgers[0].ledger_id, -1
        ledger = self.ledgers[index]
        return ledger.ledger_id, offset - ledger.base_offset

    def offset_of(self, ledger_id: int, entry_id: int) -> int | None:
        """Return the offset of a stored, durable entry; None if it is trimmed, unknown or not there yet."""
        ledger = self._by_id.get(ledger_id)
        if ledger is None:
            return None
        offset = ledger.base_offset + entry_id
        if not 0 <= entry_id < ledger.entries or not self.first_offset <= offset < self.end_offset:
            return None
        return offset

    def offset_at_or_after(self, ledger_id: int, entry_id: int) -> int:
        """Return the offset of the first kept entry at or after a position, whatever it names; the end if none is."""
        for ledger in self.ledgers:
            if ledger.ledger_id > ledger_id:
                return max(self.first_offset, ledger.base_offset)
            if ledger.ledger_id == ledger_id:
                within = min(max(entry_id, 0), ledger.entries)
                return min(max(self.first_offset, ledger.base_offset + within), self.end_offset)
        return self.end_offset

    def last_position(self) -> tuple[int, int]:
        """Return (ledger id, entry id) of the last durable entry, entry id -1 if there never was one in its ledger."""
        return self.position(self.end_offset - 1)

    def retain_in_store(self) -> dict[int, int]:
        """Return ledger id -> first entry kept, for the store's clean-up at start."""
        return {ledger.ledger_id: max(0, self.first_offset - ledger.base_offset) for ledger in self.ledgers}

    # -- growing ---------------------------------------------------------------------------------------------

    def must_roll(self, ledger: LedgerInfo, now_ms: float) -> bool:
        """Whether the open ``ledger`` is full or old enough (monotonic ms) for the next entry to begin another one."""
        config = self.host.config
        if ledger.entries == 0:
            return False
        return (
            ledger.entries >= config.ledger_max_entries
            or self.next_bytes - ledger.base_bytes >= config.ledger_max_bytes
            or now_ms - ledger.opened_ms >= config.ledger_max_age_ms
        )

    def open_ledger(self, now: int, now_ms: float) -> LedgerInfo:
        """Return the ledger of the next entry, a new one if need be (``now``: wall clock, ``now_ms``: monotonic)."""
        ledgers = self.ledgers
        if not ledgers or ledgers[-1].closed or self.must_roll(ledgers[-1], now_ms):
            self._roll_ledger(now)
        return ledgers[-1]

    def _roll_ledger(self, now: int) -> None:
        """Close the open ledger and begin the next; its record is durable before the first receipt from it."""
        ledger = LedgerInfo(
            self.host.store.ledger_ids.next(),
            self.next_offset,
            now,
            monotonic_ms(self.host.clock),
            base_bytes=self.next_bytes,
        )
        self.ledgers.append(ledger)
        self._index_ledgers()
        self.ledgers_changed()

    def entries_durable(self, entries: list[Entry]) -> None:
        """A group of submitted entries is synced."""
        last = entries[-1]
        self.end_offset = last.offset + 1
        self.total_messages = last.total_messages
        self.total_bytes = last.total_bytes
        host = self.host
        self.metrics.entries_durable(entries, host.clock.monotonic(), host.store.writer.stats.commit_s, host.metrics)

    def submitted_lost(self) -> None:
        """No submitted entry became durable: the next one gets the offset of the first of them."""
        self.next_offset = self.end_offset
        self.next_messages = self.total_messages
        self.next_bytes = self.total_bytes
        self._fit_ledgers_to(self.end_offset)
        self.ledgers_changed()

    # -- shrinking -------------------------------------------------------------------------------------------

    def trimmable(self, offset: int) -> int:
        """Return up to where :meth:`trim` can delete if everything below ``offset`` may go."""
        return whole_runs(self, min(offset, self.end_offset))

    def trim(self, offset: int) -> list[LedgerInfo]:
        """Forget the entries below ``offset``, which lies behind ``first_offset`` and cuts no lost run in two.

        Returns the ledgers that are empty now. :meth:`release` has to follow, after the cursors the trim rests on.
        """
        totals = totals_up_to(self, offset - 1)
        dropped = [ledger for ledger in self.ledgers[:-1] if ledger.base_offset + ledger.entries <= offset]
        self.first_offset = offset
        self.trimmed_messages, self.trimmed_bytes = totals
        if dropped:
            del self.ledgers[: len(dropped)]
            self._index_ledgers()
        tail = self.tail
        if offset == self.end_offset:
            tail.clear()
        else:
            for gone in [cached for cached in tail if cached < offset]:
                del tail[gone]
        return dropped

    def release(self, dropped: list[LedgerInfo]) -> None:
        """Let the store delete trimmed entries once the record set with the new trim point is durable."""
        first = self.ledgers[0]
        store = self.host.store
        offset = self.first_offset
        self._give_up(dropped)

        def trim_first_ledger() -> None:
            if offset > first.base_offset:
                store.segments.trim(first.ledger_id, offset - first.base_offset)

        self.records.changed(self._topic_record, trim_first_ledger)

    def delete(self) -> None:
        """The topic is deleted: give up all ledgers, and the list of damaged entries."""
        self.damaged.delete()
        self._give_up(self.ledgers)

    def _give_up(self, ledgers: list[LedgerInfo]) -> None:
        """Let the store delete ``ledgers`` once the record that does not name them any more is durable."""
        store = self.host.store
        for ledger in ledgers:
            self.records.changed(
                Tombstone(ledger.ledger_id), partial(store.ledgers.tombstone_durable, ledger.ledger_id)
            )

    # -- reading ---------------------------------------------------------------------------------------------

    def read(self, offset: int, count: int, max_bytes: int, callback: Completion[list[Entry]]) -> None:
        """Read durable entries from ``offset`` on, of one ledger at most ``count`` of them or ``max_bytes``."""
        ledger = self._by_id[self.position(offset)[0]]
        first = offset - ledger.base_offset
        last = min(first + count, ledger.entries, self.end_offset - ledger.base_offset) - 1
        base = ledger.base_offset

        def with_offsets(result: list[Entry] | Exception) -> None:
            if not isinstance(result, Exception):
                for entry in result:
                    entry.offset = base + entry.entry_id
            callback(result)

        self.host.store.reader.read(ledger.ledger_id, first, last, max_bytes, with_offsets)

    def remember(self, entries: list[Entry]) -> None:
        """Keep entries that were read in the tail cache."""
        for entry in entries:
            self.host.tail_cache.add(self.tail, entry)
        self.metrics.cache_misses += len(entries)

    def header(self, offset: int) -> EntryHeader | None:
        """Return the header of a kept entry by a point read, None if there is none or if it is lost."""
        ledger_id, entry_id = self.position(offset)
        try:
            return self.host.store.reader.header(ledger_id, entry_id) if entry_id >= 0 else None
        except DamagedEntries:
            return None

    def read_headers(self, first: int, last: int, callback: Completion[list[EntryCounts]]) -> None:
        """Read the sizes of entries ``first..last``: of one ledger and a bounded number at a time, at least one."""
        ledger = self._by_id[self.position(first)[0]]
        base = ledger.base_offset
        end = min(last - base, ledger.entries - 1, first - base + _HEADERS_AT_ONCE)

        def counts(result: list[EntryHeader] | Exception) -> None:
            if isinstance(result, Exception):
                callback(result)
                return
            callback(
                [EntryCounts(base + h.entry_id, h.messages, h.size, h.total_messages, h.total_bytes) for h in result]
            )

        self.host.store.reader.read_headers(ledger.ledger_id, first - base, end, counts)

    def totals_at(self, offset: int) -> tuple[int, int]:
        """Return the messages and bytes ever published before ``offset`` by a point read.

        For an offset that is trimmed or cannot be read: those before the first entry kept.
        """
        if offset >= self.end_offset:
            return self.total_messages, self.total_bytes
        header = self.header(offset - 1) if offset > self.first_offset else None
        if header is None:
            return self.trimmed_messages, self.trimmed_bytes
        return header.total_messages, header.total_bytes

    def totals_before(self, offset: int, callback: Completion[tuple[int, int]]) -> None:
        """Call back with the cumulative messages and bytes of everything before ``offset``."""
        if offset <= self.first_offset:
            callback((self.trimmed_messages, self.trimmed_bytes))
            return
        if offset >= self.end_offset:
            callback((self.total_messages, self.total_bytes))
            return

        def found(result: list[EntryCounts] | Exception) -> None:
            if isinstance(result, DamagedEntries) or not result:
                try:
                    totals = totals_up_to(self, offset - 1)
                except Exception as error:  # of the disk, and may pass
                    callback(error)
                    return
                callback(totals)
            else:
                callback(
                    result if isinstance(result, Exception) else (result[-1].total_messages, result[-1].total_bytes)
                )

        self.read_headers(offset - 1, offset - 1, found)

    def first_published_at_or_after(self, publish_ms: int) -> int:
        """Return the offset of the first entry whose publish time is not before ``publish_ms`` (binary search)."""
        low, high = self.first_offset, self.end_offset
        while low < high:
            middle = (low + high) // 2
            header = self.header(middle)
            if header is None or header.publish_ms < publish_ms:
                low = middle + 1
            else:
                high = middle
        return low

    def metadata_from(self, offset: int, function: Callable[[memoryview], T]) -> Iterator[T]:
        """Yield ``function`` of the frame of every kept entry from ``offset`` on, read in the calling thread.

        Damaged entries are logged and left out.
        """
        for ledger in self.ledgers:
            first = max(offset, self.first_offset) - ledger.base_offset
            last = min(ledger.entries, self.end_offset - ledger.base_offset) - 1
            first = max(first, 0)
            while first <= last:
                try:
                    yield from self.host.store.reader.map_frames(ledger.ledger_id, first, last, function)
                    break
                except DamagedEntries as error:
                    log.error("entries are lost", topic=str(self.name), reason=str(error))
                    first = error.last_entry + 1

    def scan_headers(self, callback: Callable[[list[tuple[int, EntryHeader]] | Exception | None], None]) -> None:
        """Call back with the offsets and headers of all entries kept now, some at a time, and with None at the end.

        Damaged entries are left out. Any other error, after which another scan may succeed, is given to ``callback``
        and ends this one.
        """
        end = self.end_offset

        def step(offset: int) -> None:
            if offset >= end:
                callback(None)
                return
            ledger = self._by_id[self.position(offset)[0]]
            base = ledger.base_offset
            last = min(offset - base + _HEADERS_AT_ONCE, ledger.entries, end - base) - 1

            def found(result: list[EntryHeader] | Exception) -> None:
                if isinstance(result, DamagedEntries):
                    step(base + result.last_entry + 1)
                    return
                if isinstance(result, Exception):
                    callback(result)
                    return
                callback([(base + header.entry_id, header) for header in result])
                # A read ends with its segment, and the ledger may go on in the next one.
                step(base + (result[-1].entry_id if result else last) + 1)

            self.host.store.reader.read_headers(ledger.ledger_id, offset - base, last, found)

        step(self.first_offset)
