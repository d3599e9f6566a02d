"""A backup of a store that is written to is what a crash would have left; restoring is all or nothing."""

from __future__ import annotations

import asyncio
import gzip
import io
import random
import tarfile
from collections.abc import Callable
from pathlib import Path

import lmdb
import msgspec
import pytest
from heliograph_broker.storage.copies.backup import Backup, BackupError
from heliograph_broker.storage.copies.restore import check, restore
from heliograph_broker.storage.store import LedgerStore, LoopScheduler

from tests.support.store_load import Load, maintain, open_store

LEDGERS = 5


def begin(store: LedgerStore) -> Backup:
    return store.backup("1.2.3", 1_700_000_000_000)


def finish(backup: Backup, path: Path, between: Callable[[], None] = lambda: None) -> None:
    """Write all of it to ``path``, with a call of ``between`` before each part."""
    with path.open("wb") as file:
        between()
        while part := backup.read():
            file.write(part)
            between()
    backup.close()


def cursors(store: LedgerStore) -> dict[int, int]:
    return {int(key.removeprefix(b"cursor/")): int(value) for key, value in store.metadata.scan(b"cursor/")}


class Traffic:
    """Entries, cursors over them, trimming behind the cursors, and rewriting: one random step at a time."""

    def __init__(self, store: LedgerStore, seed: int) -> None:
        self.load = Load(store, size=2000)
        self.store = store
        self.random = random.Random(seed)
        self.cursors: dict[int, int] = {}

    def step(self) -> None:
        for _ in range(self.random.randrange(1, 60)):
            self.load.append(self.random.randint(1, LEDGERS))
        self.store.writer.commit()
        ledger = self.random.choice(list(self.load.end))
        cursor = self.random.randint(self.load.first[ledger], self.load.end[ledger])
        self.cursors[ledger] = max(cursor, self.cursors.get(ledger, 0))
        self.store.writer.put(b"cursor/%d" % ledger, b"%d" % self.cursors[ledger])
        self.store.writer.commit()
        # The cursor is durable, so what is before it may go.
        self.load.first[ledger] = self.cursors[ledger]
        self.store.segments.trim(ledger, self.cursors[ledger])
        self.store.maintain()


@pytest.mark.parametrize("seed", range(4))
def test_a_backup_has_everything_durable_before_it_began_whatever_goes_on_meanwhile(tmp_path: Path, seed: int) -> None:
    store = open_store(tmp_path / "d", segment_bytes=200_000)
    traffic = Traffic(store, seed)
    for _ in range(traffic.random.randrange(20, 60)):
        traffic.step()
    first, end, had = dict(traffic.load.first), dict(traffic.load.end), dict(traffic.cursors)
    finish(begin(store), tmp_path / "b.tar", traffic.step)
    files_during = len(list((tmp_path / "d" / "segments").glob("*.lmdb")))
    maintain(store)
    assert len(list((tmp_path / "d" / "segments").glob("*.lmdb"))) <= files_during + 1
    traffic.load.assert_all_there()
    store.close()

    manifest = restore(tmp_path / "b.tar", tmp_path / "r")

    assert (manifest.version, manifest.begun_ms) == ("1.2.3", 1_700_000_000_000)
    restored = open_store(tmp_path / "r", segment_bytes=200_000)
    try:
        assert cursors(restored) == had
        for ledger in end:
            bounds = restored.segments.bounds(ledger)
            assert first[ledger] == end[ledger] or bounds is not None
            assert bounds is None or bounds[1] >= end[ledger] - 1
        traffic.load.first, traffic.load.end = first, end
        traffic.load.assert_all_there(restored)
        # It goes on being written to.
        again = Load(restored, size=2000)
        again.append(LEDGERS + 1)
        restored.writer.commit()
        assert again.durable == 1
    finally:
        restored.close()


