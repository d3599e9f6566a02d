"""A topic's entries that cannot be read or understood: the known counts, and the list of them for inspection.

The list is durable and keeps the newest :data:`MAX_RANGES` ranges; how many entries there were in all is counted.
:mod:`.skipping` describes how a subscription skips such entries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec
import structlog

from heliograph_broker.messaging.base import records
from heliograph_broker.messaging.base.entry_counts import EntryCounts
from heliograph_broker.messaging.base.records import DAMAGED, DamagedRange, DamagedRecord
from heliograph_broker.storage.base.damage import DamagedEntries

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heliograph_api.values.names import TopicName

    from heliograph_broker.messaging.base.log_host import LogHost
    from heliograph_broker.storage.base.entry import EntryHeader

    from .record_set import RecordSet

log = structlog.get_logger(__name__)

#: So many ranges of damaged entries are remembered for each topic; older ones are only counted.
MAX_RANGES = 1000
_REASON_CHARACTERS = 300


class LostRun(NamedTuple):
    """Neighbouring entries whose headers are all lost; their sum is known from the entries around them."""

    first: int
    last: int
    messages: int
    size: int
    #: The topic's cumulative counts up to and including the last one.
    total_messages: int
    total_bytes: int


class LogView:
    """A log, as the search for its lost entries knows it."""

    __slots__ = ()

    host: LogHost
    name: TopicName
    records: RecordSet
    damaged: DamagedList
    #: The first entry kept, and one beyond the last durable one.
    first_offset: int
    end_offset: int
    #: Everything ever published before the first entry kept, and before the end.
    trimmed_messages: int
    trimmed_bytes: int
    total_messages: int
    total_bytes: int

    def position(self, offset: int) -> tuple[int, int]:
        """Return (ledger id, entry id) of ``offset``."""
        raise NotImplementedError

    def header(self, offset: int) -> EntryHeader | None:
        """Return the header of a kept entry by a point read, None if there is none or if it is lost."""
        raise NotImplementedError

    def received_ms(self, offset: int, stamp_ms: int) -> int:
        """Return when the entry at ``offset``, whose header says ``stamp_ms``, was received by the clock as it is."""
        raise NotImplementedError


class DamagedList:
    """The durable list of one topic's damaged entries."""

    __slots__ = ("_log", "_lost", "_record")

    def __init__(self, entry_log: LogView) -> None:
        self._log = entry_log
        self._record = DamagedRecord()
        self._lost: LostRun | None = None

    def restore(self, stored: bytes) -> None:
        """Continue from the stored list."""
        self._record = msgspec.msgpack.decode(stored, type=DamagedRecord)
        record_set = self._log.records
        record_set.version = max(record_set.version, self._record.version)

    @property
    def entries(self) -> int:
        """Number of damaged entries ever found in the topic."""
        return self._record.entries

    @property
    def ranges(self) -> list[DamagedRange]:
        """The newest ranges, in the order they were found."""
        return self._record.ranges

    def add(self, first: int, last: int, reason: str) -> None:
        """Note that the entries at offsets ``first..last`` are damaged; those that are listed are not counted again."""
        ranges = self._record.ranges
        new = [
            (begin, end)
            for begin, end in _without(first, last, [(each.offset, each.last_offset) for each in ranges])
            if begin <= end
        ]
        if not new:
            return
        entry_log = self._log
        now_ms = entry_log.host.clock.now_ms()
        for begin, end in new:
            ledger_id, entry_id = entry_log.position(begin)
            last_ledger_id, last_entry_id = entry_log.position(end)
            ranges.append(
                DamagedRange(
                    begin, end, ledger_id, entry_id, last_ledger_id, last_entry_id, reason[:_REASON_CHARACTERS], now_ms
                )
            )
            self._record.entries += end - begin + 1
        del ranges[:-MAX_RANGES]
        entry_log.records.commit(self)

    def lost_run(self, offset: int) -> LostRun:
        """Return the run of entries without readable headers that ``offset``, one of them, lies in."""
        run = self._lost
        if run is not None and run.first <= offset <= run.last:
            return run
        entry_log = self._log
        first = last = offset
        low = entry_log.trimmed_messages, entry_log.trimmed_bytes
        while first > entry_log.first_offset:
            header = entry_log.header(first - 1)
            if header is not None:
                low = header.total_messages, header.total_bytes
                break
            first -= 1
        high = entry_log.total_messages, entry_log.total_bytes
        while last + 1 < entry_log.end_offset:
            header = entry_log.header(last + 1)
            if header is not None:
                high = header.total_messages - header.messages, header.total_bytes - header.size
                break
            last += 1
        run = self._lost = LostRun(first, last, max(0, high[0] - low[0]), max(0, high[1] - low[1]), *high)
        return run

    def forget_run(self) -> None:
        """Find the next lost run afresh: the one that is remembered may have grown."""
        self._lost = None

    @property
    def record_key(self) -> bytes:
        return DAMAGED + str(self._log.name).encode()

    def encode_record(self, version: int) -> bytes:
        """Return the list as it is kept."""
        self._record.version = version
        return records.encode(self._record)

    def delete(self) -> None:
        """Delete the record with its topic."""
        if self._record.entries:
            self._log.records.remove(self)


