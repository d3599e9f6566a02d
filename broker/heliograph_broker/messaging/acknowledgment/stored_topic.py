"""A persistent topic, as its subscriptions, the expiry of messages, delays and compaction know it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from heliograph_broker.clock import monotonic_ms
from heliograph_broker.messaging.base.timed_entries import TimedEntries
from heliograph_broker.messaging.compaction.compaction import CompactedLog, CompactionHost

if TYPE_CHECKING:
    from collections.abc import Callable

    from heliograph_api.policies.policies import Policies
    from heliograph_api.values.names import TopicName

    from heliograph_broker.messaging.base import records
    from heliograph_broker.messaging.log.record_set import RecordSet
    from heliograph_broker.messaging.log.subscribed_log import LogSubscription
    from heliograph_broker.storage.base.entry import Entry


class LetterBox:
    """Where messages go that expired in a topic with a dead-letter topic."""

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


class StoredTopic(CompactedLog):
    """See the module."""

    __slots__ = (
        "chunks_below",
        "delayed_delivery",
        "first_fresh_offset",
        "has_timed",
        "last_used_ms",
        "may_expire",
        "terminated",
        "time_index_ready",
        "timed",
        "ttl_ms",
    )

    host: StoredTopicHost

    def __init__(self, name: TopicName, record: records.TopicRecord, record_key: bytes, record_set: RecordSet) -> None:
        self.terminated = record.terminated
        self.delayed_delivery = True
        #: The TTL of subscriptions that set none, -1 without.
        self.ttl_ms = -1
        #: Whether entries have to be looked at before delivery, as they may have expired.
        self.may_expire = False
        self.timed = TimedEntries()
        self.time_index_ready = True
        self.has_timed = record.timed
        #: First offset of the group being delivered: entries with a TTL of 0 are deliverable only now.
        self.first_fresh_offset = sys.maxsize
        #: When it was last used (a client came or left, it was declared; at least since the start), monotonic.
        self.last_used_ms = monotonic_ms(self.host.clock)
        super().__init__(name, record, record_key, record_set)
        #: No entry from this offset on is a chunk of a message.
        self.chunks_below = self.end_offset if record.chunked else 0

    def used(self) -> None:
        """Note that somebody uses the topic now."""
        self.last_used_ms = monotonic_ms(self.host.clock)

    def watch_inactivity(self) -> None:
        """A subscription may end if nobody uses it: see when."""
        raise NotImplementedError

    def configure(self, effective: Policies) -> None:
        """Take over what the levels of policies come to; it holds for what is stored, too."""
        raise NotImplementedError

    def drop_subscription(self, subscription: LogSubscription) -> None:
        """Forget a subscription that has no consumers."""
        raise NotImplementedError

    def moved_back(self) -> None:
        """A subscription was created or moved back: what was known of the slowest one no longer holds."""
        raise NotImplementedError

    def expiry_ended(self, subscription: LogSubscription) -> None:
        """An expiry run of the subscription is over."""
        raise NotImplementedError
