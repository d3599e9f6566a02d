"""A subscription's cursor: the exact set of acknowledged entries, in messages and bytes.

Positions here are *offsets*: dense indexes of a topic's entries, 0 for the first ever published; the topic maps
them to (ledger id, entry id). ``mark_delete`` is the last offset below which everything is acknowledged.
"""

from __future__ import annotations

from pyroaring import BitMap64

from heliograph_broker.messaging.base.offsets import run_end
from heliograph_broker.messaging.base.records import CursorRecord


class Cursor:
    """Mark-delete position, individually acknowledged entries, and batch indexes still unacknowledged.

    ``acked_messages`` and ``acked_bytes`` count from the topic's first message on, so that the backlog is the
    topic's totals minus them: O(1) and exact. Bytes of a batch are counted when its last index is acknowledged.
    """

    __slots__ = ("acked", "acked_bytes", "acked_messages", "estimated", "mark_delete", "partial")

    def __init__(self, mark_delete: int, acked_messages: int, acked_bytes: int) -> None:
        self.mark_delete = mark_delete
        self.acked_messages = acked_messages
        self.acked_bytes = acked_bytes
        self.acked = BitMap64()
        #: offset -> bits of the batch indexes that are not acknowledged yet
        self.partial: dict[int, int] = {}
        #: Whether the counters count lost entries for less than they may have held, until a recount.
        self.estimated = False

    def is_acked(self, offset: int) -> bool:
        return offset <= self.mark_delete or offset in self.acked

    def ack(self, offset: int, messages: int, size: int) -> int:
        """Acknowledge a whole entry; return how many messages that newly acknowledges (0 for a repeat)."""
        if offset <= self.mark_delete or (self.acked and offset in self.acked):
            return 0
        newly = messages
        if self.partial:
            remaining = self.partial.pop(offset, None)
            if remaining is not None:
                newly = remaining.bit_count()
        self.acked_messages += newly
        self.acked_bytes += size
        if offset == self.mark_delete + 1:
            self.mark_delete = offset
            if self.acked:
                self._absorb()
        else:
            self.acked.add(offset)
        return newly

    def ack_batch(self, offset: int, remaining: int, messages: int, size: int) -> int:
        """Acknowledge the indexes of a batch whose bit in ``remaining`` is 0; return the newly acknowledged count."""
        if self.is_acked(offset):
            return 0
        before = self.partial.get(offset, (1 << messages) - 1)
        after = before & remaining
        if after == 0:
            return self.ack(offset, messages, size)
        if after == before:
            return 0
        self.partial[offset] = after
        newly = before.bit_count() - after.bit_count()
        self.acked_messages += newly
        return newly

    def ack_range(self, first: int, last: int, messages: int, size: int) -> bool:
        """Acknowledge the entries ``first..last``, which have ``messages`` and ``size`` bytes in all.

        Returns False, and does nothing, if any of them is acknowledged already, be it in part.
        """
        acked = self.acked
        if first <= self.mark_delete or (acked and acked.range_cardinality(first, last + 1)):
            return False
        if any(first <= offset <= last for offset in self.partial):
            return False
        self.acked_messages += messages
        self.acked_bytes += size
        if first == self.mark_delete + 1:
            self.mark_delete = last
            if acked:
                self._absorb()
        else:
            acked.add_range(first, last + 1)
        return True

    def advance(self, offset: int, total_messages: int, total_bytes: int) -> int:
        """Acknowledge everything up to and including ``offset``, whose cumulative totals are given.

        Only for ranges in which nothing is individually acknowledged: see :meth:`is_contiguous`.
        Returns the newly acknowledged messages.
        """
        if offset <= self.mark_delete:
            return 0
        newly = total_messages - self.acked_messages
        self.acked_messages = total_messages
        self.acked_bytes = total_bytes
        self.estimated = False
        self.mark_delete = offset
        return newly

    def is_contiguous(self) -> bool:
        """Whether nothing beyond the mark-delete position is acknowledged, not even in part."""
        return not self.acked and not self.partial

    def reset(self, mark_delete: int, total_messages: int, total_bytes: int) -> None:
        """Move to ``mark_delete`` (seek): entries beyond become unacknowledged, those below acknowledged."""
        self.mark_delete = mark_delete
        self.acked_messages = total_messages
        self.acked_bytes = total_bytes
        self.estimated = False
        self.acked.clear()
        self.partial.clear()

    def highest(self) -> int:
        """Return the offset of the last entry that is acknowledged at least in part."""
        return max(self.mark_delete, self.acked.max() if self.acked else -1, max(self.partial, default=-1))

    def lift(self, mark_delete: int) -> None:
        """Acknowledge trimmed entries up to ``mark_delete``; acknowledgments beyond it stay. Counters do not change."""
        self.mark_delete = mark_delete
        self.acked.remove_range(0, mark_delete + 1)
        self.partial = {offset: bits for offset, bits in self.partial.items() if offset > mark_delete}
        self._absorb()

    def cut(self, end: int) -> None:
        """Forget entries from ``end`` on, which do not exist. Counters do not change."""
        self.mark_delete = min(self.mark_delete, end - 1)
        if self.acked:
            self.acked.remove_range(end, self.acked.max() + 1)
        self.partial = {offset: bits for offset, bits in self.partial.items() if offset < end}

    def first_unacked(self) -> int:
        """Return the offset of the oldest unacknowledged entry (it may not exist yet)."""
        return self.mark_delete + 1

    def _absorb(self) -> None:
        """Move the mark-delete position over the run of acknowledged entries that now touches it."""
        acked = self.acked
        start = self.mark_delete + 1
        end = run_end(acked, start)
        if end > start:
            self.mark_delete = end - 1
            acked.remove_range(start, end)

    def to_record(self, properties: dict[str, str], created_ms: int) -> CursorRecord:
        """Return the record of the cursor."""
        return CursorRecord(
            mark_delete=self.mark_delete,
            acked_messages=self.acked_messages,
            acked_bytes=self.acked_bytes,
            acked=self.acked.serialize() if self.acked else b"",
            partial={
                offset: bits.to_bytes((bits.bit_length() + 7) // 8, "little") for offset, bits in self.partial.items()
            },
            properties=properties,
            created_ms=created_ms,
        )

    @classmethod
    def from_record(cls, record: CursorRecord) -> Cursor:
        """Return the cursor as it was when ``record`` was made."""
        cursor = cls(record.mark_delete, record.acked_messages, record.acked_bytes)
        if record.acked:
            cursor.acked = BitMap64.deserialize(record.acked)
        cursor.partial = {offset: int.from_bytes(bits, "little") for offset, bits in record.partial.items()}
        return cursor
