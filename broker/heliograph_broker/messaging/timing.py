"""Which of a topic's entries go by a time of their own: noted when they are stored, found when the topic is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .delayed_topics import hand_over
from .entry_expiry import base_ms
from .timed_entries import TimedEntries

if TYPE_CHECKING:
    from heliograph_broker.storage.entry import Entry, EntryHeader

    from .stored_topic import StoredTopic


#: The duty that :mod:`.containment` suspends when the search fails.
FIND = "find timed entries"


def note(topic: StoredTopic, offset: int, entry: Entry | EntryHeader) -> None:
    """An entry that is delayed, or has a TTL of its own, is durable."""
    if entry.deliver_at_ms > entry.receive_ms:
        note_delayed(topic, offset, entry.deliver_at_ms)
    if entry.ttl_ms >= 0:
        topic.timed.add_own(offset, base_ms(topic, entry, offset) + entry.ttl_ms)
        topic.may_expire = True


def note_delayed(topic: StoredTopic, offset: int, deliver_at_ms: int) -> None:
    """An entry is delayed: from now on all subscriptions know, and none reads it before its time."""
    waits = topic.delayed_delivery and deliver_at_ms > topic.host.clock.now_ms()
    topic.timed.add_delayed(offset, deliver_at_ms, waits=waits)
    if waits:
        topic.host.wake_delayed(topic, deliver_at_ms)


def find(topic: StoredTopic) -> None:
    """Find them in what is stored. Until that is done nothing expires; deliveries look at each entry first."""
    # Who waits goes on waiting: dispatchers have been past it.
    timed = topic.timed = TimedEntries(topic.timed.waiting)
    topic.timed_known = False
    topic.may_expire = True

    def again() -> None:
        if timed is topic.timed:
            find(topic)

    def found(headers: list[tuple[int, EntryHeader]] | Exception | None) -> None:
        if timed is not topic.timed:
            return
        if isinstance(headers, Exception):
            topic.host.containment.failed(topic, FIND, headers, again)
            return
        if headers is None:
            topic.timed_known = True
            topic.host.containment.succeeded(topic, FIND)
            # What waited and could not be found waits no longer: whoever reads it will see what is wrong.
            hand_over(topic, timed.take_unknown())
            topic.host.wake_delayed(topic, topic.host.clock.now_ms())
            topic.configure(topic.effective)
            return
        for offset, header in headers:
            if header.ttl_ms >= 0 or header.deliver_at_ms > header.receive_ms:
                note(topic, offset, header)

    topic.scan_headers(found)


def trimmed(topic: StoredTopic) -> None:
    """Entries are gone: the indexes need not have them, and a topic that has none needs no search at a start."""
    topic.timed.trim(topic.first_offset)
    if topic.has_timed and topic.timed_known and not topic.timed and not topic.has_in_flight:
        topic.has_timed = False
