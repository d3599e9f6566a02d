"""The messages of a topic, those of them that are not stored any more, and the result that a query must have."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from heliograph_spark.plan.positions import Position

#: Ledger and entry.
Place = tuple[int, int]


class Violation(AssertionError):
    """A query gave what it must not give, or did not give what it must."""


@dataclass(frozen=True)
class Message:
    """A message in one entry or, sent in chunks, in several; ``batch`` is its index, -1 without one."""

    text: bytes
    key: str
    entries: tuple[Place, ...]
    batch: int = -1

    @property
    def position(self) -> Position:
        return Position(*self.entries[-1], self.batch)


@dataclass
class Partition:
    """One partition, over all lives of its topic."""

    name: str
    entries: list[Place] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    gone: set[Place] = field(default_factory=set)
    #: Those of the lives before the present one.
    former: set[Place] = field(default_factory=set)
    #: How often its topic was created again.
    life: int = 0
    #: The last entry when the broker began to count the entries again, if it did.
    counted_from: Place | None = None
    #: The last entry behind which the queries' subscriptions were moved.
    moved: Place = (0, -1)
    #: The messages that the compacted view has, and the last entry that it covers.
    compacted: dict[str, Message] = field(default_factory=dict)
    horizon: Place = (0, -1)

    def add(self, *messages: Message) -> None:
        """Take notice of messages that the broker has stored, in order."""
        self.entries += dict.fromkeys(place for each in messages for place in each.entries)
        self.messages += messages

    def stored(self) -> list[Place]:
        return [place for place in self.entries if place not in self.gone]

    def has_all(self, message: Message) -> bool:
        """Whether all entries of a message are stored."""
        return self.gone.isdisjoint(message.entries)

    def between(self, start: Position, end: Position) -> list[Message]:
        """Return the messages after a position and up to another one, stored or not."""
        return sorted(
            (each for each in self.messages if start < each.position <= end), key=lambda message: message.position
        )

    def lost_entries(self, start: Position, end: Position) -> set[Place]:
        """Return the entries after a position and up to another one that are gone, with a rest of a batch."""
        rest = {place for each in self.messages if each.position > start for place in each.entries[-1:]}
        return {
            place
            for place in self.gone
            if place <= end.entry_key
            and (place > start.entry_key or (start.batch >= 0 and place == start.entry_key and place in rest))
        }

    def compact(self) -> None:
        """Take notice of a compaction of everything that is stored."""
        for message in self.messages:
            if message.entries[-1] > self.horizon and self.has_all(message):
                self.compacted[message.key] = message
        self.horizon = max(self.entries, default=self.horizon)

    def survives(self, message: Message) -> bool:
        """Whether compaction has left a message."""
        return message.entries[-1] > self.horizon or self.compacted.get(message.key) is message

    def of_former(self, position: Position) -> bool:
        """Whether a position is of a former life of the topic, or of its beginning."""
        return any(position.entry_key <= place for place in self.former)

    def uncounted(self, position: Position) -> bool:
        """Whether nothing says how many entries followed a position: its ledger is gone, and its count out of date."""
        if self.of_former(position):
            return True
        if self.counted_from is None or position.entry_key > self.counted_from:
            return False
        return all(ledger != position.ledger for ledger, _ in self.stored())

    def unnoticed(self, position: Position) -> bool:
        """Whether not even a warning follows from the loss of what followed a position.

        Once entries are gone that were counted since the last beginning, nothing shows that there was one.
        """
        began = self.counted_from
        hidden = began is not None and any(place > began for place in self.gone)
        return self.of_former(position) or (hidden and self.uncounted(position))

    def forget(self) -> None:
        """Take notice that the topic was deleted and created again."""
        self.gone.update(self.entries)
        self.former.update(self.entries)
        self.life += 1
        self.compacted, self.horizon = {}, (0, -1)


_AFTER = re.compile(r"the messages after (\S+)(?: and before (\S+))? are gone(?:, (\d+) entr)?")
_DURING = re.compile(r"(\d+) of the entries after (\S+) and before (\S+) were deleted")
_NOTHING = re.compile(r"nothing is stored after (\S+), but the query reads up to (\S+)")
_CHUNKS = re.compile(r"the first (\d+) chunks of the message (\d+):(\d+) are gone")


def check_loss(text: str, partition: Partition, excused: frozenset[Place]) -> None:
    """Raise :class:`Violation` unless the error names a range that has lost as many entries as it says.

    Entries that are ``excused`` were gone before the query began.
    """
    before: str | None
    during = False
    if found := _CHUNKS.search(text):
        last = int(found[2]), int(found[3])
        if not any(each.entries[-1] == last and not partition.has_all(each) for each in partition.messages):
            raise Violation(f"chunks are missed that are stored: {text}")
        return
    if found := _AFTER.search(text):
        after, before, count = found[1], found[2], found[3]
    elif found := _DURING.search(text):
        during, count, after, before = True, found[1], found[2], found[3]
    elif found := _NOTHING.search(text):
        after, before, count = found[1], None, None
    else:
        raise Violation(f"an error that names no range: {text}")
    start = Position.parse(after)
    end = (
        Position(1 << 62, 0)
        if before is None
        else Position(Position.parse(before).ledger, Position.parse(before).entry - 1)
    )
    lost = partition.lost_entries(start, end) - excused
    if not lost:
        raise Violation(f"nothing of this is gone: {text}")
    if partition.uncounted(start):
        return
    # While a split is read only its own ledgers are looked at.
    if count is not None and not (0 < int(count) <= len(lost) if during else int(count) == len(lost)):
        raise Violation(f"{len(lost)} entries are gone: {text}")


def difference(expected: Iterable[Message], found: Iterable[bytes]) -> str:
    """Return what is wrong with what was read; nothing if it is as expected."""
    wanted, got = [each.text for each in expected], list(found)
    if wanted == got:
        return ""
    missing = [each for each in wanted if each not in got]
    extra = [each for each in got if each not in wanted]
    return f"missing {missing}, unexpected {extra}, of {len(wanted)} expected and {len(got)} read: {got}"
