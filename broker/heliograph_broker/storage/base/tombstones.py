"""Tombstones: the only thing that deletes a ledger.

A ledger is deleted when its tombstone, a metadata record, is durable, never because no record names it. A tombstone is
written in the same transaction as the record that stops naming the ledger, so that whenever the process dies the
ledger is either named or has a tombstone. It stays until no segment holds the ledger and no entry of it is on its way:
a segment that a power cut brings back is recognised by it.

A ledger that a compaction is writing is *provisional*: it has a tombstone before its first entry, and loses it
in the same transaction as the record that names it. If that never happens, the next start deletes it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

#: Key of the record that says that every ledger that may be deleted has a tombstone.
HAS_TOMBSTONES = b"store/has-tombstones"
_PREFIX = b"store/tombstone/"
_LEDGER = struct.Struct(">Q")
#: How many ledgers are checked in one call.
_AT_ONCE = 500


class Tombstone:
    """A ledger's tombstone as a part of a set of records: committed to delete the ledger, removed to keep it."""

    __slots__ = ("ledger_id", "record_key")

    PREFIX = _PREFIX

    def __init__(self, ledger_id: int) -> None:
        self.ledger_id = ledger_id
        self.record_key = _PREFIX + _LEDGER.pack(ledger_id)

    @staticmethod
    def ledger_of(key: bytes) -> int:
        """Return the ledger a record's key is of. Raises :class:`struct.error`."""
        ledger_id: int = _LEDGER.unpack(key.removeprefix(_PREFIX))[0]
        return ledger_id

    def encode_record(self, version: int) -> bytes:
        """Return the record; only its existence matters."""
        return b"1"


class DeletedLedgers:
    """The ledgers whose tombstones are durable and that are not yet gone from all files."""

    __slots__ = ("_ledgers",)

    def __init__(self, ledgers: Iterable[int] = ()) -> None:
        self._ledgers: dict[int, None] = dict.fromkeys(ledgers)

    def __contains__(self, ledger_id: int) -> bool:
        return ledger_id in self._ledgers

    def __len__(self) -> int:
        return len(self._ledgers)

    def add(self, ledger_id: int) -> None:
        self._ledgers[ledger_id] = None

    def discard(self, ledger_id: int) -> None:
        self._ledgers.pop(ledger_id, None)

    def some(self) -> list[int]:
        """Return some of them, different ones with each call."""
        chosen = [ledger_id for ledger_id, _ in zip(self._ledgers, range(_AT_ONCE), strict=False)]
        if len(chosen) < len(self._ledgers):
            for ledger_id in chosen:
                del self._ledgers[ledger_id]
                self._ledgers[ledger_id] = None
        return chosen
