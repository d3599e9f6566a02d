"""Backups below one URL: whose objects are deleted, what two uploads do to each other, and what is restored once."""

from __future__ import annotations

import asyncio
import hashlib
import io
import shutil
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from heliograph_broker.cli.commands.backup import backup_app
from heliograph_broker.clock import VirtualClock
from heliograph_broker.offsite import catalog
from heliograph_broker.offsite.catalog import BackupRecord, Begun, Part
from heliograph_broker.offsite.object_store import Access, ObjectStore, StoreError
from heliograph_broker.offsite.pull import RESTORED, PartReader, bootstrap, pull, restored_from
from heliograph_broker.offsite.push import push
from heliograph_broker.offsite.verification_results import FailedVerification, record_failed
from heliograph_broker.storage.copies.backup import BackupError
from heliograph_broker.storage.disk.data_dir import RESTORING
from heliograph_broker.storage.disk.identity import FORMAT_VERSION, Format, parse_format
from heliograph_broker.storage.store import InlineScheduler, LedgerStore
from typer.testing import CliRunner

from tests.support.store_load import Load, open_store

from .test_store_backup import begin


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The tar that a broker sends."""
    store = open_store(tmp_path_factory.mktemp("store") / "d")
    Load(store).fill(2, 100_000)
    backup = begin(store)
    sent = b"".join(iter(backup.read, b""))
    backup.close()
    store.close()
    return sent


class Broker:
    """Stands for the client of a broker without topics that sends ``archive``."""

    def __init__(self, archive: bytes) -> None:
        self._archive = archive

    async def state(self) -> SimpleNamespace:
        return SimpleNamespace(topics={})

    async def stream(self, _path: str) -> AsyncIterator[bytes]:
        yield self._archive[:10_000]
        yield self._archive[10_000:]


def broker(archive: bytes) -> Any:
    return Broker(archive)


def place(directory: Path) -> ObjectStore:
    return ObjectStore(f"file://{directory}", Access())


def complete_record(name: str, **changed: Any) -> BackupRecord:
    record = BackupRecord(name, "team", 1, 2, "1.2.3", f"heliograph 3\nstore {'a' * 32}", 1, [Part(1, "0")], {})
    return msgspec.structs.replace(record, **changed)


def complete(store: ObjectStore, name: str, **changed: Any) -> BackupRecord:
    """Write a backup that is complete, and return its record."""
    record = complete_record(name, **changed)
    store.put(f"{name}/begun.json", msgspec.json.encode(Begun(record.source)))
    store.put(f"{name}/part-000001", b"x")
    store.put(f"{name}/manifest.json", msgspec.json.encode(record))
    return record


# -- what is deleted -----------------------------------------------------------------------------------------------


async def test_a_push_deletes_nothing_of_the_backups_below_its_name(tmp_path: Path, archive: bytes) -> None:
    root, team = place(tmp_path), place(tmp_path / "orders")
    for name in ("monday", "tuesday"):
        complete(team, name)
    kept = team.sizes()
    with pytest.raises(BackupError):
        await push(broker(b"garbage" * 10), root, "orders", "other")
    assert team.sizes().items() >= kept.items()
    await push(broker(archive), root, "orders", "other")
    assert team.sizes().items() >= kept.items()
    assert catalog.names(team)[0] == ["monday", "tuesday"]
    assert catalog.names(root)[0] == ["orders"]


def test_a_backup_is_deleted_and_nothing_else_below_its_name(tmp_path: Path) -> None:
    root, team = place(tmp_path), place(tmp_path / "orders")
    complete(team, "monday")
    root.put("orders/notes.txt", b"somebody's")
    kept = root.sizes()
    assert not catalog.delete(root, "orders")
    assert root.sizes() == kept
    complete(root, "orders")
    root.put("orders/verified.json", b"{}")
    assert catalog.delete(root, "orders")
    assert root.sizes() == kept


async def test_a_push_deletes_no_upload_of_another_source(tmp_path: Path, archive: bytes) -> None:
    store = place(tmp_path)
    store.put("nightly/begun.json", msgspec.json.encode(Begun("payments")))
    store.put("nightly/part-000001", b"x")
    kept = store.sizes()
    with pytest.raises(StoreError, match="an upload of another source") as refused:
        await push(broker(archive), store, "nightly", "orders")
    assert f"heliograph backup delete {store.url} nightly" in str(refused.value)
    assert store.sizes() == kept
    record = await push(broker(archive), store, "nightly", "payments")
    assert catalog.get(store, "nightly") == record


def staged(store: Path, *paths: str) -> None:
    """Write what a process leaves that is killed while it writes these objects."""
    for path in paths:
        (store / path).parent.mkdir(exist_ok=True)
        (store / f"{path}#1").write_bytes(b"x")


async def test_the_next_push_of_a_source_deletes_what_killed_ones_were_writing(tmp_path: Path, archive: bytes) -> None:
    store = place(tmp_path)
    for name, source in (("mine", "team"), ("other", "somebody")):
        store.put(f"{name}/begun.json", msgspec.json.encode(Begun(source)))
        staged(tmp_path, f"{name}/part-000001-{'a' * 16}", f"{name}/manifest.json")
    await push(broker(archive), store, "nightly", "team")
    assert not (tmp_path / "mine").exists()
    assert len(list((tmp_path / "other").iterdir())) == 3
    assert sorted(path.name for path in (tmp_path / "nightly").iterdir() if "#" in path.name) == []


def test_what_killed_processes_were_writing_is_deleted_with_a_backup_and_nothing_else_is(tmp_path: Path) -> None:
    store = place(tmp_path)
    complete(store, "monday")
    staged(tmp_path, "monday/part-000002", "monday/verified.json", "monday/notes.txt")
    staged(tmp_path, "tuesday/begun.json")
    assert catalog.delete(store, "monday")
    assert [path.name for path in (tmp_path / "monday").iterdir()] == ["notes.txt#1"]
    assert catalog.delete(store, "tuesday")
    assert not (tmp_path / "tuesday").exists()
    assert not catalog.delete(store, "tuesday")


# -- two uploads ---------------------------------------------------------------------------------------------------


class Waiting(Broker):
    """Sends the archive and so much of ``filler`` that it is a part, calls ``meanwhile``, and sends the rest."""

    def __init__(
        self, archive: bytes, meanwhile: Callable[[], Coroutine[Any, Any, None]], filler: bytes = b"\0"
    ) -> None:
        super().__init__(archive)
        self._meanwhile = meanwhile
        self._filler = filler

    async def stream(self, _path: str) -> AsyncIterator[bytes]:
        yield self._archive.ljust(catalog.PART_BYTES, self._filler)
        await self._meanwhile()
        yield bytes(512)


def check_whole(store: ObjectStore, name: str) -> None:
    """Every part of a backup is what its manifest says."""
    reader: Any = PartReader(store, catalog.get(store, name))
    io.BufferedReader(reader).read()


async def test_of_two_uploads_of_one_name_only_whole_ones_are_backups(tmp_path: Path, archive: bytes) -> None:
    """Also of one source: two brokers of one port forwarding were."""
    store = place(tmp_path)

    async def second() -> None:
        await push(broker(archive), store, "nightly", "same")

    first: Any = Waiting(archive, second)
    with pytest.raises(StoreError, match="changed by somebody else"):
        await push(first, store, "nightly", "same")
    check_whole(store, "nightly")


@pytest.mark.parametrize("other", ["nightly", "weekly"])
async def test_an_upload_whose_parts_were_deleted_is_no_backup(tmp_path: Path, archive: bytes, other: str) -> None:
    """A part of the other one has the same size."""
    store = place(tmp_path)

    async def fail() -> None:
        raise ConnectionError("the broker is away")

    async def second() -> None:
        away: Any = Waiting(archive, fail, b"\1")
        with pytest.raises(ConnectionError):
            await push(away, store, other, "same")

    first: Any = Waiting(archive, second)
    with pytest.raises(StoreError, match="changed by somebody else"):
        await push(first, store, "nightly", "same")
    assert catalog.names(store)[0] == []


async def test_an_upload_begun_at_the_same_moment_takes_the_name_or_ends(tmp_path: Path, archive: bytes) -> None:
    """Two that saw no begun.json: the later one has the name, and the parts of the first are none of its backup."""
    store = place(tmp_path)

    async def second() -> None:
        mine = Begun("second", "b" * 16)
        store.put("nightly/begun.json", msgspec.json.encode(mine))
        path = catalog.part_path("nightly", 1, mine.upload)
        store.put(path, b"y")
        record = complete_record("nightly", upload=mine.upload, parts=[Part(1, hashlib.sha256(b"y").hexdigest())])
        catalog.complete(store, record, mine)

    first: Any = Waiting(archive, second)
    with pytest.raises(StoreError, match="changed by somebody else"):
        await push(first, store, "nightly", "first")
    check_whole(store, "nightly")
    assert catalog.delete(store, "nightly")
    assert store.sizes() == {}


def test_a_manifest_is_taken_back_when_the_upload_became_anothers_meanwhile(tmp_path: Path) -> None:
    mine = Begun("team", "a" * 16)

    class Slow(ObjectStore):
        """Another upload of the source begins while the manifest is written."""

        def create(self, path: str, content: bytes) -> bool:
            created = super().create(path, content)
            self.put("nightly/begun.json", msgspec.json.encode(Begun("team", "b" * 16)))
            return created

    store = Slow(f"file://{tmp_path}", Access())
    store.put("nightly/begun.json", msgspec.json.encode(mine))
    with pytest.raises(StoreError, match="changed by somebody else"):
        catalog.complete(store, complete_record("nightly", upload=mine.upload, parts=[]), mine)
    assert catalog.names(store) == ([], ["nightly"])


async def test_a_source_is_by_default_the_id_of_the_store(tmp_path: Path, archive: bytes) -> None:
    store = place(tmp_path)
    store.put("interrupted/begun.json", msgspec.json.encode(Begun("http://localhost:8080")))
    record = await push(broker(archive), store, "nightly", None)
    assert parse_format(record.format) == Format(FORMAT_VERSION, record.source)
    assert catalog.names(store) == (["nightly"], ["interrupted"])
    kept = store.sizes()
    assert await push(broker(archive), store, "nightly", None, again=True) == record
    assert await push(broker(b""), store, "nightly", record.source, again=True) == record
    for source, again in ((None, False), ("other", True)):
        with pytest.raises(StoreError, match="has a backup nightly already"):
            await push(broker(archive), store, "nightly", source, again=again)
    assert store.sizes() == kept


async def test_another_brokers_backup_is_not_an_earlier_attempt(tmp_path: Path, archive: bytes) -> None:
    store = place(tmp_path)
    complete(store, "nightly")
    with pytest.raises(StoreError, match="has a backup nightly already"):
        await push(broker(archive), store, "nightly", None, again=True)


async def test_what_does_not_begin_with_an_id_needs_a_source(tmp_path: Path) -> None:
    for sent in (b"garbage" * 1000, bytes(1024)):
        with pytest.raises(BackupError, match="name it with --source"):
            await push(broker(sent), place(tmp_path), "nightly", None)


def test_a_backup_without_the_digits_of_its_upload_is_read(tmp_path: Path) -> None:
    """Versions before had none."""
    store = place(tmp_path)
    complete(store, "old", parts=[Part(1, hashlib.sha256(b"x").hexdigest())])
    check_whole(store, "old")
    assert catalog.delete(store, "old")
    assert store.sizes() == {}


# -- what others wrote ---------------------------------------------------------------------------------------------


def listed(store: ObjectStore) -> list[str]:
    done = CliRunner().invoke(backup_app, ["list", store.url])
    assert done.exit_code == 0, done.output
    return done.output.splitlines()


def test_a_list_shows_the_backups_beside_what_is_none(tmp_path: Path) -> None:
    store = place(tmp_path)
    complete(store, "monday")
    complete(store, "damaged")
    store.put("damaged/manifest.json", b'{"name": "damaged"')
    store.put("interrupted/begun.json", msgspec.json.encode(Begun("team")))
    store.put("web-app/manifest.json", b"{}")
    store.put("picture/manifest.json", b'{"name": "\xff"}')
    store.put("nested/manifest.json", b'{"x":' + b"[" * 100_000)
    store.put("picture-begun/begun.json", b'{"source": "\xff"}')
    # No backup has this name.
    store.put("MyApp/manifest.json", b"{}")
    lines = listed(store)
    assert lines[0].startswith("monday  0 topics")
    assert lines[1:] == [
        "damaged  its manifest.json cannot be read, not a backup",
        "nested  its manifest.json cannot be read, not a backup",
        "picture  its manifest.json cannot be read, not a backup",
        "web-app  its manifest.json cannot be read, not a backup",
        "interrupted  interrupted, not a backup",
        "picture-begun  interrupted, not a backup",
    ]
    with pytest.raises(StoreError, match=r"web-app/manifest\.json cannot be read"):
        catalog.delete(store, "web-app")
    assert store.get("web-app/manifest.json") == b"{}"
    assert catalog.delete(store, "damaged")
    catalog.delete_interrupted(store, Begun("team"))
    assert catalog.names(store)[1] == ["picture-begun"]


@pytest.mark.parametrize("name", ["../victim", "other", "a\nb"])
def test_a_backup_is_what_its_place_is_named_not_its_manifest(tmp_path: Path, name: str) -> None:
    """As when somebody copied it to another name."""
    store = place(tmp_path)
    record = complete(store, "copy", parts=[Part(1, hashlib.sha256(b"x").hexdigest())])
    store.put("copy/manifest.json", msgspec.json.encode(msgspec.structs.replace(record, name=name)))
    assert catalog.get(store, "copy") == msgspec.structs.replace(record, name="copy")
    check_whole(store, "copy")
    assert listed(store)[0].startswith("copy  ")


@pytest.mark.parametrize("upload", ["../victim", "A", "0" * 65])
def test_a_manifest_leads_to_no_objects_but_its_own(tmp_path: Path, upload: str) -> None:
    store = place(tmp_path)
    complete(store, "monday", upload=upload)
    with pytest.raises(StoreError, match=r"monday/manifest\.json cannot be read"):
        catalog.get(store, "monday")


# -- what is restored once -----------------------------------------------------------------------------------------


def interrupted_at_its_end(store: ObjectStore, archive: bytes, volume: Path) -> BackupRecord:
    """Restore a backup, killed before the mark that it is complete."""
    record = asyncio.run(push(broker(archive), store, "monday", None))
    volume.mkdir()
    bootstrap(store, record, volume)
    (volume / RESTORED).rename(volume / RESTORING)
    return record


def test_a_restore_that_lacks_only_its_mark_is_complete(tmp_path: Path, archive: bytes) -> None:
    store, volume = place(tmp_path / "store"), tmp_path / "volume"
    record = interrupted_at_its_end(store, archive, volume)
    # The same backup at another URL.
    moved = place(tmp_path / "moved")
    assert bootstrap(moved, record, volume).name == "monday"
    assert (volume / RESTORED).exists()
    assert not (volume / RESTORING).exists()


def test_a_volume_of_another_backup_is_not_taken_for_the_restored_one(tmp_path: Path, archive: bytes) -> None:
    store, volume = place(tmp_path / "store"), tmp_path / "volume"
    interrupted_at_its_end(store, archive, volume)
    tuesday = asyncio.run(push(broker(archive), store, "tuesday", None))
    assert bootstrap(store, tuesday, volume).name == "monday"
    assert bootstrap(store, tuesday, volume).name == "monday"


@pytest.mark.parametrize("asked", ["monday", "latest"])
def test_a_restore_that_lacks_only_its_mark_needs_neither_its_backup_nor_a_store(
    tmp_path: Path, archive: bytes, asked: str
) -> None:
    store, volume = place(tmp_path / "store"), tmp_path / "volume"
    interrupted_at_its_end(store, archive, volume)
    kept = sorted(volume.rglob("*"))
    shutil.rmtree(tmp_path / "store")
    (tmp_path / "store").write_text("not a directory any more")
    pulled = CliRunner().invoke(backup_app, ["pull", store.url, asked, "--data-dir", str(volume), "--once"])
    assert (pulled.exit_code, "restored before" in pulled.stdout) == (0, True), pulled.output
    found = restored_from(volume)
    assert found is not None
    assert found.name == "monday"
    assert len(sorted(volume.rglob("*"))) == len(kept)
    assert not (volume / RESTORING).exists()


def test_a_restore_that_was_interrupted_earlier_can_be_of_another_backup(tmp_path: Path, archive: bytes) -> None:
    """Also of ``latest``, if the one that was begun is gone, or its verification failed meanwhile."""
    store, volume = place(tmp_path / "store"), tmp_path / "volume"
    interrupted_at_its_end(store, archive, volume)
    (volume / "FORMAT").unlink()
    asyncio.run(push(broker(archive), store, "sunday", None))
    upload = catalog.get(store, "monday").upload
    record_failed(store, "monday", FailedVerification(1, "it lacks a topic", upload))
    pulled = CliRunner().invoke(backup_app, ["pull", store.url, "latest", "--data-dir", str(volume), "--once"])
    assert pulled.exit_code == 0, pulled.output
    found = restored_from(volume)
    assert found is not None
    assert found.name == "sunday"


@pytest.mark.parametrize("mark", [None, b"", b"{}"])
def test_a_broker_that_started_before_the_restore_ended_is_not_restored(
    tmp_path: Path, archive: bytes, mark: bytes | None
) -> None:
    store, volume = place(tmp_path / "store"), tmp_path / "volume"
    record = interrupted_at_its_end(store, archive, volume)
    shutil.rmtree(volume / "segments")
    (volume / "metadata.lmdb").unlink()
    (volume / "FORMAT").unlink()
    # One of a version that starts where a restore was interrupted.
    restoring = (volume / RESTORING).read_bytes()
    (volume / RESTORING).unlink()
    LedgerStore.open(volume, VirtualClock(), scheduler=InlineScheduler(), new_store_id="b" * 32).close()
    (volume / RESTORING).write_bytes(restoring if mark is None else mark)
    before = sorted(volume.iterdir())
    with pytest.raises(BackupError, match=r"a broker started on .* before the backup was restored"):
        bootstrap(store, record, volume)
    assert sorted(volume.iterdir()) == before


def test_a_backup_that_cannot_be_used_names_the_way_to_another(tmp_path: Path) -> None:
    store = place(tmp_path)
    damaged = complete(store, "damaged")
    missing = complete(store, "missing")
    store.delete("missing/part-000001")
    for record, problem in ((damaged, "damaged/part-000001 is damaged"), (missing, "missing/part-000001 is missing")):
        with pytest.raises(StoreError, match=problem) as refused:
            pull(store, record, tmp_path / "restored")
        assert str(refused.value).endswith(f"restore another backup: 'heliograph backup list {store.url}' shows them")
