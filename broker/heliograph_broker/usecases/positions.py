"""Message ids as positions: where in a topic, and in its compacted view, one lies that a client names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from heliograph_broker.messaging.acknowledgment.stored_topic import StoredTopic

#: Ledger ids from here on are after every entry: the largest one is Pulsar's "latest".
_LATEST_LEDGER: Final = (1 << 63) - 1


class MessagePosition(NamedTuple):
    """The place of an entry, or between entries; one that is trimmed or yet to come is a position, too."""

    ledger_id: int
    entry_id: int

    def offset(self, topic: StoredTopic) -> int:
        """Return the offset of the first entry at the position or after it."""
        if self.ledger_id < 0:
            return topic.log.first_offset
        if self.ledger_id >= _LATEST_LEDGER:
            return topic.log.end_offset
        return topic.log.offset_at_or_after(self.ledger_id, self.entry_id)

    def owed_from(self, topic: StoredTopic) -> int:
        """Return the offset from which a reader there is owed compacted and trimmed entries, -1 for none."""
        if self.ledger_id >= _LATEST_LEDGER:
            return -1
        return topic.compaction.trimmed_from(self.ledger_id, self.entry_id)


#: Before every entry, also those that are trimmed.
EARLIEST: Final = MessagePosition(-1, -1)


class Start(NamedTuple):
    """The start of a new subscription: some time back, else a message id, else the earliest or latest entry."""

    earliest: bool = False
    position: MessagePosition | None = None
    rollback_s: int = 0

    def offset(self, topic: StoredTopic, now_ms: int) -> int | None:
        """Return the offset to begin at, None for the earliest or latest entry."""
        if self.rollback_s > 0:
            return topic.log.first_published_at_or_after(now_ms - self.rollback_s * 1000)
        return None if self.position is None else self.position.offset(topic)

    def owed_from(self, topic: StoredTopic, now_ms: int) -> int:
        """As :meth:`MessagePosition.owed_from`."""
        if self.rollback_s > 0:
            return topic.compaction.trimmed_published_at_or_after(now_ms - self.rollback_s * 1000)
        if self.position is not None:
            return self.position.owed_from(topic)
        return EARLIEST.owed_from(topic) if self.earliest else -1
