"""The scrub: everything stored is read and verified now and then, so that damage is found while a backup still has it.

It goes through the closed segments, one step per check of the store, in the background thread that also rewrites and
unlinks, and takes as many bytes as its rate allows; while entries are written, a quarter of that. It logs and
counts damage and changes nothing; readers skip damaged entries anyway.

Its position is a record of the store, written after each segment: a start continues where the last run of the broker
stopped, so that everything is verified in time despite any number of restarts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec
import structlog

from heliograph_broker.storage.base.damage import LostRange

if TYPE_CHECKING:
    from heliograph_broker.clock import Clock
    from heliograph_broker.storage.base.scheduler import Scheduler

    from .segment import Segment

log = structlog.get_logger(__name__)

#: Maximum bytes of one step, at any rate: the thread has other work, too.
_STEP_BYTES = 8 * 1024 * 1024
#: While entries are written, the rate is divided by this.
_BESIDE_TRAFFIC = 4
#: Maximum number of damaged ranges kept over a restart.
_KEPT_RANGES = 1000


class Place(msgspec.Struct, array_like=True):
    """The scrub's position and record: ``last_order`` is 0 between passes, which ``passed_ms`` (wall clock) ended."""

    last_order: int = 0
    passed_ms: int = 0
    #: Known damage, and the part of it that the current pass has found.
    damaged: list[LostRange] = msgspec.field(default_factory=list)
    found: list[LostRange] = msgspec.field(default_factory=list)


class Scrub:
    """Owned by the event loop; :meth:`run` is called every now and then."""

    __slots__ = (
        "_allowed",
        "_at",
        "_begin_at",
        "_clock",
        "_found",
        "_interval_s",
        "_last_order",
        "_passed_ms",
        "_ran_at",
        "_rate",
        "_reading",
        "_scheduler",
        "_segment",
        "_write",
        "bytes_read",
        "damaged",
        "passes",
        "progress",
    )

    def __init__(
        self,
        clock: Clock,
        scheduler: Scheduler,
        bytes_per_s: int,
        interval_s: float,
        stored: bytes | None,
        write: Callable[[bytes], None],
    ) -> None:
        """``bytes_per_s`` 0: never. ``interval_s`` lies between the end of a pass and the next one.

        ``stored`` is its place in the last life of the broker, if known; ``write`` makes a new one durable.
        """
        self._clock = clock
        self._scheduler = scheduler
        self._rate = bytes_per_s
        self._interval_s = interval_s
        self._begin_at = self._ran_at = clock.monotonic()
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
        #: Damage of live entries: found by the last pass, and by the current one.
        self.damaged: dict[tuple[int, int], LostRange] = {}
        #: Share of the segments' disk space that the pass under way is through with, 1 between passes.
        self.progress = 1.0
        self._write = write
        self._passed_ms = 0
        self._continue(_parse(stored))

    def _continue(self, place: Place) -> None:
        self._last_order, self._passed_ms = place.last_order, place.passed_ms
        self.damaged = {(each.ledger_id, each.first): each for each in place.damaged}
        self._found = {(each.ledger_id, each.first): each for each in place.found}
        if not place.last_order and place.passed_ms:
            # A clock change must not delay it for longer than the interval.
            gone_s = (self._clock.now_ms() - place.passed_ms) / 1000
            self._begin_at += min(max(self._interval_s - gone_s, 0.0), self._interval_s)

    def _save_place(self) -> None:
        damaged, found = list(self.damaged.values()), list(self._found.values())
        place = Place(self._last_order, self._passed_ms, damaged[:_KEPT_RANGES], found[:_KEPT_RANGES])
        self._write(msgspec.msgpack.encode(place))

    def run(self, closed: Sequence[Segment], *, traffic: bool) -> None:
        """Read some more of the ``closed`` segments, which are in the order of their numbers."""
        now = self._clock.monotonic()
        elapsed, self._ran_at = now - self._ran_at, now
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
        self._passed_ms = self._clock.now_ms()
        self._save_place()
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
                # The error may be temporary; the next pass reads this segment again.
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
            if self._at is None:
                self._save_place()

        self._scheduler.background(lambda: segment.reader.scrub(at, most), done)


def _parse(stored: bytes | None) -> Place:
    """Return the stored position, or the beginning if there is none or it cannot be decoded."""
    if stored is None:
        return Place()
    try:
        return msgspec.msgpack.decode(stored, type=Place)
    except msgspec.DecodeError as error:
        log.warning("the scrub's place is not known; it begins again", error=str(error))
        return Place()
