"""A backup whose verification failed: `latest` leaves it out, a list shows it, and its name still restores it."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from heliograph_broker.cli.commands.backup import backup_app
from heliograph_broker.offsite import catalog
from heliograph_broker.offsite.catalog import BackupRecord, Begun
from heliograph_broker.offsite.object_store import Access, ObjectStore, StoreError
from heliograph_broker.offsite.push import push
from heliograph_broker.offsite.verification_results import (
    FAILED,
    VERIFIED,
    FailedVerification,
    failure_of,
    record_failed,
    result_text,
)
from heliograph_broker.offsite.verify import verify
from heliograph_broker.storage.copies.backup import BackupError
from typer.testing import CliRunner, Result

from .test_offsite import archive, broker, complete, listed, place

__all__ = ["archive"]
TOPIC = "persistent://public/default/orders"


def pushed(store: ObjectStore, archive: bytes, name: str, **changed: object) -> BackupRecord:
    """Upload a backup, and change what its manifest says."""
    record = asyncio.run(push(broker(archive), store, name, "team"))
    record = msgspec.structs.replace(record, **changed)
    store.put(f"{name}/manifest.json", msgspec.json.encode(record))
    return record


def run(*arguments: object) -> Result:
    return CliRunner().invoke(backup_app, [str(each) for each in arguments])


def verified(store: ObjectStore, name: str, scratch: Path) -> Result:
    return run("verify", store.url, name, "--scratch", scratch)


def test_latest_leaves_out_a_backup_whose_verification_failed(tmp_path: Path, archive: bytes) -> None:
    store = place(tmp_path / "store")
    pushed(store, archive, "monday", point_in_time_ms=1000)
    # It can be fetched, and lacks a topic that the broker had.
    pushed(store, archive, "tuesday", point_in_time_ms=2000, topics={TOPIC: []})
    assert catalog.latest(store)[0].name == "tuesday", "one that nobody verified can be restored"
    failed = verified(store, "tuesday", tmp_path / "scratch")
    assert "lacks topic" in str(failed.exception)
    assert list((tmp_path / "scratch").glob("*")) == []
    found, left_out = catalog.latest(store)
    assert (found.name, list(left_out)) == ("monday", ["tuesday"])
    assert f"lacks topic {TOPIC}" in left_out["tuesday"].problem
    done = run("pull", store.url, "latest", "--data-dir", tmp_path / "latest")
    assert (done.exit_code, "as of 1970-01-01T00:00:01.000" in done.stdout) == (0, True)
    assert "tuesday" in done.stderr
    # By its name it is restored all the same.
    done = run("pull", store.url, "tuesday", "--data-dir", tmp_path / "tuesday")
    assert (done.exit_code, "as of 1970-01-01T00:00:02.000" in done.stdout) == (0, True)
    assert f"lacks topic {TOPIC}" in done.stderr
    assert (tmp_path / "tuesday" / "FORMAT").exists()


def test_a_list_shows_the_result_of_each_verification(tmp_path: Path, archive: bytes) -> None:
    store = place(tmp_path / "store")
    for at, name in enumerate(("monday", "tuesday", "wednesday")):
        pushed(store, archive, name, point_in_time_ms=at, topics={TOPIC: []} if name == "tuesday" else {})
    verified(store, "monday", tmp_path / "scratch")
    verified(store, "tuesday", tmp_path / "scratch")
    lines = listed(store)
    assert [line.split()[0] for line in lines] == ["monday", "tuesday", "wednesday"]
    assert lines[0].endswith("), verified")
    assert "), verification failed: " in lines[1]
    assert f"lacks topic {TOPIC}" in lines[1]
    assert lines[2].endswith(")")


def test_without_any_other_backup_latest_names_the_way_to_one_whose_verification_failed(
    tmp_path: Path, archive: bytes
) -> None:
    store = place(tmp_path / "store")
    pushed(store, archive, "monday", topics={TOPIC: []})
    verified(store, "monday", tmp_path / "scratch")
    with pytest.raises(StoreError, match="monday") as refused:
        catalog.latest(store)
    assert "verification failed" in str(refused.value)
    assert "by its name" in str(refused.value)


def test_the_last_verification_counts(tmp_path: Path, archive: bytes) -> None:
    store = place(tmp_path / "store")
    record = pushed(store, archive, "monday")
    part = tmp_path / "store" / catalog.part_path("monday", 1, record.upload)
    whole = part.read_bytes()
    for content, marker, other in (
        (whole, VERIFIED, FAILED),
        (whole[:-1] + b"x", FAILED, VERIFIED),
        (whole, VERIFIED, FAILED),
    ):
        part.write_bytes(content)
        verified(store, "monday", tmp_path / "scratch")
        found = {path.rpartition("/")[2] for path in store.sizes("monday")}
        assert (marker in found, other in found) == (True, False)
    part.unlink()
    verified(store, "monday", tmp_path / "scratch")
    failure = failure_of(store, "monday", record.upload)
    assert failure is not None
    assert "is missing" in failure.problem
    assert catalog.delete(store, "monday")
    assert store.sizes() == {}


@pytest.mark.parametrize("content", [b"", b"not JSON", b"\xff", b'{"x":' + b"[" * 100_000])
def test_a_mark_that_cannot_be_read_is_one(tmp_path: Path, content: bytes) -> None:
    store = place(tmp_path)
    complete(store, "monday")
    store.put(f"monday/{FAILED}", content)
    failure = failure_of(store, "monday", "")
    assert failure is not None
    assert "cannot be read" in failure.problem


def test_a_verification_that_could_not_be_done_says_nothing_about_the_backup(tmp_path: Path, archive: bytes) -> None:
    store = place(tmp_path / "store")
    pushed(store, archive, "monday")
    (tmp_path / "file").touch()
    assert "not a directory" in str(verified(store, "monday", tmp_path / "file" / "scratch").exception)
    # This version does not know the format yet.
    record = pushed(store, archive, "tuesday")
    part = tmp_path / "store" / catalog.part_path("tuesday", 1, record.upload)
    part.write_bytes(part.read_bytes().replace(b"heliograph 3\n", b"heliograph 9\n"))
    (only,) = record.parts
    only.sha256 = hashlib.sha256(part.read_bytes()).hexdigest()
    store.put("tuesday/manifest.json", msgspec.json.encode(record))
    assert "has format 'heliograph 9" in str(verified(store, "tuesday", tmp_path / "scratch").exception)
    for name in ("monday", "tuesday"):
        assert failure_of(store, name, catalog.get(store, name).upload) is None


# -- a backup that is replaced or deleted meanwhile ----------------------------------------------------------------


class Replaced(ObjectStore):
    """A directory in which something happens to the backup as soon as a part of it was fetched."""

    def __init__(self, directory: Path, meanwhile: Callable[[ObjectStore], object]) -> None:
        super().__init__(f"file://{directory}", Access())
        self._meanwhile = meanwhile

    def get(self, path: str) -> bytes:
        content = super().get(path)
        if "/part-" in path:
            self._meanwhile(place(Path(self.url.removeprefix("file://"))))
        return content


def delete_monday(store: ObjectStore) -> None:
    catalog.delete(store, "monday")


@pytest.mark.parametrize("topics", [{}, {TOPIC: []}])
def test_a_result_is_not_recorded_beside_the_backup_that_replaced_the_verified_one(
    tmp_path: Path, archive: bytes, topics: dict[str, list[str]]
) -> None:
    """Whether the verification succeeds or fails."""

    def replace(store: ObjectStore) -> None:
        catalog.delete(store, "monday")
        pushed(store, archive, "monday")

    before = pushed(place(tmp_path / "store"), archive, "monday", topics=topics)
    store = Replaced(tmp_path / "store", replace)
    with pytest.raises((StoreError, BackupError), match="lacks topic" if topics else "changed by somebody else"):
        verify(store, before, tmp_path / "scratch")
    found, left_out = catalog.latest(store)
    assert (found.name, left_out) == ("monday", {})
    assert found.upload != before.upload
    assert result_text(store, "monday", found.upload) == ""
    assert not {FAILED, VERIFIED} & {path.rpartition("/")[2] for path in store.sizes()}


@pytest.mark.parametrize("topics", [{}, {TOPIC: []}])
def test_a_result_is_not_recorded_of_a_backup_that_was_deleted(
    tmp_path: Path, archive: bytes, topics: dict[str, list[str]]
) -> None:
    record = pushed(place(tmp_path / "store"), archive, "monday", topics=topics)
    store = Replaced(tmp_path / "store", delete_monday)
    with pytest.raises((StoreError, BackupError)):
        verify(store, record, tmp_path / "scratch")
    assert store.sizes() == {}


def test_a_result_of_another_upload_says_nothing_about_a_backup(tmp_path: Path, archive: bytes) -> None:
    """As of a verification that stalled before it wrote it."""
    store = place(tmp_path / "store")
    record = pushed(store, archive, "monday")
    verified(store, "monday", tmp_path / "scratch")
    assert listed(store)[0].endswith("), verified")
    for marker in (VERIFIED, FAILED):
        result = FailedVerification(1, "it lacks a topic", "f" * 16)
        record_failed(store, "monday", result)
        store.put(f"monday/{marker}", store.get(f"monday/{FAILED}"))
        assert failure_of(store, "monday", record.upload) is None
        assert catalog.latest(store)[0].name == "monday"
        assert listed(store)[0].endswith(")")


def test_a_result_alone_is_no_upload(tmp_path: Path, archive: bytes) -> None:
    store = place(tmp_path)
    for name in ("monday", "tuesday", "wednesday"):
        record_failed(store, name, FailedVerification(1, "it lacks a topic", "f" * 16))
    assert catalog.names(store) == ([], [])
    with pytest.raises(StoreError, match="has no backup"):
        catalog.get(store, "monday")
    assert catalog.delete(store, "tuesday")
    mine = Begun("team", "a" * 16)
    catalog.claim(store, "wednesday", mine)
    catalog.delete(store, "wednesday")
    record_failed(store, "wednesday", FailedVerification(1, "it lacks a topic", "f" * 16))
    assert pushed(store, archive, "monday").name == "monday"
    assert {path.partition("/")[0] for path in store.sizes()} == {"monday"}
    assert FAILED not in {path.rpartition("/")[2] for path in store.sizes()}
