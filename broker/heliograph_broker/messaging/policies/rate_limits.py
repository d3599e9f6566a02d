"""Publish, dispatch and subscribe rates: how much may go through in any window of a policy's period.

A limit counts what went through in the last period, so that no window of that length, wherever it begins, holds more
than the policy says plus the one entry that reached the limit (an entry is never cut). What that entry was over is
owed: it counts until the rate has paid for it, so that entries larger than a whole period's allowance keep to the rate
too. Nothing is polled: a throttled subscription is resumed when the limit allows it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from heliograph_api.due_queue import DueQueue
from heliograph_api.policies.policies import Policies, Rate, SubscribeRate, subscription_rate

from heliograph_broker.clock import monotonic_ms
from heliograph_broker.messaging.base.errors import NotAllowed
from heliograph_broker.messaging.clients.consumer import Gate
from heliograph_broker.messaging.log.subscribed_topic import LogSubscription

if TYPE_CHECKING:
    from heliograph_broker.clock import Clock
    from heliograph_broker.messaging.clients.producer import ProducerSink, PublishTarget

#: A window remembers what went through in so many steps of its period, so its memory does not grow with the rate.
_STEPS = 1000
#: Consumers remembered by a subscribe limit before those whose window is over are forgotten.
_SWEEP_CONSUMERS = 1000


class Window:
    """The traffic of the last ``period_ms``, against ``limit``. Times are monotonic."""

    __slots__ = ("_grain", "_steps", "limit", "period_ms", "spent")

    def __init__(self, limit: int, period_ms: int) -> None:
        self.limit = limit
        self.period_ms = period_ms
        self.spent = 0
        self._grain = max(1, period_ms // _STEPS)
        #: first time, last time and amount of each step; a step counts until its last time is a period ago
        self._steps: deque[list[int]] = deque()

    def spend(self, amount: int, now_ms: int) -> bool:
        """Count ``amount`` and return whether the limit is reached.

        Traffic over the limit counts as if it came as much later as the rate needs for it.
        """
        self._forget(now_ms)
        over = min(amount, self.spent + amount - self.limit)
        self.spent += amount
        if over > 0:
            if amount > over:
                self._add(now_ms, amount - over)
            # Behind earlier debts.
            since_ms = max(now_ms, self._steps[-1][1]) if self._steps else now_ms
            self._add(since_ms - (-over * self.period_ms // self.limit), over)
        else:
            self._add(now_ms, amount)
        return self.spent >= self.limit

    def _add(self, at_ms: int, amount: int) -> None:
        steps = self._steps
        if steps:
            last = steps[-1]
            at_ms = max(at_ms, last[1])
            if at_ms - last[0] < self._grain:
                last[1] = at_ms
                last[2] += amount
                return
        steps.append([at_ms, at_ms, amount])

    def _forget(self, now_ms: int) -> None:
        steps = self._steps
        over = now_ms - self.period_ms
        while steps and steps[0][1] <= over:
            self.spent -= steps.popleft()[2]

    def free_at(self, now_ms: int) -> int:
        """Return when something may go through again: ``now_ms`` itself if that is now."""
        self._forget(now_ms)
        left = self.spent
        if left < self.limit:
            return now_ms
        for _, last_ms, amount in self._steps:
            left -= amount
            if left < self.limit:
                return last_ms + self.period_ms
        return now_ms


class RateLimit:
    """Messages and bytes of one :class:`Rate`, each for itself."""

    __slots__ = ("bytes", "messages", "rate")

    def __init__(self, rate: Rate) -> None:
        self.rate = rate
        period_ms = max(1, rate.period_s) * 1000
        self.messages = Window(rate.messages, period_ms) if rate.messages > 0 else None
        self.bytes = Window(rate.bytes, period_ms) if rate.bytes > 0 else None

    def spend(self, messages: int, size: int, now_ms: int) -> bool:
        """Count an entry and return whether one of the limits is reached."""
        reached = self.messages is not None and self.messages.spend(messages, now_ms)
        return (self.bytes is not None and self.bytes.spend(size, now_ms)) or reached

    def free_at(self, now_ms: int) -> int:
        """Return when both have room, ``now_ms`` if they have."""
        free = now_ms
        if self.messages is not None:
            free = self.messages.free_at(now_ms)
        if self.bytes is not None:
            free = max(free, self.bytes.free_at(now_ms))
        return free


def limit_for(rate: Rate | None, existing: RateLimit | None) -> RateLimit | None:
    """Return the limit of ``rate``; one that was not changed goes on counting."""
    if rate is None:
        return None
    return existing if existing is not None and existing.rate == rate else RateLimit(rate)


class TopicLimits:
    """The rates that the policies in force allow a topic, None without; and how often they held back producers."""

    __slots__ = ("dispatch_limit", "publish_limit", "publish_throttled", "subscribe_limit")

    def __init__(self) -> None:
        self.publish_limit: PublishLimit | None = None
        self.dispatch_limit: RateLimit | None = None
        self.subscribe_limit: SubscribeLimit | None = None
        self.publish_throttled = 0


class PublishLimit:
    """A topic's publish rate: over it no more is read from the connections of its producers until there is room."""

    __slots__ = ("_held", "_limit", "_topic")

    def __init__(self, topic: PublishTarget, limit: RateLimit) -> None:
        self._topic = topic
        self._limit = limit
        self._held: dict[ProducerSink, None] = {}

    @property
    def rate(self) -> RateLimit:
        return self._limit

    def published(self, messages: int, size: int) -> None:
        """An entry was taken. Holds back the connections of all producers once the rate is reached."""
        now_ms = monotonic_ms(self._topic.host.clock)
        if self._limit.spend(messages, size, now_ms):
            wait_ms = self._limit.free_at(now_ms) - now_ms
            topic = self._topic
            topic.count_throttled()
            self._held = {producer.sink: None for producer in topic.producers.values()}
            for sink in self._held:
                sink.hold_publishing(self, wait_ms)

    def release(self) -> None:
        """Release held connections: the rate no longer applies, or the topic is deleted."""
        for sink in self._held:
            sink.release_publishing(self)
        self._held.clear()


