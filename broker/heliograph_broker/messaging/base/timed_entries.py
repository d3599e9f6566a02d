"""Indexes of a topic's delayed entries and of its entries with their own TTL, ordered by time."""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from itertools import islice

from pyroaring import BitMap64

#: Later than any time (ms, signed 64 bits): never due.
NEVER_MS = (1 << 63) - 1
_BLOCK_ENTRIES = 2048
_SWEEP_AT_LEAST = 64


class TimeIndex:
    """Offsets by a time (ms), in order: adding, finding the next one and walking on from there are O(log n).

    They lie in sorted blocks of two arrays each, 16 bytes an entry: a delayed message may wait among millions.
    """

    __slots__ = ("_lasts", "_offsets", "_size", "_times")

    def __init__(self) -> None:
        #: The last time of each block.
        self._lasts: list[int] = []
        self._times: list[array[int]] = []
        self._offsets: list[array[int]] = []
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, time_ms: int, offset: int) -> None:
        """Put ``offset`` after all of the same time; times from :data:`NEVER_MS` on are one."""
        time_ms = min(time_ms, NEVER_MS)
        self._size += 1
        lasts = self._lasts
        at = bisect_right(lasts, time_ms)
        if at == len(lasts):
            # In order, as most come: blocks are filled to the end.
            if not lasts or len(self._times[-1]) >= _BLOCK_ENTRIES:
                lasts.append(time_ms)
                self._times.append(array("q"))
                self._offsets.append(array("q"))
            lasts[-1] = time_ms
            self._times[-1].append(time_ms)
            self._offsets[-1].append(offset)
            return
        times, offsets = self._times[at], self._offsets[at]
        within = bisect_right(times, time_ms)
        times.insert(within, time_ms)
        offsets.insert(within, offset)
        if len(times) > _BLOCK_ENTRIES:
            half = len(times) // 2
            self._times[at : at + 1] = [times[:half], times[half:]]
            self._offsets[at : at + 1] = [offsets[:half], offsets[half:]]
            lasts.insert(at, times[half - 1])

    def between(self, after_ms: int, until_ms: int) -> Iterator[int]:
        """Yield the offsets whose time is above ``after_ms`` and not above ``until_ms``, by their times."""
        for at in range(bisect_right(self._lasts, after_ms), len(self._lasts)):
            times = self._times[at]
            first, end = bisect_right(times, after_ms), bisect_right(times, until_ms)
            yield from self._offsets[at][first:end]
            if end < len(times):
                return

    def after(self, time_ms: int) -> Iterator[tuple[int, int]]:
        """Yield the times above ``time_ms`` with their offsets, in order."""
        for at in range(bisect_right(self._lasts, time_ms), len(self._lasts)):
            times = self._times[at]
            first = bisect_right(times, time_ms)
            yield from zip(times[first:], self._offsets[at][first:], strict=True)

    def next_after(self, time_ms: int) -> int | None:
        """Return the first time above ``time_ms``, None if there is none."""
        at = bisect_right(self._lasts, time_ms)
        if at == len(self._lasts):
            return None
        times = self._times[at]
        return times[bisect_right(times, time_ms)]

    def sweep(self, below: int) -> None:
        """Forget the offsets below ``below``."""
        blocks = list(zip(self._times, self._offsets, strict=True))
        self._lasts, self._times, self._offsets, self._size = [], [], [], 0
        for times, offsets in blocks:
            for time_ms, offset in zip(times, offsets, strict=True):
                if offset >= below:
                    self.add(time_ms, offset)


