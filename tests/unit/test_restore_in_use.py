"""A volume that is restored into belongs to the restore until it ends: no broker and no other restore changes it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from heliograph_broker.offsite.catalog import BackupRecord
from heliograph_broker.offsite.object_store import Access, ObjectStore
from heliograph_broker.offsite.pull import RESTORED, bootstrap, pull, restored_from
from heliograph_broker.offsite.push import push
from heliograph_broker.storage.copies.backup import BackupError
from heliograph_broker.storage.disk.data_dir import RESTORING, DataDir, DataDirError
from heliograph_broker.storage.disk.disk import RealDisk

from tests.support.store_load import open_store

from .test_offsite import archive, broker, place

__all__ = ["archive"]
Restore = Callable[[ObjectStore, BackupRecord, Path], object]
IN_USE = "in use by another process"


class Fetching(ObjectStore):
    """A directory of backups in which something happens whenever a part is fetched."""

    def __init__(self, directory: Path, meanwhile: Callable[[], object]) -> None:
        super().__init__(f"file://{directory}", Access())
        self._meanwhile = meanwhile

    def get(self, path: str) -> bytes:
        if "/part-" in path:
            self._meanwhile()
        return super().get(path)


@pytest.fixture
def record(tmp_path: Path, archive: bytes) -> BackupRecord:
    return asyncio.run(push(broker(archive), place(tmp_path / "store"), "monday", "team"))


@pytest.fixture
def volume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that looks like a mounted volume, as it is empty after mkfs."""
    directory = tmp_path / "volume"
    (directory / "lost+found").mkdir(parents=True)
    monkeypatch.setattr(Path, "is_mount", lambda self: self == directory)
    return directory


@pytest.mark.parametrize("restore", [bootstrap, pull])
def test_nothing_is_restored_into_a_volume_that_a_process_uses(
    tmp_path: Path, record: BackupRecord, volume: Path, restore: Restore
) -> None:
    disk = RealDisk()
    lock = disk.lock(volume / "LOCK", "12\n")
    with pytest.raises(BackupError, match=rf"{IN_USE} \(pid 12\)"):
        restore(place(tmp_path / "store"), record, volume)
    assert sorted(path.name for path in volume.iterdir()) == ["LOCK", "lost+found"]
    disk.unlock(lock)
    restore(place(tmp_path / "store"), record, volume)
    open_store(volume).close()


@pytest.mark.parametrize("restore", [bootstrap, pull])
def test_no_broker_starts_on_a_volume_while_it_is_restored(
    tmp_path: Path, record: BackupRecord, volume: Path, restore: Restore
) -> None:
    refused: list[str] = []

    def start() -> None:
        with pytest.raises(DataDirError) as error:
            DataDir(volume, RealDisk())
        refused.append(str(error.value))

    restore(Fetching(tmp_path / "store", start), record, volume)
    assert len(refused) == 1
    assert IN_USE in refused[0]
    open_store(volume).close()


@pytest.mark.parametrize("second", [bootstrap, pull])
@pytest.mark.parametrize("first", [bootstrap, pull])
def test_of_two_restores_into_a_volume_one_is_refused(
    tmp_path: Path, record: BackupRecord, volume: Path, first: Restore, second: Restore
) -> None:
    refused: list[str] = []

    def restore_again() -> None:
        with pytest.raises(BackupError) as error:
            second(place(tmp_path / "store"), record, volume)
        refused.append(str(error.value))

    first(Fetching(tmp_path / "store", restore_again), record, volume)
    assert len(refused) == 1
    assert IN_USE in refused[0]
    open_store(volume).close()


def test_a_restore_is_not_marked_by_another_process_before_it_ends(
    tmp_path: Path, record: BackupRecord, volume: Path
) -> None:
    bootstrap(place(tmp_path / "store"), record, volume)
    (volume / RESTORED).rename(volume / RESTORING)
    disk = RealDisk()
    lock = disk.lock(volume / "LOCK", "12\n")
    with pytest.raises(BackupError, match=IN_USE):
        restored_from(volume)
    assert (volume / RESTORING).exists()
    disk.unlock(lock)
    found = restored_from(volume)
    assert found is not None
    # Once it is marked, it is only read, also while its broker runs.
    lock = disk.lock(volume / "LOCK", "12\n")
    assert restored_from(volume) == bootstrap(place(tmp_path / "store"), record, volume) == found
    disk.unlock(lock)


def test_no_broker_starts_where_a_restore_was_interrupted(tmp_path: Path, record: BackupRecord, volume: Path) -> None:
    def die() -> None:
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError):
        bootstrap(Fetching(tmp_path / "store", die), record, volume)
    assert (volume / RESTORING).exists()
    before = sorted(path.name for path in volume.iterdir())
    with pytest.raises(DataDirError, match="was interrupted; run it again or empty the directory"):
        DataDir(volume, RealDisk())
    assert sorted(path.name for path in volume.iterdir()) == before
    bootstrap(place(tmp_path / "store"), record, volume)
    open_store(volume).close()
