"""A log with subscriptions: how far each is behind, and which one the most."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heliograph_broker.resources.names import TopicName

from . import records
from .entry_log import EntryLog

if TYPE_CHECKING:
    from .subscription import Subscription


class SubscribedLog(EntryLog):
    """Figures over all subscriptions. Backlogs are those of durable ones; readers have none."""

    __slots__ = ("subscriptions",)

    def __init__(self, name: TopicName, record: records.TopicRecord) -> None:
        self.subscriptions: dict[str, Subscription] = {}
        super().__init__(name, record)

    def backlogged(self) -> list[Subscription]:
        """Return the durable subscriptions that have a backlog (the broker's own compaction is not asked)."""
        return [
            sub
            for sub in self.subscriptions.values()
            if sub.durable and sub.takes_part and sub.cursor.acked_messages < self.total_messages
        ]

    def backlog_size(self) -> int:
        """Bytes that the slowest durable subscription has not acknowledged."""
        return max((sub.backlog_bytes for sub in self.backlogged()), default=0)

    def slowest_acked_bytes(self) -> int | None:
        """Return how much of all bytes ever published the slowest durable subscription has acknowledged."""
        return min(
            (sub.cursor.acked_bytes for sub in self.subscriptions.values() if sub.durable and sub.takes_part),
            default=None,
        )

    def oldest_backlog(self) -> tuple[Subscription, int] | None:
        """Return the durable subscription with the oldest unacknowledged message, and that message's age in ms."""
        slowest: Subscription | None = None
        oldest = 0
        for subscription in self.backlogged():
            received = subscription.oldest_unacked_receive_ms()
            if received >= 0 and (slowest is None or received < oldest):
                slowest, oldest = subscription, received
        return None if slowest is None else (slowest, max(0, self.host.clock.now_ms() - oldest))
