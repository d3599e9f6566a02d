"""Selects the Key_Shared consumer of a key's hash: by consistent hashing, hash ranges, or ranges clients declare."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from typing import Protocol

from heliograph_broker.messaging.base.errors import ConsumerAssignError, ConsumerBusy
from heliograph_broker.messaging.messages.key_hash import MAX_HASH, SLOTS, hash_of

from .consumer import Consumer, KeySharedPolicy

_SLOT = SLOTS - 1


class KeySelector(Protocol):
    """Maps hashes to the consumers of a subscription."""

    def add(self, consumer: Consumer) -> None:
        """Give ``consumer`` its part. Raises :class:`ConsumerAssignError` if it cannot have one."""

    def remove(self, consumer: Consumer) -> None:
        """Give the part of ``consumer`` to others."""

    def select(self, key_hash: int) -> Consumer | None:
        """Return whose the hash is, None if it is nobody's."""

    def ranges(self, consumer: Consumer) -> list[tuple[int, int]]:
        """Return what ``consumer`` has as inclusive ranges: of slots, or with consistent hashing of hashes."""


def selector_for(policy: KeySharedPolicy, *, consistent_hashing: bool) -> KeySelector:
    """Return the selector for consumers with this policy, by ``consistent_hashing`` if they declare no ranges."""
    if policy.sticky:
        return StickyRangeSelector()
    return ConsistentHashSelector() if consistent_hashing else HashRangeSelector()


def check_mode(consumer: Consumer, *, sticky: bool) -> None:
    """Raise :class:`ConsumerBusy` if ``consumer`` shares keys in another mode than those that are connected."""
    if consumer.key_shared.sticky != sticky:
        connected, new = ("STICKY", "AUTO_SPLIT") if sticky else ("AUTO_SPLIT", "STICKY")
        raise ConsumerBusy(
            f"Subscription '{consumer.subscription.name}' has Key_Shared consumers of the mode {connected}; "
            f"one of the mode {new} cannot join them"
        )


class ConsistentHashSelector:
    """AUTO_SPLIT: every consumer marks points of a ring, so a join or leave moves only its share of the keys.

    The ring is 0 to :data:`~heliograph_broker.messaging.messages.key_hash.MAX_HASH`. The points of a consumer are the
    hashes of its name with 1 to 100 behind it. A key belongs to the first point at its hash or after it, and there to
    the consumer at the index hash % number of consumers: two may mark one point.
    """

    __slots__ = ("_owners", "_points")

    POINTS = 100

    def __init__(self) -> None:
        self._points: list[int] = []
        #: The consumers at each point, by name.
        self._owners: list[list[Consumer]] = []

    @classmethod
    def points_of(cls, name: str) -> set[int]:
        """Return the hashes at which a consumer of this name marks the ring."""
        return {hash_of(f"{name}{index}") for index in range(1, cls.POINTS + 1)}

    def add(self, consumer: Consumer) -> None:
        for point in self.points_of(consumer.name):
            at = bisect_left(self._points, point)
            if at < len(self._points) and self._points[at] == point:
                insort(self._owners[at], consumer, key=lambda owner: owner.name)
            else:
                self._points.insert(at, point)
                self._owners.insert(at, [consumer])

    def remove(self, consumer: Consumer) -> None:
        for point in self.points_of(consumer.name):
            at = bisect_left(self._points, point)
            self._owners[at].remove(consumer)
            if not self._owners[at]:
                del self._points[at], self._owners[at]

    def select(self, key_hash: int) -> Consumer | None:
        points = self._points
        if not points:
            return None
        at = bisect_left(points, key_hash)
        owners = self._owners[at if at < len(points) else 0]
        return owners[0] if len(owners) == 1 else owners[(key_hash & MAX_HASH) % len(owners)]

    def ranges(self, consumer: Consumer) -> list[tuple[int, int]]:
        """Return the hashes a consumer has; it shares those of a point that others have marked, too."""
        points = self._points
        found: list[tuple[int, int]] = []
        for point in sorted(self.points_of(consumer.name)):
            # Not all points: the statistics ask for every consumer.
            at = bisect_left(points, point)
            _append(found, (points[at - 1] & MAX_HASH) + 1 if at else 0, point & MAX_HASH)
        last = points[-1] & MAX_HASH
        if consumer in self._owners[0] and last < MAX_HASH:
            _append(found, last + 1, MAX_HASH)
        return found