class TimedEntries:
    """``delayed``: entries whose TTL begins at their delivery time. ``own``: entries with a TTL of their own.

    Entries stay until they are trimmed, acknowledged or not: a subscription that is moved back needs them again.
    ``waiting`` are the delayed ones whose time has not come, for all subscriptions; :meth:`release` ends the waiting.
    """

    __slots__ = ("_released_ms", "_trimmed", "by_delivery", "by_own_expiry", "delayed", "next_due_ms", "own", "waiting")

    def __init__(self, waiting: BitMap64 | None = None) -> None:
        self.delayed = BitMap64()
        self.own = BitMap64()
        #: by the time they become deliverable
        self.by_delivery = TimeIndex()
        #: by the time their own TTL ends; a batch has one for each TTL in it
        self.by_own_expiry = TimeIndex()
        self.waiting = waiting if waiting is not None else BitMap64()
        #: The earliest time at which a waiting entry may be due (wall clock).
        self.next_due_ms = NEVER_MS
        #: No entry waits for a time up to this.
        self._released_ms = 0
        self._trimmed = 0

    def __bool__(self) -> bool:
        return bool(self.delayed) or bool(self.own)

    def add_delayed(self, offset: int, deliver_at_ms: int, *, waits: bool) -> None:
        """Note a delayed entry, once; if it ``waits``, no dispatcher gets it before it is released."""
        if offset not in self.delayed:
            self.delayed.add(offset)
            self.by_delivery.add(deliver_at_ms, offset)
        if waits or offset in self.waiting:
            # Also if it has waited since before this index: entries released by then were not known yet.
            self.waiting.add(offset)
            self.next_due_ms = min(self.next_due_ms, deliver_at_ms)
            self._released_ms = min(self._released_ms, deliver_at_ms - 1)

    def add_own(self, offset: int, expiry_ms: int) -> None:
        self.own.add(offset)
        self.by_own_expiry.add(expiry_ms, offset)

    def release(self, now_ms: int | None) -> BitMap64:
        """Release and return the waiting entries that are due at ``now_ms``; None releases all."""
        waiting = self.waiting
        if not waiting:
            self.next_due_ms = NEVER_MS
            return waiting
        if now_ms is None:
            self.waiting = BitMap64()
            self.next_due_ms = NEVER_MS
            return waiting
        due = BitMap64(self.by_delivery.between(self._released_ms, now_ms))
        due &= waiting
        waiting.difference_update(due)
        self._released_ms = now_ms
        later = self.by_delivery.next_after(now_ms) if waiting else None
        self.next_due_ms = NEVER_MS if later is None else later
        return due

    def first_due(self, among: BitMap64, limit: int) -> tuple[int, int] | None:
        """Return the time and offset of the entry of ``among``, which wait, that is due first.

        None if there is none, or it is not among the next ``limit`` of the topic.
        """
        later = islice(self.by_delivery.after(self._released_ms), limit)
        return next((due for due in later if due[1] in among), None)

    def take_unknown(self) -> BitMap64:
        """Release and return the waiting entries that this index does not contain."""
        unknown = self.waiting - self.delayed
        self.waiting.difference_update(unknown)
        return unknown

    def trim(self, below: int) -> None:
        """Forget the entries below ``below``; the indexes are swept when more is gone than is left."""
        for offsets in (self.delayed, self.own):
            if offsets and offsets.min() < below:
                before = len(offsets)
                offsets.remove_range(offsets.min(), below)
                self._trimmed += before - len(offsets)
        if self.waiting and self.waiting.min() < below:
            self.waiting.remove_range(self.waiting.min(), below)
        if self._trimmed > max(_SWEEP_AT_LEAST, len(self.delayed) + len(self.own)):
            self._trimmed = 0
            self.by_delivery.sweep(below)
            self.by_own_expiry.sweep(below)


class TopicTiming:
    """The delays and times to live of a topic: the policies in force, and the entries that have times of their own."""

    __slots__ = (
        "delayed_delivery",
        "first_fresh_offset",
        "has_timed",
        "may_expire",
        "time_index_ready",
        "timed",
        "ttl_from_delivery",
        "ttl_ms",
    )

    def __init__(self, *, has_timed: bool) -> None:
        #: Whether the policies allow delays.
        self.delayed_delivery = True
        #: Whether the TTL of a delayed entry begins at its delivery time, not when it was received.
        self.ttl_from_delivery = True
        #: The TTL of subscriptions that set none, -1 without.
        self.ttl_ms = -1
        #: Whether entries have to be checked before delivery, as they may have expired.
        self.may_expire = False
        self.timed = TimedEntries()
        #: Whether ``timed`` has every entry it should; not while the entries are searched after a start.
        self.time_index_ready = True
        #: Whether the topic's record says that it has such entries: the next start searches for them.
        self.has_timed = has_timed
        #: First offset of the group being delivered: entries with a TTL of 0 are deliverable only now.
        self.first_fresh_offset = sys.maxsize
