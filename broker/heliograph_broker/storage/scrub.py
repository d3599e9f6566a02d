"""The scrub: everything stored is read and verified now and then, so that damage is found while a backup still has it.

It goes through the closed segments, a step a look of the store's, in the background thread that also rewrites and
unlinks, and takes as many bytes as its rate allows; while entries are written, a quarter of that. What it finds it logs
and counts; it changes nothing. Those who read the damaged entries get around them anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from heliograph_broker.clock import Clock

    from .damage import LostRange
    from .scheduler import Scheduler
    from .segment import Segment

log = structlog.get_logger(__name__)

#: One step reads at most so many bytes, whatever the rate: the thread has other work, too.
_STEP_BYTES = 8 * 1024 * 1024
#: While entries are written, the rate is divided by this.
_BESIDE_TRAFFIC = 4


class Scrub:
    """Owned by the event loop; :meth:`look` is called every now and then."""

    __slots__ = (
        "_allowed",
        "_at",
        "_begin_at",
        "_clock",
        "_found",
        "_interval_s",
        "_last_order",
        "_looked_at",
        "_rate",
        "_reading",
        "_scheduler",
        "_segment",
        "bytes_read",
        "damaged",
        "passes",
        "progress",
    )

    def __init__(self, clock: Clock, scheduler: Scheduler, bytes_per_s: int, interval_s: float) -> None:
        """``bytes_per_s`` 0: never. ``interval_s`` lies between the beginnings of two passes."""
        self._clock = clock
        self._scheduler = scheduler
        self._rate = bytes_per_s
        self._interval_s = interval_s
        self._begin_at = self._looked_at = clock.monotonic()
        #: Bytes that may be read now; below 0 after a large chunk.
        self._allowed = 0.0
        #: The number of the last segment that this pass is through with, and the key to go on from in the next.
        self._last_order = 0
        self._segment: Segment | None = None
        self._at: bytes | None = None
        self._found: dict[tuple[int, int], LostRange] = {}
        self._reading = False
        self.passes = 0
        self.bytes_read = 0
        #: What is damaged and still wanted: of the last pass, and what the one under way has found.
        self.damaged: dict[tuple[int, int], LostRange] = {}
        #: Share of the segments' disk space that the pass under way is through with, 1 between passes.
        self.progress = 1.0

    def look(self, closed: Sequence[Segment], *, traffic: bool) -> None:
        """Read some more of the ``closed`` segments, which are in the order of their numbers."""
        now = self._clock.monotonic()
        elapsed, self._looked_at = now - self._looked_at, now
        if not self._rate or self._reading or now < self._begin_at:
            return
        rate = self._rate / _BESIDE_TRAFFIC if traffic else self._rate
        self._allowed = min(self._allowed + rate * elapsed, _STEP_BYTES)
        segment = next((each for each in closed if each.last_order > self._last_order), None)
        total = sum(each.file_bytes for each in closed)
        done = sum(each.file_bytes for each in closed if each.last_order <= self._last_order)
        self.progress = done / total if total else 1.0
        if segment is None:
            self._end(closed, now)
        elif self._allowed > 0:
            self._step(segment, int(self._allowed))

    def _end(self, closed: Sequence[Segment], now: float) -> None:
        self.passes += 1
        self._last_order = 0
        self._begin_at = now + self._interval_s
        self.progress = 1.0
        self.damaged, self._found = self._found, {}
        log.info("scrubbed", segments=len(closed), damaged=len(self.damaged))

    def _step(self, segment: Segment, most: int) -> None:
        self._reading = True
        segment.acquire()
        if segment is not self._segment:
            self._segment, self._at = segment, None
        at = self._at

        def done(result: tuple[bytes | None, int, list[LostRange]] | Exception) -> None:
            self._reading = False
            wanted = segment.wanted()
            segment.release()
            if isinstance(result, Exception):
                # It may pass; the next pass comes here again.
                log.error("scrubbing a segment failed", path=str(segment.path), error=str(result))
                result = None, most, []
            self._at, size, damaged = result
            if self._at is None:
                self._last_order = segment.last_order
                self._segment = None
            self.bytes_read += size
            self._allowed -= size
            for each in damaged:
                live = wanted.get(each.ledger_id)
                if live is None or each.last < live[0]:
                    continue
                place = each.ledger_id, each.first
                self._found[place] = each
                if place not in self.damaged:
                    self.damaged[place] = each
                    log.error(
                        "stored entries are damaged",
                        path=str(segment.path),
                        ledger=each.ledger_id,
                        first=each.first,
                        last=each.last,
                        reason=each.reason,
                    )

        self._scheduler.background(lambda: segment.scrub(at, most), done)
