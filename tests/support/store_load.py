"""A store on a disk with entries of known content, and the background jobs that give its space back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from heliograph_broker.clock import VirtualClock
from heliograph_broker.storage.base.entry import Entry
from heliograph_broker.storage.base.scheduler import Scheduler
from heliograph_broker.storage.segments.rewrite import Rewriting
from heliograph_broker.storage.store import InlineScheduler, LedgerStore

MIB = 1 << 20


class Load:
    """Entries of known content in any number of ledgers, and what should be left of them."""

    def __init__(self, store: LedgerStore, size: int = 1024) -> None:
        self.store = store
        self.size = size
        self.first: dict[int, int] = {}
        self.end: dict[int, int] = {}
        self.durable = 0
        self.errors: list[Exception] = []

    def append(self, ledger_id: int) -> None:
        entry_id = self.end.get(ledger_id, 0)
        self.end[ledger_id] = entry_id + 1
        self.first.setdefault(ledger_id, 0)
        total = (entry_id + 1) * self.size
        frame = self.frame(ledger_id, entry_id)
        self.store.writer.append(self, Entry(ledger_id, entry_id, 7, 0, 0, -1, 1, 0, entry_id + 1, total, frame))

    def frame(self, ledger_id: int, entry_id: int) -> bytes:
        return (b"%d:%d " % (ledger_id, entry_id)).ljust(self.size, b"x")

    def fill(self, ledgers: int, total_bytes: int) -> None:
        """Append to the ledgers in turn, in groups of 200, by an inline scheduler."""
        for number in range(total_bytes // self.size):
            self.append(1 + number % ledgers)
            if number % 200 == 199:
                self.store.writer.commit()
        self.store.writer.commit()

    def trim(self, share: float) -> None:
        for ledger_id, end in self.end.items():
            first = self.first[ledger_id]
            self.first[ledger_id] = first + int((end - first) * share)
            self.store.segments.trim(ledger_id, self.first[ledger_id])

    @property
    def live_bytes(self) -> int:
        return sum(end - self.first[ledger_id] for ledger_id, end in self.end.items()) * self.size

    def assert_all_there(self, store: LedgerStore | None = None) -> None:
        """Read back every live entry by an inline scheduler."""
        for ledger_id, end in self.end.items():
            at = self.first[ledger_id]
            while at < end:
                results: list[list[Entry] | Exception] = []
                (store or self.store).reader.read(ledger_id, at, end - 1, MIB, results.append)
                (found,) = results
                assert isinstance(found, list)
                assert found, (ledger_id, at)
                for each in found:
                    assert (each.entry_id, each.frame) == (at, self.frame(ledger_id, at))
                    at += 1

    def entries_durable(self, entries: list[Entry]) -> None:
        self.durable += len(entries)

    def entries_failed(self, entries: list[Entry], error: Exception) -> None:
        self.errors.append(error)
        for each in reversed(entries):
            self.end[each.ledger_id] = each.entry_id


def open_store(
    path: Path,
    scheduler: Scheduler | None = None,
    clock: VirtualClock | None = None,
    segment_bytes: int = MIB,
    reserve: int = 0,
) -> LedgerStore:
    return LedgerStore.open(
        path,
        clock or VirtualClock(),
        scheduler=scheduler or InlineScheduler(),
        segment_bytes=segment_bytes,
        disk_reserve_bytes=reserve,
    )


def maintain(store: LedgerStore, times: int = 30) -> None:
    for _ in range(times):
        store.maintain()


def segments(path: Path) -> list[str]:
    return sorted(each.name for each in (path / "segments").iterdir() if each.suffix == ".lmdb")


class Deferring(InlineScheduler):
    """Keeps background jobs until they are asked for, and what they return until later still."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []

    def background(self, job: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self.jobs.append((job, done))


def copies(scheduler: Deferring) -> list[Callable[[], Any]]:
    return [job for job, _ in scheduler.jobs if getattr(job, "__func__", None) is Rewriting.run]
