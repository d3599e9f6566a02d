"""Entries that are lost: each kind of read names exactly what is missing, and brings everything else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from heliograph_broker.clock import VirtualClock
from heliograph_broker.storage.base.damage import DamagedEntries
from heliograph_broker.storage.base.entry import Entry
from heliograph_broker.storage.segments import pages
from heliograph_broker.storage.segments.chunk import KEY
from heliograph_broker.storage.segments.rewrite import Rewriting
from heliograph_broker.storage.segments.segment import Segment
from heliograph_broker.storage.store import InlineScheduler, LedgerStore

from tests.support.core import Client, Core

ENTRIES = 3000
SIZE = 1024


class Sink:
    def entries_durable(self, entries: list[Entry]) -> None: ...

    def entries_failed(self, entries: list[Entry], error: Exception) -> None:
        raise error


def open_store(path: Path) -> LedgerStore:
    return LedgerStore.open(
        path, VirtualClock(), scheduler=InlineScheduler(), segment_bytes=1 << 20, disk_reserve_bytes=0
    )


def frame(entry_id: int) -> bytes:
    return (b"%d " % entry_id).ljust(SIZE, b"x")


def fill(store: LedgerStore, entries: int = ENTRIES, group: int = 100) -> None:
    for entry_id in range(entries):
        store.writer.append(
            Sink(),
            Entry(1, entry_id, 5 * entry_id, 0, 0, -1, 1, 1, entry_id + 1, (entry_id + 1) * SIZE, frame(entry_id)),
        )
        if entry_id % group == group - 1:
            store.writer.commit()
    store.writer.commit()


def result_of(call: Callable[[Callable[[Any], None]], None]) -> Any:
    results: list[Any] = []
    call(results.append)
    (result,) = results
    return result


def read_around(store: LedgerStore, last: int = ENTRIES - 1) -> tuple[list[int], list[tuple[int, int]]]:
    """Return the ids of what is readable and the ranges that are lost, as a dispatcher would find them."""
    found: list[int] = []
    lost: list[tuple[int, int]] = []
    at = 0
    while at <= last:
        start = at
        result = result_of(lambda done, start=start: store.reader.read(1, start, last, 50_000, done))  # type: ignore[misc]
        if isinstance(result, DamagedEntries):
            assert result.first_entry == at
            lost.append((result.first_entry, result.last_entry))
            at = result.last_entry + 1
            continue
        assert result, at
        for each in result:
            assert (each.entry_id, each.frame) == (at, frame(at))
            found.append(at)
            at += 1
    return found, lost


@pytest.fixture
def without_the_second(tmp_path: Path) -> tuple[LedgerStore, int, int]:
    """A store that lost one of its segments while it was down, and the first and last entry of that."""
    store = open_store(tmp_path / "d")
    fill(store)
    run = store.segments._segments[1].runs[1]
    path = store.segments._segments[1].path
    store.close()
    path.unlink()
    return open_store(tmp_path / "d"), run.first, run.last


def test_a_missing_segment_is_named_and_everything_else_is_read(
    without_the_second: tuple[LedgerStore, int, int],
) -> None:
    store, first, last = without_the_second
    assert read_around(store) == ([*range(first), *range(last + 1, ENTRIES)], [(first, last)])
    store.close()


def test_a_read_in_the_middle_of_what_is_lost_names_the_rest_of_it(
    without_the_second: tuple[LedgerStore, int, int],
) -> None:
    store, first, last = without_the_second
    for wanted_last, named_last in ((ENTRIES, last), (first + 9, first + 9)):
        for read in (
            lambda done, until=wanted_last: store.reader.read(1, first + 5, until, 1 << 20, done),
            lambda done, until=wanted_last: store.reader.read_headers(1, first + 5, until, done),
        ):
            result = result_of(read)
            assert isinstance(result, DamagedEntries)
            assert (result.ledger_id, result.first_entry, result.last_entry) == (1, first + 5, named_last)
    store.close()


def test_headers_and_frames_stop_where_something_is_lost(without_the_second: tuple[LedgerStore, int, int]) -> None:
    store, first, last = without_the_second
    headers = result_of(lambda done: store.reader.read_headers(1, 0, ENTRIES, done))
    assert [header.entry_id for header in headers] == list(range(first))
    mapped: list[bytes] = []
    with pytest.raises(DamagedEntries) as raised:
        mapped += store.reader.map_frames(1, 0, ENTRIES - 1, bytes)  # like extend, keeps the items yielded before
    assert (raised.value.first_entry, raised.value.last_entry) == (first, last)
    assert list(store.reader.map_frames(1, 0, first - 1, bytes)) == [frame(at) for at in range(first)]
    with pytest.raises(DamagedEntries):
        store.reader.header(1, first)
    header = store.reader.header(1, last + 1)
    assert header is not None
    assert header.entry_id == last + 1
    assert store.reader.header(1, ENTRIES) is None
    store.close()


def test_searching_goes_around_what_is_lost(without_the_second: tuple[LedgerStore, int, int]) -> None:
    store, first, last = without_the_second
    for wanted in (0, 1, first - 1, first, (first + last) // 2, last, last + 1, last + 2, ENTRIES - 1, ENTRIES):
        found = store.reader.first_entry_where(1, 0, ENTRIES, lambda header, at=wanted: header.entry_id >= at)  # type: ignore[misc]
        assert found == (last + 1 if first <= wanted <= last else wanted)
    store.close()


def test_entries_that_were_trimmed_are_not_reported_lost(tmp_path: Path) -> None:
    store = open_store(tmp_path / "d")
    fill(store)
    store.segments.trim(1, 1700)
    for _ in range(30):
        store.maintain()
    result = result_of(lambda done: store.reader.read(1, 0, ENTRIES - 1, 1 << 30, done))
    assert not isinstance(result, Exception)
    assert result[0].entry_id <= 1700
    store.close()


@pytest.mark.parametrize("damaged", [False, True])
@pytest.mark.parametrize("which", [0, 1, -1])
def test_a_start_names_what_is_lost_with_a_segment(tmp_path: Path, which: int, damaged: bool) -> None:
    store = open_store(tmp_path / "d")
    fill(store)
    store.segments.open_next()
    store.writer.commit()
    closed = [segment for segment in store.segments._segments if segment.runs]
    run, path = closed[which].runs[1], closed[which].path
    store.close()
    if damaged:
        path.write_bytes(b"\x55" * path.stat().st_size)
    else:
        path.unlink()
    for _ in range(2):
        store = open_store(tmp_path / "d")
        assert store.segments.bounds(1) == (0, ENTRIES - 1)
        store.ledgers.retain({1: 0})
        store.writer.commit()
        (lost,) = store.segments.missing.ranges(1)
        assert (lost.first, lost.last) == (run.first, run.last)
        assert path.name in lost.reason
        assert store.segments.missing.entries() == run.last - run.first + 1
        assert read_around(store) == ([*range(run.first), *range(run.last + 1, ENTRIES)], [(run.first, run.last)])
        store.close()
    # Once it is no longer wanted, it is no longer reported.
    store = open_store(tmp_path / "d")
    store.ledgers.retain({1: run.last + 1})
    store.writer.commit()
    assert store.segments.missing.ranges(1) == []
    store.close()
    store = open_store(tmp_path / "d")
    assert store.segments.missing.ranges(1) == []
    store.close()


def test_segments_that_left_are_not_missed_whenever_the_process_dies(tmp_path: Path) -> None:
    store = open_store(tmp_path / "d")
    fill(store)
    # Without a commit: the records of what left are as before.
    store.segments.trim(1, 1700)
    for _ in range(30):
        store.maintain()
    store.close(drain=False)
    store = open_store(tmp_path / "d")
    store.ledgers.retain({1: 1700})
    assert store.segments.missing.ranges(1) == []
    assert store.segments.missing.entries() == 0
    found = result_of(lambda done: store.reader.read(1, 1700, ENTRIES, 1 << 30, done))
    assert not isinstance(found, Exception)
    store.close()


def test_ids_of_entries_that_are_lost_without_a_trace_are_not_given_again(tmp_path: Path) -> None:
    core = Core(tmp_path / "d")
    topic = core.topic()
    topic.create_subscription("s", "earliest")
    client = Client()
    producer = core.producer(topic, client)
    for number in range(3):
        core.publish(producer, sequence_id=number)
    core.commit()
    core.close()
    (path,) = (tmp_path / "d" / "segments").glob("*.lmdb")
    path.unlink()
    core = Core(tmp_path / "d")
    topic = core.topic()
    again = Client()
    core.publish(core.producer(topic, again))
    core.commit()
    places = {(ledger_id, entry_id) for _, ledger_id, entry_id in client.receipts}
    assert len(places) == 3
    assert not places & {(ledger_id, entry_id) for _, ledger_id, entry_id in again.receipts}
    ledgers = len(topic.log.ledgers)
    core.restart()
    assert len(core.topic().log.ledgers) == ledgers
    core.close()


def with_pages_that_lead_nowhere(path: Path, which: tuple[int, ...]) -> tuple[LedgerStore, list[tuple[int, int]]]:
    """Return a store whose tree leads nowhere at some of the chunks, and the entries of these."""
    store = open_store(path)
    fill(store, 1000)
    segment = store.segments._segments[0].path
    store.close()
    content = bytearray(segment.read_bytes())
    firsts = sorted({each.first for each in pages.chunks(memoryview(bytes(content))) if not isinstance(each, int)})
    for number in which:
        key = KEY.pack(1, firsts[number])
        at = content.find(key)
        while at >= 0:
            # The number of the first of the pages that its value has.
            content[at + len(key) : at + len(key) + 8] = (1 << 40).to_bytes(8, "little")
            at = content.find(key, at + 1)
    segment.write_bytes(content)
    return open_store(path), [(firsts[number], firsts[number + 1] - 1) for number in which]


@pytest.mark.parametrize("which", [(1,), (4,), (4, 6), (4, 5)])
def test_pages_that_lead_nowhere_are_gone_around(tmp_path: Path, which: tuple[int, ...]) -> None:
    """LMDB refuses a transaction that came to such a page whatever else it is asked: each read needs its own."""
    store, holes = with_pages_that_lead_nowhere(tmp_path / "d", which)
    found, lost = read_around(store, 999)
    hidden = {at for first, last in holes for at in range(first, last + 1)}
    assert {at for first, last in lost for at in range(first, last + 1)} == hidden
    assert found == [at for at in range(1000) if at not in hidden]
    # Each by itself, too: a search for an entry comes to the chunk behind it first.
    for at in range(1000):
        result = result_of(lambda done, at=at: store.reader.read(1, at, at, 1, done))  # type: ignore[misc]
        assert isinstance(result, DamagedEntries) == (at in hidden), at
        if at in hidden:
            with pytest.raises(DamagedEntries):
                store.reader.header(1, at)
        else:
            header = store.reader.header(1, at)
            assert header is not None
            assert header.entry_id == at
    # A lost entry is like the readable one before it.
    damaged, last = holes[0]
    behind = holes[1][1] + 1 if which == (4, 5) else last + 1
    assert store.reader.first_entry_where(1, 0, 1000, lambda header: header.entry_id >= damaged) == behind
    store.close()


@pytest.mark.parametrize("which", [(1,), (4,), (4, 6)])
def test_the_scrub_reports_what_pages_that_lead_nowhere_hide_and_no_more(
    tmp_path: Path, which: tuple[int, ...]
) -> None:
    store, holes = with_pages_that_lead_nowhere(tmp_path / "d", which)
    segment = store.segments._segments[0]
    found: list[tuple[int, int]] = []
    at: bytes | None = None
    for _ in range(100):
        at, _, damaged = segment.reader.scrub(at, 100_000)
        found += [(each.first, each.last) for each in damaged]
        if at is None:
            break
    assert found == holes
    store.close()


def test_as_many_damaged_chunks_as_there_are_are_gone_around(tmp_path: Path) -> None:
    """An error that is kept keeps no transaction: those for readers are limited."""
    store = open_store(tmp_path / "d")
    fill(store, entries=200, group=1)
    (segment,) = store.segments._segments
    with segment.environment().begin(write=True) as txn:
        for entry_id in range(0, 200, 2):
            key = KEY.pack(1, entry_id)
            value = bytearray(txn.get(key) or b"")
            value[-1] ^= 1
            txn.put(key, bytes(value))
    kept = [
        result_of(lambda done, at=at: store.reader.read(1, at, at, 50_000, done))  # type: ignore[misc]
        for at in range(0, 200, 2)
    ]
    assert all(isinstance(each, DamagedEntries) for each in kept)
    found, lost = read_around(store, 199)
    assert found == [*range(1, 200, 2)]
    assert lost == [(each, each) for each in range(0, 200, 2)]
    orders = segment.first_order, segment.last_order
    successor = Segment(segment.disk, segment.path.parent, orders, 2, 1 << 26, segment.store_id, writable=False)
    rewriting = Rewriting([segment], successor, lambda _: True)
    rewriting.run()
    assert [each.first_entry for each in rewriting.damaged[segment]] == [*range(0, 200, 2)]
    store.close()
