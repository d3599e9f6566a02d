"""Rates from counters: what the last minute brought, per second."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from operator import sub

from heliograph_broker.clock import Clock
from heliograph_broker.messaging.base.histograms import COUNTS, TopicMetrics
from heliograph_broker.messaging.broker.broker import Broker
from heliograph_broker.messaging.clients.consumer import Consumer
from heliograph_broker.messaging.clients.producer import Producer
from heliograph_broker.messaging.delivery.subscription import Subscription
from heliograph_broker.messaging.topic.directory import AnySubscription, AnyTopic
from heliograph_broker.messaging.topic.non_persistent import NonPersistentSubscription
from heliograph_broker.messaging.topic.topic import Topic

Counted = AnyTopic | AnySubscription | Producer | Consumer | TopicMetrics
Counters = tuple[int, ...]

#: Pulsar's statsUpdateFrequencyInSecs.
WINDOW_S = 60.0
INTERVAL_S = 10.0
#: A rate over less than this would say more about the moment of the question than about the traffic.
_SHORTEST_S = 1.0
_TOPICS_AT_ONCE = 256
_NO_COUNTS: Counters = (0,) * COUNTS
NO_COUNTERS: Counters = (*_NO_COUNTS, 0)


def counters(counted: Counted) -> Counters:
    """Return the counters of an object, in the order its rates are named below.

    Topic and producer: messages in, bytes in; a producer also chunks. Subscription and consumer: messages
    out, bytes out, redelivered, acknowledged; a subscription also expired, dropped, and entries out. A topic's
    counters: its buckets, then the entries read from the store.
    """
    if isinstance(counted, TopicMetrics):
        return *(counted.counts or _NO_COUNTS), counted.cache_misses
    if isinstance(counted, Consumer):
        return counted.msg_out, counted.bytes_out, counted.msg_redelivered, counted.messages_acked
    if isinstance(counted, Subscription):
        return (
            counted.sent.msg_out,
            counted.sent.bytes_out,
            counted.sent.msg_redelivered,
            counted.acks.messages_acked,
            counted.expiry.msg_expired,
            0,
            counted.sent.entries_out,
        )
    if isinstance(counted, NonPersistentSubscription):
        return counted.sent.msg_out, counted.sent.bytes_out, 0, 0, 0, counted.dropped, 0
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
        self._samples: dict[Counted, list[tuple[float, Counters]]] = {}

    def rates(self, counted: Counted) -> tuple[float, ...]:
        """Return the rates of ``counted`` per second, in the order of :func:`counters`."""
        current = counters(counted)
        samples = self._samples.get(counted)
        # An object that was not seen at the last sweep, or had no traffic yet, stood at zero then.
        since, before = samples[0] if samples else (self._last_sweep, (0,) * len(current))
        if before == current:
            return (0.0,) * len(current)
        seconds = max(self._clock.monotonic() - since, _SHORTEST_S)
        return tuple((now - then) / seconds for now, then in zip(current, before, strict=True))

    def last_minute(self, metrics: TopicMetrics | None) -> tuple[Counters, float]:
        """Return what the last minute added to each of a topic's counters (see :func:`counters`), and its seconds."""
        if metrics is None or not (metrics.counts or metrics.cache_misses):
            return NO_COUNTERS, _SHORTEST_S
        current = counters(metrics)
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
            self._sample(topic, now, seen)
            if isinstance(topic, Topic):
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
        current = counters(counted)
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
