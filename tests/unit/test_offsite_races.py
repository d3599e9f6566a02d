"""Processes that stall between two objects of a backup while another one pushes, deletes or verifies it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from heliograph_broker.offsite import catalog
from heliograph_broker.offsite.catalog import BackupRecord, Begun, Part
from heliograph_broker.offsite.object_store import Access, ObjectStore, StoreError

from .test_offsite import check_whole, complete_record, listed, place

NAME = "monday"
PATH_OF_MANIFEST = f"{NAME}/manifest.json"


class Stalling(ObjectStore):
    """A directory where something happens at the next request of a kind for a path: before it, or after ``listed``."""

    def __init__(self, directory: Path, kind: str, end: str, meanwhile: Callable[[], object]) -> None:
        super().__init__(f"file://{directory}", Access())
        self._kind = kind
        self._end = end
        self._meanwhile: Callable[[], object] | None = meanwhile

    def put(self, path: str, content: bytes) -> None:
        self._stall("put", path)
        super().put(path, content)

    def create(self, path: str, content: bytes) -> bool:
        self._stall("create", path)
        return super().create(path, content)

    def delete(self, path: str) -> None:
        self._stall("delete", path)
        super().delete(path)

    def sizes(self, below: str = "") -> dict[str, int]:
        self._stall("list", below)
        listed = super().sizes(below)
        self._stall("listed", below)
        return listed

    @property
    def has_stalled(self) -> bool:
        return self._meanwhile is None

    def _stall(self, kind: str, path: str) -> None:
        if kind == self._kind and path.endswith(self._end) and self._meanwhile is not None:
            meanwhile, self._meanwhile = self._meanwhile, None
            meanwhile()


def upload(store: ObjectStore, digit: str, name: str = NAME) -> tuple[BackupRecord, Begun]:
    """Upload all but the manifest as a push does; return the record to complete it with."""
    mine = Begun("team", digit * 16)
    catalog.delete_interrupted(store, mine)
    catalog.claim(store, name, mine)
    content = digit.encode()
    catalog.check_claim(store, name, mine)
    store.put(catalog.part_path(name, 1, mine.upload), content)
    return complete_record(name, upload=mine.upload, parts=[Part(1, hashlib.sha256(content).hexdigest())]), mine


def push(store: ObjectStore, digit: str, name: str = NAME) -> BackupRecord:
    record, mine = upload(store, digit, name)
    catalog.complete(store, record, mine)
    return record


# -- a push that stalls before its manifest --------------------------------------------------------------------------


def test_a_push_that_stalled_before_its_manifest_leaves_that_of_its_replacement(tmp_path: Path) -> None:
    store = Stalling(tmp_path, "create", "manifest.json", lambda: push(place(tmp_path), "b"))
    record, mine = upload(store, "a")
    with pytest.raises(StoreError, match="changed by somebody else"):
        catalog.complete(store, record, mine)
    assert store.has_stalled
    assert catalog.get(store, NAME).upload == "b" * 16
    check_whole(store, NAME)


def test_a_push_whose_manifest_was_stored_without_an_answer_succeeds(tmp_path: Path) -> None:
    """The client sends it once more, and the store says that it is there."""
    store = place(tmp_path)
    record, mine = upload(store, "a")
    store.put(PATH_OF_MANIFEST, msgspec.json.format(msgspec.json.encode(record)))
    catalog.complete(store, record, mine)
    check_whole(store, NAME)


# -- a push that stalls while it deletes what an interrupted one left ------------------------------------------------

CLEANER = Begun("team", "c" * 16)


@pytest.mark.parametrize(("kind", "end"), [("put", "begun.json"), ("list", "/"), ("listed", "/"), ("delete", "")])
def test_a_push_that_stalled_while_it_cleaned_up_deletes_no_backup(tmp_path: Path, kind: str, end: str) -> None:
    upload(place(tmp_path), "a")
    store = Stalling(tmp_path, kind, end, lambda: push(place(tmp_path), "b"))
    catalog.delete_interrupted(store, CLEANER)
    assert store.has_stalled
    check_whole(place(tmp_path), NAME)


@pytest.mark.parametrize(("kind", "end"), [("list", "/"), ("listed", "/"), ("delete", "")])
def test_a_push_that_stalled_while_it_cleaned_up_leaves_the_upload_that_took_over(
    tmp_path: Path, kind: str, end: str
) -> None:
    upload(place(tmp_path), "a")
    running: list[tuple[BackupRecord, Begun]] = []
    store = Stalling(tmp_path, kind, end, lambda: running.append(upload(place(tmp_path), "b")))
    catalog.delete_interrupted(store, CLEANER)
    ((record, mine),) = running
    catalog.complete(place(tmp_path), record, mine)
    check_whole(place(tmp_path), NAME)


# -- a deletion while a push ends -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "end"),
    [("list", ""), ("listed", ""), ("put", "begun.json"), ("delete", f"-{'a' * 16}"), ("delete", "begun.json")],
)
def test_a_deletion_while_a_push_ends_leaves_nothing(tmp_path: Path, kind: str, end: str) -> None:
    """Whether the push ends before, and succeeds, or after, and fails."""
    record, mine = upload(place(tmp_path), "a")

    def end_push() -> None:
        with suppress(StoreError):
            catalog.complete(place(tmp_path), record, mine)

    store = Stalling(tmp_path, kind, end, end_push)
    assert catalog.delete(store, NAME)
    assert store.has_stalled
    assert store.sizes() == {}


def test_a_push_fails_whose_parts_are_deleted_before_its_manifest(tmp_path: Path) -> None:
    store = Stalling(tmp_path, "create", "manifest.json", lambda: catalog.delete(place(tmp_path), NAME))
    record, mine = upload(store, "a")
    with pytest.raises(StoreError, match="changed by somebody else"):
        catalog.complete(store, record, mine)
    assert store.sizes() == {}


def test_what_a_killed_deletion_left_is_deleted_by_the_next_push_of_the_source(tmp_path: Path) -> None:
    def die() -> None:
        raise ConnectionError("killed")

    upload(place(tmp_path), "a")
    with pytest.raises(ConnectionError):
        catalog.delete(Stalling(tmp_path, "delete", "", die), NAME)
    store = place(tmp_path)
    catalog.delete_interrupted(store, CLEANER)
    assert store.sizes() == {}


def test_a_deletion_that_somebody_writes_against_ends_with_an_error(tmp_path: Path) -> None:
    class Busy(ObjectStore):
        def delete(self, path: str) -> None:
            super().delete(path)
            self.put(f"{NAME}/part-000001", b"x")

    store = Busy(f"file://{tmp_path}", Access())
    store.put(f"{NAME}/part-000001", b"x")
    with pytest.raises(StoreError, match="is still written to"):
        catalog.delete(store, NAME)


# -- parts without begun.json -----------------------------------------------------------------------------------------


def orphan(directory: Path, name: str = NAME) -> str:
    """Let a push stall before its last part until its name is deleted; return the path of that part."""
    late = catalog.part_path(name, 2, "a" * 16)
    store = Stalling(directory, "put", late, lambda: catalog.delete(place(directory), name))
    _, mine = upload(store, "a", name)
    store.put(late, b"x")
    with pytest.raises(StoreError, match="changed by somebody else"):
        catalog.check_claim(store, name, mine)
    assert list(store.sizes()) == [late]
    return late


def test_a_part_that_was_written_after_a_deletion_is_shown_and_can_be_deleted(tmp_path: Path) -> None:
    orphan(tmp_path)
    store = place(tmp_path)
    assert catalog.names(store) == ([], [NAME])
    assert listed(store) == [f"{NAME}  interrupted, not a backup"]
    with pytest.raises(StoreError, match="is incomplete"):
        catalog.get(store, NAME)
    assert catalog.delete(store, NAME)
    assert store.sizes() == {}


@pytest.mark.parametrize("name", [NAME, "tuesday"])
def test_the_next_push_deletes_parts_that_nobody_uploads(tmp_path: Path, name: str) -> None:
    """Whatever its source is, which they do not say."""
    late = orphan(tmp_path)
    store = place(tmp_path)
    mine = Begun("another", "b" * 16)
    catalog.delete_interrupted(store, mine)
    catalog.claim(store, name, mine)
    assert late not in store.sizes()
    assert list(store.sizes()) == [f"{name}/begun.json"]


def test_a_push_deletes_no_parts_that_may_be_somebody_elses(tmp_path: Path) -> None:
    store = place(tmp_path)
    for path in ("export/part-000001", "export/part-00000-abc", "export/part-000001-of-000002"):
        store.put(path, b"x")
    kept = store.sizes()
    catalog.delete_interrupted(store, CLEANER)
    assert store.sizes() == kept


def test_parts_of_an_upload_that_began_while_the_store_was_listed_stay(tmp_path: Path) -> None:
    """A store lists in pages: the one with the parts may be newer than the one with begun.json."""

    class Paged(ObjectStore):
        def sizes(self, below: str = "") -> dict[str, int]:
            found = super().sizes(below)
            return found if below else {path: size for path, size in found.items() if "/part-" in path}

    record, mine = upload(place(tmp_path), "a")
    catalog.delete_interrupted(Paged(f"file://{tmp_path}", Access()), Begun("another", "b" * 16))
    catalog.complete(place(tmp_path), record, mine)
    check_whole(place(tmp_path), NAME)


def test_an_object_is_created_once(tmp_path: Path) -> None:
    store = place(tmp_path)
    assert store.create("a/b", b"first")
    assert not store.create("a/b", b"second")
    assert store.get("a/b") == b"first"
    assert store.sizes() == {"a/b": 5}
