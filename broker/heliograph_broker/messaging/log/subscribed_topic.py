"""A topic and its subscriptions, as the log and the policies know them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from heliograph_broker.messaging.base.errors import Done
from heliograph_broker.messaging.clients.consumer import AckTarget, ConsumedTopic, SubscriptionBase

if TYPE_CHECKING:
    from heliograph_api.policies.policies import Policies
    from pyroaring import BitMap64

    from heliograph_broker.messaging.base.errors import BrokerError
    from heliograph_broker.messaging.base.log_host import LogHost
    from heliograph_broker.messaging.clients.deliveries import Delivery

    from .cursor import Cursor
    from .entry_log import EntryLog
    from .record_set import RecordSet


class LogAcknowledgments(AckTarget):
    """The acknowledgments of a subscription, as its topic's log and policies see them: a cursor, and how to move it."""

    __slots__ = ()

    cursor: Cursor
    #: Deliveries that its consumers hold, by offset.
    pending: Mapping[int, Delivery]
    #: Grows when the cursor is moved by hand, which makes header look-ups under way void.
    generation: int

    def oldest_unacked_receive_ms(self) -> int:
        """Broker receive time (wall-clock ms) of the oldest unacknowledged entry, -1 if there is none."""
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

    def count_skipped(self, entries: int, messages: int) -> None:
        """Count entries that were skipped because they could not be read, see :mod:`.skipping`."""
        raise NotImplementedError

    def acked(self, done: Done | None, now_ms: int | None = None) -> None:
        """After any change of the cursor: persist it, notify trimming, and dispatch, as the ack may allow more."""
        raise NotImplementedError


class LogExpiry:
    """The expiry of a subscription's messages, as the policies of its topic know it."""

    __slots__ = ()

    #: Whether entries are expiring now: being read, or on their way to a dead-letter topic.
    running: bool

    def count_letters(self, *, stored: int = 0, loops: int = 0, refused: int = 0) -> None:
        """Count messages that went to the dead-letter topic, had been there before, or were refused there."""
        raise NotImplementedError

    def letters_have_room(self) -> None:
        """The dead-letter topic was over its backlog quota and has room: refused letters are tried again at once."""
        raise NotImplementedError


class LogSubscription(SubscriptionBase):
    """A subscription, as its topic's log and policies know it."""

    __slots__ = ()

    topic: SubscribedTopic
    acks: LogAcknowledgments
    expiry: LogExpiry
    #: The key of its record, see :class:`~.record_set.Part`.
    record_key: bytes
    #: Whether it was deleted.
    closed: bool
    #: Its position in the compacted view, once a consumer asked for that.
    view: object | None
    #: Whether its backlog counts for quotas and expires; that of the broker's own compaction does not.
    counts_for_backlog: bool

    def close(self) -> None:
        """The subscription is deleted: nothing of it is written any more."""
        raise NotImplementedError

    def encode_record(self, version: int) -> bytes:
        """Return the record of a durable subscription."""
        raise NotImplementedError

    def delays_over(self, due: BitMap64) -> None:
        """The time of delayed entries has come."""
        raise NotImplementedError


class SubscribedTopic(ConsumedTopic):
    """A topic with a log and subscriptions, as retention, quotas and the cursors know it."""

    __slots__ = ()

    host: LogHost
    log: EntryLog
    #: All that is durable of it, its cursors and deduplication included.
    records: RecordSet
    subscriptions: Mapping[str, LogSubscription]
    #: The policies in force: those of all levels together.
    effective: Policies
    closed: bool

    def check_soon(self) -> None:
        """Something changed: have the topic checked soon for entries that expire, are evicted, or may be deleted."""
        raise NotImplementedError

    def cursor_moved(self, subscription: LogSubscription, done: Done | None) -> None:
        """A cursor changed: persist it with the next group if somebody waits for that, else soon."""
        raise NotImplementedError