def _append(ranges: list[tuple[int, int]], start: int, end: int) -> None:
    """Add a range behind others, to the last one if it adjoins."""
    if ranges and ranges[-1][1] + 1 == start:
        start = ranges.pop()[0]
    ranges.append((start, end))


class HashRangeSelector:
    """AUTO_SPLIT without consistent hashing: each consumer has one region of the slots.

    A newcomer takes the lower half of the largest region (of several, the lowest one). The region of who leaves joins
    the one on its right, the last region the one on its left.
    """

    __slots__ = ("_owners", "_starts")

    def __init__(self) -> None:
        #: Where each region starts; it goes up to the next one's start.
        self._starts: list[int] = []
        self._owners: list[Consumer] = []

    def add(self, consumer: Consumer) -> None:
        starts = self._starts
        if not starts:
            starts.append(0)
            self._owners.append(consumer)
            return
        sizes = [end - start for start, end in zip(starts, [*starts[1:], SLOTS], strict=True)]
        at = sizes.index(max(sizes))
        if sizes[at] < 2:
            raise ConsumerAssignError(f"No region of the {SLOTS} slots can be split for another consumer")
        starts.insert(at + 1, starts[at] + sizes[at] // 2)
        self._owners.insert(at, consumer)

    def remove(self, consumer: Consumer) -> None:
        at = self._owners.index(consumer)
        del self._owners[at]
        # The next region begins where this one did; for the last one, the region before goes on to the end.
        del self._starts[at + 1 if at + 1 < len(self._starts) else at]

    def select(self, key_hash: int) -> Consumer | None:
        at = bisect_right(self._starts, key_hash & _SLOT) - 1
        return self._owners[at] if at >= 0 else None

    def ranges(self, consumer: Consumer) -> list[tuple[int, int]]:
        at = self._owners.index(consumer)
        return [(self._starts[at], self._starts[at + 1] - 1 if at + 1 < len(self._starts) else SLOTS - 1)]


class StickyRangeSelector:
    """STICKY: each consumer declares its ranges; a slot nobody declared waits until somebody does."""

    __slots__ = ("_ranges",)

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int, int, Consumer]] = []

    def add(self, consumer: Consumer) -> None:
        """Raises :class:`ConsumerAssignError` if a range is empty, out of bounds, or overlaps another's."""
        if not consumer.key_shared.ranges:
            raise ConsumerAssignError("Ranges for KeyShared policy must not be empty.")
        # A client may declare each slot by itself: only neighbours are compared.
        taken = self._ranges.copy()
        for start, end in consumer.key_shared.ranges:
            if not 0 <= start <= end < SLOTS:
                raise ConsumerAssignError(f"range [{start}, {end}] is not within [0, {SLOTS - 1}]")
            at = bisect_left(taken, (start,))
            for other_start, other_end, _, other in taken[max(at - 1, 0) : at + 1]:
                if start <= other_end and other_start <= end:
                    raise ConsumerAssignError(
                        f"Range conflict with consumer {other.name}: [{start}, {end}] overlaps "
                        f"[{other_start}, {other_end}]"
                    )
            taken.insert(at, (start, end, id(consumer), consumer))
        self._ranges = taken

    def remove(self, consumer: Consumer) -> None:
        self._ranges = [entry for entry in self._ranges if entry[3] is not consumer]

    def select(self, key_hash: int) -> Consumer | None:
        slot = key_hash & _SLOT
        at = bisect_left(self._ranges, (slot + 1,)) - 1
        if at >= 0 and self._ranges[at][1] >= slot:
            return self._ranges[at][3]
        return None

    def ranges(self, consumer: Consumer) -> list[tuple[int, int]]:
        return [(start, end) for start, end, _, owner in self._ranges if owner is consumer]
