"""A disk that has room for a part of a write: the store takes it for full, not for broken, and goes on later.

LMDB reports such a write as an I/O error, after which a store would accept nothing until it is started again.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from heliograph_broker.clock import VirtualClock
from heliograph_broker.storage.store import InlineScheduler, LedgerStore, StorageFull

from tests.support.store_entries import Sink, entry

from .test_full_disk import Neighbour, small_disk

__all__ = ["small_disk"]

PAGE = 4096
#: A disk with fewer pages has no room for this entry, nor for this record.
SIZE = 25 * PAGE


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
    store.writer.append(sink, entry(0, SIZE))
    store.writer.commit()
    assert sink.durable == [0]
    neighbour = LeavesRoom(small_disk)
    # Somebody takes the reserve after it was seen to be free, right before the write.
    check = store.space.check_entries

    def check_and_take(size: int) -> None:
        check(size)
        neighbour.take_all_but(pages)

    store.space.check_entries = check_and_take  # type: ignore[method-assign]
    if part == "metadata":
        neighbour.take_all_but(pages)
        store.writer.put(b"record", b"x" * SIZE)
        store.writer.after_commit(outcomes.append)
    else:
        store.writer.append(sink, entry(1, SIZE))
    store.writer.commit()
    assert [type(each) for each in outcomes + sink.errors] == [StorageFull]
    assert store.writer.failure is None
    neighbour.give_back()
    store.space.check_entries = check  # type: ignore[method-assign]
    if part == "entries":
        store.writer.append(sink, entry(1, SIZE))
    store.writer.retry()
    store.writer.commit()
    assert sink.durable == [0, 1][: 1 + (part == "entries")]
    assert store.metadata.get(b"record") == (b"x" * SIZE if part == "metadata" else None)
    store.close()
