"""Topics with delayed entries that somebody waits for."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .containment import Containment
    from .dispatcher import Dispatcher
    from .topic import Topic

#: Later than any delivery time (wall-clock ms, signed 64 bits).
END_OF_TIME_MS = 1 << 63


class DelayedTopics:
    """Call :meth:`run` with every tick: it has the dispatchers deliver what is due."""

    __slots__ = ("_containment", "_topics")

    def __init__(self, containment: Containment) -> None:
        self._containment = containment
        self._topics: dict[Topic, None] = {}

    def add(self, topic: Topic) -> None:
        """The topic has delayed entries to watch."""
        self._topics[topic] = None

    def forget(self, topic: Topic) -> None:
        """The topic was deleted."""
        self._topics.pop(topic, None)

    def run(self, now_ms: int) -> None:
        """Deliver what was delayed up to ``now_ms`` (wall clock), and forget the topics in which nothing waits."""
        for topic in list(self._topics):
            # Where delays do not count any more, everything that waited for its time comes now.
            until = now_ms if topic.delayed_delivery else END_OF_TIME_MS
            waiting = False
            for subscription in topic.subscriptions.values():
                dispatcher = subscription.dispatcher
                if dispatcher is not None:
                    self._containment.attempt(
                        subscription, "delayed delivery", partial(_tick_when_due, dispatcher, until)
                    )
                    waiting = waiting or dispatcher.delayed > 0
            if not waiting:
                del self._topics[topic]


def _tick_when_due(dispatcher: Dispatcher, until_ms: int) -> None:
    due_ms = dispatcher.next_due_ms()
    if due_ms is not None and due_ms <= until_ms:
        dispatcher.tick(until_ms)
