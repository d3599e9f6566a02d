"""Delayed delivery: topics by the time their next delayed entry is due.

Which entries wait is known by topic, in :class:`~.timed_entries.TimedEntries`, for all of its subscriptions together.
A dispatcher that meets one passes it without reading it; what is due is handed to every dispatcher that has been past.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from heliograph_api.due_queue import DueQueue
from pyroaring import BitMap64

from heliograph_broker.messaging.base.timed_entries import NEVER_MS

if TYPE_CHECKING:
    from heliograph_broker.messaging.acknowledgment.stored_topic import StoredTopic
    from heliograph_broker.messaging.base.containment import Containment
    from heliograph_broker.messaging.log.subscribed_topic import LogSubscription

#: The duty that :mod:`.containment` suspends when it raises.
TASK = "delayed delivery"


def release_due(topic: StoredTopic) -> None:
    """Hand the entries whose time has come to the dispatchers; these deliver them when they are notified.

    Where delays do not count any more, the time of all of them has come.
    """
    hand_over(topic, topic.timing.timed.release(topic.host.clock.now_ms() if topic.timing.delayed_delivery else None))


def hand_over(topic: StoredTopic, due: BitMap64) -> None:
    """Have every dispatcher return to delayed entries that it has passed and that are due."""
    if due:
        for subscription in topic.subscriptions.values():
            try:
                subscription.delays_over(due)
            except Exception as error:
                topic.host.containment.failed(subscription, TASK, error, partial(_hand_over_again, subscription, due))


def _hand_over_again(subscription: LogSubscription, due: BitMap64) -> None:
    """Hand over due entries until it succeeds: nobody reports them a second time."""

    def hand_over_to_one() -> None:
        subscription.delays_over(due)
        subscription.notify()

    containment = subscription.topic.host.containment
    containment.attempt(subscription, TASK, hand_over_to_one, partial(_hand_over_again, subscription, due))


class DelayedTopics:
    """The topics with delayed messages. Every tick calls :meth:`run`, which delivers those that are due."""

    __slots__ = ("_containment", "_queue")

    def __init__(self, containment: Containment) -> None:
        self._containment = containment
        self._queue: DueQueue[StoredTopic] = DueQueue()

    def wake(self, topic: StoredTopic, due_ms: int) -> None:
        """Note that a message of the topic becomes deliverable at ``due_ms`` (wall clock)."""
        self._queue.sooner(topic, due_ms)

    def forget(self, topic: StoredTopic) -> None:
        """The topic was deleted."""
        self._queue.forget(topic)

    def run(self, now_ms: int) -> None:
        """Deliver messages delayed until ``now_ms`` (wall clock) or earlier. Topics with none of these cost nothing."""
        while (topic := self._queue.take(now_ms)) is not None:
            self._containment.attempt(topic, TASK, partial(self._deliver, topic), partial(self.wake, topic, now_ms))

    def _deliver(self, topic: StoredTopic) -> None:
        release_due(topic)
        if topic.timing.timed.next_due_ms < NEVER_MS:
            self.wake(topic, topic.timing.timed.next_due_ms)
        for subscription in list(topic.subscriptions.values()):
            subscription.notify()
