"""Records a broker's promises as it makes them, and checks a recovered broker against them.

A receipt promises the message; an ACK_RESPONSE promises that it never comes back. A request that was not answered
when the broker died may have happened or not: both are right, but what a recovered broker then shows is a promise
in its turn.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

#: ``ledger id << 32 | entry id``: positions of one topic compare in the order of publication.
Position = int


def position(ledger_id: int, entry_id: int) -> Position:
    return ledger_id << 32 | entry_id


class Published(NamedTuple):
    """The producer of an entry, and the number of the message (1, 2, 3 … for each producer)."""

    producer: str
    sequence_id: int


class Delivered(NamedTuple):
    """An entry as a recovered broker delivered it."""

    position: Position
    published: Published
    size: int
    """Bytes of the entry."""
    messages: int
    remaining: int
    """A bit for each message of the entry that is still unacknowledged."""


class PromiseBroken(AssertionError):
    """The broker does not keep what it had promised."""


def all_bits(messages: int) -> int:
    return (1 << messages) - 1


@dataclass
class SubscriptionPromises:
    """One subscription's side: every position is in at most one of ``owed``, ``asked`` and ``settled``."""

    name: str
    owed: dict[Position, Published] = field(default_factory=dict)
    """Receipted, and no acknowledgment was ever sent: must be delivered."""
    asked: dict[Position, Published] = field(default_factory=dict)
    """An acknowledgment was sent and not answered: may be delivered."""
    settled: set[Position] = field(default_factory=set)
    """Acknowledged with a receipt: must never be delivered again."""
    owed_bits: dict[Position, int] = field(default_factory=dict)
    """Batches acknowledged in part: messages never acknowledged."""
    settled_bits: dict[Position, int] = field(default_factory=dict)
    """Batches acknowledged in part: messages acknowledged with a receipt."""

    def receipted(self, at: Position, published: Published) -> None:
        if at not in self.asked and at not in self.settled:
            self.owed[at] = published

    def ack_sent(self, at: Position, published: Published) -> None:
        self.owed.pop(at, None)
        self.asked[at] = published

    def ack_answered(self, at: Position) -> None:
        self.asked.pop(at, None)
        self.settled.add(at)

    def partial_ack_sent(self, at: Position, remaining: int) -> None:
        self.owed_bits[at] = remaining

    def partial_ack_answered(self, at: Position, acknowledged: int) -> None:
        self.settled_bits[at] = acknowledged

    def check(self, delivered: list[Delivered]) -> None:
        """Compare everything a recovered broker delivers with what was promised; then its answer is the promise.

        Raises :class:`PromiseBroken`.
        """
        found = {entry.position: entry for entry in delivered}
        if len(found) != len(delivered):
            raise PromiseBroken(f"{self.name}: {len(delivered) - len(found)} entries were delivered twice")
        self._check_order(delivered)
        lost = [(at, published) for at, published in self.owed.items() if at not in found]
        if lost:
            raise PromiseBroken(f"{self.name}: {len(lost)} receipted messages are lost, the first: {lost[:5]}")
        returned = [entry for entry in delivered if entry.position in self.settled]
        if returned:
            raise PromiseBroken(f"{self.name}: {len(returned)} acknowledged messages came back: {returned[:5]}")
        for entry in delivered:
            known = self.owed.get(entry.position) or self.asked.get(entry.position)
            if known is not None and known != entry.published:
                raise PromiseBroken(f"{self.name}: {entry} was published as {known}")
            back = entry.remaining & self.settled_bits.get(entry.position, 0)
            if back:
                raise PromiseBroken(f"{self.name}: acknowledged messages {back:b} of a batch came back: {entry}")
            missing = self.owed_bits.get(entry.position, all_bits(entry.messages)) & ~entry.remaining
            if missing:
                raise PromiseBroken(f"{self.name}: messages {missing:b} of a batch are lost: {entry}")
        self.settled.update(at for at in self.asked if at not in found)
        self.asked.clear()
        self.owed = {entry.position: entry.published for entry in delivered}
        partly = [entry for entry in delivered if entry.remaining != all_bits(entry.messages)]
        self.owed_bits = {entry.position: entry.remaining for entry in partly}
        self.settled_bits = {entry.position: all_bits(entry.messages) & ~entry.remaining for entry in partly}

    def _check_order(self, delivered: list[Delivered]) -> None:
        last: dict[str, int] = {}
        before: Position = -1
        for entry in delivered:
            if entry.position <= before:
                raise PromiseBroken(f"{self.name}: {entry} was delivered after position {before:#x}")
            before = entry.position
            producer, sequence_id = entry.published
            if sequence_id <= last.get(producer, 0):
                raise PromiseBroken(f"{self.name}: {entry} came after message {last[producer]} of its producer")
            last[producer] = sequence_id


@dataclass
class Promises:
    """All subscriptions of one topic, and the receipts in the order they came."""

    subscriptions: dict[str, SubscriptionPromises]
    last_receipt: dict[str, tuple[int, Position]] = field(default_factory=dict)
    receipts: int = 0
    bytes: int = 0
    """Bytes of the entries receipted."""
    ledgers: set[int] = field(default_factory=set)

    def receipted(self, published: Published, ledger_id: int, entry_id: int, size: int) -> None:
        """A receipt came. Raises :class:`PromiseBroken` if it is out of its producer's order."""
        at = position(ledger_id, entry_id)
        sequence_id, before = self.last_receipt.get(published.producer, (0, -1))
        if published.sequence_id <= sequence_id or at <= before:
            raise PromiseBroken(f"receipt for {published} at {at:#x} came after that for {sequence_id} at {before:#x}")
        self.last_receipt[published.producer] = (published.sequence_id, at)
        self.receipts += 1
        self.bytes += size
        self.ledgers.add(ledger_id)
        for subscription in self.subscriptions.values():
            subscription.receipted(at, published)
