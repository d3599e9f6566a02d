"""Defects of what is stored: records, ledgers, the directory, and the space that is given back."""

from __future__ import annotations

from typing import Any

import lmdb
from heliograph_broker.messaging.broker import namespaces
from heliograph_broker.messaging.delivery.subscription import Subscription
from heliograph_broker.messaging.log import invariants, record_set
from heliograph_broker.messaging.log.record_set import RecordSet
from heliograph_broker.storage import store
from heliograph_broker.storage.base.damage import DamagedEntries
from heliograph_broker.storage.commit import group_commit
from heliograph_broker.storage.commit.group_commit import GroupCommit
from heliograph_broker.storage.disk.data_dir import DataDir
from heliograph_broker.storage.disk.identity import Identity, of_metadata, parse_format, stamp
from heliograph_broker.storage.ledgers.ledger_ids import RESERVED_KEY
from heliograph_broker.storage.ledgers.ledger_set import LedgerSet
from heliograph_broker.storage.segments import segment_records
from heliograph_broker.storage.segments.reclaim import Reclaimer
from heliograph_broker.storage.segments.segment_reader import SegmentReader

from tests.simulation.disk import SimulatedDisk

from .patches import Defect, Patch

# 1: a topic's record is written without the cursors that its trim point rests on

_commit = RecordSet.commit
_flush = RecordSet.flush
_seal_records = RecordSet.seal
#: Records that may be written with the next group, by set of records; all of it once the set is flushed.
_asked: dict[RecordSet, set[bytes] | None] = {}


def _commit_alone(self: Any, part: Any, done: Any = None) -> None:
    asked = _asked.setdefault(self, set())
    if asked is not None:
        asked.add(part.record_key)
    _commit(self, part, done)


def _flush_all(self: Any) -> None:
    _asked[self] = None
    _flush(self)


def _seal_without_cursors(self: Any, metadata: Any, durable: Any) -> None:
    asked = _asked.pop(self, None)
    left = {}
    if asked is not None:
        left = {key: part for key, part in self._changed.items() if isinstance(part, Subscription) and key not in asked}
        for key in left:
            del self._changed[key]
    _seal_records(self, metadata, durable)
    self._changed.update(left)


# 2: what a group could not write is lost, and everybody's group fails for one record

_seal = GroupCommit._seal


def _seal_forgetting(self: Any) -> None:
    self._carried.clear()
    _seal(self)


def _seal_forgetting_reservations(self: Any) -> None:
    self._carried.pop(RESERVED_KEY, None)
    _seal(self)


def _take_anything(*_: Any) -> None:
    """No size is checked."""


# 3: what nobody claims is deleted, also if nobody can


def _start_anyhow(self: Any) -> None:
    if self.disk.exists(self._marker):
        self.format = parse_format(self.disk.read(self._marker).decode())


def _take_any_identity(data_dir: Any, metadata: Any, new: Identity) -> Identity:
    found = of_metadata(metadata)
    if found is not None:
        return found
    output = "" if data_dir.format is None else data_dir.format.store_id
    identity = Identity(output or new.store_id, new.created_ms)
    stamp(metadata, identity)
    return identity


_retain = LedgerSet.retain


def _retain_known_only(self: Any, kept: Any, **options: Any) -> None:
    _retain(self, kept, **options)
    for ledger_id in self.quarantined:
        self._segments.drop(ledger_id)
    self.quarantined = {}


# 6: while what is live shrinks nothing is given back

_reclaim = Reclaimer._reclaim


def _reclaim_in_calm(self: Any) -> None:
    if not self._shrinking or self._pressed:
        _reclaim(self)


# 12: nobody knows which segments there were


def _know_none(records: Any) -> dict[bytes, bytes]:
    return {}


# 12: a read that fails once is taken for a loss

_read_entries = SegmentReader.read_entries


def _read_or_lose(self: Any, ledger_id: int, first: int, last: int, max_bytes: int) -> Any:
    try:
        return _read_entries(self, ledger_id, first, last, max_bytes)
    except lmdb.Error as error:
        raise DamagedEntries(ledger_id, first, last, str(error)) from None


# others -------------------------------------------------------------------------------------------------------------

_open = SimulatedDisk.open_environment


def _open_without_sync(self: Any, path: Any, map_bytes: int, **how: Any) -> Any:
    return _open(self, path, map_bytes, **{**how, "sync": False})


DEFECTS = {
    "trim-point-alone": Defect(
        "1",
        "a trim point is durable before the cursors it rests on, and is not healed",
        (
            Patch(RecordSet, "commit", _commit_alone),
            Patch(RecordSet, "flush", _flush_all),
            Patch(RecordSet, "seal", _seal_without_cursors),
            Patch(invariants, "heal_cursor", lambda topic, name, cursor: False),
        ),
    ),
    "metadata-forgotten": Defect(
        "2",
        "a group's metadata that failed is forgotten, not written again",
        (Patch(GroupCommit, "_seal", _seal_forgetting),),
    ),
    "reservation-forgotten": Defect(
        "2",
        "a reservation of ledger ids that failed counts all the same",
        (Patch(GroupCommit, "_seal", _seal_forgetting_reservations),),
    ),
    "long-keys": Defect(
        "2",
        "a name too long for a key fails the group that everybody's records are in",
        (
            Patch(record_set, "check_record", _take_anything),
            Patch(group_commit, "check_record", _take_anything),
            Patch(namespaces, "check_new_name", _take_anything),
        ),
    ),
    "starts-without-metadata": Defect(
        "3",
        "a start without metadata makes a new one, and what that does not know is deleted",
        (
            Patch(DataDir, "_check_format", _start_anyhow),
            Patch(store, "_identify", _take_any_identity),
            Patch(LedgerSet, "retain", _retain_known_only),
        ),
    ),
    "nothing-reclaimed": Defect(
        "6",
        "no space is given back while what is live shrinks from time to time",
        (Patch(Reclaimer, "_reclaim", _reclaim_in_calm),),
    ),
    "missing-unnoticed": Defect(
        "12",
        "a start does not know which segments there should be",
        (Patch(segment_records, "sound", _know_none),),
    ),
    "failed-read-is-loss": Defect(
        "12",
        "a read that fails once is taken for entries that are lost",
        (Patch(SegmentReader, "read_entries", _read_or_lose),),
    ),
    "receipt-before-sync": Defect(
        "-", "receipts go out before the sync", (Patch(SimulatedDisk, "open_environment", _open_without_sync),)
    ),
    "names-not-synced": Defect(
        "18",
        "created, renamed and removed names are never synced",
        (Patch(SimulatedDisk, "sync_directory", lambda self, path: None),),
    ),
}
