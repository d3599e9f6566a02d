"""The backlog of a topic: how far each durable subscription is behind, and which one the most.

Readers have no backlog, and the broker's own compaction is not counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .subscribed_topic import LogSubscription, SubscribedTopic


def backlogged(topic: SubscribedTopic) -> list[LogSubscription]:
    """Return the subscriptions that have a backlog."""
    total = topic.log.total_messages
    return [
        sub
        for sub in topic.subscriptions.values()
        if sub.durable and sub.counts_for_backlog and sub.acks.cursor.acked_messages < total
    ]


def backlog_size(topic: SubscribedTopic) -> int:
    """Return the bytes that the slowest subscription has not acknowledged."""
    return max((sub.acks.backlog_bytes for sub in backlogged(topic)), default=0)


def slowest_acked_bytes(topic: SubscribedTopic) -> int | None:
    """Return how much of all bytes ever published the slowest subscription has acknowledged, None without one."""
    return min(
        (sub.acks.cursor.acked_bytes for sub in topic.subscriptions.values() if sub.durable and sub.counts_for_backlog),
        default=None,
    )


def oldest_backlog(topic: SubscribedTopic) -> tuple[LogSubscription, int] | None:
    """Return the subscription with the oldest unacknowledged message, and that message's age in ms."""
    slowest: LogSubscription | None = None
    oldest = 0
    for subscription in backlogged(topic):
        received = subscription.acks.oldest_unacked_receive_ms()
        if received >= 0 and (slowest is None or received < oldest):
            slowest, oldest = subscription, received
    return None if slowest is None else (slowest, max(0, topic.host.clock.now_ms() - oldest))
