"""Shows that a backup can be restored: fetches it, restores it into scratch space, and compares the result."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from heliograph_broker.messaging.compaction.claims import Claims
from heliograph_broker.messaging.log.unreadable_records import readable_key
from heliograph_broker.storage.base.damage import LostRange
from heliograph_broker.storage.copies.backup import BackupError, DamagedBackupError
from heliograph_broker.storage.copies.inspection import Contents, InspectionError, inspect, unused

from .catalog import BackupRecord, is_stored
from .object_store import ObjectStore, StoreError
from .pull import DamagedPartError, pull
from .verification_results import FailedVerification, Verified, record_failed, record_verified

#: Problems named in one message.
_MOST = 5


def verify(store: ObjectStore, record: BackupRecord, scratch: Path) -> Verified:
    """Do :func:`check`, and record its result beside the backup, unless it could not be done.

    Nor is it recorded if the backup was deleted or replaced meanwhile. Raises :class:`BackupError` and
    :class:`.object_store.StoreError`.
    """
    try:
        found = check(store, record, scratch)
    except (DamagedBackupError, DamagedPartError) as error:
        # The error says more than that it could not be recorded.
        with suppress(StoreError):
            if is_stored(store, record):
                record_failed(store, record.name, FailedVerification(_now_ms(), str(error), record.upload))
        raise
    if not is_stored(store, record):
        raise StoreError(f"{store.url}/{record.name} was changed by somebody else while it was verified; verify again")
    record_verified(store, record.name, found)
    return found


def check(store: ObjectStore, record: BackupRecord, scratch: Path) -> Verified:
    """Restore ``record`` into ``scratch``, which is empty or does not exist, and check what is there.

    Every checksum of messages and metadata is compared, and every topic and subscription of the record's list has to
    be there. Messages that were damaged in the broker's store already are no reason to refuse it.
    Raises :class:`DamagedBackupError` and :class:`.pull.DamagedPartError` for a backup that fails the check, other
    :class:`BackupError` and :class:`.object_store.StoreError` if it cannot be done.
    """
    pull(store, record, scratch)
    try:
        with unused(scratch):
            contents = inspect(scratch)
            claims = Claims(contents.records)
            problems = list(_problems(contents, claims, record))
            entries = sum(last - first + 1 for ranges in contents.expected().values() for first, last in ranges)
    except InspectionError as error:
        raise BackupError(f"backup {record.name} cannot be read once it is restored: {error}") from error
    if problems:
        more = f" and {len(problems) - _MOST} more" if len(problems) > _MOST else ""
        raise DamagedBackupError(f"backup {record.name} is not what it should be: {'; '.join(problems[:_MOST])}{more}")
    return Verified(_now_ms(), len(claims.topics), len(claims.cursors), entries, record.upload)


def _now_ms() -> int:
    return int(time.time() * 1000)


def _problems(contents: Contents, claims: Claims, record: BackupRecord) -> Iterator[str]:
    for topic, subscriptions in record.topics.items():
        if topic not in claims.topics:
            yield f"it lacks topic {topic}"
            continue
        for subscription in subscriptions:
            if (topic, subscription) not in claims.cursors:
                yield f"it lacks subscription {subscription} of {topic}"
    if contents.metadata_problem:
        yield f"metadata.lmdb: {contents.metadata_problem}"
    for key, reason in claims.unreadable.items():
        yield f"the record {readable_key(key)} cannot be read ({reason})"
    for name in sorted(contents.listed().runs):
        yield f"segment {name} is missing"
    for file in contents.segments:
        if file.problem:
            yield f"segment {file.path.name}: {file.problem}"
            continue
        for found in file.verify():
            if isinstance(found, LostRange) and not record.damaged:
                yield f"entries {found.first} to {found.last} of ledger {found.ledger_id}: {found.reason}"
