"""The scrub: verifies everything in time, finds what is damaged, keeps to its rate and out of the way."""

from __future__ import annotations

from pathlib import Path

import pytest
from heliograph_broker.clock import VirtualClock
from heliograph_broker.storage.base.entry import Entry
from heliograph_broker.storage.store import InlineScheduler, LedgerStore

from .test_checksums import flip
from .test_damage import ENTRIES, SIZE, Sink, fill, frame

RATE = 256 * 1024
TOTAL = ENTRIES * SIZE


def open_store(path: Path, clock: VirtualClock, rate: int = RATE) -> LedgerStore:
    return LedgerStore.open(
        path,
        clock,
        scheduler=InlineScheduler(),
        segment_bytes=1 << 20,
        disk_reserve_bytes=0,
        scrub_bytes_per_s=rate,
        scrub_interval_s=3600,
    )


def run(store: LedgerStore, clock: VirtualClock, seconds: float) -> None:
    for _ in range(int(seconds * 2)):
        clock.advance_ms(500)
        store.maintain()
        store.writer.commit()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    store = open_store(tmp_path / "d", VirtualClock())
    fill(store)
    # The open segment is not verified.
    store.segments.open_next()
    store.close()
    return tmp_path / "d"


def test_everything_is_verified_at_the_rate_and_again_after_the_interval(path: Path) -> None:
    clock = VirtualClock()
    store = open_store(path, clock)
    run(store, clock, TOTAL / RATE / 2)
    assert store.scrub.passes == 0
    assert 0.2 < store.scrub.progress < 0.8
    # A step may end within a chunk's length of what is allowed.
    assert TOTAL / 2 - (1 << 17) < store.scrub.bytes_read < TOTAL / 2 + (1 << 17)
    run(store, clock, TOTAL / RATE / 2 + 5)
    assert (store.scrub.passes, store.scrub.progress, len(store.scrub.damaged)) == (1, 1.0, 0)
    assert store.scrub.bytes_read > TOTAL
    run(store, clock, 3500)
    assert store.scrub.passes == 1
    run(store, clock, 200)
    assert store.scrub.passes == 2
    store.close()


def damage_an_entry(path: Path) -> None:
    for file in (path / "segments").glob("*.lmdb"):
        if b"1234 xxx" in file.read_bytes():
            flip(file, b"1234 xxx")


def test_damage_is_found_and_counted_until_nobody_wants_it(path: Path) -> None:
    damage_an_entry(path)
    clock = VirtualClock()
    store = open_store(path, clock)
    run(store, clock, 30)
    ((ledger_id, first, last, reason),) = store.scrub.damaged.values()
    assert ledger_id == 1
    assert first <= 1234 <= last < first + 70
    assert "checksum" in reason
    store.segments.trim(1, 1400)
    run(store, clock, 3700)
    assert store.scrub.passes == 2
    assert store.scrub.damaged == {}
    store.close()


def test_beside_traffic_it_takes_a_quarter(path: Path) -> None:
    clock = VirtualClock()
    store = open_store(path, clock)
    for number in range(ENTRIES, ENTRIES + 16):
        total = (number + 1) * SIZE
        store.writer.append(Sink(), Entry(1, number, 0, 0, 0, -1, 1, 1, number + 1, total, frame(number)))
        store.writer.commit()
        run(store, clock, 0.5)
    assert RATE * 8 / 4 - (1 << 17) < store.scrub.bytes_read < RATE * 8 / 4 + (1 << 17)
    store.close()


def test_it_can_be_switched_off(path: Path) -> None:
    clock = VirtualClock()
    store = open_store(path, clock, rate=0)
    run(store, clock, 100)
    assert store.scrub.bytes_read == 0
    store.close()


def test_restarts_in_the_midst_of_a_pass_do_not_begin_it_again(path: Path) -> None:
    read = lives = 0
    clock = VirtualClock()
    while lives < 50:
        store = open_store(path, clock)
        # Less than a pass takes, so that each life ends in the midst of one.
        run(store, clock, TOTAL / RATE / 2)
        lives += 1
        read += store.scrub.bytes_read
        passes = store.scrub.passes
        store.close()
        if passes:
            break
    # A segment under way begins again with each life.
    assert lives <= 4
    assert read < 2 * TOTAL
    store = open_store(path, clock)
    run(store, clock, 3500 - TOTAL / RATE)
    assert (store.scrub.passes, store.scrub.bytes_read) == (0, 0)
    run(store, clock, TOTAL / RATE * 2 + 200)
    assert store.scrub.passes == 1
    store.close()


def test_what_was_found_damaged_is_known_after_a_restart(path: Path) -> None:
    damage_an_entry(path)
    clock = VirtualClock()
    store = open_store(path, clock)
    run(store, clock, 30)
    damaged = store.scrub.damaged
    assert len(damaged) == 1
    store.close()
    store = open_store(path, clock)
    assert store.scrub.damaged == damaged
    store.writer.put(b"store/scrub", b"nonsense")
    store.writer.commit()
    store.close()
    # A place that is not known is the beginning.
    store = open_store(path, clock)
    run(store, clock, 30)
    assert store.scrub.passes == 1
    assert store.scrub.damaged == damaged
    store.close()
