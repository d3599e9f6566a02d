"""A persistent topic, as its subscriptions, the expiry of messages, delays and compaction know it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heliograph_broker.messaging.compaction.compaction import CompactedTopic, CompactionHost

if TYPE_CHECKING:
    from collections.abc import Callable

    from heliograph_api.policies.policies import Policies

    from heliograph_broker.messaging.base.timed_entries import TopicTiming
    from heliograph_broker.messaging.compaction.compaction import TopicCompaction
    from heliograph_broker.messaging.log.subscribed_topic import LogSubscription
    from heliograph_broker.storage.base.entry import Entry


class LetterBox:
    """Forwards expired messages of a topic to its dead-letter topic."""

    def forward(
        self,
        target: str,
        subscription: LogSubscription,
        expiring: list[tuple[Entry, int]],
        now_ms: int,
        settle: Callable[[Entry, int], None],
        ended: Callable[[str | None, bool], None],
    ) -> None:
        """Publish the messages ``expiring`` names (entry, bits of batch indexes) as far as ``target`` takes them.

        ``settle`` is called for each one that is durable in ``target``, or must not go there again. ``ended`` follows
        when nothing is under way any more, with the reason if others were refused, and whether all would be now.
        """
        raise NotImplementedError


class StoredTopicHost(CompactionHost):
    """The services of the broker that a stored topic uses."""

    dead_letters: LetterBox

    def wake_delayed(self, topic: StoredTopic, due_ms: int) -> None:
        """A delayed entry of the topic becomes deliverable at ``due_ms`` (wall clock)."""
        raise NotImplementedError


class StoredTopic(CompactedTopic):
    """A persistent topic, as its subscriptions, expiry and delays know it."""

    __slots__ = ()

    host: StoredTopicHost
    timing: TopicTiming
    compaction: TopicCompaction
    terminated: bool
    #: When a client last came or left (monotonic ms).
    last_used_ms: int
    #: No entry from this offset on is a chunk of a message.
    chunks_below: int

    def used(self) -> None:
        """Note that somebody uses the topic now."""
        raise NotImplementedError

    def watch_inactivity(self) -> None:
        """Check when a subscription ends that nobody uses."""
        raise NotImplementedError

    def configure(self, effective: Policies) -> None:
        """Apply the policies in force, also to stored messages."""
        raise NotImplementedError

    def drop_subscription(self, subscription: LogSubscription) -> None:
        """Forget a subscription that has no consumers."""
        raise NotImplementedError

    def moved_back(self) -> None:
        """Forget the slowest subscription: another one was created or moved back."""
        raise NotImplementedError

    def expiry_ended(self, subscription: LogSubscription) -> None:
        """An expiry run of the subscription is over."""
        raise NotImplementedError
