"""Registers delayed entries and entries with their own TTL, when they are stored and when the topic is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heliograph_broker.messaging.base.timed_entries import TimedEntries

from .delayed_topics import hand_over
from .entry_expiry import base_ms

if TYPE_CHECKING:
    from heliograph_broker.messaging.acknowledgment.stored_topic import StoredTopic
    from heliograph_broker.storage.base.entry import Entry, EntryHeader


#: The duty that :mod:`.containment` suspends when the search fails.
FIND = "find timed entries"


def note(topic: StoredTopic, offset: int, entry: Entry | EntryHeader) -> None:
    """Register a durable entry that is delayed or has its own TTL."""
    if entry.deliver_at_ms > entry.receive_ms:
        note_delayed(topic, offset, entry.deliver_at_ms)
    if entry.ttl_ms >= 0:
        topic.timing.timed.add_own(offset, base_ms(topic, entry, offset) + entry.ttl_ms)
        topic.timing.may_expire = True


def note_delayed(topic: StoredTopic, offset: int, deliver_at_ms: int) -> None:
    """Register a delayed entry, so that no subscription reads it before its time."""
    waits = topic.timing.delayed_delivery and deliver_at_ms > topic.host.clock.now_ms()
    topic.timing.timed.add_delayed(offset, deliver_at_ms, waits=waits)
    if waits:
        topic.host.wake_delayed(topic, deliver_at_ms)


def find(topic: StoredTopic) -> None:
    """Register the stored entries. Until it is done nothing expires, and dispatchers check each entry themselves."""
    # Entries that wait keep waiting: dispatchers have passed them.
    timed = topic.timing.timed = TimedEntries(topic.timing.timed.waiting)
    topic.timing.time_index_ready = False
    topic.timing.may_expire = True

    def again() -> None:
        if timed is topic.timing.timed:
            find(topic)

    def found(headers: list[tuple[int, EntryHeader]] | Exception | None) -> None:
        if timed is not topic.timing.timed:
            return
        if isinstance(headers, Exception):
            topic.host.containment.failed(topic, FIND, headers, again)
            return
        if headers is None:
            topic.timing.time_index_ready = True
            topic.host.containment.succeeded(topic, FIND)
            # Stop waiting for an entry that could not be found: a read of it will show the problem.
            hand_over(topic, timed.take_unknown())
            topic.host.wake_delayed(topic, topic.host.clock.now_ms())
            topic.configure(topic.effective)
            return
        for offset, header in headers:
            if header.ttl_ms >= 0 or header.deliver_at_ms > header.receive_ms:
                note(topic, offset, header)

    topic.log.scan_headers(found)


def trimmed(topic: StoredTopic) -> None:
    """Remove trimmed entries. If none is left, the next start need not search the topic."""
    timing = topic.timing
    timing.timed.trim(topic.log.first_offset)
    if timing.has_timed and timing.time_index_ready and not timing.timed and not topic.log.has_in_flight:
        timing.has_timed = False
