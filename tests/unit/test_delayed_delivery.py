"""Delayed messages: one index for all subscriptions, a tick that costs what is due, and no second reading."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
from heliograph_api.policies.policies import Policies, Retention
from heliograph_api.values.names import TopicName
from heliograph_broker.clock import CONFIRM_S
from heliograph_broker.messaging.base.timed_entries import NEVER_MS, TimedEntries, TimeIndex
from heliograph_broker.messaging.clients.subscription_type import SubscriptionType
from heliograph_broker.messaging.delivery.subscription import AckId
from heliograph_broker.messaging.policies import delayed_topics
from heliograph_broker.messaging.topic.topic import Topic

from tests.support.core import Client, Core
from tests.support.subscription_types import EXCLUSIVE, KEY_SHARED, SHARED


def publish_delayed(core: Core, topic: Topic, *delays_ms: int) -> None:
    for delay in delays_ms:
        core.publish_all(topic, deliver_at=core.clock.now_ms() + delay if delay else None)


@pytest.mark.parametrize("order", ["ascending", "descending", "shuffled", "one time"])
def test_the_index_is_a_sorted_list(order: str) -> None:
    rng = random.Random(order)
    times = list(range(0, 30_000, 3))
    if order == "one time":
        times = [500] * 10_000
    elif order != "ascending":
        times.sort(key=lambda time: -time if order == "descending" else rng.random())
    index = TimeIndex()
    for offset, time in enumerate(times):
        index.add(time, offset)
    assert len(index) == 10_000
    known = sorted(zip(times, range(10_000), strict=True))
    for after in (-1, 0, 499, 500, 14_999, 29_997, 29_998):
        until = after + 4_000
        expected = [offset for time, offset in known if after < time <= until]
        found = list(index.between(after, until))
        assert sorted(found) == sorted(expected)
        assert [times[offset] for offset in found] == sorted(times[offset] for offset in found)
        assert index.next_after(after) == min((time for time in times if time > after), default=None)
    index.sweep(9_000)
    assert sorted(index.between(-1, NEVER_MS)) == list(range(9_000, 10_000))
    assert len(index) == 1_000


def test_times_beyond_the_end_of_time_are_kept() -> None:
    index = TimeIndex()
    index.add(1 << 70, 7)
    assert index.next_after(0) == NEVER_MS
    assert list(index.between(0, NEVER_MS)) == [7]


class CountingList(list[int]):
    """Counts the items looked at one by one."""

    checks = 0

    def __getitem__(self, at: Any) -> Any:
        self.checks += 1
        return super().__getitem__(at)

    def __iter__(self) -> Iterator[int]:
        raise AssertionError("nobody walks along the index")


@pytest.mark.parametrize("entries", [1_000, 100_000])
def test_the_next_time_is_found_in_few_steps(entries: int) -> None:
    index = TimeIndex()
    for offset in range(entries):
        # All of them in one second.
        index.add(1_000 + offset % 1_000, offset)
    index._lasts = CountingList(index._lasts)
    assert index.next_after(1_500) == 1_501
    assert index._lasts.checks <= 20


@pytest.mark.parametrize("spread_ms", [1, 60_000, 30 * 86_400_000])
def test_a_waiting_entry_takes_less_than_its_share_of_memory(spread_ms: int) -> None:
    rng = random.Random(spread_ms)
    count = 50_000
    times = [1 + rng.randrange(spread_ms) for _ in range(count)]
    tracemalloc.start()
    timed = TimedEntries()
    for offset, time in enumerate(times):
        timed.add_delayed(offset, time, waits=True)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(timed.by_delivery) == len(timed.waiting) == count
    assert used < 40 * count


def test_what_waits_is_kept_once_for_all_subscriptions(core: Core) -> None:
    topic = core.topic()
    clients = [Client() for _ in range(3)]
    for number, client in enumerate(clients):
        core.consumer(
            topic.create_subscription(f"s{number}"), (SHARED, KEY_SHARED, EXCLUSIVE)[number], client, permits=9
        )
    publish_delayed(core, topic, 5_000, 0, 3_000)
    assert [client.take_offsets() for client in clients] == [[1], [1], [0, 1, 2]]
    assert [sub.dispatcher.delayed for sub in topic.subscriptions.values() if sub.dispatcher] == [2, 2, 0]
    core.advance(3_000)
    assert [client.take_offsets() for client in clients] == [[2], [2], []]
    core.advance(2_000)
    assert [client.take_offsets() for client in clients] == [[0], [0], []]
    assert not topic.timing.timed.waiting


@pytest.mark.parametrize("sub_type", [SHARED, KEY_SHARED])
def test_who_comes_back_reads_nothing_that_waits(core: Core, sub_type: SubscriptionType) -> None:
    topic = core.topic()
    client = Client()
    subscription = topic.create_subscription("s")
    publish_delayed(core, topic, *[60_000] * 300, 0, *[60_000] * 300)
    topic.log.tail.clear()
    for _ in range(3):
        with patch.object(core.store.reader, "read", side_effect=core.store.reader.read) as reads:
            consumer = core.consumer(subscription, sub_type, client, permits=1000)
        assert client.take_offsets() == [300]
        (call,) = reads.call_args_list
        assert call.args[1:3] == (300, 300)
        topic.log.tail.clear()
        subscription.remove_consumer(consumer)
    core.consumer(subscription, sub_type, client, permits=1000)
    client.take()
    core.advance(60_000)
    assert client.take_offsets() == [*range(300), *range(301, 601)]


def test_a_consumer_that_comes_between_two_ticks_gets_what_is_due_in_order(core: Core) -> None:
    topic = core.topic()
    waiting, client = Client(), Client()
    core.consumer(topic.create_subscription("other"), SHARED, waiting, permits=9)
    subscription = topic.create_subscription("s")
    publish_delayed(core, topic, 1_000, 0, 1_000, 9_000)
    assert waiting.take_offsets() == [1]
    core.clock.advance_ms(1_000)
    core.consumer(subscription, SHARED, client, permits=9)
    assert client.take_offsets() == [0, 1, 2]
    core.advance(0)
    assert (waiting.take_offsets(), client.take_offsets()) == ([0, 2], [])


def test_a_tick_looks_only_at_topics_in_which_something_is_due(core: Core) -> None:
    for number in range(40):
        topic = core.topic(f"t{number}")
        core.consumer(topic.create_subscription("s"), SHARED, Client(), permits=9)
        publish_delayed(core, topic, 1_000 * (1 + number))
    with patch.object(delayed_topics, "release_due", side_effect=delayed_topics.release_due) as checks:
        core.advance(999)
        assert checks.call_count == 0
        core.advance(1)
        assert checks.call_count == 1
        core.advance(10_000)
        assert checks.call_count == 11


def test_delays_that_do_not_count_any_more_are_over_at_once(core: Core) -> None:
    topic = core.topic()
    client = Client()
    subscription = topic.create_subscription("s")
    consumer = core.consumer(subscription, SHARED, client, permits=9)
    publish_delayed(core, topic, 10_000, 20_000)
    assert client.take_offsets() == []
    core.broker.policies.set_topic(TopicName.parse("t"), Policies(delayed_delivery=False))
    core.advance(50)
    assert client.take_offsets() == [0, 1]
    # And those delivered meanwhile do not come again when they would have been due.
    core.broker.policies.set_topic(TopicName.parse("t"), Policies(delayed_delivery=True))
    subscription.acks.acknowledge(consumer, [AckId(*topic.log.position(0))], None)
    core.advance(30_000)
    assert client.take_offsets() == []


def test_a_clock_that_went_back_delays_nothing_beyond_its_time(core: Core) -> None:
    topic = core.topic()
    client = Client()
    core.consumer(topic.create_subscription("s"), SHARED, client, permits=9)
    publish_delayed(core, topic, 1_000)
    core.advance(5_000)
    assert client.take_offsets() == [0]
    core.clock.step_wall_ms(-600_000)
    for _ in range(3):
        core.advance(round(CONFIRM_S * 1000))
    assert core.broker.clock.now_ms() == core.clock.now_ms()
    publish_delayed(core, topic, 0)
    publish_delayed(core, topic, 70_000)
    assert client.take_offsets() == [1]
    core.advance(69_999)
    assert client.take_offsets() == []
    core.advance(1)
    assert client.take_offsets() == [2]


def test_a_topic_without_timed_entries_is_not_searched_at_a_start(core: Core) -> None:
    topic = core.topic()
    client = Client()
    subscription = topic.create_subscription("s")
    consumer = core.consumer(subscription, SHARED, client, permits=99)
    publish_delayed(core, topic, 1_000, 0, 0)
    assert topic.timing.has_timed
    core.advance(1_000)
    assert sorted(client.take_offsets()) == [0, 1, 2]
    subscription.acks.acknowledge(consumer, [AckId(*topic.log.position(offset)) for offset in range(3)], None)
    core.broker.policies.set_topic(TopicName.parse("t"), Policies(retention=Retention(0, 0)))
    core.advance(1_000)
    assert topic.log.first_offset == 3
    assert not topic.timing.has_timed
    core.restart()
    assert not core.topic().timing.has_timed
