"""A log with subscriptions: how far each is behind, and which one the most."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from heliograph_api.policies.policies import DEFAULTS
from heliograph_api.values.names import TopicName

from heliograph_broker.messaging.base import records
from heliograph_broker.messaging.base.errors import Done
from heliograph_broker.messaging.clients.consumer import ConsumedTopic, SubscriptionBase

from .damaged import RecordedLog

if TYPE_CHECKING:
    from pyroaring import BitMap64

    from heliograph_broker.messaging.base.errors import BrokerError
    from heliograph_broker.messaging.clients.deliveries import Delivery

    from .cursor import Cursor
    from .record_set import RecordSet


class LogSubscription(SubscriptionBase):
    """A subscription, as its topic's log and policies know it: a cursor, and how to move it."""

    __slots__ = (
        "closed",
        "counts_for_backlog",
        "cursor",
        "dead_letter_failures",
        "dead_letter_loops",
        "dead_lettered",
        "durable",
        "generation",
        "name",
        "record_key",
        "skipped_entries",
        "skipped_messages",
    )

    topic: SubscribedLog
    #: What its consumers hold, by offset.
    pending: Mapping[int, Delivery]
    #: Its position in the compacted view, once a consumer asked for that.
    view: object | None
    #: Whether its backlog counts for quotas and expires; that of the broker's own compaction does not.
    counts_for_backlog: bool

    def __init__(
        self, name: str, record_key: bytes, cursor: Cursor, *, durable: bool, counts_for_backlog: bool
    ) -> None:
        self.name = name
        self.record_key = record_key
        self.cursor = cursor
        self.durable = durable
        self.counts_for_backlog = counts_for_backlog
        self.closed = False
        #: Grows when the cursor is moved by hand, which voids header look-ups under way.
        self.generation = 0
        #: Entries that could not be read or understood and were skipped, see :mod:`.skipping`.
        self.skipped_entries = 0
        self.skipped_messages = 0
        #: Messages that went to the dead-letter topic, had been there before, or were refused there.
        self.dead_lettered = 0
        self.dead_letter_loops = 0
        self.dead_letter_failures = 0

    @property
    def backlog_bytes(self) -> int:
        """Bytes of the entries not acknowledged in full."""
        raise NotImplementedError

    @property
    def expiring(self) -> bool:
        """Whether entries of it are expiring now: being read, or on their way to a dead-letter topic."""
        raise NotImplementedError

    def letters_have_room(self) -> None:
        """The dead-letter topic was over its backlog quota and has room: refused letters are tried again at once."""
        raise NotImplementedError

    def oldest_unacked_receive_ms(self) -> int:
        """Broker receive time (wall-clock ms) of the oldest unacknowledged entry, -1 if there is none."""
        raise NotImplementedError

    def oldest_unacked_age_ms(self) -> int:
        """Age of the oldest unacknowledged entry by the broker's receive time, ms; -1 if there is none."""
        raise NotImplementedError

    def acknowledge_entry(self, offset: int, messages: int, size: int, remaining: int | None) -> None:
        """Acknowledge an entry, or of a batch all but the ``remaining`` bits; :meth:`acked` has to follow."""
        raise NotImplementedError

    def acknowledge_up_to(
        self,
        offset: int,
        done: Done | None,
        *,
        counted: Callable[[int], None] | None = None,
        failed: Callable[[BrokerError], None] | None = None,
    ) -> None:
        """Acknowledge every entry up to and including ``offset`` (cumulative ack, expiry, eviction, clear).

        ``counted`` is called, perhaps several times, with the number of newly acknowledged messages. ``failed`` gets
        the reason why the rest is not acknowledged, as does ``done``, whose caller may wait for the disk.
        """
        raise NotImplementedError

    def acked(self, done: Done | None, now_ms: int | None = None) -> None:
        """After any change of the cursor: persist it, let trimming know, and dispatch what the ack freed."""
        raise NotImplementedError

    def persist_cursor(self, done: Done | None) -> None:
        """The cursor changed: see that it becomes durable."""
        raise NotImplementedError

    def encode_record(self, version: int) -> bytes:
        """Return what is kept of a durable subscription."""
        raise NotImplementedError

    def hold_dispatch(self, until_ms: int) -> None:
        """A dispatch rate of the topic is reached: dispatch nothing until then (monotonic ms)."""
        raise NotImplementedError

    def delays_over(self, due: BitMap64) -> None:
        """The time of delayed entries has come."""
        raise NotImplementedError


class SubscribedLog(RecordedLog, ConsumedTopic):
    """Statistics over all subscriptions. Backlogs are those of durable ones; readers have none."""

    __slots__ = ("closed", "effective", "subscriptions")

    subscriptions: Mapping[str, LogSubscription]

    def __init__(self, name: TopicName, record: records.TopicRecord, record_key: bytes, record_set: RecordSet) -> None:
        self.subscriptions = {}
        self.closed = False
        #: What the levels of policies come to.
        self.effective = DEFAULTS
        super().__init__(name, record, record_key, record_set)

    def check_soon(self) -> None:
        """Something changed: have the topic checked soon for entries that expire, are evicted, or may be deleted."""
        raise NotImplementedError

    def backlogged(self) -> list[LogSubscription]:
        """Return the durable subscriptions that have a backlog (the broker's own compaction is not asked)."""
        return [
            sub
            for sub in self.subscriptions.values()
            if sub.durable and sub.counts_for_backlog and sub.cursor.acked_messages < self.total_messages
        ]

    def backlog_size(self) -> int:
        """Bytes that the slowest durable subscription has not acknowledged."""
        return max((sub.backlog_bytes for sub in self.backlogged()), default=0)

    def slowest_acked_bytes(self) -> int | None:
        """Return how much of all bytes ever published the slowest durable subscription has acknowledged."""
        return min(
            (sub.cursor.acked_bytes for sub in self.subscriptions.values() if sub.durable and sub.counts_for_backlog),
            default=None,
        )

    def oldest_backlog(self) -> tuple[LogSubscription, int] | None:
        """Return the durable subscription with the oldest unacknowledged message, and that message's age in ms."""
        slowest: LogSubscription | None = None
        oldest = 0
        for subscription in self.backlogged():
            received = subscription.oldest_unacked_receive_ms()
            if received >= 0 and (slowest is None or received < oldest):
                slowest, oldest = subscription, received
        return None if slowest is None else (slowest, max(0, self.host.clock.now_ms() - oldest))
