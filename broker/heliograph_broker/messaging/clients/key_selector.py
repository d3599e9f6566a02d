"""Selects the Key_Shared consumer of a key's hash: consistent hashing, or ranges the clients declared."""

from __future__ import annotations

from bisect import bisect_left, insort

import mmh3

from heliograph_broker.messaging.base.errors import ConsumerAssignError
from heliograph_broker.messaging.messages.key_hash import SLOTS

from .consumer import Consumer


class ConsistentHashSelector:
    """AUTO_SPLIT: every consumer holds many points of a ring, so a join or leave moves only its share of the keys."""

    __slots__ = ("_consumers", "_owners", "_points")

    POINTS = 100

    def __init__(self) -> None:
        self._points: list[tuple[int, str, int]] = []
        self._owners: dict[tuple[int, str, int], Consumer] = {}
        self._consumers: list[Consumer] = []

    def add(self, consumer: Consumer) -> None:
        # The join number keeps two consumers of one name apart.
        serial = sum(1 for other in self._consumers if other.name == consumer.name)
        self._consumers.append(consumer)
        for index in range(self.POINTS):
            slot = (mmh3.hash(f"{consumer.name}#{serial}#{index}", 0, False) & 0x7FFFFFFF) % SLOTS
            point = (slot, consumer.name, serial * self.POINTS + index)
            if point not in self._owners:
                self._owners[point] = consumer
                insort(self._points, point)

    def remove(self, consumer: Consumer) -> None:
        self._consumers.remove(consumer)
        self._owners = {point: owner for point, owner in self._owners.items() if owner is not consumer}
        self._points = sorted(self._owners)

    def select(self, key_hash: int) -> Consumer | None:
        points = self._points
        if not points:
            return None
        at = bisect_left(points, (key_hash,))
        return self._owners[points[at if at < len(points) else 0]]

    def ranges(self, consumer: Consumer) -> list[tuple[int, int]]:
        """Return the slots a consumer holds, as inclusive ranges, for the stats."""
        found: list[tuple[int, int]] = []
        previous = 0
        for point in self._points:
            if self._owners[point] is consumer and point[0] > previous:
                found.append((previous + 1, point[0]))
            previous = max(previous, point[0])
        if self._points and self._owners[self._points[0]] is consumer and previous < SLOTS - 1:
            found.append((previous + 1, SLOTS - 1))
        return found


class StickyRangeSelector:
    """STICKY: each consumer declares its ranges; a slot nobody declared waits until somebody does."""

    __slots__ = ("_ranges",)

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int, int, Consumer]] = []

    def add(self, consumer: Consumer) -> None:
        """Raises :class:`ConsumerAssignError` if a range is empty, out of bounds, or overlaps another's."""
        if not consumer.key_shared.ranges:
            raise ConsumerAssignError("Ranges for KeyShared policy must not be empty.")
        taken = [(start, end, owner.name) for start, end, _, owner in self._ranges]
        for start, end in sorted(consumer.key_shared.ranges):
            if not 0 <= start <= end < SLOTS:
                raise ConsumerAssignError(f"range [{start}, {end}] is not within [0, {SLOTS - 1}]")
            for other_start, other_end, name in taken:
                if start <= other_end and other_start <= end:
                    raise ConsumerAssignError(
                        f"Range conflict with consumer {name}: [{start}, {end}] overlaps [{other_start}, {other_end}]"
                    )
            taken.append((start, end, consumer.name))
        for start, end in consumer.key_shared.ranges:
            insort(self._ranges, (start, end, id(consumer), consumer))

    def remove(self, consumer: Consumer) -> None:
        self._ranges = [entry for entry in self._ranges if entry[3] is not consumer]

    def select(self, key_hash: int) -> Consumer | None:
        at = bisect_left(self._ranges, (key_hash + 1,)) - 1
        if at >= 0 and self._ranges[at][1] >= key_hash:
            return self._ranges[at][3]
        return None

    def ranges(self, consumer: Consumer) -> list[tuple[int, int]]:
        return [(start, end) for start, end, _, owner in self._ranges if owner is consumer]
