"""Entries that cannot be read: skipped, counted, listed, and the backlog stays exact. The real core."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from heliograph_api.policies.policies import Policies, Retention
from heliograph_broker.messaging.delivery.subscription import AckId, Subscription
from heliograph_broker.messaging.log.damaged import MAX_RANGES
from heliograph_broker.messaging.log.skipping import skip_entry, skip_range
from heliograph_broker.messaging.topic.topic import Topic
from heliograph_broker.storage.base.damage import DamagedEntries
from heliograph_broker.storage.base.entry import Entry, EntryHeader

from tests.support.core import Client, Core


def _filled(core: Core, entries: int = 10) -> tuple[Topic, Subscription]:
    topic = core.topic()
    subscription = topic.create_subscription("s")
    producer = core.producer(topic)
    for number in range(entries):
        core.publish(producer, b"x" * (number + 1), messages=number + 1, sequence_id=number)
    core.commit()
    return topic, subscription


def _lose_headers(core: Core, monkeypatch: pytest.MonkeyPatch, entries: set[int]) -> None:
    """The store raises for these entry ids, as it does where a segment is damaged."""
    read = core.store.reader.header

    def header(ledger_id: int, entry_id: int) -> EntryHeader | None:
        if entry_id in entries:
            raise DamagedEntries(ledger_id, entry_id, entry_id, "damaged")
        return read(ledger_id, entry_id)

    monkeypatch.setattr(core.store.reader, "header", header)


def _messages(*offsets: int) -> int:
    return sum(offset + 1 for offset in offsets)


def test_a_skipped_entry_leaves_the_backlog_and_is_counted_and_listed(core: Core) -> None:
    topic, subscription = _filled(core)
    skip_entry(subscription, 3, "bit rot")
    assert subscription.acks.backlog_messages == _messages(0, 1, 2, 4, 5, 6, 7, 8, 9)
    assert (subscription.acks.skipped_entries, subscription.acks.skipped_messages) == (1, 4)
    (damaged,) = topic.log.damaged.ranges
    assert (damaged.ledger_id, damaged.entry_id) == topic.log.position(3)
    assert damaged.reason == "bit rot"
    skip_range(subscription, 0, 9, "bit rot")
    assert (subscription.acks.backlog_messages, subscription.acks.backlog_bytes) == (0, 0)
    assert (subscription.acks.skipped_entries, topic.log.damaged.entries) == (10, 10)


def test_what_is_acknowledged_is_not_skipped_again(core: Core) -> None:
    topic, subscription = _filled(core)
    skip_entry(subscription, 3, "bit rot")
    skip_entry(subscription, 3, "bit rot")
    assert subscription.acks.skipped_entries == topic.log.damaged.entries == 1
    other = topic.create_subscription("other", "earliest")
    skip_entry(other, 3, "bit rot")
    assert other.acks.skipped_entries == topic.log.damaged.entries == 1


@pytest.mark.parametrize("lost", [{3, 4, 5}, {0, 1}, {8, 9}, set(range(10))])
@pytest.mark.parametrize("together", [True, False])
def test_entries_without_headers_are_counted_from_what_lies_around_them(
    core: Core, monkeypatch: pytest.MonkeyPatch, lost: set[int], together: bool
) -> None:
    _, subscription = _filled(core)
    _lose_headers(core, monkeypatch, lost)
    if together:
        skip_range(subscription, min(lost), max(lost), "segment missing")
    else:
        for offset in sorted(lost, reverse=True):
            skip_entry(subscription, offset, "segment missing")
    left = set(range(10)) - lost
    assert subscription.acks.backlog_messages == _messages(*left)
    assert subscription.acks.skipped_entries == len(lost)
    monkeypatch.undo()
    headers = {offset: subscription.topic.log.header(offset) for offset in left}
    assert subscription.acks.backlog_bytes == sum(header.size for header in headers.values() if header is not None)


def test_what_was_acknowledged_in_a_lost_run_is_not_counted_twice_in_the_end(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, subscription = _filled(core)
    ledger_id = topic.log.position(0)[0]
    subscription.acks.acknowledge(None, [AckId(ledger_id, 4), AckId(ledger_id, 5, 0b100111)], None)
    _lose_headers(core, monkeypatch, {3, 4, 5, 6})
    skip_range(subscription, 3, 6, "segment missing")
    subscription.acks.acknowledge(None, [AckId(ledger_id, entry) for entry in (0, 1)], None)
    skip_entry(subscription, 2, "bit rot")
    # The next range that is skipped finds everything below it acknowledged.
    _lose_headers(core, monkeypatch, {3, 4, 5, 6, 7})
    skip_entry(subscription, 7, "segment missing")
    assert subscription.acks.backlog_messages == _messages(8, 9)


def test_the_list_outlives_a_restart_and_ends_with_its_topic(core: Core) -> None:
    topic, subscription = _filled(core)
    skip_range(subscription, 2, 4, "bit rot")
    core.restart()
    topic = core.topic()
    assert topic.log.damaged.entries == 3
    assert [(each.offset, each.last_offset) for each in topic.log.damaged.ranges] == [(2, 4)]
    core.broker.topics.delete(topic.name, force=True)
    core.restart()
    assert core.topic().log.damaged.entries == 0


def test_the_list_is_bounded_and_the_count_is_not(core: Core) -> None:
    topic, _ = _filled(core)
    for offset in range(0, 2 * (MAX_RANGES + 5), 2):
        topic.log.damaged.add(offset, offset, "x" * 1000)
    assert len(topic.log.damaged.ranges) == MAX_RANGES
    assert topic.log.damaged.entries == MAX_RANGES + 5
    assert len(topic.log.damaged.ranges[-1].reason) < 1000


def _poison(core: Core, monkeypatch: pytest.MonkeyPatch, *entries: int) -> None:
    """A bit of these entries' payload is flipped whenever they are read."""
    read = core.store.reader.read

    def flipped(ledger_id: int, first: int, last: int, max_bytes: int, callback: Callable[[Any], None]) -> None:
        def altered(result: list[Entry] | Exception) -> None:
            if not isinstance(result, Exception):
                for entry in result:
                    if entry.entry_id in entries and entry.frame[-1] == ord("x"):
                        entry.frame = entry.frame[:-1] + b"y"
            callback(result)

        read(ledger_id, first, last, max_bytes, altered)

    monkeypatch.setattr(core.store.reader, "read", flipped)


