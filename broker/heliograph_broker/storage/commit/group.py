"""A group: everything that becomes durable by one commit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

import structlog

from heliograph_broker.storage.base.completion import Completion
from heliograph_broker.storage.base.entry import Entry

log = structlog.get_logger(__name__)

#: LMDB's limit of a key's size.
MAX_KEY_BYTES = 511
#: A record is read and written as a whole: a larger one would hold up every group it is in.
MAX_VALUE_BYTES = 256 * 1024 * 1024


class EntrySink(Protocol):
    """The owner of appended entries, notified once per group of their outcome."""

    def entries_durable(self, entries: list[Entry]) -> None:
        """These entries are synced, in the order of their submission."""

    def entries_failed(self, entries: list[Entry], error: Exception) -> None:
        """None of these entries is stored."""


class RecordSource(Protocol):
    """An owner of records, which are taken once when the group is sealed, however often they changed before."""

    @property
    def sink(self) -> EntrySink | None:
        """The sink whose entries need these records to be stored, None if there are no such entries."""

    def seal(self, metadata: dict[bytes, bytes | None], durable: list[Durable]) -> None:
        """Add all changed records (None deletes), and the callbacks for when they are durable.

        If it raises, it has added nothing, keeps what it has to write, and is submitted again later.
        """


#: Called when everything submitted before is durable, however many attempts that takes.
Durable = Callable[[], None]


class Group:
    """A group is filled on the event loop, written by the writer thread, then finished on the loop again."""

    __slots__ = (
        "appends",
        "by_ledger",
        "callbacks",
        "durable",
        "entries",
        "entry_bytes",
        "metadata",
        "refused",
        "sources",
        "withheld",
    )

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.entry_bytes = 0
        self.appends: dict[EntrySink, list[Entry]] = {}
        #: The same entries by ledger, once the group is sealed.
        self.by_ledger: dict[int, list[Entry]] = {}
        #: key -> value, None to delete
        self.metadata: dict[bytes, bytes | None] = {}
        self.sources: dict[RecordSource, None] = {}
        #: Each with the sources it rests on, None for those submitted to this group.
        self.callbacks: list[tuple[Completion[None], Collection[RecordSource] | None]] = []
        #: Called when the metadata is durable, be it only as part of a later group.
        self.durable: list[Durable] = []
        #: The sources whose records could not be taken, in this group or before it, and why.
        self.refused: Mapping[RecordSource, Exception] = {}
        #: Entries that are not stored for that reason.
        self.withheld: dict[EntrySink, tuple[list[Entry], Exception]] = {}

    def __bool__(self) -> bool:
        return bool(self.entries or self.metadata or self.sources or self.callbacks or self.durable)

    def seal(self, refused: dict[RecordSource, Exception]) -> None:
        """Take the records of the sources. A source whose records cannot be taken does not hold up the others.

        ``refused`` are the sources that could not be taken when they were last tried; it is brought up to date. The
        entries that rest on their records are taken out.
        """
        for source in self.sources:
            try:
                source.seal(self.metadata, self.durable)
            except Exception as error:
                if source not in refused:
                    log.error("records could not be encoded; they are retried", error=str(error))
                refused[source] = error
            else:
                refused.pop(source, None)
        if refused:
            self.refused = dict(refused)
            for source, reason in refused.items():
                if source.sink is not None and source.sink in self.appends:
                    self._withhold(source.sink, reason)

    def _withhold(self, sink: EntrySink, error: Exception) -> None:
        entries = self.appends.pop(sink)
        self.withheld[sink] = entries, error
        gone = set(map(id, entries))
        self.entries = [entry for entry in self.entries if id(entry) not in gone]
        self.entry_bytes = sum(len(entry.frame) for entry in self.entries)

    def refusal(self, rests_on: Collection[RecordSource] | None) -> Exception | None:
        """Return why the records of one of these sources are not durable with this group; None if all are."""
        if not self.refused:
            return None
        for source in self.sources if rests_on is None else rests_on:
            if source in self.refused:
                return self.refused[source]
        return None

    def sort(self) -> None:
        """Fill :attr:`by_ledger`. The writer thread does it to relieve the event loop."""
        by_ledger = self.by_ledger
        for entry in self.entries:
            batch = by_ledger.get(entry.ledger_id)
            if batch is None:
                by_ledger[entry.ledger_id] = [entry]
            else:
                batch.append(entry)


def check_record(key: bytes, value: bytes | None) -> None:
    """Check a record. Raises :class:`ValueError` unless the store takes it."""
    if not 0 < len(key) <= MAX_KEY_BYTES:
        raise ValueError(f"a record's key has {len(key)} bytes; valid: 1 to {MAX_KEY_BYTES}")
    if value is not None and len(value) > MAX_VALUE_BYTES:
        raise ValueError(f"the record of {key!r} has {len(value)} bytes; valid: at most {MAX_VALUE_BYTES}")


class StoreStats:
    """Counters since the start; the histograms count observations at most each bound, as Prometheus wants them."""

    __slots__ = ("commit_s", "group_bytes", "group_entries", "groups", "sync_seconds")

    def __init__(self) -> None:
        self.groups = 0
        #: Seconds that writing and syncing of the group took that is being reported durable.
        self.commit_s = 0.0
        self.group_entries = Histogram((1, 4, 16, 64, 256, 1024, 4096, 16384))
        self.group_bytes = Histogram((1024, 16384, 65536, 262144, 1048576, 4194304, 16777216))
        self.sync_seconds = Histogram((0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0))


class Histogram:
    """Fixed bounds, counts per bucket (not cumulative), sum and count."""

    __slots__ = ("bounds", "buckets", "count", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.buckets = [0] * (len(bounds) + 1)
        self.count = 0
        self.total = 0.0

    def observe(self, value: float) -> None:
        at = 0
        for bound in self.bounds:
            if value <= bound:
                break
            at += 1
        self.buckets[at] += 1
        self.count += 1
        self.total += value
