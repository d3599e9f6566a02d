"""The periodic tasks of topics: expiry, eviction, trimming, the release of held producers.

Nothing is polled. A topic is checked when something in it changed, and again at the time at which its next task is
due; topics that are due together are taken a few at a time, so that traffic goes on between them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from heliograph_api.due_queue import DueQueue

from heliograph_broker.messaging.base.containment import Containment
from heliograph_broker.messaging.clients.disk_waits import DiskWaits
from heliograph_broker.messaging.delivery.subscription import Subscription
from heliograph_broker.messaging.log.retention import next_trim_ms, trim_point
from heliograph_broker.messaging.policies.expiry import EXPIRE

from .topic import Topic

#: A topic is not checked more often than this, however busy it is.
CHECK_INTERVAL_MS = 200
#: Number of topics in one slice; the event loop runs in between.
TOPICS_PER_SLICE = 5
_SLICES = 200

#: Does its part on a topic and returns when to be called again (wall-clock ms), None if only a change can matter.
Task = Callable[[Topic, int], int | None]


class Housekeeping:
    """Topics by the time they are due. :meth:`changed` costs a dictionary entry, :meth:`run` does the work."""

    __slots__ = ("_changed", "_checked_ms", "_containment", "_queue", "_tasks", "disk_waits")

    def __init__(self, containment: Containment, disk_waits: DiskWaits) -> None:
        #: Those that wait for room on the disk, which is no topic's own.
        self.disk_waits = disk_waits
        self._containment = containment
        self._tasks: list[Task] = [compact, expire, enforce_quota, trim]
        self._changed: dict[Topic, None] = {}
        self._queue: DueQueue[Topic] = DueQueue()
        self._checked_ms: dict[Topic, int] = {}

    def changed(self, topic: Topic) -> None:
        """Check ``topic`` soon."""
        self._changed[topic] = None

    def forget(self, topic: Topic) -> None:
        """Forget a deleted topic."""
        self._changed.pop(topic, None)
        self._queue.forget(topic)
        self._checked_ms.pop(topic, None)
        self._containment.forget(topic)

    def clock_moved(self, topics: Iterable[Topic]) -> None:
        """Check all ``topics``: their work is due at other times, because the clock was moved."""
        self._queue.clear()
        self._checked_ms.clear()
        for topic in topics:
            self.changed(topic)

    def run(self, now_ms: int) -> bool:
        """Check some of the topics that are due; return whether more are."""
        changed, self._changed = self._changed, {}
        for topic in changed:
            self._queue.sooner(topic, max(now_ms, self._checked_ms.get(topic, 0) + CHECK_INTERVAL_MS))
        # More at a time where there are many topics: all may be due together, and shall be done within a second.
        left = max(TOPICS_PER_SLICE, len(self._queue) // _SLICES)
        while left > 0 and (due := self._queue.take(now_ms)) is not None:
            left -= 1
            self._check(due, now_ms)
        next_ms = self._queue.next_ms()
        return next_ms is not None and next_ms <= now_ms

    def _check(self, topic: Topic, now_ms: int) -> None:
        if topic.closed:
            self.forget(topic)
            return
        self._checked_ms[topic] = now_ms
        soonest: int | None = None
        for task in self._tasks:
            due = self._containment.attempt(
                topic, task.__name__, partial(task, topic, now_ms), partial(self.changed, topic)
            )
            if due is not None and (soonest is None or due < soonest):
                soonest = due
            if topic.closed:
                self.forget(topic)
                return
        if soonest is not None:
            self._queue.sooner(topic, max(soonest, now_ms + CHECK_INTERVAL_MS))


def compact(topic: Topic, now_ms: int) -> int | None:
    """Begin to compact a topic that has reached its threshold."""
    topic.compaction.maybe_start(topic.effective)
    return topic.compaction.retry_ms(now_ms)


def expire(topic: Topic, now_ms: int) -> int | None:
    """Let messages expire, for each durable subscription."""
    if not topic.timing.time_index_ready:
        return None
    soonest: int | None = None
    for subscription in list(topic.subscriptions.values()):
        if subscription.durable and subscription.counts_for_backlog:
            due = topic.host.containment.attempt(
                subscription, EXPIRE, partial(_expire_for, subscription, now_ms), partial(topic.host.check_soon, topic)
            )
            if due is not None and (soonest is None or due < soonest):
                soonest = due
    return soonest


def _expire_for(subscription: Subscription, now_ms: int) -> int | None:
    subscription.expiry.run(now_ms)
    return subscription.expiry.next_due_ms(now_ms)


def enforce_quota(topic: Topic, now_ms: int) -> int | None:
    """Evict entries above the backlog quota, and let held producers go on if there is room."""
    topic.quota.evict(now_ms)
    topic.quota.release()
    return topic.quota.next_eviction_ms()


def trim(topic: Topic, now_ms: int) -> int | None:
    """Delete the entries that no subscription and no retention keeps."""
    topic.trim(trim_point(topic, now_ms))
    return next_trim_ms(topic, now_ms)
