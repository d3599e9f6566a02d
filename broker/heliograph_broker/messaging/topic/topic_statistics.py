"""Statistics of a topic: what came in since the start, and what it keeps now."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heliograph_broker.messaging.log.backlog import backlog_size, oldest_backlog
from heliograph_broker.messaging.log.retention import kept_by_ledgers

if TYPE_CHECKING:
    from heliograph_broker.messaging.clients.disk_waits import DiskWaits
    from heliograph_broker.messaging.log.subscribed_topic import LogSubscription, SubscribedTopic
    from heliograph_broker.messaging.policies.backlog_quota import QuotaState


class TopicStatistics:
    """Statistics of a topic that keeps nothing; times in wall-clock ms, since the start of the broker."""

    __slots__ = ("bytes_in", "last_publish_ms", "msg_in")

    def __init__(self) -> None:
        self.msg_in = 0
        self.bytes_in = 0
        self.last_publish_ms = 0

    def counters(self) -> tuple[int, ...]:
        """Return messages in and bytes in."""
        return self.msg_in, self.bytes_in

    @property
    def stored_messages(self) -> int:
        """Messages still kept: the backlog of the slowest subscription and what retention holds beyond it."""
        return 0

    @property
    def stored_bytes(self) -> int:
        """Bytes of the messages still kept."""
        return 0

    @property
    def damaged_entries(self) -> int:
        """The number of damaged entries found so far."""
        return 0

    @property
    def held_producers(self) -> int:
        """Producers that wait until the backlog quota or the disk has room."""
        return 0

    @property
    def empty(self) -> bool:
        """Whether nothing was ever published that is kept, or is about to be."""
        return True

    def kept_by_ledgers(self) -> tuple[int, int]:
        """Return the messages and bytes that stay only because their ledger does."""
        return 0, 0

    def backlog_size(self) -> int:
        """Return the bytes that the slowest durable subscription has not acknowledged."""
        return 0

    def oldest_backlog(self) -> tuple[LogSubscription, int] | None:
        """Return the durable subscription with the oldest unacknowledged message, and that message's age in ms."""
        return None


class LogStatistics(TopicStatistics):
    """Statistics of a persistent topic."""

    __slots__ = ("_disk_waits", "_quota", "_topic")

    def __init__(self, topic: SubscribedTopic, quota: QuotaState, disk_waits: DiskWaits) -> None:
        super().__init__()
        self._topic = topic
        self._disk_waits = disk_waits
        self._quota = quota

    @property
    def stored_messages(self) -> int:
        return self._topic.log.stored_messages

    @property
    def stored_bytes(self) -> int:
        return self._topic.log.stored_bytes

    @property
    def damaged_entries(self) -> int:
        return self._topic.log.damaged.entries

    @property
    def held_producers(self) -> int:
        return self._quota.held_producers + self._disk_waits.held_producers(self._topic)

    @property
    def empty(self) -> bool:
        return not self._topic.log.ledgers and not self._topic.log.has_in_flight

    def kept_by_ledgers(self) -> tuple[int, int]:
        return kept_by_ledgers(self._topic)

    def backlog_size(self) -> int:
        return backlog_size(self._topic)

    def oldest_backlog(self) -> tuple[LogSubscription, int] | None:
        return oldest_backlog(self._topic)