def _without(first: int, last: int, known: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the parts of ``first..last`` that none of the ``known`` ranges covers."""
    left = [(first, last)]
    for begin, end in known:
        parts = []
        for low, high in left:
            if end < low or begin > high:
                parts.append((low, high))
                continue
            if low < begin:
                parts.append((low, begin - 1))
            if high > end:
                parts.append((end + 1, high))
        left = parts
    return left


def totals_up_to(entry_log: LogView, offset: int) -> tuple[int, int]:
    """Return the topic's cumulative messages and bytes up to and including ``offset``, at least the trimmed ones.

    Within a lost run these are the run's, without one message for each entry behind ``offset``.
    """
    if offset < entry_log.first_offset:
        return entry_log.trimmed_messages, entry_log.trimmed_bytes
    if offset >= entry_log.end_offset - 1:
        return entry_log.total_messages, entry_log.total_bytes
    header = entry_log.header(offset)
    if header is not None:
        return header.total_messages, header.total_bytes
    run = entry_log.damaged.lost_run(offset)
    return run.total_messages - min(run.messages, run.last - offset), run.total_bytes


def whole_runs(entry_log: LogView, offset: int) -> int:
    """Return ``offset``, or where the lost run begins that it would cut in two: the counts of a part are unknown."""
    if entry_log.first_offset < offset < entry_log.end_offset and entry_log.header(offset - 1) is None:
        run = entry_log.damaged.lost_run(offset - 1)
        if run.last >= offset:
            return max(run.first, entry_log.first_offset)
    return offset


def counts_of(entry_log: LogView, offset: int) -> EntryCounts | None:
    """Return what an entry counts for; None if its header cannot be read."""
    header = entry_log.header(offset)
    if header is None:
        return None
    return EntryCounts(offset, header.messages, header.size, header.total_messages, header.total_bytes)


def received_from(entry_log: LogView, offset: int) -> int | None:
    """Return when the first entry from ``offset`` on that is not lost was received (wall-clock ms); None at the end."""
    while offset < entry_log.end_offset:
        header = entry_log.header(offset)
        if header is not None:
            return entry_log.received_ms(offset, header.receive_ms)
        offset = entry_log.damaged.lost_run(offset).last + 1
    return None


def last_readable(entry_log: LogView, first: int, last: int) -> EntryHeader | None:
    """Return the header of the last entry of ``first..last`` that is not lost, None if all are."""
    if last < first:
        return None
    header = entry_log.header(last)
    if header is None:
        before = entry_log.damaged.lost_run(last).first - 1
        header = entry_log.header(before) if before >= first else None
    return header


def lost_range(entry_log: LogView, first: int, result: Sequence[object] | Exception) -> tuple[int, str] | None:
    """Return up to which offset the entries from ``first`` on are lost, and why, if a read's ``result`` says so.

    None if it brought something, or failed in a way that may pass. Nothing at all from a place that is not trimmed
    means that it is lost, too.
    """
    if isinstance(result, DamagedEntries):
        return first + result.last_entry - result.first_entry, result.reason
    if isinstance(result, Exception) or result or not entry_log.first_offset <= first < entry_log.end_offset:
        return None
    try:
        if entry_log.header(first) is not None:
            return None
        return entry_log.damaged.lost_run(first).last, "the entry is not in the store"
    except Exception as error:
        # The reader tries again, as after any other read that failed.
        log.warning("an empty read was not explained", topic=str(entry_log.name), error=str(error))
        return None
