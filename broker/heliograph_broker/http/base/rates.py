"""Rates from counters: the increase over the last minute, per second."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from operator import sub

from heliograph_broker.clock import Clock
from heliograph_broker.messaging.base.histograms import NO_COUNTS, TopicMetrics
from heliograph_broker.messaging.broker.broker import Broker
from heliograph_broker.messaging.clients.consumer import Consumer
from heliograph_broker.messaging.clients.producer import Producer
from heliograph_broker.messaging.topic.directory import AnySubscription
from heliograph_broker.messaging.topic.topic_statistics import TopicStatistics

Counted = TopicStatistics | AnySubscription | Producer | Consumer | TopicMetrics
Counters = tuple[int, ...]

#: Pulsar's statsUpdateFrequencyInSecs.
WINDOW_S = 60.0
INTERVAL_S = 10.0
#: A rate over less than this would say more about the moment of the question than about the traffic.
_SHORTEST_S = 1.0
_TOPICS_AT_ONCE = 256
NO_COUNTERS: Counters = (*NO_COUNTS, 0)


class RateSampler:
    """Looks at every counter each :data:`INTERVAL_S`; a rate spans from the window's oldest look until now.

    An object without traffic costs one remembered look at most, one that never had any costs nothing.
    """

    def __init__(self, broker: Broker, clock: Clock) -> None:
        self._broker = broker
        self._clock = clock
        self._last_sweep = clock.monotonic()
        self._samples: dict[Counted, list[tuple[float, Counters]]] = {}

    def rates(self, counted: Counted) -> tuple[float, ...]:
        """Return the rates of ``counted`` per second, in the order of their ``counters``."""
        current = counted.counters()
        samples = self._samples.get(counted)
        # An object that was not seen at the last sweep, or had no traffic yet, stood at zero then.
        since, before = samples[0] if samples else (self._last_sweep, (0,) * len(current))
        if before == current:
            return (0.0,) * len(current)
        seconds = max(self._clock.monotonic() - since, _SHORTEST_S)
        return tuple((now - then) / seconds for now, then in zip(current, before, strict=True))

    def last_minute(self, metrics: TopicMetrics | None) -> tuple[Counters, float]:
        """Return the last minute's increase of each of a topic's counters (see their ``counters``), and its seconds."""
        if metrics is None or not (metrics.counts or metrics.cache_misses):
            return NO_COUNTERS, _SHORTEST_S
        current = metrics.counters()
        samples = self._samples.get(metrics)
        since, before = samples[0] if samples else (self._last_sweep, NO_COUNTERS)
        if before == current:
            return NO_COUNTERS, _SHORTEST_S
        return tuple(map(sub, current, before)), max(self._clock.monotonic() - since, _SHORTEST_S)

    def sweep(self) -> Iterator[None]:
        """Look at everything; yields now and then so that a caller on the event loop can let others run."""
        seen: dict[Counted, list[tuple[float, Counters]]] = {}
        now = self._clock.monotonic()
        for index, topic in enumerate(list(self._broker.directory.topics.values())):
            if index % _TOPICS_AT_ONCE == _TOPICS_AT_ONCE - 1:
                yield
            self._sample(topic.statistics, now, seen)
            if topic.persistent:
                self._sample(topic.log.metrics, now, seen)
            for producer in topic.producers.values():
                self._sample(producer, now, seen)
            for subscription in topic.subscriptions.values():
                self._sample(subscription, now, seen)
                for consumer in subscription.consumers:
                    self._sample(consumer, now, seen)
        self._samples = seen
        self._last_sweep = now

    def _sample(self, counted: Counted, now: float, seen: dict[Counted, list[tuple[float, Counters]]]) -> None:
        current = counted.counters()
        if not any(current):
            return
        samples = self._samples.get(counted)
        if samples is None:
            samples = [(self._last_sweep, (0,) * len(current))]
        if samples[0][1] == current:
            samples = [(now, current)]
        else:
            samples.append((now, current))
            while len(samples) > 2 and samples[1][0] <= now - WINDOW_S:
                del samples[0]
            if now - samples[0][0] >= WINDOW_S + INTERVAL_S:
                del samples[0]
        seen[counted] = samples

    async def run(self) -> None:
        """Sweep forever; cancel to end."""
        while True:
            await asyncio.sleep(INTERVAL_S)
            for _ in self.sweep():
                await asyncio.sleep(0)
