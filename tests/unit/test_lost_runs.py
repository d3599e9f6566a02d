"""The backlog with a run of lost entries: never less than nothing, never more than the truth. The real core."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from heliograph_api.policies.policies import BacklogQuota, Policies, Retention
from heliograph_broker.messaging.delivery.subscription import AckId, Subscription
from heliograph_broker.messaging.log import invariants
from heliograph_broker.messaging.log.recount import recount
from heliograph_broker.messaging.log.skipping import skip_range
from heliograph_broker.messaging.topic.topic import Topic

from tests.support.core import Client, Core
from tests.support.lost_entries import LostEntries
from tests.support.subscription_types import SHARED


@pytest.fixture
def core(core: Core) -> Core:
    core.broker.namespaces.set_policies("public/default", Policies(retention=Retention(-1, -1)))
    core.commit()
    return core


@pytest.fixture
def lost(core: Core, monkeypatch: pytest.MonkeyPatch) -> LostEntries:
    return LostEntries(core, monkeypatch)


def filled(core: Core, entries: int = 10) -> tuple[Topic, Subscription]:
    """Entry number n has n + 1 messages. Nothing of them is in memory afterwards."""
    topic = core.topic()
    topic.create_subscription("s")
    producer = core.producer(topic)
    for number in range(entries):
        core.publish(producer, b"x" * (number + 1), messages=number + 1, sequence_id=number)
    core.commit()
    core.restart()
    topic = core.topic()
    return topic, topic.subscription("s")


def ack(subscription: Subscription, *offsets: int, remaining: int | None = None) -> None:
    subscription.acks.acknowledge(
        None, [AckId(*subscription.topic.log.position(each), remaining) for each in offsets], None
    )


def messages(offsets: Iterable[int]) -> int:
    return sum(offset + 1 for offset in offsets)


def agrees(subscription: Subscription) -> None:
    """The counts are those of a recount."""
    cursor = subscription.acks.cursor
    assert recount(subscription.topic.log, cursor, subscription.acks.pending) == (
        cursor.acked_messages,
        cursor.acked_bytes,
    )


def counted_messages(topic: Topic, subscription: Subscription) -> int:
    counted = recount(topic.log, subscription.acks.cursor)
    assert counted is not None
    return counted[0]


@pytest.mark.parametrize("before", [(3,), (4,), (5,), (3, 5), (4, 5)])
def test_what_was_acknowledged_of_a_lost_run_by_itself_is_counted_once(
    core: Core, lost: LostEntries, before: tuple[int, ...]
) -> None:
    _, subscription = filled(core)
    ack(subscription, *before, 8)
    lost.lose(3, 4, 5)
    skip_range(subscription, 3, 5, "segment missing")
    assert subscription.acks.backlog_messages == messages([0, 1, 2, 6, 7, 9])
    agrees(subscription)
    ack(subscription, 0, 1, 2, 6, 7, 9)
    assert (subscription.acks.backlog_messages, subscription.acks.backlog_bytes) == (0, 0)


def test_a_lost_run_is_counted_once_that_is_skipped_one_by_one(core: Core, lost: LostEntries) -> None:
    _, subscription = filled(core)
    lost.lose(3, 4, 5)
    others = messages([0, 1, 2, 6, 7, 8, 9])
    for offset, left in ((4, 2), (5, 1), (3, 0)):
        skip_range(subscription, offset, offset, "bit rot")
        # It is only known of the rest of the run that each entry holds a message.
        assert subscription.acks.backlog_messages == others + left
        agrees(subscription)


def test_a_mark_delete_position_within_a_lost_run_counts_what_is_behind_it(core: Core, lost: LostEntries) -> None:
    _, subscription = filled(core)
    ack(subscription, 0, 1, 2)
    lost.lose(3, 4, 5)
    skip_range(subscription, 3, 3, "bit rot")
    assert subscription.acks.backlog_messages == messages([6, 7, 8, 9]) + 2
    agrees(subscription)
    ack(subscription, 7)
    skip_range(subscription, 4, 5, "bit rot")
    assert subscription.acks.backlog_messages == messages([6, 8, 9])
    agrees(subscription)


def test_a_lost_run_that_has_grown_is_counted_as_a_whole(core: Core, lost: LostEntries) -> None:
    topic, subscription = filled(core)
    ack(subscription, 0, 2)
    lost.lose(0, 1)
    # Nothing is known of entry 1, which holds a message at least.
    assert counted_messages(topic, subscription) == messages([0, 1]) - 1 + messages([2])
    lost.lose(2, 3)
    assert counted_messages(topic, subscription) == messages([0, 1, 2, 3]) - 2


def test_batch_indexes_left_of_a_lost_entry_are_counted_as_they_are(core: Core, lost: LostEntries) -> None:
    _, subscription = filled(core)
    ack(subscription, 4, remaining=0b10110)
    ack(subscription, 8)
    lost.lose(3, 4, 5)
    skip_range(subscription, 3, 3, "bit rot")
    assert subscription.acks.backlog_messages == messages([0, 1, 2, 6, 7, 9]) + 3 + 1
    agrees(subscription)
    skip_range(subscription, 4, 5, "bit rot")
    assert subscription.acks.backlog_messages == messages([0, 1, 2, 6, 7, 9])
    agrees(subscription)


def test_what_a_consumer_holds_of_a_lost_run_is_counted_as_it_was_delivered(core: Core, lost: LostEntries) -> None:
    _, subscription = filled(core)
    client = Client()
    consumer = core.consumer(subscription, SHARED, client, permits=messages(range(5)))
    core.commit()
    assert [entry.offset for _, entry, _, _ in client.take()] == [0, 1, 2, 3, 4]
    lost.lose(3, 4, 5, 6)
    skip_range(subscription, 5, 6, "bit rot")
    assert subscription.acks.backlog_messages == messages([0, 1, 2, 3, 4, 7, 8, 9])
    agrees(subscription)
    ack(subscription, 4)
    assert subscription.acks.backlog_messages == messages([0, 1, 2, 3, 7, 8, 9])
    subscription.remove_consumer(consumer)
    # It comes back to what cannot be read any more.
    skip_range(subscription, 3, 3, "bit rot")
    assert subscription.acks.backlog_messages == messages([0, 1, 2, 7, 8, 9])
    assert consumer.unacked == 0 or consumer not in subscription.consumers
    agrees(subscription)


def test_skipping_what_a_consumer_holds_leaves_its_count_exact(core: Core, lost: LostEntries) -> None:
    _, subscription = filled(core)
    client = Client()
    consumer = core.consumer(subscription, SHARED, client, permits=messages(range(5)))
    core.commit()
    assert consumer.unacked == messages(range(5))
    lost.lose(2, 3)
    skip_range(subscription, 2, 3, "bit rot")
    assert consumer.unacked == subscription.acks.unacked_messages == messages([0, 1, 4])
    agrees(subscription)


def test_an_entry_that_was_lost_after_its_delivery_can_be_acknowledged(core: Core, lost: LostEntries) -> None:
    _, subscription = filled(core)
    lost.lose(3, 4)
    outcome: list[object] = []
    subscription.acks.acknowledge(None, [AckId(*subscription.topic.log.position(3))], outcome.append)
    core.commit()
    assert outcome == [None]
    assert subscription.acks.cursor.is_acked(3)
    assert not subscription.acks.cursor.is_acked(4)
    agrees(subscription)


def test_a_topic_is_trimmed_by_whole_lost_runs(core: Core, lost: LostEntries) -> None:
    topic, subscription = filled(core)
    lost.lose(3, 4, 5)
    skip_range(subscription, 0, 4, "bit rot")
    assert topic.trim(5) == 3
    assert topic.log.trimmed_messages == messages([0, 1, 2])
    agrees(subscription)
    skip_range(subscription, 5, 5, "bit rot")
    assert topic.trim(6) == 3
    assert topic.log.trimmed_messages == messages(range(6))
    assert subscription.acks.backlog_messages == messages([6, 7, 8, 9])


@pytest.mark.parametrize("to", [3, 4, 5, 6])
def test_a_seek_into_a_lost_run_agrees_with_a_recount(core: Core, lost: LostEntries, to: int) -> None:
    _, subscription = filled(core)
    lost.lose(3, 4, 5)
    outcome: list[object] = []
    subscription.seek(to, None, outcome.append)
    core.commit()
    assert outcome == [None]
    agrees(subscription)
    skip_range(subscription, to, 5, "bit rot")
    assert subscription.acks.backlog_messages == messages([6, 7, 8, 9])


def test_figures_that_counted_a_lost_run_twice_are_healed_at_a_start(core: Core, lost: LostEntries) -> None:
    _, subscription = filled(core)
    ack(subscription, 4, 8)
    lost.lose(3, 4, 5)
    skip_range(subscription, 3, 5, "segment missing")
    subscription.acks.cursor.acked_messages += 5
    subscription.acks.acked(None)
    core.restart()
    subscription = core.topic().subscription("s")
    assert subscription.acks.backlog_messages == messages([0, 1, 2, 6, 7, 9])
    assert core.broker.metrics.healed_invariants == {invariants.COUNTS: 1}
    core.restart()
    assert core.broker.metrics.healed_invariants == {}


def test_a_lost_end_of_a_topic_is_owed_by_nobody(core: Core, lost: LostEntries) -> None:
    _, subscription = filled(core)
    ack(subscription, 2, 8, 9)
    core.broker.record_writer.flush()
    core.commit()
    lost.lose(8, 9)
    core.restart()
    subscription = core.topic().subscription("s")
    assert subscription.acks.backlog_messages == messages([0, 1, 3, 4, 5, 6, 7])
    ack(subscription, 0, 1, 3, 4, 5, 6, 7)
    assert (subscription.acks.backlog_messages, subscription.acks.backlog_bytes) == (0, 0)


def test_messages_are_skipped_by_hand_over_a_damaged_head(core: Core, lost: LostEntries) -> None:
    topic, subscription = filled(core)
    lost.lose(0, 1, 2)
    outcome: list[object] = []
    subscription.acks.skip(messages([0, 1, 2, 3]), outcome.append)
    core.commit()
    assert outcome == [None]
    assert subscription.acks.backlog_messages == messages(range(4, 10))
    assert (subscription.acks.skipped_entries, topic.log.damaged.entries) == (3, 3)
    subscription.acks.skip(2, outcome.append)
    core.commit()
    assert outcome == [None, None]
    assert subscription.acks.backlog_messages == messages(range(4, 10)) - 2


def test_a_quota_evicts_over_a_damaged_head(core: Core, lost: LostEntries) -> None:
    topic, subscription = filled(core)
    lost.lose(0, 1)
    size = topic.log.total_bytes
    keep = BacklogQuota(size // 2, "consumer_backlog_eviction")
    core.broker.policies.set_topic(topic.name, Policies(backlog_quota_size=keep))
    core.commit()
    for _ in range(10):
        core.advance(1000)
    assert subscription.acks.backlog_bytes <= size // 2
    assert subscription.acks.skipped_entries == 2
    agrees(subscription)
