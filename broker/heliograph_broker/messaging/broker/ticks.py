"""The broker's clock, and everything that time brings: flushes, delayed entries, policies, housekeeping."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import structlog

from heliograph_broker.clock import monotonic_ms

if TYPE_CHECKING:
    from heliograph_broker.clock import SteadyClock

    from .partition_growth import PartitionGrowth
    from .parts import BrokerParts

log = structlog.get_logger(__name__)

#: Interval at which the store is asked to give back disk space.
MAINTAIN_MS = 500


class Ticks:
    """See the module. Every duty is contained by itself, so that none keeps the others from their turn."""

    def __init__(self, broker: BrokerParts, growth: PartitionGrowth, clock: SteadyClock) -> None:
        self._broker = broker
        self._growth = growth
        self._clock = clock
        #: When the last tick ended (monotonic, s): readiness asks for its age.
        self.ended_at = clock.monotonic()
        #: When the store is maintained next, monotonic.
        self._next_maintain_ms = 0

    def run(self) -> bool:
        """Do what time brings: flush cursors, deliver delayed entries, apply policies. Call it every ~50 ms.

        Returns whether more is due at once; traffic should have its turn before the next call.
        """
        broker, clock = self._broker, self._clock
        attempt = broker.containment.attempt
        moved_ms = clock.follow()
        if moved_ms:
            self._clock_moved(moved_ms)
        now = clock.now_ms()
        attempt("records", "flush", broker.record_writer.run)
        attempt("delayed delivery", "run", partial(broker.delayed_topics.run, now))
        attempt("store", "maintain", self._maintain_when_due)
        attempt("topic watchers", "tell", broker.watches.run)
        attempt("containment", "retry", broker.containment.run)
        attempt("dispatch rates", "resume", broker.applied.throttled.run)
        attempt("inactivity", "delete", broker.inactivity.run)
        attempt("deduplication", "forget", partial(broker.applied.snapshots.run, monotonic_ms(clock)))
        began = clock.monotonic()
        more = broker.applied.run()
        more = bool(attempt("housekeeping", "run", partial(broker.housekeeping.run, now))) or more
        more = bool(attempt("producers", "resume", broker.disk_waits.run)) or more
        more = bool(attempt("partitions", "create", self._growth.run)) or more
        self.ended_at = clock.monotonic()
        broker.metrics.policy_checks.observe(self.ended_at - began)
        return more

    def _clock_moved(self, ms: int) -> None:
        """The machine's clock was set and has kept its new time: stored entries keep their ages by the new time."""
        broker = self._broker
        log.warning("the wall clock was set and the broker follows it", by_ms=ms)
        topics = [topic for topic in broker.directory.topics.values() if topic.persistent]
        for topic in topics:
            broker.containment.attempt(topic, "clock", partial(topic.clock_moved, ms))
        broker.housekeeping.clock_moved(topics)

    def _maintain_when_due(self) -> None:
        now_ms = monotonic_ms(self._clock)
        if now_ms >= self._next_maintain_ms:
            self._next_maintain_ms = now_ms + MAINTAIN_MS
            self._broker.store.maintain()
