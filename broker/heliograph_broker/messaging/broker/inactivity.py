"""Topics and subscriptions that nobody uses any more are deleted, by three policies.

Each has a period (ms) in which nothing may have happened:

- ``expires_ms`` (RabbitMQ's queue TTL): no producer or consumer was connected, and the topic was not declared again
  (created again, applied again) or read by HTTP. The topic goes with its data and subscriptions.
- ``inactive_topic`` (Pulsar's): no producer or consumer, and no subscription, or none that has a backlog. Not before
  retention's time is over for what the topic may hold; what stays only as long as its ledger keeps no topic.
- ``subscription_expiration_ms`` (Pulsar's): a durable subscription that has no consumers and is not sought. It
  may have a period of its own.

A reader that was moved by hand and does not return within :data:`RETURN_WITHIN_MS` goes without any policy.

A partitioned topic goes as a whole, once all its partitions may. Periods begin again when the broker starts, and go by
monotonic time: setting the machine's clock must not delete anything. Nothing is polled: each topic is looked at when
it may be due, and what happened since tells when to look again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import structlog
from heliograph_api.due_queue import DueQueue
from heliograph_api.policies.policies import of_subscription, subscription_levels

from heliograph_broker.clock import monotonic_ms
from heliograph_broker.messaging.delivery.subscription import Subscription

if TYPE_CHECKING:
    from heliograph_broker.clock import Clock
    from heliograph_broker.messaging.base.containment import Containment
    from heliograph_broker.messaging.topic.directory import AnyTopic, Directory

    from .applied_policies import AppliedPolicies

log = structlog.get_logger(__name__)

#: Returns when a topic may go if nothing happens from now on (monotonic ms), None if it does not.
Due = Callable[["AnyTopic", int], int | None]
CAUGHT_UP = "delete_when_subscriptions_caught_up"
#: Time (ms) in which a reader may connect again after a seek. Official clients wait at most a minute between tries.
RETURN_WITHIN_MS = 120_000


def in_use(topic: AnyTopic) -> bool:
    """Whether a producer is connected (or waits to be let in), a consumer or a reader."""
    registry = topic.producer_registry
    if registry.connected or registry.waiting or topic.statistics.held_producers:
        return True
    return any(subscription.consumers for subscription in topic.subscriptions.values())


def expiry_ms(topic: AnyTopic, now_ms: int) -> int | None:
    """Return the :data:`Due` of ``expires``."""
    period = topic.effective.expires_ms
    if period is None:
        return None
    return (now_ms if in_use(topic) else topic.last_used_ms) + period


def inactivity_ms(topic: AnyTopic, now_ms: int) -> int | None:
    """Return the :data:`Due` of ``inactive_topic``."""
    policy = topic.effective.inactive_topic
    if policy is None:
        return None
    period = policy.max_inactive_ms
    retention = topic.effective.retention
    if topic.persistent and retention is not None and not retention.by_ledger:
        if retention.time_ms < 0:
            return None
        period = max(period, retention.time_ms)
    if in_use(topic):
        return now_ms + period
    since = max(topic.last_used_ms, topic.subscriptions_changed_ms)
    if policy.mode == CAUGHT_UP:
        for subscription in topic.subscriptions.values():
            if subscription.counts_for_backlog:
                if subscription.acks.backlog_messages:
                    return now_ms + period
                # The one time here that comes from a clock that can be set.
                since = max(since, now_ms - topic.host.clock.now_ms() + subscription.acks.last_mark_delete_ms)
    elif any(sub.counts_for_backlog for sub in topic.subscriptions.values()):
        return now_ms + period
    return since + period


def subscription_expiry_ms(subscription: Subscription, now_ms: int) -> int | None:
    """Return when a subscription may go if nothing happens from now on, None if it never does."""
    if not subscription.durable:
        return None if subscription.consumers else subscription.last_used_ms + RETURN_WITHIN_MS
    period = of_subscription(subscription.topic.effective, subscription.name).subscription_expiration_ms
    if period is None or not subscription.counts_for_backlog:
        return None
    if subscription.consumers or subscription.seeking:
        return now_ms + period
    return subscription.last_used_ms + period


def _parts(directory: Directory, topic: AnyTopic) -> Iterator[AnyTopic]:
    """Yield all partitions of the topic's partitioned topic, or the topic itself."""
    partitions = directory.partitions_of(topic.name.base)
    if not partitions:
        yield topic
    for index in range(partitions):
        part = directory.topics.get(str(topic.name.base.with_partition(index)))
        if part is not None:
            yield part


