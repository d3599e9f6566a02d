"""Parts of a partition between two positions: cut where they are large, and to a number of bytes or entries.

Only numbers, so the same two positions are cut the same way whenever it is done again: a batch that is repeated after a
crash has the same splits, which the sink's sequence ids rest on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .ledgers import Ledger, within
from .positions import BEGINNING, Position


@dataclass(frozen=True, slots=True)
class Range:
    """The messages of one partition after ``start`` up to and including ``end``.

    ``ledgers`` are those that had entries of it when it was planned, if they are known. ``begins`` says that it is of a
    larger range in which the query begins: of a partition that was empty, or that it had not found.
    """

    topic: str
    start: Position
    end: Position
    ledgers: tuple[Ledger, ...] = ()
    begins: bool = False

    @property
    def entries(self) -> int:
        """The number of entries in the ledgers that are known."""
        return sum(end - first for _, first, end in _spans(self))


def cut(whole: Range, max_entries: int) -> list[Range]:
    """Return the range in parts of at most ``max_entries`` entries each, in order, together the whole.

    Without its ledgers, all before the last one are one part: the positions do not say how many entries those have.
    """
    parts = []
    start, room = whole.start, max_entries
    for ledger, first, end in _spans(whole) or _last_ledger(whole, max_entries):
        at = first
        while end - at > room:
            at += room
            border = Position(ledger, at - 1)
            parts.append(_part(whole, start, border))
            start, room = border, max_entries
        room -= end - at
    return [*parts, _part(whole, start, whole.end)]


def entries_of_part(wanted: Sequence[Range], parts: int, max_entries: int) -> int:
    """Return how many entries a part may have, ``max_entries`` at most, so that the ranges are cut into ``parts``.

    There are at least so many parts then, unless the ranges have fewer entries.
    """
    sizes = [each.entries for each in wanted]
    most = max(1, min(max_entries, -(-sum(sizes) // parts)))
    # The last part of a range is smaller than the others, so there may be fewer of them.
    while most > 1 and sum(-(-size // most) for size in sizes) < parts:
        most -= 1
    return most


def _spans(whole: Range) -> list[tuple[int, int, int]]:
    """Return for each known ledger its id, the first entry of the range, and the one that follows the last.

    Deleted entries are included: the parts of a range must be the same ones when it is cut again.
    """
    start, end = whole.start, whole.end
    return [
        (
            ledger.id,
            start.entry + 1 if ledger.id == start.ledger else 0,
            end.entry + 1 if ledger.id == end.ledger else ledger.end,
        )
        for ledger in whole.ledgers
    ]


def _last_ledger(whole: Range, max_entries: int) -> list[tuple[int, int, int]]:
    start, end = whole.start, whole.end
    if start.ledger == end.ledger:
        return [(end.ledger, start.entry + 1, end.entry + 1)]
    if end.entry + 1 <= max_entries:
        return []
    # The part before it is full, however many entries that has.
    return [(end.ledger, -max_entries, end.entry + 1)]


def _part(whole: Range, start: Position, end: Position) -> Range:
    begins = whole.begins or whole.start == BEGINNING
    return Range(whole.topic, start, end, within(whole.ledgers, start, end), begins)


def within_bytes(wanted: Sequence[Range], max_bytes: int) -> dict[str, Position]:
    """Return the ends of the ranges that together hold about ``max_bytes``, each in proportion to what it has to come.

    Every range that is not empty goes on by at least one entry, however large. Entries count as their ledger's average.
    """
    return _within({each.topic: _pieces(each) for each in wanted}, wanted, max_bytes)


def within_entries(wanted: Sequence[Range], max_entries: int) -> dict[str, Position]:
    """Return the ends of the ranges that together hold ``max_entries`` stored entries at most, in the same proportion.

    Every range that is not empty goes on by at least one entry, even if the ranges are more than ``max_entries``.
    """
    pieces = {each.topic: [(id_, first, count, 1.0) for id_, first, count, _ in _pieces(each)] for each in wanted}
    return _within(pieces, wanted, max_entries)


def _within(
    pieces: Mapping[str, list[tuple[int, int, int, float]]], wanted: Sequence[Range], most: int
) -> dict[str, Position]:
    ends = {each.topic: each.end for each in wanted}
    sizes = {topic: sum(count * size for _, _, count, size in found) for topic, found in pieces.items()}
    total = sum(sizes.values())
    if total <= most:
        return ends
    for topic, found in pieces.items():
        left = most * sizes[topic] / total
        stop: Position | None = None
        for ledger, first, count, size in found:
            taken = min(count, int(left // size) if size else count)
            if taken == 0:
                stop = stop or Position(ledger, first)
                break
            stop = Position(ledger, first + taken - 1)
            left -= taken * size
            if taken < count:
                break
        if stop is not None and stop < ends[topic]:
            ends[topic] = stop
    return ends


def stored_bytes(wanted: Iterable[Range]) -> int:
    """Return the approximate bytes of the ranges; entries count as their ledger's average."""
    return int(sum(count * size for each in wanted for _, _, count, size in _pieces(each)))


def _pieces(whole: Range) -> list[tuple[int, int, int, float]]:
    """Return for each ledger of the range: its id, the first stored entry, their number, the bytes of one."""
    found = []
    for ledger, (_, first, end) in zip(whole.ledgers, _spans(whole), strict=True):
        first = max(first, ledger.first)
        if end > first:
            found.append((ledger.id, first, end - first, ledger.size / max(1, ledger.entries)))
    return found
