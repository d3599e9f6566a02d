"""The backups below one URL: which are complete, which were interrupted, and how they are deleted.

A backup is the objects below its name: ``begun.json`` first, ``part-000001`` and so on, and ``manifest.json`` last.
Without its manifest it is none: its upload was interrupted, or its deletion, which begins with the manifest. Beside
them is the result of its last verification, see :mod:`.verification_results`.
"""

from __future__ import annotations

import re
import secrets
from typing import Annotated, Final

import msgspec
from heliograph_api.values.quoting import quoted

from heliograph_broker.storage.base.json_errors import NOT_JSON

from .object_store import ObjectStore, StoreError
from .verification_results import RESULTS, FailedVerification, failure_of

#: Bytes of a part. Its upload has to end within a minute: a broker ends a backup that nobody reads from any longer.
PART_BYTES: Final = 16 * 1024 * 1024
BEGUN: Final = "begun.json"
MANIFEST: Final = "manifest.json"
#: Random hexadecimal digits of an upload; empty in a backup of a version without them.
_Upload = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]*$", max_length=64)]
LATEST: Final = "latest"
"""Stands for the newest complete backup whose verification has not failed; no backup has this name."""
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", re.ASCII)
_MAX_NAME: Final = 253
#: Times that the objects of a backup are listed and deleted until none is left.
_DELETIONS: Final = 5
#: What a backup consists of. Whatever else is below its name is somebody else's, such as backups of a longer URL.
_OBJECT: Final = re.compile(
    rf"{'|'.join(map(re.escape, (BEGUN, MANIFEST, *sorted(RESULTS))))}|part-[0-9]{{6,}}(-[0-9a-f]+)?", re.ASCII
)
#: What processes that stalled write when their backup was deleted. Parts without the digits may be somebody else's.
_LEFT: Final = re.compile(rf"{'|'.join(map(re.escape, sorted(RESULTS)))}|part-[0-9]{{6,}}-[0-9a-f]+", re.ASCII)


class UnreadableManifestError(StoreError):
    """A manifest is damaged, or somebody else's."""


class Begun(msgspec.Struct, rename="camel"):
    """The first object of a backup: whose it is, so that only the same one's leftovers are deleted.

    An upload goes on only as long as this is what it wrote.
    """

    source: str
    upload: _Upload = ""


class Part(msgspec.Struct):
    """A part: its bytes, and their SHA-256 in hexadecimal."""

    size: int
    sha256: str


class BackupRecord(msgspec.Struct, rename="camel", omit_defaults=True):
    """The last object of a backup: what it consists of and when it was made."""

    name: str
    source: str
    point_in_time_ms: int
    """Wall-clock time (ms since 1970) of the broker: everything with a receipt from before is in it."""
    completed_ms: int
    version: str
    """Version of the broker."""
    format: str
    """That of the data directory."""
    size: int
    """Bytes of all parts."""
    parts: list[Part]
    topics: dict[str, list[str]]
    """Topics that the broker had before and after, each with its durable subscriptions that it had both times."""
    damaged: list[str] = []
    """Damage that was already in the broker's store, a line each."""
    upload: _Upload = ""


def part_path(name: str, number: int, upload: str) -> str:
    """Return the path of a part, counted from 1. No two uploads have the same, even if they have the same name."""
    return f"{name}/part-{number:06}" + (f"-{upload}" if upload else "")


def check_name(name: str) -> str:
    """Return ``name``. Raises :class:`StoreError` if a backup cannot have it."""
    if not _can_be_name(name):
        raise StoreError(f"{quoted(name)} is not a name; valid: lower-case letters, digits, - and . between them")
    return name


def _can_be_name(name: str) -> bool:
    return len(name) <= _MAX_NAME and _NAME.fullmatch(name) is not None and ".." not in name


def find(store: ObjectStore, name: str) -> BackupRecord | None:
    """Return a backup's record; None if there is no complete one of this name.

    Its name is that of its place, whatever the manifest says: somebody may have copied it. Raises :class:`StoreError`,
    :class:`UnreadableManifestError` if the manifest is not one.
    """
    try:
        content = store.get(f"{check_name(name)}/{MANIFEST}")
    except KeyError:
        return None
    try:
        record = msgspec.json.decode(content, type=BackupRecord)
    except NOT_JSON as error:
        raise UnreadableManifestError(f"{store.url}/{name}/{MANIFEST} cannot be read: {error}") from error
    record.name = name
    return record


