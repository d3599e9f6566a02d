"""The ledgers of a partition, and which of the entries after a position are not stored any more.

The broker's list has the ledgers that are stored, in order. Pulsar deletes whole ledgers, the oldest first; Heliograph
deletes the first entries of a ledger, too, and then names the first one left. A ledger that is gone says nothing of how
many entries it had. So a position is kept with the number of entries that were added to the partition up to it, by the
broker's own count: all that was added later must be stored. Heliograph never begins to count again, Pulsar does when it
loads the topic, with a new ledger. That shows if more is stored than was added. A position that is not after the first
entry that is counted is kept with the ledger of that entry, too: its count is not to be compared with one from another
ledger.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .positions import BEGINNING, Position


@dataclass(frozen=True, slots=True)
class Ledger:
    """The stored part of one ledger: the number and the bytes of its entries, and the id of the first one."""

    id: int
    entries: int
    size: int
    first: int = 0

    @property
    def end(self) -> int:
        """The id that follows its last entry."""
        return self.first + self.entries


@dataclass(frozen=True, slots=True)
class Loss:
    """Entries after one position, and before another or up to the end, that are not stored any more.

    ``entries`` is their number, None if the broker's answers leave open whether there were any.
    """

    after: Position
    before: Position | None
    entries: int | None

    def __str__(self) -> str:
        where = f"after {self.after}" + ("" if self.before is None else f" and before {self.before}")
        if self.entries is None:
            return f"messages {where} may be gone: nothing says how many entries ledger {self.after.ledger} had"
        return (
            f"the messages {where} are gone, {self.entries} {'entry' if self.entries == 1 else 'entries'} (a retention,"
            " their ledger's end, a TTL or a quota let them go; failOnDataLoss=false goes on without them)"
        )


@dataclass(frozen=True, slots=True)
class Ledgers:
    """The stored ledgers of a partition, and how many entries were ever ``added``, by the broker's count.

    ``added`` is None if it was taken while entries were being added, and so does not go with the ledgers. Where the
    broker ``recounts``, it begins to count again whenever it loads the topic.
    """

    stored: tuple[Ledger, ...]
    added: int | None
    recounts: bool = False

    def counted(self, position: Position) -> Position:
        """Return the position with the number of entries added up to it, if its ledger is stored.

        An entry that was read in part counts as added up to it.
        """
        if self.added is None or not any(ledger.id == position.ledger for ledger in self.stored):
            return position
        return self._at_count(position, self.added - self.stored_after(position) - self._deleted_after(position))

    def counted_beginning(self, position: Position) -> Position:
        """Return the position where a query begins: what was deleted before is not the query's."""
        if self.added is None or any(ledger.id <= position.ledger for ledger in self.stored):
            return self.counted(position)
        return self._at_count(position, self.added - sum(ledger.entries for ledger in self.stored))

    def _at_count(self, position: Position, count: int) -> Position:
        return position.at_count(count, self._counted_since() if count <= 0 else None)

    def _counted_since(self) -> int | None:
        """Return the ledger with which the broker has begun to count, if it recounts and no ledger since is gone."""
        if self.added is None or not self.recounts:
            return None
        count = self.added - sum(ledger.entries for ledger in self.stored)
        if count > 0:
            return None
        for ledger in self.stored:
            if count >= 0:
                return ledger.id
            count += ledger.entries
        return None

    def stored_after(self, position: Position) -> int:
        """Return how many entries after the position are stored."""
        count = 0
        for ledger in self.stored:
            if ledger.id > position.ledger:
                count += ledger.entries
            elif ledger.id == position.ledger:
                count += max(0, ledger.end - max(ledger.first, position.entry + 1))
        return count

    def _deleted_after(self, position: Position) -> int:
        """Return how many entries after the position were deleted of the ledgers that are stored."""
        count = 0
        for ledger in self.stored:
            if ledger.id >= position.ledger:
                count += max(0, ledger.first - (position.entry + 1 if ledger.id == position.ledger else 0))
        return count

    def lost_after(self, start: Position) -> Loss | None:
        """Return which entries after ``start`` were deleted; None if all that were added are stored.

        Nothing is lost before a beginning without a count: what is read of a partition that was found later.
        """
        if start == BEGINNING and start.added is None:
            return None
        missing: int | None = self._deleted_after(start)
        if not any(ledger.id <= start.ledger for ledger in self.stored):
            # Its ledger is gone, and later ones may be.
            counted = -1
            if self.added is not None and start.added is not None and not self._counts_again(start):
                counted = self.added - start.added - self.stored_after(start)
            # Below zero the broker has begun to count again.
            missing = counted if counted >= 0 else missing or None
        if missing == 0:
            return None
        after = (each for each in self.stored if each.entries and (each.id, each.end) > (start.ledger, start.entry + 1))
        left = next(after, None)
        return Loss(start, None if left is None else Position(left.id, left.first), missing)

    def _counts_again(self, position: Position) -> bool:
        """Whether the broker has begun to count again since the position was counted, as far as the ledgers show it."""
        now = self._counted_since()
        return position.since is not None and now is not None and now != position.since

    def lost_up_to(self, start: Position, end: Position) -> int:
        """Return how many of the entries that :meth:`lost_after` finds are not after ``end``, as far as it is known.

        What it returns for ranges that follow each other adds up to what was lost, each entry once.
        """
        found, later = self.lost_after(start), self.lost_after(self.counted(end))
        lost = 0 if found is None else found.entries or 0
        return max(0, lost - (0 if later is None else later.entries or 0))

    def lost_between(self, read: Position, found: Position, planned: Sequence[Ledger]) -> int:
        """Return how many entries after ``read`` and before ``found`` are gone of those that were ``planned``.

        Entries that are stored and were not received are no messages: markers, or the chunks of a message.
        """
        stored = {ledger.id: ledger for ledger in self.stored}
        lost = 0
        for ledger in planned:
            if not read.ledger <= ledger.id <= found.ledger:
                continue
            first = max(ledger.first, read.entry + 1 if ledger.id == read.ledger else 0)
            end = found.entry if ledger.id == found.ledger else ledger.end
            now = stored.get(ledger.id)
            lost += max(0, (end if now is None else min(end, now.first)) - first)
        return lost


def within(ledgers: Iterable[Ledger], start: Position, end: Position) -> tuple[Ledger, ...]:
    """Return the ledgers that have entries after ``start`` and up to ``end``."""
    return tuple(
        ledger
        for ledger in ledgers
        if start.ledger <= ledger.id <= end.ledger and (ledger.id != start.ledger or ledger.end > start.entry + 1)
    )