class ThrottledSubscription(LogSubscription):
    """A subscription, as dispatch rates know it."""

    __slots__ = ()

    dispatch_gate: DispatchGate | None


class ThrottleCounts:
    """Counts how often a dispatch rate was reached: messages or bytes, the subscription's own rate or its topic's."""

    __slots__ = ("bytes", "bytes_by_topic", "messages", "messages_by_topic")

    def __init__(self) -> None:
        self.messages = 0
        self.bytes = 0
        self.messages_by_topic = 0
        self.bytes_by_topic = 0


class DispatchGate(Gate):
    """The dispatch rates one subscription is under: its own, and the one its topic has over all subscriptions.

    A subscription gets its gate with its first rate and keeps it: its counters stay when the rate is removed.
    """

    __slots__ = ("_subscription", "_throttled", "closed", "closed_ms", "counts", "own", "served", "shared")

    def __init__(self, subscription: ThrottledSubscription, throttled: ThrottledSubscriptions) -> None:
        self._subscription = subscription
        self._throttled = throttled
        self.own: RateLimit | None = None
        self.shared: RateLimit | None = None
        #: Whether one of the rates stops the subscription now.
        self.closed = False
        #: When that began last, wall-clock ms.
        self.closed_ms = 0
        #: Grows over the subscriptions of a topic: who got the last of the shared rate comes last the next time.
        self.served = 0
        self.counts = ThrottleCounts()

    def dispatched(self, messages: int, size: int) -> None:
        """An entry was delivered. Stops the subscription, or all of the topic, once a rate is reached."""
        subscription = self._subscription
        now_ms = monotonic_ms(subscription.topic.host.clock)
        own, shared = self.own, self.shared
        if shared is not None and shared.spend(messages, size, now_ms):
            self.served = self._throttled.next_turn()
            self._count(shared, now_ms)
            free = shared.free_at(now_ms)
            for other in subscription.topic.subscriptions.values():
                if other.dispatch_gate is not None:
                    other.dispatch_gate.hold(free)
        if own is not None and own.spend(messages, size, now_ms):
            self._count(own, now_ms)
            self._close(own.free_at(now_ms))

    def _count(self, limit: RateLimit, now_ms: int) -> None:
        """Count, of messages and bytes, what reached its limit by this subscription's doing."""
        counts = self.counts
        by_topic = limit is self.shared
        if limit.messages is not None and limit.messages.free_at(now_ms) > now_ms:
            if by_topic:
                counts.messages_by_topic += 1
            else:
                counts.messages += 1
        if limit.bytes is not None and limit.bytes.free_at(now_ms) > now_ms:
            if by_topic:
                counts.bytes_by_topic += 1
            else:
                counts.bytes += 1

    def hold(self, until_ms: int) -> None:
        if self.own is not None or self.shared is not None:
            self._close(until_ms)

    def _close(self, until_ms: int) -> None:
        """Dispatch nothing until then."""
        if not self.closed:
            self.closed = True
            self.closed_ms = self._subscription.topic.host.clock.now_ms()
        self._throttled.add(self._subscription, self, until_ms)

    def configure(self, own: RateLimit | None, shared: RateLimit | None) -> None:
        """Take over the limits, None without; waiting dispatch goes on if it may."""
        if own is self.own and shared is self.shared:
            return
        self.own, self.shared = own, shared
        # Its turn may be due at another time now.
        self._throttled.forget(self._subscription)
        if own is None and shared is None:
            self.served = 0
        now_ms = monotonic_ms(self._subscription.topic.host.clock)
        free = self.free_at(now_ms)
        if free > now_ms:
            self._close(free)
        else:
            self.open()

    def open(self) -> None:
        """Dispatch again: the rates have room."""
        if self.closed:
            self.closed = False
            self._subscription.notify()

    def free_at(self, now_ms: int) -> int:
        """Return when both rates have room, ``now_ms`` if they have."""
        free = now_ms
        if self.own is not None:
            free = self.own.free_at(now_ms)
        if self.shared is not None:
            free = max(free, self.shared.free_at(now_ms))
        return free