def is_stored(store: ObjectStore, record: BackupRecord) -> bool:
    """Return whether a backup is still there, and not another one of its name. Raises as :func:`find`."""
    return (stored := find(store, record.name)) is not None and stored.upload == record.upload


def get(store: ObjectStore, name: str) -> BackupRecord:
    """Return a backup's record. Raises :class:`StoreError`, also if there is no complete one of this name."""
    if (found := find(store, name)) is not None:
        return found
    if _uploaded(store, name):
        raise StoreError(f"{store.url}/{name} is incomplete: its upload was interrupted; take another backup")
    raise StoreError(
        f"{store.url} has no backup {quoted(name)}; 'heliograph backup list {store.url}' shows what it has"
    )


def latest(store: ObjectStore) -> tuple[BackupRecord, dict[str, FailedVerification]]:
    """Return the record of the backup with the newest point in time, and the newer ones whose verification failed.

    One that nobody verified counts. Raises :class:`StoreError`, also for none.
    """
    records: list[BackupRecord] = []
    for name in names(store)[0]:
        try:
            record = find(store, name)
        except UnreadableManifestError:
            continue
        if record is not None:
            records.append(record)
    if not records:
        raise StoreError(f"{store.url} has no backup; 'heliograph backup list {store.url}' shows what it has")
    left_out: dict[str, FailedVerification] = {}
    for record in sorted(records, key=lambda record: (record.point_in_time_ms, record.name), reverse=True):
        if (failure := failure_of(store, record.name, record.upload)) is None:
            return record, left_out
        left_out[record.name] = failure
    raise StoreError(
        f"{store.url} has no backup but those whose verification failed: {', '.join(left_out)}; restore one of them by"
        " its name if it is better than none, or take another backup"
    )


def names(store: ObjectStore) -> tuple[list[str], list[str]]:
    """Return the names with a manifest, and of the interrupted backups, each sorted."""
    found = _all_objects(store)
    complete = sorted(name for name, objects in found.items() if MANIFEST in objects)
    interrupted = sorted(name for name, objects in found.items() if MANIFEST not in objects and objects - RESULTS)
    return complete, interrupted


def objects(store: ObjectStore, name: str) -> list[str]:
    """Return the paths of the objects of a backup, complete or not."""
    below = f"{check_name(name)}/"
    return [path for path in store.sizes(below) if _OBJECT.fullmatch(path.removeprefix(below))]


def delete(store: ObjectStore, name: str) -> bool:
    """Delete a backup, complete or not; return whether there was one. Interrupted, it is not a backup any more.

    An upload of this name that still runs fails, or ended before, and its backup is deleted. Nothing else below the
    name is deleted. Raises :class:`StoreError`, also for a manifest that may be somebody else's.
    """
    first, last = f"{name}/{MANIFEST}", f"{name}/{BEGUN}"
    existed = False
    for _ in range(_DELETIONS):
        found = objects(store, name)
        if first in found and last not in found:
            find(store, name)
        if last in found and first not in found:
            # An upload that wrote its last part sees this after its manifest. One that looked before is in the list.
            begun = _begun(store, name)
            _write_begun(store, name, Begun("" if begun is None else begun.source, secrets.token_hex(8)))
            found = objects(store, name)
        existed |= store.delete_staged(name, _OBJECT)
        if not found:
            return existed
        existed = True
        for path in sorted(found, key=lambda path: (path != first, path == last, path)):
            store.delete(path)
    raise StoreError(f"{store.url}/{name} is still written to while it is deleted; try again when the upload has ended")


