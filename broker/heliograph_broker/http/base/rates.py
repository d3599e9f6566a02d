"""Rates from counters: what the last minute brought, per second."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from operator import sub

from heliograph_broker.clock import Clock
from heliograph_broker.messaging.base.histograms import FIGURES, TopicFigures
from heliograph_broker.messaging.broker.broker import Broker
from heliograph_broker.messaging.clients.consumer import Consumer
from heliograph_broker.messaging.clients.producer import Producer
from heliograph_broker.messaging.delivery.subscription import Subscription
from heliograph_broker.messaging.topic.directory import AnyTopic
from heliograph_broker.messaging.topic.non_persistent import NonPersistentSubscription
from heliograph_broker.messaging.topic.topic import Topic

AnySubscription = Subscription | NonPersistentSubscription
Counted = AnyTopic | AnySubscription | Producer | Consumer | TopicFigures
Counters = tuple[int, ...]

#: Pulsar's statsUpdateFrequencyInSecs.
WINDOW_S = 60.0
INTERVAL_S = 10.0
#: A rate over less than this would say more about the moment of the question than about the traffic.
_SHORTEST_S = 1.0
_TOPICS_AT_ONCE = 256
_NO_COUNTS: Counters = (0,) * FIGURES
NO_FIGURES: Counters = (*_NO_COUNTS, 0)


def counters(counted: Counted) -> Counters:
    """Return the counters of an object, in the order its rates are named below.

    Topic and producer: messages in, bytes in; a producer also chunks. Subscription and consumer: messages
    out, bytes out, redelivered, acknowledged; a subscription also expired, dropped, and entries out. A topic's
    counters: its buckets, then the entries read from the store.
    """
    if isinstance(counted, TopicFigures):
        return *(counted.counts or _NO_COUNTS), counted.cache_misses
    if isinstance(counted, Consumer):
        return counted.msg_out, counted.bytes_out, counted.msg_redelivered, counted.messages_acked
    if isinstance(counted, Subscription):
        return (
            counted.msg_out,
            counted.bytes_out,
            counted.msg_redelivered,
            counted.messages_acked,
            counted.msg_expired,
            0,
            counted.entries_out,
        )
    if isinstance(counted, NonPersistentSubscription):
        return counted.msg_out, counted.bytes_out, 0, 0, 0, counted.dropped, 0
    if isinstance(counted, Producer):
        return counted.msg_in, counted.bytes_in, counted.chunks_in
    return counted.msg_in, counted.bytes_in


class RateSampler:
    """Looks at every counter each :data:`INTERVAL_S`; a rate spans from the window's oldest look until now.

    An object without traffic costs one remembered look at most, one that never had any costs nothing.
    """

    def __init__(self, broker: Broker, clock: Clock) -> None:
        self._broker = broker
        self._clock = clock
        self._last_sweep = clock.monotonic()
        self._looks: dict[Counted, list[tuple[float, Counters]]] = {}

    def rates(self, counted: Counted) -> tuple[float, ...]:
        """Return the rates of ``counted`` per second, in the order of :func:`counters`."""
        current = counters(counted)
        looks = self._looks.get(counted)
        # An object that was not seen at the last sweep, or had no traffic yet, stood at zero then.
        since, before = looks[0] if looks else (self._last_sweep, (0,) * len(current))
        if before == current:
            return (0.0,) * len(current)
        seconds = max(self._clock.monotonic() - since, _SHORTEST_S)
        return tuple((now - then) / seconds for now, then in zip(current, before, strict=True))

    def last_minute(self, figures: TopicFigures | None) -> tuple[Counters, float]:
        """Return what the last minute added to each of a topic's counters (see :func:`counters`), and its seconds."""
        if figures is None or not (figures.counts or figures.cache_misses):
            return NO_FIGURES, _SHORTEST_S
        current = counters(figures)
        looks = self._looks.get(figures)
        since, before = looks[0] if looks else (self._last_sweep, NO_FIGURES)
        if before == current:
            return NO_FIGURES, _SHORTEST_S
        return tuple(map(sub, current, before)), max(self._clock.monotonic() - since, _SHORTEST_S)

    def sweep(self) -> Iterator[None]:
        """Look at everything; yields now and then so that a caller on the event loop can let others run."""
        seen: dict[Counted, list[tuple[float, Counters]]] = {}
        now = self._clock.monotonic()
        for index, topic in enumerate(list(self._broker.topics.values())):
            if index % _TOPICS_AT_ONCE == _TOPICS_AT_ONCE - 1:
                yield
            self._look(topic, now, seen)
            if isinstance(topic, Topic):
                self._look(topic.figures, now, seen)
            for producer in topic.producers.values():
                self._look(producer, now, seen)
            for subscription in topic.subscriptions.values():
                self._look(subscription, now, seen)
                for consumer in subscription.consumers:
                    self._look(consumer, now, seen)
        self._looks = seen
        self._last_sweep = now

    def _look(self, counted: Counted, now: float, seen: dict[Counted, list[tuple[float, Counters]]]) -> None:
        current = counters(counted)
        if not any(current):
            return
        looks = self._looks.get(counted)
        if looks is None:
            looks = [(self._last_sweep, (0,) * len(current))]
        if looks[0][1] == current:
            looks = [(now, current)]
        else:
            looks.append((now, current))
            while len(looks) > 2 and looks[1][0] <= now - WINDOW_S:
                del looks[0]
            if now - looks[0][0] >= WINDOW_S + INTERVAL_S:
                del looks[0]
        seen[counted] = looks

    async def run(self) -> None:
        """Sweep forever; cancel to end."""
        while True:
            await asyncio.sleep(INTERVAL_S)
            for _ in self.sweep():
                await asyncio.sleep(0)
