"""Parts of a partition between two positions: cut where they are large, and to a number of bytes.

Only numbers, so the same two positions are cut the same way whenever it is done again: a batch that is repeated after a
crash has the same splits, which the sink's sequence ids rest on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .positions import Position


@dataclass(frozen=True, slots=True)
class Range:
    """The messages of one partition after ``start`` up to and including ``end``."""

    topic: str
    start: Position
    end: Position


@dataclass(frozen=True, slots=True)
class Ledger:
    """The number of entries and bytes in one ledger of a partition, from the broker's statistics."""

    id: int
    entries: int
    size: int


def cut(whole: Range, max_entries: int) -> list[Range]:
    """Return the range in parts of at most ``max_entries`` entries each, in order, together the whole.

    The ledgers before the last one form one part: how many entries those have is not in the positions.
    """
    parts = []
    start, end = whole.start, whole.end
    if start.ledger < end.ledger:
        last = Position(end.ledger, -1)
        if end.entry + 1 <= max_entries:
            return [whole]
        parts.append(Range(whole.topic, start, last))
        start = last
    while end.entry - start.entry > max_entries:
        border = Position(end.ledger, start.entry + max_entries)
        parts.append(Range(whole.topic, start, border))
        start = border
    return [*parts, Range(whole.topic, start, end)]


def within_bytes(
    wanted: Iterable[Range], ledgers: Mapping[str, Sequence[Ledger]], max_bytes: int
) -> dict[str, Position]:
    """Return the ends of the ranges that together hold about ``max_bytes``, each in proportion to what it has to come.

    Every range that is not empty goes on by at least one entry, however large. Entries count as their ledger's average.
    """
    pieces = {each.topic: _pieces(each, ledgers.get(each.topic, ())) for each in wanted}
    ends = {each.topic: each.end for each in wanted}
    sizes = {topic: sum(count * size for _, _, count, size in found) for topic, found in pieces.items()}
    total = sum(sizes.values())
    if total <= max_bytes:
        return ends
    for topic, found in pieces.items():
        left = max_bytes * sizes[topic] / total
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


def stored_bytes(wanted: Iterable[Range], ledgers: Mapping[str, Sequence[Ledger]]) -> int:
    """Return the approximate bytes of the ranges; entries count as their ledger's average."""
    pieces = (piece for each in wanted for piece in _pieces(each, ledgers.get(each.topic, ())))
    return int(sum(count * size for _, _, count, size in pieces))


def _pieces(whole: Range, ledgers: Sequence[Ledger]) -> list[tuple[int, int, int, float]]:
    """Yield for each ledger of the range: its id, the first entry, the number of entries, the bytes of one."""
    found = []
    for ledger in ledgers:
        if not whole.start.ledger <= ledger.id <= whole.end.ledger:
            continue
        last = whole.end.entry if ledger.id == whole.end.ledger else ledger.entries - 1
        first = whole.start.entry + 1 if ledger.id == whole.start.ledger else 0
        if last >= first:
            found.append((ledger.id, first, last - first + 1, ledger.size / max(1, ledger.entries)))
    return found
