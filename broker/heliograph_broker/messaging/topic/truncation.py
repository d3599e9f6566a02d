"""Truncation of a topic: everything is acknowledged and deleted, whatever retention keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heliograph_broker.messaging.base.errors import BrokerError, Done, or_persistence_error
from heliograph_broker.messaging.log.retention import releasable

if TYPE_CHECKING:
    from .topic import Topic


def truncate(topic: Topic, done: Done) -> None:
    """Acknowledge everything for every durable subscription, and delete it, even where retention would keep it."""
    end = topic.log.end_offset
    subscriptions = [sub for sub in topic.subscriptions.values() if sub.durable]
    left = len(subscriptions)
    errors: list[BrokerError] = []

    def finish() -> None:
        if errors:
            done(errors[0])
            return
        topic.compaction.forget()
        topic.trim(min(end, releasable(topic)))
        topic.records.commit(topic, or_persistence_error(done))

    def cleared(error: BrokerError | None) -> None:
        nonlocal left
        left -= 1
        if error is not None:
            errors.append(error)
        if left == 0:
            finish()

    if not subscriptions:
        finish()
    for subscription in subscriptions:
        subscription.acks.clear_backlog(cleared)
