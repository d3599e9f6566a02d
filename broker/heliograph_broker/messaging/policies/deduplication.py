"""Deduplication: a message that a producer resends gets a receipt and is not stored again (Pulsar's message dedup).

A topic remembers, by producer name, the highest sequence id that is durable. An entry at or below it is a duplicate:
its receipt has the message id -1:-1, which official clients take as success. Receipts keep the order of the entries,
so a duplicate of an entry that is still being written is answered right after that one's receipt.

An entry that could not be stored would be a duplicate if later ones of its producer were stored: when it is sent again
it would be dropped, and lost. Its topic closes the producer. One that goes on all the same under the name, or whose
entry was damaged on its way, is closed if it sends a later one first, as it may have sent that before it knew: its
client registers again and sends all that has no receipt.

The ids are kept by a record in the metadata store, a *snapshot*, and the entries behind it: after a crash the
metadata of those few entries brings the ids up to date when the topic is first used. Nothing is trimmed before a
snapshot that covers it is durable. So the ids and the entries cannot part, whenever the broker is killed.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import TYPE_CHECKING

import msgspec
from google.protobuf.message import DecodeError
from heliograph_api.protocol.frames import peek_metadata

from heliograph_broker.clock import monotonic_ms
from heliograph_broker.messaging.base import records
from heliograph_broker.messaging.base.errors import NotAllowed, PersistenceError
from heliograph_broker.messaging.log import invariants

if TYPE_CHECKING:
    from collections.abc import Container

    from heliograph_api.protocol import wire_pb2 as wire

    from heliograph_broker.messaging.clients.producer import Producer, Receipt
    from heliograph_broker.messaging.log.entry_log import EntryLog

#: A snapshot is taken after so many entries, which is about how many have to be read again after a crash. Where more
#: producers are remembered it is taken after one entry for each, and at the latest after ten times as many.
SNAPSHOT_ENTRIES = 1000
#: Interval of the check for producers that may be forgotten.
PURGE_INTERVAL_MS = 60_000


#: The first sequence id of an entry and the number of its chunk: they grow along the entries of a producer.
_Place = tuple[int, int]


class _Duplicate:
    """A duplicate that waits for its receipt until the entries before it are durable."""

    __slots__ = ("behind", "highest_sequence_id", "producer", "sequence_id", "up_to")

    def __init__(self, behind: int, producer: Producer, sequence_id: int, highest: int, up_to: int) -> None:
        #: Offset of the last entry that was submitted before it.
        self.behind = behind
        self.producer = producer
        self.sequence_id = sequence_id
        self.highest_sequence_id = highest
        self.up_to = up_to


class Deduplication:
    """The sequence ids of one topic that has deduplication switched on. ``duplicates`` counts entries not stored."""

    __slots__ = (
        "_active_ms",
        "_admitted",
        "_counted_from",
        "_covered",
        "_durable",
        "_durable_end",
        "_failed",
        "_log",
        "_since_snapshot",
        "_stored",
        "_submitted",
        "_under_way",
        "_waiting",
        "duplicates",
        "record_key",
    )

    def __init__(self, entry_log: EntryLog, stored: bytes | None = None) -> None:
        """Continue from a ``stored`` snapshot; without one begin with messages published from now on."""
        self._log = entry_log
        self.record_key = records.DEDUPLICATION + str(entry_log.name).encode()
        self.duplicates = 0
        self._stored = stored
        self._durable: dict[str, int] = {}
        self._durable_end = entry_log.end_offset
        #: Entries below this offset do not count, also those that were under way when it was switched on.
        self._counted_from = entry_log.next_offset
        #: Entries below this offset are in the last snapshot.
        self._covered = 0
        self._since_snapshot = 0
        #: Highest id submitted and not durable yet, by producer name.
        self._under_way: dict[str, int] = {}
        #: The entries submitted and not durable yet: offset, name, place, and the last sequence id, which is None for a
        #: chunk that completes no message.
        self._submitted: deque[tuple[int, str, _Place, int | None]] = deque()
        #: Place and last sequence id of the entry admitted last.
        self._admitted: tuple[_Place, int | None] = (0, 0), None
        #: By producer name, the place of the first entry that could not be stored and was not sent again.
        self._failed: dict[str, _Place] = {}
        self._waiting: deque[_Duplicate] = deque()
        #: When a producer was last known to be there, monotonic.
        self._active_ms: dict[str, int] = {}
        if stored is not None:
            position = msgspec.msgpack.decode(stored, type=records.SnapshotPosition)
            entry_log.records.version = max(entry_log.records.version, position.version)
            self._covered = invariants.heal_snapshot(entry_log, position.offset)
            # Entries under way then may never have become durable: its offsets go to entries that count.
            self._counted_from = min(position.counted_from, entry_log.end_offset)
            if (self._covered, self._counted_from) != (position.offset, position.counted_from):
                self.recover()
                entry_log.records.commit(self)
        else:
            # At once: that entries before this one do not count must survive a crash too.
            entry_log.records.commit(self)

    # -- publishing ------------------------------------------------------------------------------------------

    def admits(
        self, producer: Producer, sequence_id: int, highest_sequence_id: int, metadata: wire.MessageMetadata
    ) -> bool:
        """Whether an entry is to be stored; if not, it is answered here. If so, :meth:`submitted` follows."""
        self.recover()
        name = producer.name
        if metadata.producer_name != name:
            # After a crash only the entry itself tells whose it was.
            self._refuse(producer, sequence_id, f"the entry names producer '{metadata.producer_name}', not '{name}'")
            return False
        first, last = _sequence_ids(metadata)
        known = self._under_way.get(name)
        if known is None:
            known = self._durable.get(name, -1)
        if first > known:
            place = first, metadata.chunk_id
            if self._failed and self._closes(producer, place):
                return False
            self._admitted = place, last if _completes_message(metadata) else None
            return True
        if last > known:
            self._refuse(
                producer,
                sequence_id,
                f"the batch has sequence ids {first} to {last}, of which those up to {known} are stored: storing it "
                "would double some messages and dropping it lose others",
            )
            return False
        self.duplicates += 1
        entry_log = self._log
        if entry_log.has_in_flight:
            self._waiting.append(
                _Duplicate(entry_log.next_offset - 1, producer, sequence_id, highest_sequence_id, last)
            )
        else:
            producer.sink.send_receipts(producer, [(sequence_id, highest_sequence_id, -1, -1)])
        return False

    def _closes(self, producer: Producer, place: _Place) -> bool:
        """Close the producer if this entry of it comes after one that could not be stored; return whether it does."""
        failed = self._failed.get(producer.name, place)
        registry = producer.topic.producer_registry
        # The producer of dead letters never registers, and gives what it sends again another id.
        if place <= failed or not registry.may_publish(producer):
            self._failed.pop(producer.name, None)
            return False
        registry.disconnect(producer)
        return True

    def damaged(self, name: str, sequence_id: int) -> None:
        """An entry of the producer of that name was damaged on its way: it could not be stored, as above."""
        if sequence_id > self._under_way.get(name, self._durable.get(name, -1)):
            self._failed.setdefault(name, (sequence_id, 0))

    def submitted(self, name: str, offset: int) -> None:
        """The store has taken the entry that was admitted last, from the producer of that name."""
        place, last = self._admitted
        if last is not None:
            self._under_way[name] = last
        self._submitted.append((offset, name, place, last))

    def _refuse(self, producer: Producer, sequence_id: int, reason: str) -> None:
        producer.topic.refuse(producer, sequence_id, NotAllowed(f"deduplication: {reason}"))

    def entries_durable(self, end_offset: int, receipts: dict[Producer, list[Receipt]]) -> None:
        """Entries below ``end_offset`` are durable: add to their ``receipts`` those of duplicates, in order."""
        self._durable_end = max(self._durable_end, end_offset)
        submitted = self._submitted
        if submitted and submitted[0][0] < end_offset:
            now = monotonic_ms(self._log.host.clock)
            while submitted and submitted[0][0] < end_offset:
                _, name, _, last = submitted.popleft()
                if last is None:
                    continue
                self._durable[name] = last
                self._active_ms[name] = now
                self._since_snapshot += 1
                if self._under_way.get(name) == last:
                    del self._under_way[name]
            if self._since_snapshot >= min(max(SNAPSHOT_ENTRIES, len(self._durable)), 10 * SNAPSHOT_ENTRIES):
                self._take_snapshot()
        waiting = self._waiting
        while waiting and waiting[0].behind < end_offset:
            duplicate = waiting.popleft()
            receipt = (duplicate.sequence_id, duplicate.highest_sequence_id, -1, -1)
            of_producer = receipts.setdefault(duplicate.producer, [])
            position = self._log.position(duplicate.behind)
            later = (at for at, (_, _, ledger, entry) in enumerate(of_producer) if (ledger, entry) > position)
            of_producer.insert(next(later, len(of_producer)), receipt)

    def entries_failed(self) -> None:
        """Nothing that was under way became durable: duplicates of that fail as their originals did."""
        for _, name, place, _ in self._submitted:
            self._failed.setdefault(name, place)
        self._submitted.clear()
        self._under_way.clear()
        if self._counted_from > self._log.end_offset:
            # Switched on while they were under way: their offsets go to entries that count.
            self._counted_from = self._log.end_offset
            self._take_snapshot()
        self._answer_waiting()

    def _answer_waiting(self) -> None:
        waiting, self._waiting = self._waiting, deque()
        for duplicate in waiting:
            producer = duplicate.producer
            if duplicate.up_to <= self._durable.get(producer.name, -1):
                receipt = (duplicate.sequence_id, duplicate.highest_sequence_id, -1, -1)
                producer.sink.send_receipts(producer, [receipt])
            else:
                producer.sink.send_publish_error(
                    producer.producer_id,
                    duplicate.sequence_id,
                    PersistenceError("the entry this one repeats could not be stored"),
                )

    # -- producers -------------------------------------------------------------------------------------------

    def last_sequence_id(self, name: str) -> int:
        """Return the highest sequence id of a producer, which has connected; -1 if none is known.

        It is that of an entry which is still being written, if there is one: a client that counts on from it must not
        give its id to another message. Entries that failed are the client's to send again or give up.
        """
        self.recover()
        self._failed.pop(name, None)
        if name in self._durable:
            self._active_ms[name] = monotonic_ms(self._log.host.clock)
        return self._under_way.get(name, self._durable.get(name, -1))

    def forget_inactive(self, now_ms: int, producers: Container[str]) -> None:
        """Forget producers that were not connected for as long as the settings say; ``producers`` are connected now."""
        if self._stored is not None:
            # Not used since the start, from which the time counts.
            return
        # Messages received just before the last check may have expired just before this one.
        since = now_ms - self._log.host.config.deduplication_inactivity_ms - PURGE_INTERVAL_MS
        active_ms = self._active_ms
        for name in (*self._durable, *self._failed):
            active_ms.setdefault(name, now_ms)
        gone = []
        for name, at_ms in active_ms.items():
            if name in producers or name in self._under_way:
                active_ms[name] = now_ms
            elif at_ms <= since:
                gone.append(name)
        known = len(self._durable)
        for name in gone:
            del active_ms[name]
            self._durable.pop(name, None)
            # It would have to register first, and need not send what could not be stored.
            self._failed.pop(name, None)
        if len(self._durable) < known:
            self._take_snapshot()

    # -- persistence -----------------------------------------------------------------------------------------

    def recover(self) -> None:
        """Take over the stored snapshot and read the metadata of the entries behind it, if that is still to be done."""
        if self._stored is None:
            return
        durable = msgspec.msgpack.decode(self._stored, type=records.DeduplicationRecord).sequence_ids
        entry_log = self._log
        entries = 0
        for metadata in entry_log.metadata_from(max(self._covered, self._counted_from), _metadata_of):
            entries += 1
            # The producer and sequence id of an unreadable entry are unknown: sent again it is stored again.
            if metadata is not None and _completes_message(metadata):
                last = _sequence_ids(metadata)[1]
                durable[metadata.producer_name] = max(last, durable.get(metadata.producer_name, -1))
        # A read that failed raised above, and is tried again: with some of the ids duplicates would be stored.
        self._stored = None
        self._durable = durable
        self._since_snapshot += entries
        self._durable_end = entry_log.end_offset
        now = monotonic_ms(entry_log.host.clock)
        self._active_ms = dict.fromkeys(durable, now)

    def trimming(self, offset: int) -> None:
        """Write a snapshot of the entries below ``offset`` together with their trimming."""
        self.recover()
        if offset > self._covered:
            self._log.records.changed(self)

    def _take_snapshot(self) -> None:
        self._since_snapshot = 0
        self._log.records.commit(self)

    def encode_record(self, version: int) -> bytes:
        """Return the snapshot as of the entries that are durable now."""
        self._covered = self._durable_end
        return records.encode(
            records.DeduplicationRecord(self._durable_end, self._durable, version, self._counted_from)
        )

    def close(self) -> list[Producer]:
        """Forget everything: the policy was switched off, or the topic is deleted.

        Return the producers of duplicates that wait for their receipts. They have to come back and send again all
        that has no receipt: whether the originals become durable is not known here any more, and if they do not, no
        later entry may overtake them.
        """
        self._log.records.remove(self)
        producers = dict.fromkeys(duplicate.producer for duplicate in self._waiting)
        self._waiting.clear()
        return list(producers)


def _metadata_of(entry: memoryview) -> wire.MessageMetadata | None:
    """Return the metadata of a stored entry, None if it does not decode."""
    try:
        return peek_metadata(entry)
    except (DecodeError, IndexError, struct.error):
        return None


def _sequence_ids(metadata: wire.MessageMetadata) -> tuple[int, int]:
    """Return the first and the last sequence id of an entry; they differ for some clients' batches."""
    first = metadata.sequence_id
    return first, max(first, metadata.highest_sequence_id)


def _completes_message(metadata: wire.MessageMetadata) -> bool:
    """Whether the entry is not a chunk, or the last one: all chunks of a message have its sequence id."""
    return metadata.num_chunks_from_msg <= 1 or metadata.chunk_id >= metadata.num_chunks_from_msg - 1
