"""A disk that has room for a part of a write: the store takes it for full, not for broken, and goes on later.

LMDB reports such a write as an I/O error, after which a store would accept nothing until it is started again.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from heliograph_broker.clock import VirtualClock
from heliograph_broker.storage.base.entry import Entry
from heliograph_broker.storage.store import InlineScheduler, LedgerStore, StorageFull

from .test_full_disk import Neighbour, small_disk

__all__ = ["small_disk"]

PAGE = 4096
#: A disk with fewer pages has no room for this entry, nor for this record.
SIZE = 25 * PAGE


class Sink:
    def __init__(self) -> None:
        self.durable: list[int] = []
        self.errors: list[Exception] = []

    def entries_durable(self, entries: list[Entry]) -> None:
        self.durable += [entry.entry_id for entry in entries]

    def entries_failed(self, entries: list[Entry], error: Exception) -> None:
        self.errors.append(error)


class LeavesRoom(Neighbour):
    """Takes everything but some pages."""

    def take_all_but(self, pages: int) -> None:
        self.take_everything()
        with self._path.open("r+b") as file:
            file.truncate(self._path.stat().st_size // PAGE * PAGE - pages * PAGE)


@pytest.mark.parametrize("pages", [1, 10, 24])
@pytest.mark.parametrize("part", ["metadata", "entries"])
def test_a_write_of_which_the_disk_has_room_for_a_part_does_not_fail_the_store(
    small_disk: Path, part: str, pages: int
) -> None:
    store = LedgerStore.open(
        small_disk / "data", VirtualClock(), scheduler=InlineScheduler(), disk_reserve_bytes=2 * SIZE
    )
    sink, outcomes = Sink(), list[Exception | None]()
    small, large = (Entry(1, n, 0, 0, 0, -1, 1, 1, n + 1, total, b"x" * size) for n, size, total in _SIZES)
    store.writer.append(sink, small)
    store.writer.commit()
    assert sink.durable == [0]
    neighbour = LeavesRoom(small_disk)
    # Somebody takes the reserve after it was seen to be free, right before the write.
    write, check = store.space.check_entries, neighbour.take_all_but
    store.space.check_entries = lambda size: (write(size), check(pages))[0]  # type: ignore[method-assign]
    if part == "metadata":
        neighbour.take_all_but(pages)
        store.writer.put(b"record", b"x" * SIZE)
        store.writer.after_commit(outcomes.append)
    else:
        store.writer.append(sink, large)
    store.writer.commit()
    assert [type(each) for each in outcomes + sink.errors] == [StorageFull]
    assert store.writer.failure is None
    neighbour.give_back()
    store.space.check_entries = write  # type: ignore[method-assign]
    if part == "entries":
        store.writer.append(sink, large)
    store.writer.retry()
    store.writer.commit()
    assert sink.durable == [0, 1][: 1 + (part == "entries")]
    assert store.metadata.get(b"record") == (b"x" * SIZE if part == "metadata" else None)
    store.close()


#: Number, size and total size of the ledger's entries.
_SIZES = ((0, 10, 10), (1, SIZE, 10 + SIZE))
