"""Entries that cannot be read: skipped, counted, listed, and the backlog stays exact. The real core."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from heliograph_broker.messaging.damaged import MOST_RANGES, skip_entry, skip_range
from heliograph_broker.messaging.subscription import AckId, Subscription
from heliograph_broker.messaging.topic import Topic
from heliograph_broker.storage.entry import EntryHeader

from tests.support.core import Core


@pytest.fixture
def core(tmp_path: Path) -> Iterator[Core]:
    opened = Core(tmp_path / "d")
    yield opened
    opened.close()


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
    read = core.store.header

    def header(ledger_id: int, entry_id: int) -> EntryHeader | None:
        if entry_id in entries:
            raise ValueError("damaged")
        return read(ledger_id, entry_id)

    monkeypatch.setattr(core.store, "header", header)


def _messages(*offsets: int) -> int:
    return sum(offset + 1 for offset in offsets)


def test_a_skipped_entry_leaves_the_backlog_and_is_counted_and_listed(core: Core) -> None:
    topic, subscription = _filled(core)
    skip_entry(subscription, 3, "bit rot")
    assert subscription.backlog_messages == _messages(0, 1, 2, 4, 5, 6, 7, 8, 9)
    assert (subscription.skipped_entries, subscription.skipped_messages) == (1, 4)
    (damaged,) = topic.damaged.ranges
    assert (damaged.ledger_id, damaged.entry_id) == topic.position(3)
    assert damaged.reason == "bit rot"
    skip_range(subscription, 0, 9, "bit rot")
    assert (subscription.backlog_messages, subscription.backlog_bytes) == (0, 0)
    assert (subscription.skipped_entries, topic.damaged.entries) == (10, 10)


def test_what_is_acknowledged_is_not_skipped_again(core: Core) -> None:
    topic, subscription = _filled(core)
    skip_entry(subscription, 3, "bit rot")
    skip_entry(subscription, 3, "bit rot")
    assert subscription.skipped_entries == topic.damaged.entries == 1
    other = topic.create_subscription("other", "earliest")
    skip_entry(other, 3, "bit rot")
    assert other.skipped_entries == topic.damaged.entries == 1


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
    assert subscription.backlog_messages == _messages(*left)
    assert subscription.skipped_entries == len(lost)
    monkeypatch.undo()
    headers = {offset: subscription.topic.header(offset) for offset in left}
    assert subscription.backlog_bytes == sum(header.size for header in headers.values() if header is not None)


def test_what_was_acknowledged_in_a_lost_run_is_not_counted_twice_in_the_end(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, subscription = _filled(core)
    ledger_id = topic.position(0)[0]
    subscription.acknowledge(None, [AckId(ledger_id, 4), AckId(ledger_id, 5, 0b100111)], None)
    _lose_headers(core, monkeypatch, {3, 4, 5, 6})
    skip_range(subscription, 3, 6, "segment missing")
    subscription.acknowledge(None, [AckId(ledger_id, entry) for entry in (0, 1)], None)
    skip_entry(subscription, 2, "bit rot")
    # The next range that is skipped finds everything below it acknowledged.
    _lose_headers(core, monkeypatch, {3, 4, 5, 6, 7})
    skip_entry(subscription, 7, "segment missing")
    assert subscription.backlog_messages == _messages(8, 9)


def test_the_list_outlives_a_restart_and_ends_with_its_topic(core: Core) -> None:
    topic, subscription = _filled(core)
    skip_range(subscription, 2, 4, "bit rot")
    core.restart()
    topic = core.topic()
    assert topic.damaged.entries == 3
    assert [(each.offset, each.last_offset) for each in topic.damaged.ranges] == [(2, 4)]
    core.broker.delete_topic(topic.name, force=True)
    core.restart()
    assert core.topic().damaged.entries == 0


def test_the_list_is_bounded_and_the_count_is_not(core: Core) -> None:
    topic, _ = _filled(core)
    for offset in range(0, 2 * (MOST_RANGES + 5), 2):
        topic.damaged.add(offset, offset, "x" * 1000)
    assert len(topic.damaged.ranges) == MOST_RANGES
    assert topic.damaged.entries == MOST_RANGES + 5
    assert len(topic.damaged.ranges[-1].reason) < 1000
