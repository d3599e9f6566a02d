"""Entries of a topic that expire by another rule than their receive time: delayed ones, and those with an own TTL."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from pyroaring import BitMap64

_BUCKET_MS = 1000
_OFFSET_BITS = 44
_OFFSET_MASK = (1 << _OFFSET_BITS) - 1
_SWEEP_AT_LEAST = 64


class TimeIndex:
    """Offsets by a time (ms), in buckets of a second: cheap to add to and to walk along.

    A time and its offset are one integer, which takes a third of the memory of a tuple of two.
    """

    __slots__ = ("_buckets", "_order", "_size")

    def __init__(self) -> None:
        self._buckets: dict[int, list[int]] = {}
        self._order: list[int] = []
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, time_ms: int, offset: int) -> None:
        number = time_ms // _BUCKET_MS
        bucket = self._buckets.get(number)
        if bucket is None:
            bucket = self._buckets[number] = []
            insort(self._order, number)
        bucket.append(time_ms << _OFFSET_BITS | offset)
        self._size += 1

    def between(self, after_ms: int, until_ms: int) -> Iterator[int]:
        """Yield the offsets whose time is above ``after_ms`` and not above ``until_ms``, in no particular order."""
        low, high = (after_ms + 1) << _OFFSET_BITS, (until_ms + 1) << _OFFSET_BITS
        for at in range(bisect_left(self._order, after_ms // _BUCKET_MS), len(self._order)):
            number = self._order[at]
            if number > until_ms // _BUCKET_MS:
                return
            for packed in self._buckets[number]:
                if low <= packed < high:
                    yield packed & _OFFSET_MASK

    def next_after(self, time_ms: int) -> int | None:
        """Return the first time above ``time_ms``, None if there is none."""
        low = (time_ms + 1) << _OFFSET_BITS
        for at in range(bisect_left(self._order, time_ms // _BUCKET_MS), len(self._order)):
            later = [packed for packed in self._buckets[self._order[at]] if packed >= low]
            if later:
                return min(later) >> _OFFSET_BITS
        return None

    def sweep(self, below: int) -> None:
        """Forget the offsets below ``below``."""
        kept: dict[int, list[int]] = {}
        self._size = 0
        for number, bucket in self._buckets.items():
            live = [packed for packed in bucket if packed & _OFFSET_MASK >= below]
            if live:
                kept[number] = live
                self._size += len(live)
        self._buckets = kept
        self._order = sorted(kept)


class TimedEntries:
    """``delayed``: entries whose TTL begins at their delivery time. ``own``: entries with a TTL of their own.

    Entries stay until they are trimmed, whoever acknowledged them: a subscription that is moved back needs them again.
    """

    __slots__ = ("_trimmed", "by_delivery", "by_own_expiry", "delayed", "own")

    def __init__(self) -> None:
        self.delayed = BitMap64()
        self.own = BitMap64()
        #: by the time they become deliverable
        self.by_delivery = TimeIndex()
        #: by the time their own TTL ends; a batch has one for each TTL in it
        self.by_own_expiry = TimeIndex()
        self._trimmed = 0

    def __bool__(self) -> bool:
        return bool(self.delayed) or bool(self.own)

    def add_delayed(self, offset: int, deliver_at_ms: int) -> None:
        self.delayed.add(offset)
        self.by_delivery.add(deliver_at_ms, offset)

    def add_own(self, offset: int, expiry_ms: int) -> None:
        self.own.add(offset)
        self.by_own_expiry.add(expiry_ms, offset)

    def trim(self, below: int) -> None:
        """Forget the entries below ``below``; the indexes are swept when more is gone than is left."""
        for offsets in (self.delayed, self.own):
            if offsets and offsets.min() < below:
                before = len(offsets)
                offsets.remove_range(offsets.min(), below)
                self._trimmed += before - len(offsets)
        if self._trimmed > max(_SWEEP_AT_LEAST, len(self.delayed) + len(self.own)):
            self._trimmed = 0
            self.by_delivery.sweep(below)
            self.by_own_expiry.sweep(below)
