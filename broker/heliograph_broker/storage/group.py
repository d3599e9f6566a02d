"""A group: everything that becomes durable by one commit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from .entry import Entry


class StorageFull(Exception):
    """The disk has no room for new entries; metadata (acknowledgments) is still written."""


class EntrySink(Protocol):
    """Who appended entries and is told, once a group, what became of them."""

    def entries_durable(self, entries: list[Entry]) -> None:
        """These entries are synced, in the order of their submission."""

    def entries_failed(self, entries: list[Entry], error: Exception) -> None:
        """None of these entries is stored."""


class RecordSource(Protocol):
    """Something whose record is taken when the group is sealed, however often it changed before."""

    def encode_record(self) -> tuple[bytes, bytes] | None:
        """Return key and value, or None if there is nothing to write any more."""


Committed = Callable[[Exception | None], None]


class Group:
    """Filled on the event loop, written by the writer thread, then finished on the loop again."""

    __slots__ = (
        "appends",
        "by_ledger",
        "callbacks",
        "doubt",
        "doubtful",
        "entries",
        "entry_bytes",
        "metadata",
        "sources",
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
        self.callbacks: list[Committed] = []
        #: The first callbacks of the list were asked for after metadata that failed in an earlier group.
        self.doubtful = 0
        self.doubt: Exception | None = None

    def __bool__(self) -> bool:
        return bool(self.entries or self.metadata or self.sources or self.callbacks)

    def seal(self) -> None:
        """Take the records of the sources; an explicit put or delete of the same key is newer than none of them."""
        for source in self.sources:
            record = source.encode_record()
            if record is not None:
                self.metadata[record[0]] = record[1]
        self.sources.clear()

    def sort(self) -> None:
        """Fill :attr:`by_ledger`. The writer does it: the event loop has more to do."""
        by_ledger = self.by_ledger
        for entry in self.entries:
            batch = by_ledger.get(entry.ledger_id)
            if batch is None:
                by_ledger[entry.ledger_id] = [entry]
            else:
                batch.append(entry)


class StoreStats:
    """Counters since the start; the histograms count observations at most each bound, as Prometheus wants them."""

    __slots__ = ("commit_s", "group_bytes", "group_entries", "groups", "sync_seconds")

    def __init__(self) -> None:
        self.groups = 0
        #: What the group that is being reported durable took to write and sync.
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
