"""The ledgers the store keeps: one is deleted by its tombstone, one that nobody knows stays in quarantine."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping

import structlog

from heliograph_broker.storage.base import quarantine
from heliograph_broker.storage.base.record_sum import number_in
from heliograph_broker.storage.base.tombstones import HAS_TOMBSTONES, DeletedLedgers, Tombstone
from heliograph_broker.storage.commit.group_commit import GroupCommit
from heliograph_broker.storage.disk.metadata import Metadata
from heliograph_broker.storage.segments.segment_set import SegmentSet

from .ledger_ids import RESERVED_KEY, LedgerIds

log = structlog.get_logger(__name__)


class LedgerSet:
    """Owned by the event loop. :meth:`retain` is called once, at start; :meth:`maintain` every now and then."""

    def __init__(
        self, metadata: Metadata, segments: SegmentSet, writer: GroupCommit, ids: LedgerIds, opened_ms: int
    ) -> None:
        self._metadata = metadata
        self._segments = segments
        self._writer = writer
        self._ids = ids
        self._opened_ms = opened_ms
        self._deleted = DeletedLedgers(_tombstones(key for key, _ in metadata.scan(Tombstone.PREFIX)))
        #: Ledgers that nothing refers to and no tombstone is for, and their bytes: kept until an administrator adopts
        #: or drops them.
        self.quarantined: Mapping[int, int] = {}
        #: When each was found first (wall-clock ms).
        self.quarantined_since: Mapping[int, int] = {}

    def begin_provisional(self) -> int:
        """Return the id of a ledger that the next start deletes, unless its :class:`Tombstone` is removed before."""
        ledger_id = self._ids.next()
        # In the same group as its first entries or before them, and metadata is written first.
        self._writer.put(Tombstone(ledger_id).record_key, b"1")
        return ledger_id

    def retain(self, kept: Mapping[int, int], *, keep_unknown: bool = False) -> None:
        """Keep of each named ledger the entries from its first one on, and delete those with a tombstone, at a start.

        Any other is kept in quarantine: somebody may know it. But versions without tombstones left ledgers like that
        behind as a matter of course: at the first start after one of them, those whose ids it gave out go,
        unless ``keep_unknown`` says that a record which named them may be lost.
        """
        unknown: dict[int, int] = {}
        stored = self._metadata.get(RESERVED_KEY)
        garbage_to = 0
        if self._metadata.get(HAS_TOMBSTONES) is None and not keep_unknown:
            garbage_to = number_in(stored) or 0
        self._writer.put(HAS_TOMBSTONES, b"1")
        for ledger_id, stored_bytes in self._segments.bytes_by_ledger().items():
            first = kept.get(ledger_id)
            if first is not None:
                self._segments.trim(ledger_id, first)
            elif ledger_id in self._deleted:
                self._segments.drop(ledger_id)
            elif ledger_id <= garbage_to:
                self.delete(ledger_id)
            else:
                unknown[ledger_id] = stored_bytes
        for ledger_id in kept:
            if ledger_id in self._deleted:
                log.error("a ledger in use has a tombstone; the ledger is kept", ledger=ledger_id)
                self._deleted.discard(ledger_id)
                self._writer.delete(Tombstone(ledger_id).record_key)
        self.quarantined = unknown
        self._note_quarantine(unknown)
        missing = self._segments.missing
        if missing.open_segment:
            log.error("the segment that was written last is missing or damaged; what was only there is lost")
        self._segments.keep_missing(kept)
        if missing:
            log.error(
                "segments are missing or damaged; entries that only they held are lost, the rest is served",
                segments=sorted(missing.runs)[:20],
                ledgers=len(list(missing.ledgers())),
                entries=missing.entries(),
            )
        if unknown:
            log.error(
                "ledgers that no topic refers to are kept in quarantine; see 'heliograph store --help'",
                ledgers=len(unknown),
                bytes=sum(unknown.values()),
                first=sorted(unknown)[:20],
            )

    def _note_quarantine(self, unknown: Iterable[int]) -> None:
        known = quarantine.since(self._metadata.scan(quarantine.PREFIX))
        self.quarantined_since = {ledger_id: known.get(ledger_id, self._opened_ms) for ledger_id in unknown}
        for ledger_id in self.quarantined_since.keys() - known.keys():
            self._writer.put(quarantine.key(ledger_id), str(self._opened_ms).encode())
        for ledger_id in known.keys() - self.quarantined_since.keys():
            self._writer.delete(quarantine.key(ledger_id))

    def delete(self, ledger_id: int) -> None:
        """Delete a whole ledger once its tombstone, which joins the next group, is durable.

        Where a record stops naming the ledger, commit a :class:`Tombstone` with that record instead, and call
        :meth:`tombstone_durable` when both are.
        """
        self._writer.put(Tombstone(ledger_id).record_key, b"1")
        self._writer.when_durable(lambda: self.tombstone_durable(ledger_id))

    def tombstone_durable(self, ledger_id: int) -> None:
        """Delete a ledger whose tombstone is durable."""
        self._deleted.add(ledger_id)
        self._segments.drop(ledger_id)

    def maintain(self) -> None:
        """Delete the tombstones of ledgers of which nothing is left."""
        if not self._deleted or self._writer.failure is not None:
            return
        gone = []
        for ledger_id in self._deleted.some():
            if self._segments.holds(ledger_id):
                # Entries that were on their way when the ledger was deleted.
                self._segments.drop(ledger_id)
            else:
                gone.append(ledger_id)
        if not gone:
            return
        coming = self._writer.ledgers_under_way()
        for ledger_id in gone:
            if ledger_id not in coming:
                self._deleted.discard(ledger_id)
                self._writer.delete(Tombstone(ledger_id).record_key)


def _tombstones(keys: Iterable[bytes]) -> Iterator[int]:
    """Yield the ledgers of tombstones' keys."""
    for key in keys:
        try:
            yield Tombstone.ledger_of(key)
        except struct.error as error:
            log.error("the record of a deleted ledger is damaged", key=str(key), error=str(error))
