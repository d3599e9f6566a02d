"""Dispatch to consumers, on the real core: order, permits, takeover, redelivery, delay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from heliograph_api.policies.policies import Policies
from heliograph_api.values.names import TopicName
from heliograph_broker.http.stats.stats import blocked
from heliograph_broker.messaging.base.errors import ConsumerAssignError, ConsumerBusy, PreconditionFailed
from heliograph_broker.messaging.clients.consumer import Consumer, KeyRange, KeySharedPolicy
from heliograph_broker.messaging.clients.subscription_type import SubscriptionType
from heliograph_broker.messaging.delivery import dispatch_key_shared
from heliograph_broker.messaging.delivery.subscription import AckId
from heliograph_broker.messaging.log.entry_log import EntryLog
from heliograph_broker.messaging.messages.key_hash import SLOTS, hash_of
from heliograph_broker.messaging.topic.topic import Topic

from tests.support.core import Client, Core
from tests.support.subscription_types import EXCLUSIVE, FAILOVER, KEY_SHARED, SHARED


def test_nothing_is_delivered_before_it_is_durable(core: Core) -> None:
    topic = core.topic()
    client = Client()
    core.consumer(topic.create_subscription("s"), EXCLUSIVE, client, permits=10)
    core.publish(core.producer(topic))
    assert client.messages == []
    core.commit()
    assert client.take_offsets() == [0]


def test_permits_count_messages_of_a_batch(core: Core) -> None:
    topic = core.topic()
    client = Client()
    subscription = topic.create_subscription("s")
    consumer = core.consumer(subscription, EXCLUSIVE, client, permits=5)
    core.publish_all(topic, count=4, messages=3)
    assert client.take_offsets() == [0, 1]
    assert consumer.permits == -1
    subscription.flow(consumer, 1)
    assert client.take_offsets() == []
    subscription.flow(consumer, 1)
    assert client.take_offsets() == [2]


def test_a_connection_that_cannot_take_more_gets_no_more(core: Core) -> None:
    topic = core.topic()
    client = Client()
    subscription = topic.create_subscription("s")
    core.consumer(subscription, EXCLUSIVE, client, permits=100)
    client.writable = False
    core.publish_all(topic, count=3)
    assert client.take_offsets() == []
    client.writable = True
    subscription.notify()
    assert client.take_offsets() == [0, 1, 2]


@pytest.mark.parametrize("stored", [False, True])
def test_an_exclusive_consumer_of_a_range_gets_the_keys_of_it_only(core: Core, stored: bool) -> None:
    topic = core.topic()
    keys = [f"k{at}" for at in range(20)]
    client = Client()
    subscription = topic.create_subscription("s")
    low = KeySharedPolicy(ranges=(KeyRange(0, 32767),))
    if stored:
        for key in keys:
            core.publish_all(topic, key=key)
        topic.log.tail.clear()
    consumer = Consumer(subscription, client, 1, "c", key_shared=low)
    subscription.add_consumer(consumer, EXCLUSIVE)
    subscription.flow(consumer, 100)
    if not stored:
        for key in keys:
            core.publish_all(topic, key=key)
    expected = [at for at, key in enumerate(keys) if hash_of(key) % SLOTS <= 32767]
    assert 0 < len(expected) < len(keys)
    assert client.take_offsets() == expected
    assert subscription.acks.cursor.mark_delete == -1


def test_an_exclusive_consumer_of_a_range_does_not_get_others_that_were_withheld(core: Core) -> None:
    topic = core.topic()
    core.broker.policies.set_topic(topic.name, Policies(message_ttl_ms=1000))
    subscription = topic.create_subscription("s")
    core.publish_all(topic, key="k")
    core.clock.advance_ms(1000)
    elsewhere = KeyRange(0, hash_of("k") % SLOTS - 1)
    client = Client()
    consumer = Consumer(subscription, client, 1, "c", key_shared=KeySharedPolicy(ranges=(elsewhere,)))
    subscription.add_consumer(consumer, EXCLUSIVE)
    subscription.flow(consumer, 10)
    core.broker.policies.set_topic(topic.name, Policies())
    assert client.take_offsets() == []


def test_an_exclusive_consumer_may_name_each_slot_and_not_what_is_no_slot(core: Core) -> None:
    """Each message is looked up: going through the ranges would hold up the broker."""
    topic = core.topic()
    subscription = topic.create_subscription("s")
    for wrong in ((KeyRange(5, 4),), (KeyRange(0, SLOTS),), (KeyRange(0, 5), KeyRange(5, 9))):
        with pytest.raises(ConsumerAssignError):
            subscription.add_consumer(
                Consumer(subscription, Client(), 1, "c", key_shared=KeySharedPolicy(ranges=wrong)), EXCLUSIVE
            )
        assert not subscription.consumers
    client = Client()
    each = KeySharedPolicy(ranges=tuple(KeyRange(slot, slot) for slot in range(SLOTS)))
    consumer = Consumer(subscription, client, 1, "c", key_shared=each)
    subscription.add_consumer(consumer, EXCLUSIVE)
    subscription.flow(consumer, 500)
    core.publish_all(topic, *["x"] * 500, key="k")
    assert len(client.take_offsets()) == 500


def test_an_exclusive_consumer_of_a_range_reads_many_entries_at_once(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = core.topic()
    subscription = topic.create_subscription("s")
    for at in range(50):
        core.publish_all(topic, key=f"k{at}")
    topic.log.tail.clear()
    reads: list[int] = []
    read = EntryLog.read

    def counted(self: EntryLog, offset: int, *args: Any) -> None:
        reads.append(offset)
        read(self, offset, *args)

    monkeypatch.setattr(EntryLog, "read", counted)
    last = hash_of("k49") % SLOTS
    client = Client()
    consumer = Consumer(subscription, client, 1, "c", key_shared=KeySharedPolicy(ranges=(KeyRange(last, last),)))
    subscription.add_consumer(consumer, EXCLUSIVE)
    subscription.flow(consumer, 1)
    assert client.take_offsets() == [49]
    assert reads == [0]


def test_exclusive_refuses_a_second_consumer(core: Core) -> None:
    subscription = core.topic().create_subscription("s")
    core.consumer(subscription, EXCLUSIVE, Client())
    with pytest.raises(ConsumerBusy, match="Exclusive consumer is already connected"):
        core.consumer(subscription, EXCLUSIVE, Client(), consumer_id=2)
    with pytest.raises(ConsumerBusy, match=r"type of 'Exclusive' is different than .* type 'Shared'"):
        core.consumer(subscription, SHARED, Client(), consumer_id=2)


def test_reading_back_what_left_the_cache(tmp_path: Path) -> None:
    core = Core(tmp_path / "small-cache", tail_cache_bytes=2_000, ledger_max_entries=10)
    topic = core.topic()
    client = Client()
    subscription = topic.create_subscription("s")
    core.publish_all(topic, b"x" * 500, count=100)
    core.consumer(subscription, EXCLUSIVE, client, permits=1000)
    assert client.take_offsets() == list(range(100))
    core.close()


def test_shared_goes_round_and_takes_back_from_who_leaves(core: Core) -> None:
    topic = core.topic()
    one, two = Client(), Client()
    subscription = topic.create_subscription("s")
    first = core.consumer(subscription, SHARED, one, permits=50, name="one")
    core.consumer(subscription, SHARED, two, permits=50, name="two", consumer_id=2)
    core.publish_all(topic, count=80)
    got_one, got_two = one.take_offsets(), two.take_offsets()
    assert sorted(got_one + got_two) == list(range(80))
    assert len(got_one) == len(got_two) == 40
    subscription.acks.acknowledge(None, [AckId(*topic.log.position(got_one[0]))], None)
    second = subscription.consumers[1]
    subscription.flow(second, 100)
    subscription.remove_consumer(first)
    assert two.take_offsets() == got_one[1:]
    assert subscription.acks.unacked_messages == 79


def test_priority_levels_are_served_in_order(core: Core) -> None:
    topic = core.topic()
    high, low = Client(), Client()
    subscription = topic.create_subscription("s")
    core.consumer(subscription, SHARED, low, permits=10, name="low", priority=1)
    core.consumer(subscription, SHARED, high, permits=5, name="high", consumer_id=2)
    core.publish_all(topic, count=8)
    assert high.take_offsets() == [0, 1, 2, 3, 4]
    assert low.take_offsets() == [5, 6, 7]


def test_negative_ack_raises_the_count_and_a_disconnect_does_not(core: Core) -> None:
    topic = core.topic()
    client = Client()
    subscription = topic.create_subscription("s")
    consumer = core.consumer(subscription, SHARED, client, permits=100)
    core.publish_all(topic, count=3)
    client.take()
    subscription.redeliver(consumer, [topic.log.position(1)], None)
    ((_, entry, count, _),) = client.take()
    assert (entry.offset, count) == (1, 1)
    other = Client()
    core.consumer(subscription, SHARED, other, permits=100, consumer_id=2, name="other")
    subscription.remove_consumer(consumer)
    assert [(entry.offset, count) for _, entry, count, _ in other.take()] == [(0, 0), (1, 1), (2, 0)]


def test_partly_acknowledged_batch_comes_again_with_what_is_left(core: Core) -> None:
    topic = core.topic()
    client = Client()
    subscription = topic.create_subscription("s")
    consumer = core.consumer(subscription, SHARED, client, permits=100)
    core.publish_all(topic, messages=4)
    client.take()
    subscription.acks.acknowledge(consumer, [AckId(*topic.log.position(0), 0b1010)], None)
    assert (subscription.acks.backlog_messages, consumer.unacked) == (2, 2)
    subscription.redeliver(consumer, None, None)
    assert [remaining for _, _, _, remaining in client.take()] == [0b1010]
    assert consumer.unacked == 2
    assert consumer.permits == 100 - 4 - 2


def test_unacked_limit_blocks_until_an_ack(tmp_path: Path) -> None:
    core = Core(tmp_path / "limited", max_unacked_per_consumer=3)
    topic = core.topic()
    client = Client()
    subscription = topic.create_subscription("s")
    consumer = core.consumer(subscription, SHARED, client, permits=100)
    core.publish_all(topic, count=6)
    assert client.take_offsets() == [0, 1, 2]
    assert consumer.blocked_on_unacked
    subscription.acks.acknowledge(consumer, [AckId(*topic.log.position(0))], None)
    assert client.take_offsets() == [3]
    core.close()


@pytest.mark.parametrize("sub_type", [EXCLUSIVE, FAILOVER])
def test_no_unacked_limit_blocks_where_one_consumer_is_active(tmp_path: Path, sub_type: SubscriptionType) -> None:
    core = Core(tmp_path / "limited", max_unacked_per_consumer=3, max_unacked_per_subscription=3)
    topic = core.topic()
    client = Client()
    subscription = topic.create_subscription("s")
    consumer = core.consumer(subscription, sub_type, client, permits=100)
    core.publish_all(topic, count=6)
    assert len(client.take_offsets()) == 6
    assert not consumer.blocked_on_unacked
    assert not blocked(subscription)
    core.close()


def test_failover_takes_over_what_was_not_acknowledged(core: Core) -> None:
    topic = core.topic()
    one, two = Client(), Client()
    subscription = topic.create_subscription("s")
    first = core.consumer(subscription, FAILOVER, one, permits=100, name="one")
    core.consumer(subscription, FAILOVER, two, permits=100, name="two", consumer_id=2)
    assert (one.active, two.active) == ({1: True}, {2: False})
    core.publish_all(topic, count=5)
    assert one.take_offsets() == [0, 1, 2, 3, 4]
    subscription.acks.acknowledge_cumulative(first, AckId(*topic.log.position(1)), None)
    subscription.remove_consumer(first)
    assert two.active == {2: True}
    assert two.take_offsets() == [2, 3, 4]


def test_failover_spreads_partitions_by_name(core: Core) -> None:
    name = TopicName.parse("parted")
    core.broker.partitioned.create(name, 3)
    active = []
    for index in range(3):
        topic = core.broker.directory.topics[str(name.with_partition(index))]
        assert isinstance(topic, Topic)
        subscription = topic.create_subscription("s")
        clients = {label: Client() for label in "cab"}
        for number, (label, client) in enumerate(clients.items()):
            core.consumer(subscription, FAILOVER, client, name=label, consumer_id=number)
        active += [label for number, (label, client) in enumerate(clients.items()) if client.active.get(number)]
    assert active == ["a", "b", "c"]


def test_a_key_stays_with_its_holder_until_all_of_it_is_acknowledged(core: Core) -> None:
    topic = core.topic()
    one = Client()
    subscription = topic.create_subscription("s")
    first = core.consumer(subscription, KEY_SHARED, one, permits=1000, name="one")
    for key in range(40):
        core.publish_all(topic, key=str(key))
    held = one.take_offsets()
    two = Client()
    core.consumer(subscription, KEY_SHARED, two, permits=1000, name="two", consumer_id=2)
    for key in range(40):
        core.publish_all(topic, key=str(key))
    moved = set(range(40, 80)) - set(one.take_offsets())
    # Keys that moved to the newcomer wait, since the first consumer still holds entries of those keys.
    assert moved
    assert two.take_offsets() == []
    subscription.acks.acknowledge(first, [AckId(*topic.log.position(offset)) for offset in held], None)
    assert set(two.take_offsets()) == moved


def test_sticky_ranges_must_not_overlap(core: Core) -> None:
    subscription = core.topic().create_subscription("s")

    def sticky(consumer_id: int, *ranges: tuple[int, int]) -> Consumer:
        policy = KeySharedPolicy(sticky=True, ranges=tuple(KeyRange(*part) for part in ranges))
        return Consumer(subscription, Client(), consumer_id, str(consumer_id), key_shared=policy)

    subscription.add_consumer(sticky(1, (0, 99), (200, 299)), KEY_SHARED)
    with pytest.raises(ConsumerAssignError, match=r"\[50, 150\] overlaps \[0, 99\]"):
        subscription.add_consumer(sticky(2, (50, 150)), KEY_SHARED)
    with pytest.raises(ConsumerAssignError, match="must not be empty"):
        subscription.add_consumer(sticky(3), KEY_SHARED)
    with pytest.raises(ConsumerAssignError, match="is not within"):
        subscription.add_consumer(sticky(4, (100, 65536)), KEY_SHARED)
    subscription.add_consumer(sticky(5, (100, 199), (300, 65535)), KEY_SHARED)


def test_delayed_entries_wait_and_others_pass_them(core: Core) -> None:
    topic = core.topic()
    client = Client()
    core.consumer(topic.create_subscription("s"), SHARED, client, permits=10)
    core.publish_all(topic, deliver_at=core.clock.now_ms() + 5_000)
    core.publish_all(topic)
    assert client.take_offsets() == [1]
    core.advance(4_999)
    assert client.take_offsets() == []
    core.advance(1)
    assert client.take_offsets() == [0]


def test_delay_is_for_shared_subscriptions_only(core: Core) -> None:
    topic = core.topic()
    client = Client()
    core.consumer(topic.create_subscription("s"), EXCLUSIVE, client, permits=10)
    core.publish_all(topic, deliver_at=core.clock.now_ms() + 5_000)
    assert client.take_offsets() == [0]


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 241])
def test_names_no_subscription_can_have(core: Core, name: str) -> None:
    with pytest.raises(PreconditionFailed, match=r"[Ss]ubscription"):
        core.topic().create_subscription(name)
    core.commit()
    assert core.topic().subscriptions == {}


@pytest.mark.parametrize("cleared", [False, True])
def test_what_waits_for_a_slow_consumer_and_expires_does_not_hold_up_the_others(
    core: Core, monkeypatch: pytest.MonkeyPatch, cleared: bool
) -> None:
    monkeypatch.setattr(dispatch_key_shared, "LOOK_AHEAD", 10)
    topic = core.topic()
    subscription = topic.create_subscription("s")
    slow, fast = Client(), Client()
    first, second = KeyRange(0, 32_767), KeyRange(32_768, 65_535)
    for index, (client, owned) in enumerate(((slow, first), (fast, second))):
        consumer = Consumer(
            subscription, client, index, f"c{index}", key_shared=KeySharedPolicy(sticky=True, ranges=(owned,))
        )
        subscription.add_consumer(consumer, KEY_SHARED)
        subscription.flow(consumer, 1 if client is slow else 1000)
    producer = core.producer(topic)
    keys = [str(number) for number in range(100)]

    def send(key: str, sequence_id: int) -> None:
        core.publish(producer, b"x", key=key, sequence_id=sequence_id)
        core.commit()

    for number, key in enumerate(keys):
        send(key, number)
    delivered = len(fast.take())
    assert delivered < 40
    if cleared:
        subscription.acks.clear_backlog(lambda error: None)
    else:
        core.broker.policies.set_topic(topic.name, Policies(message_ttl_ms=1000))
        core.advance(2000)
        core.broker.policies.set_topic(topic.name, Policies())
    core.commit()
    for number, key in enumerate(keys[:20]):
        send(key, 1000 + number)
    assert len(fast.take()) > 5
