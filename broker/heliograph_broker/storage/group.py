"""A group: everything that becomes durable by one commit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import structlog

from .entry import Entry

log = structlog.get_logger(__name__)

#: LMDB's limit of a key's size.
MAX_KEY_BYTES = 511
#: A record is read and written as a whole: a larger one would hold up every group it is in.
MAX_VALUE_BYTES = 256 * 1024 * 1024


class EntrySink(Protocol):
    """Who appended entries and is told, once a group, what became of them."""

    def entries_durable(self, entries: list[Entry]) -> None:
        """These entries are synced, in the order of their submission."""

    def entries_failed(self, entries: list[Entry], error: Exception) -> None:
        """None of these entries is stored."""


class RecordSource(Protocol):
    """Something whose records are taken when the group is sealed, however often they changed before."""

    def seal(self, metadata: dict[bytes, bytes | None], durable: list[Durable]) -> None:
        """Add all records that changed (None deletes), and who is to be told once they are durable.

        If it raises, it has added nothing and keeps what it has to write.
        """


#: Called when everything submitted before is durable, however many attempts that takes.
Durable = Callable[[], None]
Committed = Callable[[Exception | None], None]


class Group:
    """Filled on the event loop, written by the writer thread, then finished on the loop again."""

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
        #: Called when the metadata is durable, be it only as part of a later group.
        self.durable: list[Durable] = []
        #: Why the records of some source were not taken.
        self.refused: Exception | None = None

    def __bool__(self) -> bool:
        return bool(self.entries or self.metadata or self.sources or self.callbacks or self.durable)

    def seal(self) -> None:
        """Take the records of the sources. One that cannot be taken keeps no other from being written."""
        for source in self.sources:
            try:
                source.seal(self.metadata, self.durable)
            except Exception as error:
                log.exception("records could not be encoded; they are retried")
                self.refused = error
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


def check_record(key: bytes, value: bytes | None) -> None:
    """Raises :class:`ValueError` unless the store takes such a record."""
    if not 0 < len(key) <= MAX_KEY_BYTES:
        raise ValueError(f"a record's key has {len(key)} bytes; valid: 1 to {MAX_KEY_BYTES}")
    if value is not None and len(value) > MAX_VALUE_BYTES:
        raise ValueError(f"the record of {key!r} has {len(value)} bytes; valid: at most {MAX_VALUE_BYTES}")


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
