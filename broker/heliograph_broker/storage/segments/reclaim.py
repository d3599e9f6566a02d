"""Gives back the space of dead entries: unlinks segments without live ones, rewrites those that waste much."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from heliograph_broker.clock import Clock
from heliograph_broker.storage.base.scheduler import Scheduler
from heliograph_broker.storage.disk.disk_space import DiskSpace

from .rewrite import Abandoned, Rewriting
from .segment import Segment
from .segment_set import SegmentSet

log = structlog.get_logger(__name__)

#: Space is won back while files take more than this many times the live bytes. The promise is 1.5; a copy under way
#: and what is written meanwhile come on top.
TARGET = 1.3
#: Bytes that may be wasted, however few are live.
FLOOR = 256 * 1024
#: A file is rewritten only if that frees this share of it.
WORTHWHILE = 0.12
#: This many small neighbours are merged, so that the number of files stays bounded.
MERGE = 8
#: A file is small with less than this share of a full segment.
_SMALL = 1 / MERGE
#: While entries are written, the open segment is closed early, for its dead entries, at most once in this time (s).
_CLOSE_INTERVAL_S = 10.0
#: Pause after a copy failed, mostly for lack of space (s).
_RETRY_S = 5.0
#: While the live bytes shrink by more than this share from one check to the next, nothing is copied: the copy would
#: soon be dead, and publishing needs the disk. The same holds for this number of checks afterwards, and for at most
#: this time (s) in total.
_SHRINKING = 1 / 8
_CHECKS_AFTER = 3
_PUT_OFF_S = 10.0


class Reclaimer:
    """Owned by the event loop; copies in the background. :meth:`maintain` is called every now and then."""

    def __init__(self, segments: SegmentSet, space: DiskSpace, clock: Clock, scheduler: Scheduler) -> None:
        self._segments = segments
        self._space = space
        self._clock = clock
        self._scheduler = scheduler
        #: Whether there may be something to do though no entries came or went since :attr:`_seen_changes`.
        self._again = True
        self._seen_changes = self._seen_writes = 0
        #: Whether no entries were written between the last two calls of :meth:`maintain`.
        self.quiet = False
        #: Whether the disk is full: every byte counts.
        self._pressed = False
        self._live_before = self._shrinking = 0
        self._put_off_since: float | None = None
        self._other_bytes = 0
        self._close_at = self._retry_at = clock.monotonic()
        self._rewriting: Rewriting | None = None
        self._closed = False

    def maintain(self, other_bytes: int) -> None:
        """Begin to give back space where enough of it is dead; ``other_bytes`` is the disk space of other files."""
        self.quiet = self._segments.writes == self._seen_writes
        self._seen_writes = self._segments.writes
        self._pressed = self._space.full
        self._other_bytes = other_bytes
        live_bytes = self._segments.live_bytes()
        shrinks = live_bytes < self._live_before * (1 - _SHRINKING)
        self._shrinking = 1 + _CHECKS_AFTER if shrinks else max(0, self._shrinking - 1)
        self._live_before = live_bytes
        self._reclaim()

    def _reclaim(self) -> None:
        """Unlink dead segments and start rewriting those that waste space. Cheap if nothing changed."""
        segments = self._segments
        if self._closed or not (self._again or segments.changes != self._seen_changes):
            return
        self._seen_changes = segments.changes
        for segment in [each for each in segments.closed() if not each.live_entries and not each.busy]:
            segments.remove(segment)
        now = self._clock.monotonic()
        full = segments.files.segment_bytes
        staying = self._other_bytes + segments.staying_bytes()
        wasting = self._pressed or wasteful(staying, segments.live_bytes(), full)
        # The space for a copy changes without writes to the store.
        self._again = wasting
        if wasting:
            self._close_wasteful(now)
        if self._rewriting is not None or now < self._retry_at or self._put_off(now):
            self._again = True
            return
        chosen = choose(segments.closed(), wasting=wasting, segment_bytes=full, room=self._space.copy_bytes())
        if chosen:
            self._rewrite(chosen)

    def _put_off(self, now: float) -> bool:
        """Return whether copies wait because the live bytes shrink."""
        if not self._shrinking or self._pressed:
            self._put_off_since = None
            return False
        if self._put_off_since is None:
            self._put_off_since = now
        return now - self._put_off_since < _PUT_OFF_S

    def _close_wasteful(self, now: float) -> None:
        """Close the open segment if much of the waste is in it; while it is being written, as soon as it is not."""
        segments = self._segments
        current = segments.open_segment
        waste = current.file_bytes - current.compact_bytes
        floor = min(FLOOR, segments.files.segment_bytes // 8)
        if not worthwhile(current) or waste < max(floor, segments.live_bytes() // 10):
            return
        if not self.quiet and now < self._close_at:
            return
        self._close_at = now + _CLOSE_INTERVAL_S
        if segments.close_open() and not current.live_entries:
            segments.remove(current)

    def _rewrite(self, sources: Sequence[Segment]) -> None:
        successor = self._segments.files.segment(
            (sources[0].first_order, sources[-1].last_order),
            max(source.generation for source in sources) + 1,
            writable=False,
        )
        rewriting = self._rewriting = Rewriting(sources, successor, self._scheduler.pause)
        for source in sources:
            source.busy = True
            source.acquire()

        def done(result: Segment | Exception) -> None:
            self._rewriting = None
            self._again = True
            for source in sources:
                source.busy = False
                source.release()
            if self._closed or isinstance(result, Abandoned):
                return
            if isinstance(result, Exception):
                self._retry_at = self._clock.monotonic() + _RETRY_S
                log.error("could not rewrite segments; they are kept", path=str(sources[0].path), error=str(result))
                return
            for source, errors in rewriting.damaged.items():
                source.damage = errors
            self._segments.switch(sources, result)
            self._scheduler.soon(self._reclaim)

        self._scheduler.background(rewriting.run, done)

    def close(self) -> None:
        """Start no more copies; the threads have ended, so nobody uses one that is complete but not reported yet."""
        self._closed = True
        if self._rewriting is not None:
            self._rewriting.successor.close()


def wasteful(disk_bytes: int, live_bytes: int, segment_bytes: int) -> bool:
    """Return whether files of ``disk_bytes`` are more than ``live_bytes`` should take."""
    return disk_bytes > TARGET * live_bytes + min(FLOOR, segment_bytes // 8)


def worthwhile(segment: Segment) -> bool:
    """Return whether rewriting ``segment`` would free a good part of it."""
    return segment.file_bytes - segment.compact_bytes > WORTHWHILE * segment.file_bytes


def choose(sealed: Sequence[Segment], *, wasting: bool, segment_bytes: int, room: int) -> list[Segment]:
    """Return neighbours to rewrite as one file, none if none is worth it.

    Where space is wasted, begin with the file that frees most for each byte to be copied, and take the neighbours
    that are worth it as well, up to a full segment and to the ``room`` (bytes) that the copy may take.
    """
    if wasting:
        fitting = [
            (segment.compact_bytes / segment.file_bytes, at)
            for at, segment in enumerate(sealed)
            if worthwhile(segment) and segment.compact_bytes <= room
        ]
        if fitting:
            at = min(fitting)[1]
            return _with_neighbours(sealed, at, min(room, segment_bytes))
    return _small_neighbours(sealed, min(room, segment_bytes), segment_bytes)


def _with_neighbours(sealed: Sequence[Segment], at: int, most: int) -> list[Segment]:
    first = last = at
    size = sealed[at].compact_bytes
    while True:
        # The next one on either side that is worth it, the better one first.
        beside = [
            other
            for other in (first - 1, last + 1)
            if 0 <= other < len(sealed) and worthwhile(sealed[other]) and size + sealed[other].compact_bytes <= most
        ]
        if not beside:
            return list(sealed[first : last + 1])
        chosen = min(beside, key=lambda other: sealed[other].compact_bytes / sealed[other].file_bytes)
        size += sealed[chosen].compact_bytes
        first, last = min(first, chosen), max(last, chosen)


def _small_neighbours(sealed: Sequence[Segment], most: int, segment_bytes: int) -> list[Segment]:
    found: list[Segment] = []
    size = 0
    for segment in sealed:
        expected = segment.compact_bytes
        if segment.file_bytes > _SMALL * segment_bytes or size + expected > most:
            if len(found) >= MERGE:
                break
            found = []
            size = 0
            if segment.file_bytes > _SMALL * segment_bytes:
                continue
        found.append(segment)
        size += expected
    return found if len(found) >= MERGE else []