def test_segments_stay_while_a_backup_reads_them_and_go_afterwards(tmp_path: Path) -> None:
    store = open_store(tmp_path / "d", segment_bytes=200_000)
    load = Load(store)
    load.fill(2, 2_000_000)
    files = set((tmp_path / "d" / "segments").glob("*.lmdb"))
    backup = begin(store)
    load.trim(1.0)
    maintain(store)
    assert files <= set((tmp_path / "d" / "segments").glob("*.lmdb"))
    backup.close()
    maintain(store)
    assert len(set((tmp_path / "d" / "segments").glob("*.lmdb")) & files) <= 1
    store.close()


def test_a_second_backup_is_refused_until_the_first_has_ended(tmp_path: Path) -> None:
    store = open_store(tmp_path / "d")
    first = begin(store)
    with pytest.raises(BackupError, match="one at a time"):
        begin(store)
    first.close()
    begin(store).close()
    store.close()


def test_closing_the_store_ends_a_backup_in_the_middle_of_a_file(tmp_path: Path) -> None:
    store = open_store(tmp_path / "d", segment_bytes=8_000_000)
    Load(store).fill(1, 4_000_000)
    backup = begin(store)
    assert backup.read()
    store.close()
    with pytest.raises(BackupError, match="before it was complete"):
        backup.read()
    open_store(tmp_path / "d").close()


async def test_threads_write_and_give_back_space_while_a_backup_is_read(tmp_path: Path) -> None:
    store = open_store(tmp_path / "d", LoopScheduler(asyncio.get_running_loop()), segment_bytes=300_000)
    load = Load(store)
    published = 0

    async def publish(count: int) -> None:
        nonlocal published
        for _ in range(count):
            load.append(1 + published % LEDGERS)
            published += 1
        durable = asyncio.Event()
        store.writer.after_commit(lambda error: durable.set())
        await durable.wait()

    for _ in range(10):
        await publish(200)
    first, end = dict(load.first), dict(load.end)
    backup = begin(store)
    with (tmp_path / "b.tar").open("wb") as file:
        while part := await asyncio.to_thread(backup.read):
            file.write(part)
            await publish(50)
            load.trim(0.3)
            store.maintain()
    backup.close()
    store.close()
    assert load.errors == []
    restore(tmp_path / "b.tar", tmp_path / "r")
    restored = open_store(tmp_path / "r")
    load.first, load.end = first, end
    load.assert_all_there(restored)
    restored.close()


# -- what is refused -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("backup")
    store = open_store(path / "d", segment_bytes=100_000)
    Load(store).fill(2, 400_000)
    finish(begin(store), path / "good.tar")
    store.close()
    return path / "good.tar"


def refused(archive: Path, target: Path, match: str) -> None:
    before = sorted(target.parent.iterdir())
    with pytest.raises(BackupError, match=match):
        restore(archive, target)
    assert sorted(target.parent.iterdir()) == before


def repacked(archive: Path, change: Callable[[str, bytes], tuple[str, bytes]]) -> bytes:
    """The archive with other names or contents."""
    out = io.BytesIO()
    with tarfile.open(archive) as old, tarfile.open(fileobj=out, mode="w") as new:
        for member in old:
            content = old.extractfile(member)
            assert content is not None
            name, data = change(member.name, content.read())
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            new.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def test_plain_tar_reads_it_and_compressing_it_changes_nothing(archive: Path, tmp_path: Path) -> None:
    with tarfile.open(archive) as tar:
        names = tar.getnames()
    assert (names[:2], names[-1]) == (["FORMAT", "metadata.lmdb"], "MANIFEST.json")
    (tmp_path / "b.tar.gz").write_bytes(gzip.compress(archive.read_bytes()))
    assert check(tmp_path / "b.tar.gz") == check(archive)
    (tmp_path / "empty").mkdir()
    restore(tmp_path / "b.tar.gz", tmp_path / "empty")
    assert {path.name for path in (tmp_path / "empty").iterdir()} == {"FORMAT", "metadata.lmdb", "segments"}


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("compressed", [False, True])
def test_a_backup_cut_short_is_refused(archive: Path, tmp_path: Path, share: float, compressed: bool) -> None:
    whole = gzip.compress(archive.read_bytes()) if compressed else archive.read_bytes()
    cut = tmp_path / "cut.tar"
    cut.write_bytes(whole[: int(len(whole) * share)])
    refused(cut, tmp_path / "r", "cut short")


