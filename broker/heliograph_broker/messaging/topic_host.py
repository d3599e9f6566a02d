"""What a topic asks of the broker around it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from .entry_log import LogHost

if TYPE_CHECKING:
    from heliograph_broker.storage.group import Committed, RecordSource

    from .compaction import CompactionQueue
    from .containment import Containment
    from .dead_letter import DeadLetters
    from .rate_limits import ThrottledSubscriptions
    from .subscription import Subscription
    from .topic import Topic


class TopicHost(LogHost, Protocol):
    """What a topic needs of the broker around it."""

    dead_letters: DeadLetters
    compactions: CompactionQueue
    containment: Containment
    throttled: ThrottledSubscriptions

    def subscription_added(self, subscription: Subscription) -> None:
        """A subscription was created or restored: see what its topic's policies say."""

    def record_dirty(self, source: RecordSource, done: Committed | None = None) -> None:
        """Write the record soon, as it is then; ``done`` is called back when it is durable or has failed."""

    def flush_records(self) -> None:
        """Write with the next group what :meth:`record_dirty` left for later."""

    def look_at(self, topic: Topic) -> None:
        """Something changed (a publish, an ack, a policy): see soon what expires, is evicted, or may be let go."""

    def delayed_candidate(self, topic: Topic) -> None:
        """The topic has delayed entries to watch."""
