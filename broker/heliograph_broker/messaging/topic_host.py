"""What a topic asks of the broker around it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from .entry_log import LogHost

if TYPE_CHECKING:
    from .compaction import CompactionQueue
    from .dead_letter import DeadLetters
    from .record_set import RecordWriter
    from .subscription import Subscription
    from .topic import Topic


class TopicHost(LogHost, Protocol):
    """What a topic needs of the broker around it."""

    record_writer: RecordWriter
    dead_letters: DeadLetters
    compactions: CompactionQueue

    def subscription_added(self, subscription: Subscription) -> None:
        """A subscription was created or restored: see what its topic's policies say."""

    def look_at(self, topic: Topic) -> None:
        """Something changed (a publish, an ack, a policy): see soon what expires, is evicted, or may be let go."""

    def watch_inactivity(self, topic: Topic) -> None:
        """A subscription of the topic may end if nobody uses it: see when."""

    def wake_delayed(self, topic: Topic, due_ms: int) -> None:
        """A delayed entry of the topic becomes deliverable at ``due_ms`` (wall clock)."""