class ThrottledSubscriptions:
    """Subscriptions that wait for room in a dispatch rate, by the time there is some."""

    __slots__ = ("_clock", "_due", "_turn")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._due: DueQueue[ThrottledSubscription] = DueQueue()
        self._turn = 0

    def next_turn(self) -> int:
        self._turn += 1
        return self._turn

    def add(self, subscription: ThrottledSubscription, gate: DispatchGate, due_ms: int) -> None:
        """Let ``subscription`` wait until ``due_ms`` (monotonic) if it does not wait yet."""
        if subscription not in self._due:
            self._due.schedule(subscription, due_ms, gate.served)

    def forget(self, subscription: ThrottledSubscription) -> None:
        """Stop the subscription's waiting."""
        self._due.forget(subscription)

    def run(self) -> None:
        """Dispatch subscriptions whose time has come; of those that share a rate, the last one served comes last."""
        if not len(self._due):
            return
        now_ms = monotonic_ms(self._clock)
        while (subscription := self._due.take(now_ms)) is not None:
            gate = subscription.dispatch_gate
            if gate is None or subscription.closed:
                continue
            free = gate.free_at(now_ms)
            if free > now_ms:
                self.add(subscription, gate, free)
            else:
                gate.open()


class SubscribeLimit:
    """Limits how often one consumer, identified by its host and name, may subscribe to a topic."""

    __slots__ = ("_consumers", "rate")

    def __init__(self, rate: SubscribeRate) -> None:
        self.rate = rate
        self._consumers: dict[tuple[str, str], Window] = {}

    def subscribing(self, host: str, name: str, now_ms: int) -> None:
        """Count an attempt. Raises :class:`NotAllowed` if it is one too many."""
        window = self._consumers.get((host, name))
        if window is None:
            if len(self._consumers) >= _SWEEP_CONSUMERS:
                self._sweep(now_ms)
            window = self._consumers[host, name] = Window(self.rate.per_consumer, self.rate.period_s * 1000)
        if window.free_at(now_ms) > now_ms:
            # Pulsar's wording first, which clients' tests look for.
            raise NotAllowed(
                "Subscribe limited by subscribe rate limit per consumer. "
                f"{self.rate.per_consumer} in {self.rate.period_s} s are allowed, "
                f"the next in {window.free_at(now_ms) - now_ms} ms"
            )
        window.spend(1, now_ms)

    def _sweep(self, now_ms: int) -> None:
        for consumer, window in list(self._consumers.items()):
            window.free_at(now_ms)
            if not window.spent:
                del self._consumers[consumer]


def configured_gate(
    subscription: ThrottledSubscription,
    policies: Policies,
    shared: RateLimit | None,
    throttled: ThrottledSubscriptions,
) -> DispatchGate | None:
    """Return a subscription's gate, which now knows its rates; None if it never had any. ``shared`` is the topic's."""
    gate = subscription.dispatch_gate
    own = limit_for(subscription_rate(policies, subscription.name), gate.own if gate is not None else None)
    if gate is None:
        if own is None and shared is None:
            return None
        gate = DispatchGate(subscription, throttled)
    gate.configure(own, shared)
    return gate


def throttle_counts(subscription: ThrottledSubscription | None) -> ThrottleCounts:
    """Return how often dispatch rates were reached; all zero for one that never had any, or None."""
    gate = None if subscription is None else subscription.dispatch_gate
    return ThrottleCounts() if gate is None else gate.counts
