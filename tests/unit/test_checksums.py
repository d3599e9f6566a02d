"""Every chunk has checksums: a flipped bit anywhere is found, named, and gone around; the damaged file stays."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import lmdb
import pytest
from heliograph_broker.storage.base.damage import DamagedEntries
from heliograph_broker.storage.base.entry import HEADER, Entry
from heliograph_broker.storage.segments import chunk
from heliograph_broker.storage.segments.chunk import KEY, Repacker
from heliograph_broker.storage.store import LedgerStore

from .test_damage import ENTRIES, SIZE, fill, open_store, read_around


def entries(count: int, size: int = 300) -> list[Entry]:
    return [
        Entry(7, 5 + at, 1000 + at, 900 + at, 0, -1, 2, at, 2 * at + 2, (at + 1) * size, b"%04d" % at * (size // 4))
        for at in range(count)
    ]


def old_chunk(batch: Sequence[Entry]) -> bytes:
    """A chunk as versions without checksums wrote it."""
    rows = []
    end = 0
    for each in batch:
        end += each.size
        header = HEADER.pack(
            each.receive_ms,
            each.publish_ms,
            each.deliver_at_ms,
            each.ttl_ms,
            each.total_messages,
            each.total_bytes,
            each.messages,
            each.key_hash,
        )
        rows.append(header + end.to_bytes(4, "big"))
    return len(batch).to_bytes(4, "big") + b"".join(rows) + b"".join(each.frame for each in batch)


def repacked(items: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    packer = Repacker()
    for key, value in items:
        ledger, first = KEY.unpack(key)
        packer.add(ledger, first, memoryview(value), 0, chunk.count(memoryview(value)) - 1)
    packer.flush()
    return packer.items


@pytest.mark.parametrize("count", [1, 2, 60])
@pytest.mark.parametrize("rewritten", [False, True])
def test_any_flipped_bit_of_a_chunk_is_found(count: int, rewritten: bool) -> None:
    items = chunk.pack(entries(count, 40))
    ((key, value),) = repacked(items) if rewritten else items
    assert chunk.is_summed(memoryview(value))
    assert chunk.is_sound(memoryview(key), memoryview(value))
    rng = random.Random(count)
    frames = len(value) - 40 * count
    for bit in [*range(96), *(rng.randrange(len(value) * 8) for _ in range(500))]:
        changed = bytearray(value)
        changed[bit // 8] ^= 1 << bit % 8
        assert not chunk.is_sound(memoryview(key), memoryview(changed)), bit
        if bit // 8 < frames and not 8 <= bit // 8 < 12:  # the sum of the frames is theirs
            assert not chunk.rows_are_sound(memoryview(key), memoryview(changed)), bit
    assert not chunk.is_sound(memoryview(KEY.pack(7, 6)), memoryview(value))


def test_chunks_without_checksums_are_read_and_gain_one_when_rewritten() -> None:
    batch = entries(200)
    value = memoryview(old_chunk(batch))
    key = KEY.pack(7, 5)
    assert chunk.is_sound(memoryview(key), value)
    assert not chunk.is_summed(value)
    assert [chunk.entry_at(value, 7, 5, at).frame for at in range(200)] == [each.frame for each in batch]
    for new_key, new in repacked([(key, bytes(value))]):
        assert chunk.is_summed(memoryview(new))
        assert chunk.is_sound(memoryview(new_key), memoryview(new))
        first = KEY.unpack(new_key)[1]
        for at in range(chunk.count(memoryview(new))):
            assert chunk.header_at(memoryview(new), first, at) == chunk.header_at(value, 5, first - 5 + at)


def flip(path: Path, wanted: bytes) -> None:
    """Flip a bit of the first place in a file that has these bytes."""
    content = bytearray(path.read_bytes())
    at = content.index(wanted)
    content[at] ^= 4
    path.write_bytes(content)


@pytest.fixture
def damaged(tmp_path: Path) -> LedgerStore:
    store = open_store(tmp_path / "d")
    fill(store)
    store.close()
    # In the frame of entry 1234, which is in the middle of a chunk.
    for path in (tmp_path / "d" / "segments").glob("*.lmdb"):
        if b"1234 xxx" in path.read_bytes():
            flip(path, b"1234 xxx")
    return open_store(tmp_path / "d")


def test_a_flipped_bit_loses_one_chunk(damaged: LedgerStore) -> None:
    found, lost = read_around(damaged)
    ((first, last),) = lost
    assert first <= 1234 <= last
    assert last - first < 64 * 1024 // SIZE
    assert found == [*range(first), *range(last + 1, ENTRIES)]
    # Its headers are whole.
    header = damaged.reader.header(1, 1234)
    assert header is not None
    assert header.total_messages == 1235
    damaged.close()


def test_rewriting_goes_around_it_and_keeps_the_file(tmp_path: Path, damaged: LedgerStore) -> None:
    _, ((first, last),) = read_around(damaged)
    damaged.segments.trim(1, 1200)
    # Every byte counts on a full disk.
    damaged.space.full = True
    damaged.space._reserve = 1 << 60
    for _ in range(40):
        damaged.maintain()
    (aside,) = (tmp_path / "d" / "segments").glob("*.damaged")
    assert b"1235 xxx" in aside.read_bytes()
    damaged.close()
    store = open_store(tmp_path / "d")
    store.ledgers.retain({1: 1200})
    for at, named in ((first, first), (1234, 1234)):
        results: list[list[Entry] | Exception] = []
        store.reader.read(1, at, ENTRIES, 1 << 30, results.append)
        assert isinstance(results[0], DamagedEntries)
        assert (results[0].first_entry, results[0].last_entry) == (named, last)
    store.reader.read(1, last + 1, ENTRIES, 1, results.append)
    assert isinstance(results[1], list)
    assert results[1][0].entry_id == last + 1
    store.close()
    assert aside.exists()


@pytest.mark.parametrize("how", ["first pages", "cut short", "empty"])
def test_a_segment_that_cannot_be_opened_is_set_aside_and_the_rest_is_served(tmp_path: Path, how: str) -> None:
    store = open_store(tmp_path / "d")
    fill(store)
    segment = store.segments._segments[1]
    run = segment.runs[1]
    store.close()
    content = segment.path.read_bytes()
    if how == "first pages":
        segment.path.write_bytes(bytes(random.Random(1).randbytes(8192)) + content[8192:])
    else:
        segment.path.write_bytes(content[: len(content) // 2 if how == "cut short" else 100])
    store = open_store(tmp_path / "d")
    assert read_around(store) == ([*range(run.first), *range(run.last + 1, ENTRIES)], [(run.first, run.last)])
    store.close()
    assert [path.name for path in (tmp_path / "d" / "segments").glob("*.damaged")] == [segment.path.name + ".damaged"]
    store = open_store(tmp_path / "d")
    assert read_around(store)[1] == [(run.first, run.last)]
    store.close()


def test_the_last_chunk_of_a_ledger_may_be_damaged(tmp_path: Path) -> None:
    store = open_store(tmp_path / "d")
    fill(store, 250, 50)
    path = store.segments._segments[0].path
    store.close()
    with lmdb.open(str(path), subdir=False, map_size=1 << 30) as environment, environment.begin(write=True) as txn:
        with txn.cursor() as cursor:
            assert cursor.last()
            key, value = bytes(cursor.key()), bytearray(cursor.value())
        value[20] ^= 1
        txn.put(key, bytes(value))
    first = KEY.unpack(key)[1]
    store = open_store(tmp_path / "d")
    assert store.segments.bounds(1) == (0, 249)
    assert read_around(store, 249) == ([*range(first)], [(first, 249)])
    with pytest.raises(DamagedEntries):
        store.reader.header(1, 249)
    store.close()