class InactivityWatch:
    """Topics by the time one of the three policies may have something to do (monotonic ms)."""

    __slots__ = ("_applied", "_clock", "_containment", "_delete", "_directory", "_queue")

    def __init__(
        self,
        directory: Directory,
        applied: AppliedPolicies,
        clock: Clock,
        containment: Containment,
        delete: Callable[[AnyTopic], None],
    ) -> None:
        """``delete`` deletes a topic, or its partitioned topic, with its data and subscriptions."""
        self._directory = directory
        self._applied = applied
        self._clock = clock
        self._containment = containment
        self._delete = delete
        self._queue: DueQueue[AnyTopic] = DueQueue()
        applied.observer = self.configured

    def configured(self, topic: AnyTopic) -> None:
        """Schedule a topic that is new, or whose policies changed."""
        self._schedule(topic, monotonic_ms(self._clock))

    def _schedule(self, topic: AnyTopic, now_ms: int) -> None:
        due = self.next_due_ms(topic, now_ms)
        if due is not None:
            self._queue.schedule(topic, max(due, now_ms + 1))
        else:
            self._queue.forget(topic)

    def run(self) -> None:
        """Delete topics and subscriptions that are due."""
        if not len(self._queue):
            return
        now_ms = monotonic_ms(self._clock)
        while (topic := self._queue.take(now_ms)) is not None:
            if not topic.closed:
                self._containment.attempt(
                    topic, "inactivity", partial(self._check, topic, now_ms), partial(self.configured, topic)
                )

    def _check(self, topic: AnyTopic, now_ms: int) -> None:
        # A policy that was taken away, and whose change is durable, must not delete anything any more.
        self._applied.configure_waiting(topic)
        self._apply(topic, now_ms)
        if not topic.closed:
            self._schedule(topic, now_ms)

    def forget(self, topic: AnyTopic) -> None:
        """Forget a deleted topic."""
        self._queue.forget(topic)

    def next_due_ms(self, topic: AnyTopic, now_ms: int) -> int | None:
        """Return when :meth:`_apply` may have something to do with the topic next; None if no policy says so."""
        dues = [self._whole_due(topic, due_of, now_ms) for due_of in (expiry_ms, inactivity_ms)]
        if topic.persistent:
            # One that is created later is due later than this.
            dues += [
                now_ms + level.subscription_expiration_ms
                for level in subscription_levels(topic.effective)
                if level.subscription_expiration_ms is not None
            ]
            dues += [subscription_expiry_ms(subscription, now_ms) for subscription in topic.subscriptions.values()]
        return min((due for due in dues if due is not None), default=None)

    def _whole_due(self, topic: AnyTopic, due_of: Due, now_ms: int) -> int | None:
        """As ``due_of``, for all partitions together. Their first one is asked for them all, the others say None."""
        if topic.name.partition > 0 and next(_parts(self._directory, topic)) is not topic:
            return None
        due = due_of(topic, now_ms)
        if due is None or due > now_ms or topic.name.partition < 0:
            return due
        for part in _parts(self._directory, topic):
            self._applied.configure_waiting(part)
            other = due_of(part, now_ms)
            if other is None:
                return None
            due = max(due, other)
        return due

    def _apply(self, topic: AnyTopic, now_ms: int) -> None:
        """Delete the topic's subscriptions that are due, or the topic itself."""
        for name, due_of in (("expires", expiry_ms), ("inactive_topic", inactivity_ms)):
            due = self._whole_due(topic, due_of, now_ms)
            if due is not None and due <= now_ms:
                base = topic.name.base
                log.info("topic deleted: nobody used it", topic=str(base), policy=name)
                self._delete(topic)
                return
        if topic.persistent:
            for subscription in list(topic.subscriptions.values()):
                due = subscription_expiry_ms(subscription, now_ms)
                if due is not None and due <= now_ms:
                    log.info("subscription expired", topic=str(topic.name), subscription=subscription.name)
                    if subscription.durable:
                        topic.delete_subscription(subscription.name)
                    else:
                        topic.drop_subscription(subscription)
