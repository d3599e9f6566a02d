"""Publish, dispatch and subscribe rates on virtual time, against a recount of every window."""

from __future__ import annotations

import random

import pytest
from heliograph_api.policies.policies import Policies, Rate, SubscribeRate
from heliograph_api.values.names import TopicName
from heliograph_broker.clock import VirtualClock
from heliograph_broker.messaging.base.errors import NotAllowed
from heliograph_broker.messaging.clients.subscription_type import SubscriptionType
from heliograph_broker.messaging.policies.rate_limits import RateLimit, SubscribeLimit, Window, throttle_counts

from tests.support.core import Client, Core
from tests.support.subscription_types import EXCLUSIVE, KEY_SHARED, SHARED


def fullest_window(events: list[tuple[int, int]], period_ms: int) -> int:
    """Return the largest sum of amounts in any window of ``period_ms`` (events are time, amount)."""
    return max(sum(amount for at, amount in events if begin <= at < begin + period_ms) for begin, _ in events)


@pytest.mark.parametrize("seed", range(20))
def test_no_window_holds_more_than_the_limit_and_the_entry_that_reached_it(seed: int) -> None:
    rng = random.Random(seed)
    limit, period_ms = rng.randint(1, 200), rng.choice([1000, 3000, 60_000])
    window = Window(limit, period_ms)
    now, events = 0, []
    for _ in range(600):
        now += rng.choice([0, 0, 1, rng.randint(0, period_ms // 5)])
        while window.free_at(now) <= now:
            amount = rng.randint(1, max(1, limit // rng.randint(1, 10)))
            window.spend(amount, now)
            events.append((now, amount))
            if rng.random() < 0.3:
                break
    largest = max(amount for _, amount in events)
    assert fullest_window(events, period_ms) < limit + largest


def test_a_window_is_used_up_to_its_limit_and_free_again_a_period_later() -> None:
    window = Window(10, 1000)
    for at in (0, 100, 200):
        assert window.free_at(at) == at
        window.spend(5 if at < 200 else 3, at)
        if window.spent >= 10:
            break
    assert window.free_at(200) == 1000
    assert window.free_at(999) == 1000
    assert window.free_at(1000) == 1000
    window.spend(5, 1000)
    assert window.free_at(1000) == 1100


def test_entries_larger_than_a_period_allows_keep_to_the_rate_over_time() -> None:
    window = Window(1000, 1000)
    now = 0
    for _ in range(50):
        now = window.free_at(now)
        window.spend(5000, now)
    assert 49 * 5000 - 10 <= now <= 49 * 5000 + 10


def test_a_window_of_any_rate_remembers_a_bounded_number_of_steps() -> None:
    window = Window(10_000_000, 60_000)
    for at in range(0, 60_000, 3):
        window.spend(1, at)
    assert len(window._steps) <= 1001


def test_messages_and_bytes_are_limits_each_for_itself() -> None:
    limit = RateLimit(Rate(messages=100, bytes=1000, period_s=2))
    limit.spend(1, 1000, 0)
    assert limit.free_at(0) == 2000
    limit = RateLimit(Rate(messages=100, bytes=-1, period_s=2))
    limit.spend(99, 10**9, 0)
    assert limit.free_at(0) == 0


# -- publishing ----------------------------------------------------------------------------------------------


def test_connections_of_all_producers_wait_when_the_publish_rate_is_reached(core: Core) -> None:
    core.broker.namespaces.set_policies("public/default", Policies(publish_rate=Rate(messages=10)))
    topic = core.topic()
    one, other, elsewhere = Client(), Client(), Client()
    first, _ = core.producer(topic, one, "a"), core.producer(topic, other, "b")
    core.producer(core.topic("u"), elsewhere, "c")
    for _ in range(9):
        core.publish(first)
    assert not one.holds
    core.publish(first)
    assert list(one.holds.values()) == [1000]
    assert list(other.holds.values()) == [1000]
    assert not elsewhere.holds
    assert topic.limits.publish_throttled == 1
    core.commit()
    assert len(one.receipts) == 10


def test_the_hold_ends_at_once_when_the_rate_is_lifted(core: Core) -> None:
    core.broker.namespaces.set_policies("public/default", Policies(publish_rate=Rate(messages=1, period_s=100)))
    client = Client()
    topic = core.topic()
    core.publish(core.producer(topic, client))
    assert client.holds
    core.broker.namespaces.set_policies("public/default", Policies(retention=None))
    assert not client.holds
    assert topic.limits.publish_limit is None


def test_the_hold_ends_when_the_topic_is_deleted(core: Core) -> None:
    core.broker.namespaces.set_policies("public/default", Policies(publish_rate=Rate(messages=1, period_s=100)))
    client = Client()
    core.publish(core.producer(core.topic(), client))
    assert client.holds
    core.broker.topics.delete(TopicName.parse("t"), force=True)
    assert not client.holds


def test_setting_another_policy_does_not_begin_a_rate_anew(core: Core) -> None:
    rate = Rate(messages=5)
    core.broker.namespaces.set_policies("public/default", Policies(publish_rate=rate))
    client = Client()
    producer = core.producer(core.topic(), client)
    for _ in range(3):
        core.publish(producer)
    core.broker.namespaces.set_policies("public/default", Policies(publish_rate=rate, max_producers=7))
    for _ in range(2):
        core.publish(producer)
    assert client.holds


def test_a_rate_holds_for_topics_that_are_not_persistent_too(core: Core) -> None:
    core.broker.namespaces.set_policies("public/default", Policies(publish_rate=Rate(bytes=100)))
    topic = core.broker.topics.get_or_create(TopicName.parse("non-persistent://public/default/t"))
    client = Client()
    producer = core.producer(topic, client)  # type: ignore[arg-type]
    core.publish(producer, b"x" * 200)
    assert len(client.receipts) == 1
    assert client.holds


# -- dispatching ---------------------------------------------------------------------------------------------


def backlog(core: Core, entries: int, messages: int = 1) -> None:
    producer = core.producer(core.topic())
    for at in range(entries):
        core.publish(producer, key=f"k{at % 7}", messages=messages)
    core.commit()


@pytest.mark.parametrize("sub_type", [EXCLUSIVE, SHARED, KEY_SHARED])
def test_every_window_of_a_subscription_keeps_to_its_dispatch_rate(core: Core, sub_type: SubscriptionType) -> None:
    core.broker.namespaces.set_policies("public/default", Policies(subscription_dispatch_rate=Rate(messages=20)))
    subscription = core.topic().create_subscription("s")
    backlog(core, 100)
    client = Client()
    core.consumer(subscription, sub_type, client, permits=1000)
    events: list[tuple[int, int]] = []
    for _ in range(160):
        events += [(core.clock.now_ms(), entry.messages) for _, entry, _, _ in client.take()]
        core.advance(50)
    assert sum(amount for _, amount in events) == 100
    assert fullest_window(events, 1000) == 20
    # Five periods' worth: the tick finds the room it left within 50 ms.
    assert events[-1][0] - events[0][0] <= 4 * 1050
    assert throttle_counts(subscription).messages == 5
    assert throttle_counts(subscription).bytes == 0


def test_a_batch_that_reaches_the_rate_goes_whole_and_is_paid_for(core: Core) -> None:
    core.broker.namespaces.set_policies("public/default", Policies(subscription_dispatch_rate=Rate(messages=10)))
    subscription = core.topic().create_subscription("s")
    backlog(core, 10, messages=30)
    client = Client()
    core.consumer(subscription, EXCLUSIVE, client, permits=1000)
    began = core.clock.now_ms()
    came = []
    for _ in range(600):
        came += [core.clock.now_ms() - began for _ in client.take()]
        core.advance(50)
    assert came == [0, *(3000 * at for at in range(1, 10))]


def test_the_topics_dispatch_rate_is_shared_by_its_subscriptions_in_turn(core: Core) -> None:
    core.broker.namespaces.set_policies("public/default", Policies(dispatch_rate=Rate(messages=10)))
    topic = core.topic()
    subscriptions = [topic.create_subscription(f"s{at}") for at in range(3)]
    backlog(core, 100)
    clients = [Client() for _ in subscriptions]
    for at, subscription in enumerate(subscriptions):
        core.consumer(subscription, SHARED, clients[at], permits=1000, name=f"c{at}")
    events: list[tuple[int, int]] = []
    got = [0, 0, 0]
    for _ in range(240):
        for at, client in enumerate(clients):
            taken = client.take()
            got[at] += len(taken)
            events += [(core.clock.now_ms(), 1) for _ in taken]
        core.advance(50)
    assert fullest_window(events, 1000) == 10
    assert max(got) - min(got) <= 10
    assert sum(got) >= 100


def test_the_rate_of_one_subscription_goes_before_that_of_all(core: Core) -> None:
    topic = core.topic()
    own, others = topic.create_subscription("own"), topic.create_subscription("others")
    backlog(core, 50)
    rates = Policies(subscription_dispatch_rate=Rate(messages=5), subscription_dispatch_rates={"own": Rate(messages=9)})
    core.broker.policies.set_topic(TopicName.parse("t"), rates)
    for subscription, allowed in ((own, 9), (others, 5)):
        client = Client()
        core.consumer(subscription, SHARED, client, permits=1000)
        assert len(client.messages) == allowed


def test_a_dispatch_rate_set_lifted_or_raised_holds_at_once(core: Core) -> None:
    subscription = core.topic().create_subscription("s")
    backlog(core, 50)
    core.broker.namespaces.set_policies("public/default", Policies(dispatch_rate=Rate(messages=5, period_s=3600)))
    client = Client()
    core.consumer(subscription, SHARED, client, permits=1000)
    assert len(client.take()) == 5
    core.broker.namespaces.set_policies("public/default", Policies(dispatch_rate=Rate(messages=8, period_s=3600)))
    assert len(client.take()) == 8
    core.broker.namespaces.set_policies("public/default", Policies(max_producers=9))
    assert len(client.take()) == 37


def test_a_subscription_made_while_the_topics_rate_is_used_up_waits_too(core: Core) -> None:
    core.broker.namespaces.set_policies("public/default", Policies(dispatch_rate=Rate(messages=10)))
    topic = core.topic()
    first = topic.create_subscription("first")
    backlog(core, 10)
    client = Client()
    core.consumer(first, SHARED, client, permits=100)
    late = topic.create_subscription("late", "earliest")
    reader = Client()
    core.consumer(late, SHARED, reader, permits=100)
    assert not reader.messages
    core.advance(1000)
    assert len(reader.messages) == 10


# -- subscribing ---------------------------------------------------------------------------------------------


def test_one_consumer_may_subscribe_so_often_and_others_are_not_concerned() -> None:
    clock = VirtualClock()
    limit = SubscribeLimit(SubscribeRate(per_consumer=2, period_s=30))
    for _ in range(2):
        limit.subscribing("10.0.0.1", "c", clock.now_ms())
    with pytest.raises(NotAllowed, match=r"^Subscribe limited by subscribe rate limit per consumer\. 2 in 30 s"):
        limit.subscribing("10.0.0.1", "c", clock.now_ms())
    limit.subscribing("10.0.0.2", "c", clock.now_ms())
    limit.subscribing("10.0.0.1", "d", clock.now_ms())
    clock.advance_ms(30_000)
    limit.subscribing("10.0.0.1", "c", clock.now_ms())


def test_consumers_whose_window_is_over_are_forgotten() -> None:
    limit = SubscribeLimit(SubscribeRate(per_consumer=1, period_s=1))
    for at in range(5000):
        limit.subscribing("host", str(at), at * 10)
    assert len(limit._consumers) <= 1100