def test_a_flipped_bit_is_found_wherever_it_is(archive: Path, tmp_path: Path) -> None:
    with tarfile.open(archive) as tar:
        members = [(member.name, member.offset_data, member.size) for member in tar]
    for name, offset, size in members:
        data = bytearray(archive.read_bytes())
        data[offset + size // 2] ^= 4
        (tmp_path / "bad.tar").write_bytes(data)
        refused(tmp_path / "bad.tar", tmp_path / "r", "has format|is damaged" if name == "FORMAT" else "is damaged")


def test_a_missing_segment_is_named(archive: Path, tmp_path: Path) -> None:
    manifest = check(archive)
    manifest.files["segments/00000099-00000099-0001.lmdb"] = manifest.files["metadata.lmdb"]
    encoded = msgspec.json.encode(manifest)
    (tmp_path / "b.tar").write_bytes(
        repacked(archive, lambda name, data: (name, encoded if name == "MANIFEST.json" else data))
    )
    refused(tmp_path / "b.tar", tmp_path / "r", "00000099")


@pytest.mark.parametrize("content", [b'{"format": "\xff"}', b'{"x":' + b"[" * 100_000])
def test_a_manifest_that_cannot_be_read_is_damaged(archive: Path, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "b.tar").write_bytes(
        repacked(archive, lambda name, data: (name, content if name == "MANIFEST.json" else data))
    )
    refused(tmp_path / "b.tar", tmp_path / "r", r"is damaged: its MANIFEST\.json cannot be read")


def test_another_format_is_refused_by_its_name(archive: Path, tmp_path: Path) -> None:
    (tmp_path / "b.tar").write_bytes(
        repacked(archive, lambda name, data: (name, b"heliograph 9\n" if name == "FORMAT" else data))
    )
    refused(
        tmp_path / "b.tar",
        tmp_path / "r",
        "has format 'heliograph 9'; this version knows 'heliograph 2' and 'heliograph 3'",
    )


@pytest.mark.parametrize("name", ["../evil.lmdb", "segments/../../evil.lmdb", "/evil.lmdb", "LOCK"])
def test_no_file_is_written_under_a_name_that_is_not_a_backups(archive: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "b.tar").write_bytes(
        repacked(archive, lambda old, data: (name if old.startswith("metadata") else old, data))
    )
    refused(tmp_path / "b.tar", tmp_path / "r", "is not a backup")


def test_a_directory_with_anything_in_it_is_refused(archive: Path, tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "precious").write_text("stays")
    refused(archive, tmp_path / "r", "not empty")
    assert (tmp_path / "r" / "precious").read_text() == "stays"
    refused(archive, tmp_path / "r" / "precious", "not a directory")


def test_a_file_that_is_no_backup_or_not_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "b.tar").write_text("hello")
    refused(tmp_path / "b.tar", tmp_path / "r", "damaged or cut short")
    refused(tmp_path / "none.tar", tmp_path / "r", "No such file")


def test_damaged_entries_are_named_and_the_backup_is_made(tmp_path: Path) -> None:
    store = open_store(tmp_path / "d")
    Load(store).fill(2, 100_000)
    store.close()
    (damaged,) = (tmp_path / "d" / "segments").glob("*.lmdb")
    with (
        lmdb.open(str(damaged), subdir=False, map_size=1 << 30) as environment,
        environment.begin(write=True) as txn,
        txn.cursor() as cursor,
    ):
        assert cursor.last()
        key, value = cursor.item()
        assert txn.put(key, value[:-1] + bytes([value[-1] ^ 1]))
    store = open_store(tmp_path / "d")
    finish(begin(store), tmp_path / "b.tar")
    store.close()
    (line,) = check(tmp_path / "b.tar").damaged
    assert line.startswith(f"segments/{damaged.name}: entries of ledger 2 from ")