def _lose(core: Core, monkeypatch: pytest.MonkeyPatch, lost: range) -> None:
    """The store says of these entries of the first ledger that they are lost, whatever it is asked for."""
    _lose_headers(core, monkeypatch, set(lost))

    def around(name: str) -> None:
        real = getattr(core.store.reader, name)

        def read(ledger_id: int, first: int, last: int, *rest: Any) -> None:
            if first in lost:
                rest[-1](DamagedEntries(ledger_id, first, min(last, lost[-1]), "bit rot"))
            else:
                real(ledger_id, first, min(last, lost[0] - 1) if first < lost[0] else last, *rest)

        monkeypatch.setattr(core.store.reader, name, read)

    around("read")
    around("read_headers")


@pytest.mark.parametrize("dead_letter", [False, True])
@pytest.mark.parametrize("harm", ["flipped", "lost"])
def test_expiry_goes_around_a_poison_entry(
    core: Core, monkeypatch: pytest.MonkeyPatch, harm: str, dead_letter: bool
) -> None:
    dead = core.topic("dead")
    letters = dead.create_subscription("keep")
    topic, subscription = _filled(core)
    if harm == "flipped":
        _poison(core, monkeypatch, 4)
    else:
        _lose(core, monkeypatch, range(4, 6))
    target = str(dead.name) if dead_letter else None
    policies = Policies(message_ttl_ms=1000, dead_letter_topic=target, retention=Retention(0, 0))
    core.broker.policies.set_topic(topic.name, policies)
    for _ in range(30):
        core.advance(1000)
    assert subscription.acks.backlog_messages == 0
    assert not subscription.expiry.running
    assert core.broker.containment.idle
    if harm == "lost":
        assert subscription.acks.skipped_entries == (2 if dead_letter else 0)
    elif dead_letter:
        assert (subscription.acks.skipped_entries, subscription.acks.skipped_messages) == (1, 5)
        assert "CRC32-C" in topic.log.damaged.ranges[0].reason
    if dead_letter:
        # These batches cannot be opened, so each goes as a whole.
        assert subscription.expiry.dead_lettered == letters.topic.log.end_offset == (9 if harm == "flipped" else 8)
    assert topic.statistics.stored_messages == 0