def delete_interrupted(store: ObjectStore, mine: Begun) -> None:
    """Delete what interrupted uploads of the same source left, and parts and results of verifications without any.

    One that is still running sees at its next object that it is not its own any more. One that ends at this moment is
    complete, or sees that, too: it looks after it wrote its manifest, and here it is the other way round.
    """
    for name, listed in _all_objects(store).items():
        if MANIFEST in listed:
            continue
        if BEGUN not in listed:
            # An upload of this name may have begun while the others were listed.
            if not {f"{name}/{BEGUN}", f"{name}/{MANIFEST}"}.intersection(objects(store, name)):
                for each in listed:
                    if _LEFT.fullmatch(each):
                        store.delete(f"{name}/{each}")
            continue
        begun = _begun(store, name)
        if begun is None or begun.source != mine.source:
            continue
        _write_begun(store, name, mine)
        # Only what is listed is deleted, so that this may stall anywhere: an upload that takes the name over from now
        # on writes other paths, and one that did so before the listing is seen afterwards.
        found = objects(store, name)
        if f"{name}/{MANIFEST}" in found or _begun(store, name) != mine:
            continue
        store.delete_staged(name, _OBJECT)
        last = f"{name}/{BEGUN}"
        for path in found:
            if path != last:
                store.delete(path)
        if _begun(store, name) == mine:
            store.delete(last)


def claim(store: ObjectStore, name: str, mine: Begun) -> None:
    """Begin an upload. Raises :class:`StoreError` if another source has begun one of this name, or it is complete."""
    if _uploaded(store, name):
        raise StoreError(
            f"{store.url}/{name} is an upload of another source, interrupted or still running; choose another name, or"
            f" delete it with 'heliograph backup delete {store.url} {name}'"
        )
    _write_begun(store, name, mine)
    if _has_manifest(store, name):
        raise taken(store, name)


def check_claim(store: ObjectStore, name: str, mine: Begun) -> None:
    """Raise :class:`StoreError` if the upload of this name is another one by now, or was deleted."""
    if _begun(store, name) != mine:
        raise _changed(store, name)


def complete(store: ObjectStore, record: BackupRecord, mine: Begun) -> None:
    """Write the manifest, which makes a backup of the upload. Raises :class:`StoreError` if it is not whole."""
    name = record.name
    found = store.sizes(f"{name}/")
    for number, part in enumerate(record.parts, 1):
        if found.get(part_path(name, number, record.upload)) != part.size:
            raise _changed(store, name)
    check_claim(store, name, mine)
    content = msgspec.json.format(msgspec.json.encode(record))
    # After a pause here, another upload may have taken the name over, and be complete.
    if not store.create(f"{name}/{MANIFEST}", content) and not is_stored(store, record):
        raise _changed(store, name)
    try:
        check_claim(store, name, mine)
    except StoreError:
        # Its parts may be deleted right now.
        if is_stored(store, record):
            store.delete(f"{name}/{MANIFEST}")
        raise


def taken(store: ObjectStore, name: str) -> StoreError:
    """Return the error that a backup of this name is complete."""
    return StoreError(f"{store.url} has a backup {name} already; delete it, or choose another name")


def _all_objects(store: ObjectStore) -> dict[str, set[str]]:
    """Return the last parts of the paths of all objects of backups, complete or not, by the backups' names."""
    found: dict[str, set[str]] = {}
    for path in store.sizes():
        name, _, rest = path.partition("/")
        if _OBJECT.fullmatch(rest) and _can_be_name(name):
            found.setdefault(name, set()).add(rest)
    return found


def _uploaded(store: ObjectStore, name: str) -> bool:
    """Whether a backup has objects beside results of its verification, which may come after its deletion."""
    return any(path.removeprefix(f"{name}/") not in RESULTS for path in objects(store, name))


def _changed(store: ObjectStore, name: str) -> StoreError:
    return StoreError(
        f"{store.url}/{name} was changed by somebody else while it was written; take another backup, and give each"
        " broker a --source of its own"
    )


def _begun(store: ObjectStore, name: str) -> Begun | None:
    try:
        return msgspec.json.decode(store.get(f"{name}/{BEGUN}"), type=Begun)
    except (KeyError, *NOT_JSON):
        return None


def _write_begun(store: ObjectStore, name: str, mine: Begun) -> None:
    store.put(f"{name}/{BEGUN}", msgspec.json.encode(mine))


def _has_manifest(store: ObjectStore, name: str) -> bool:
    return f"{name}/{MANIFEST}" in store.sizes(f"{name}/")