def test_expiry_of_a_spared_backlog_goes_around_lost_entries(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    topic, subscription = _filled(core)
    ledger_id = topic.log.position(0)[0]
    subscription.acks.acknowledge(None, [AckId(ledger_id, 8)], None)
    _lose(core, monkeypatch, range(4, 6))
    core.broker.policies.set_topic(topic.name, Policies(message_ttl_ms=1000))
    core.advance(2000)
    core.advance(2000)
    assert subscription.acks.backlog_messages == 0
    assert subscription.acks.skipped_entries == 2
    assert subscription.expiry.msg_expired == _messages(*range(10)) - _messages(8)


@pytest.mark.parametrize("up_to", [5, 7])
@pytest.mark.parametrize("before", [None, 2])
def test_a_cumulative_ack_goes_over_lost_entries(
    core: Core, monkeypatch: pytest.MonkeyPatch, up_to: int, before: int | None
) -> None:
    topic, subscription = _filled(core)
    core.restart()
    topic = core.topic()
    subscription = topic.subscription("s")
    ledger_id = topic.log.position(0)[0]
    if before is not None:
        subscription.acks.acknowledge(None, [AckId(ledger_id, before)], None)
    _lose(core, monkeypatch, range(4, 6))
    done: list[object] = []
    subscription.acks.acknowledge_up_to(up_to, done.append)
    core.commit()
    assert done == [None]
    assert subscription.acks.backlog_messages == _messages(*range(up_to + 1, 10))
    assert subscription.acks.cursor.mark_delete == up_to


@pytest.mark.parametrize(("trimmed", "first"), [(4, 4), (5, 4), (6, 4), (7, 7)])
def test_a_topic_is_trimmed_before_and_behind_lost_entries(
    core: Core, monkeypatch: pytest.MonkeyPatch, trimmed: int, first: int
) -> None:
    topic, subscription = _filled(core)
    _lose(core, monkeypatch, range(4, 7))
    subscription.acks.acknowledge_up_to(trimmed - 1, None)
    topic.trim(trimmed)
    assert topic.log.first_offset == first
    subscription.acks.acknowledge_up_to(8, None)
    assert subscription.acks.backlog_messages == _messages(9)
    assert topic.trim(9) >= 2
    assert topic.statistics.stored_messages == _messages(9)


def test_the_oldest_message_is_the_first_that_can_be_read(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    _, subscription = _filled(core)
    _lose(core, monkeypatch, range(3))
    core.clock.advance_ms(5000)
    assert subscription.acks.oldest_unacked_age_ms() == 5000


def test_a_seek_to_the_end_of_lost_entries_finds_its_place(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    _, subscription = _filled(core)
    _lose(core, monkeypatch, range(4, 7))
    done: list[object] = []
    subscription.seek(7, None, done.append)
    core.commit()
    assert done == [None]
    assert subscription.acks.backlog_messages == _messages(7, 8, 9)


def test_compaction_goes_around_lost_entries(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = core.topic()
    core.broker.policies.set_topic(topic.name, Policies(retention=Retention(-1, -1)))
    producer = core.producer(topic)
    for number in range(10):
        core.publish(producer, b"x", key=f"k{number % 5}", sequence_id=number)
    core.commit()
    _lose(core, monkeypatch, range(7, 9))
    topic.compaction.start()
    for _ in range(20):
        core.commit()
    assert topic.compaction.status() == ("SUCCESS", "")
    ledger = topic.compaction.ledger
    assert ledger is not None
    # The lost ones were the last of two keys: what came before them of these is the last that is left.
    assert ledger.entries == 5
    assert topic.log.damaged.entries == 2


def test_a_producer_comes_back_to_a_topic_with_unreadable_entries(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = core.topic()
    core.broker.policies.set_topic(topic.name, Policies(deduplication=True, retention=Retention(-1, -1)))
    core.commit()
    producer = core.producer(topic)
    for number in range(10):
        core.publish(producer, b"x", sequence_id=number)
    core.commit()
    core.crash()
    mapped = core.store.reader.map_frames

    def damaged(ledger_id: int, first: int, last: int, function: Callable[[memoryview], Any]) -> Iterator[Any]:
        if first <= 4:
            yield from mapped(ledger_id, first, 2, function)
            # The metadata of one was stored although it does not decode; nothing is left of the next two.
            yield function(memoryview(b"\x0e\x01\x00\x00\x00\x00\x00\x00\x00\x02\xff\xff"))
            raise DamagedEntries(ledger_id, 4, 5, "bit rot")
        yield from mapped(ledger_id, first, last, function)

    monkeypatch.setattr(core.store.reader, "map_frames", damaged)
    topic = core.topic()
    client = Client()
    producer = core.producer(topic, client)
    core.publish(producer, b"x", sequence_id=9)
    core.publish(producer, b"x", sequence_id=10)
    core.commit()
    assert [receipt[0] for receipt in client.receipts] == [9, 10]
    assert topic.log.end_offset == 11
