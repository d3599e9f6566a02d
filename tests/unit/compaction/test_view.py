"""Cursors on the compacted view: backlog, redelivery, standbys, and positions in it."""

from __future__ import annotations

import pytest
from heliograph_api.policies.policies import Policies
from heliograph_broker.messaging.clients.consumer import Consumer, KeyRange
from heliograph_broker.messaging.delivery.subscription import AckId
from heliograph_broker.messaging.messages.key_hash import SLOTS, hash_of
from heliograph_broker.messaging.topic.truncation import truncate

from tests.support.compaction import (
    FOREVER,
    acknowledge,
    attach,
    compact,
    contents,
    publish,
    publish_batch,
    reader,
    seen,
    set_policies,
    view,
)
from tests.support.core import Client, Core
from tests.support.subscription_types import FAILOVER


def test_backlog_of_a_durable_subscription_comes_to_zero_by_single_acknowledgments(core: Core) -> None:
    topic = core.topic()
    subscription = topic.create_subscription("s", "earliest")
    publish(core, topic, *((f"k{i % 3}", b"%d" % i) for i in range(30)), (None, b"gone"))
    compact(core, topic)
    _, consumer, client = attach(subscription)
    messages = seen(client)
    assert len(messages) == 3
    for message in reversed(messages):
        acknowledge(subscription, message)
    assert (subscription.acks.backlog_messages, subscription.acks.backlog_bytes) == (0, 0)
    assert subscription.acks.cursor.mark_delete == 30
    assert (consumer.unacked, subscription.acks.pending) == (0, {})
    core.advance(1000)
    assert topic.log.first_offset == 31


def test_backlog_comes_to_zero_by_cumulative_acknowledgment(core: Core) -> None:
    topic = core.topic()
    subscription = topic.create_subscription("s", "earliest")
    publish(core, topic, *((f"k{i % 3}", b"%d" % i) for i in range(30)), (None, b"gone"))
    compact(core, topic)
    _, consumer, client = attach(subscription)
    last = seen(client)[-1]
    subscription.acks.acknowledge_cumulative(consumer, AckId(*last.position[:2]), None)
    assert (subscription.acks.backlog_messages, subscription.acks.backlog_bytes, consumer.unacked) == (0, 0, 0)


def test_what_was_acknowledged_before_the_compaction_stays_so(core: Core) -> None:
    topic = core.topic()
    subscription = topic.create_subscription("s", "earliest")
    publish(core, topic, *((f"k{i % 3}", b"%d" % i) for i in range(30)))
    subscription.acks.acknowledge(None, [AckId(*topic.log.position(i)) for i in (4, 9, 28)], None)
    compact(core, topic)
    _, _, client = attach(subscription)
    messages = seen(client)
    assert [message.payload for message in messages] == [b"27", b"29"]
    for message in messages:
        acknowledge(subscription, message)
    assert (subscription.acks.backlog_messages, subscription.acks.backlog_bytes) == (0, 0)


def test_batch_in_part_left_out_is_acknowledged_by_the_rest(core: Core) -> None:
    topic = core.topic()
    subscription = topic.create_subscription("s", "earliest")
    publish_batch(core, topic, ("a", b"1"), ("b", b"1"), ("c", b"1"))
    publish(core, topic, ("b", b"2"))
    compact(core, topic)
    _, consumer, client = attach(subscription)
    first, second, third = seen(client)
    assert consumer.permits == 997
    assert consumer.unacked == 3
    acknowledge(subscription, first, 0b110)
    assert subscription.acks.backlog_messages == 2
    acknowledge(subscription, second, 0b011)
    acknowledge(subscription, third)
    assert (subscription.acks.backlog_messages, subscription.acks.backlog_bytes, consumer.unacked) == (0, 0, 0)


def test_trimmed_messages_are_owed_until_they_are_acknowledged(core: Core) -> None:
    topic = core.topic()
    publish(core, topic, *((f"k{i % 4}", b"%d" % i) for i in range(20)))
    compact(core, topic)
    core.advance(1000)
    assert topic.log.first_offset == 20
    subscription = topic.create_subscription("s", "earliest")
    _, consumer, client = attach(subscription, owed=0)
    messages = seen(client)
    assert [message.payload for message in messages] == [b"16", b"17", b"18", b"19"]
    assert consumer.unacked == 4
    acknowledge(subscription, messages[0])
    acknowledge(subscription, messages[1])
    assert consumer.unacked == 2
    core.restart()
    topic = core.topic()
    subscription = topic.subscriptions["s"]
    _, consumer, client = attach(subscription)
    messages = seen(client)
    assert [message.payload for message in messages] == [b"18", b"19"]
    subscription.acks.acknowledge_cumulative(consumer, AckId(*messages[1].position[:2]), None)
    assert consumer.unacked == 0
    publish(core, topic, ("new", b"1"))
    assert contents(client) == [("new", b"1")]
    core.restart()
    _, _, client = attach(core.topic().subscriptions["s"])
    assert contents(client) == [("new", b"1")]


def test_redelivery_begins_again_at_the_first_unacknowledged(core: Core) -> None:
    topic = core.topic()
    publish(core, topic, *((f"k{i % 4}", b"%d" % i) for i in range(20)))
    compact(core, topic)
    core.advance(1000)
    subscription, consumer, client = reader(core, topic)
    first = seen(client)[0]
    acknowledge(subscription, first)
    subscription.redeliver(consumer, None, None)
    assert [message.payload for message in seen(client)] == [b"17", b"18", b"19"]


def test_few_permits_bring_the_view_in_pieces(core: Core) -> None:
    topic = core.topic()
    set_policies(core, topic, FOREVER)
    publish(core, topic, *((f"k{i % 5}", b"%d" % i) for i in range(20)))
    compact(core, topic)
    publish(core, topic, ("k0", b"20"))
    subscription, consumer, client = reader(core, topic, permits=2)
    assert [payload for _, payload in contents(client)] == [b"15", b"16"]
    subscription.flow(consumer, 3)
    assert [payload for _, payload in contents(client)] == [b"17", b"18", b"19"]
    compact(core, topic)
    subscription.flow(consumer, 3)
    assert [payload for _, payload in contents(client)] == [b"20"]


def test_reader_of_the_originals_goes_on_in_the_view_where_it_was(core: Core) -> None:
    topic = core.topic()
    set_policies(core, topic, FOREVER)
    publish(core, topic, *((f"k{i % 5}", b"%d" % i) for i in range(20)))
    subscription, consumer, client = reader(core, topic, permits=3)
    assert [payload for _, payload in contents(client)] == [b"0", b"1", b"2"]
    compact(core, topic)
    subscription.flow(consumer, 100)
    assert [payload for _, payload in contents(client)] == [b"15", b"16", b"17", b"18", b"19"]


def test_trimming_under_a_reader_that_has_read_on_brings_nothing_again(core: Core) -> None:
    topic = core.topic()
    publish(core, topic, ("keep", b"x"))
    topic.create_subscription("s", "earliest")
    publish(core, topic, *((f"k{i % 5}", b"%d" % i) for i in range(20)))
    subscription, consumer, client = reader(core, topic)
    assert len(contents(client)) == 21
    compact(core, topic)
    topic.subscriptions["s"].acks.clear_backlog(lambda error: None)
    core.advance(1000)
    assert topic.log.first_offset == topic.log.end_offset
    publish(core, topic, ("k0", b"20"))
    subscription.flow(consumer, 10)
    assert contents(client) == [("k0", b"20")]


def test_standby_takes_over_at_the_first_unacknowledged_of_the_view(core: Core) -> None:
    topic = core.topic()
    publish(core, topic, *((f"k{i % 4}", b"%d" % i) for i in range(20)))
    compact(core, topic)
    core.advance(1000)
    publish(core, topic, ("k9", b"20"))
    subscription = topic.create_subscription("s", "earliest")
    clients = [Client(), Client()]
    consumers = []
    for number, client in enumerate(clients):
        consumer = Consumer(subscription, client, number, f"c{number}")
        consumer.read_compacted = True
        subscription.add_consumer(consumer, FAILOVER)
        consumers.append(consumer)
        if number == 0:
            assert subscription.view is not None
            subscription.view.owe(topic.compaction.trimmed_from(-1, -1))
        subscription.flow(consumer, 100)
    first = seen(clients[0])
    assert [message.payload for message in first] == [b"16", b"17", b"18", b"19", b"20"]
    acknowledge(subscription, first[0])
    acknowledge(subscription, first[1])
    subscription.remove_consumer(consumers[0])
    assert [message.payload for message in seen(clients[1])] == [b"18", b"19", b"20"]


@pytest.mark.parametrize("trimmed", [False, True])
def test_a_reader_of_a_range_sees_its_keys_only(core: Core, trimmed: bool) -> None:
    topic = core.topic()
    set_policies(core, topic, Policies() if trimmed else FOREVER)
    keys: list[str | None] = [f"k{at}" for at in range(10)]
    for value in (b"1", b"2"):
        publish(core, topic, *((key, value) for key in keys))
    compact(core, topic)
    core.advance(1000)
    assert topic.log.first_offset == (20 if trimmed else 0)
    subscription = topic.create_subscription("s", "earliest")
    low, high = (KeyRange(0, 32767),), (KeyRange(32768, 65535),)
    _, consumer, client = attach(subscription, owed=0, ranges=low)
    expected = [(key, b"2") for key in keys if hash_of(str(key)) % SLOTS <= 32767]
    assert 0 < len(expected) < len(keys)
    assert contents(client) == expected
    subscription.remove_consumer(consumer)
    _, consumer, client = attach(subscription, ranges=high)
    assert contents(client) == [(key, b"2") for key in keys if (key, b"2") not in expected]


def test_clearing_the_backlog_settles_what_is_owed(core: Core) -> None:
    topic = core.topic()
    publish(core, topic, *((f"k{i % 4}", b"%d" % i) for i in range(20)))
    compact(core, topic)
    core.advance(1000)
    subscription = topic.create_subscription("s", "earliest")
    _, consumer, client = attach(subscription, owed=0, permits=2)
    assert len(seen(client)) == 2
    subscription.acks.clear_backlog(lambda error: None)
    assert consumer.unacked == 0
    subscription.flow(consumer, 100)
    assert seen(client) == []
    core.restart()
    assert seen(attach(core.topic().subscriptions["s"])[2]) == []


def test_truncating_a_topic_empties_the_view(core: Core) -> None:
    topic = core.topic()
    publish(core, topic, *((f"k{i % 4}", b"%d" % i) for i in range(20)))
    compact(core, topic)
    answers: list[object] = []
    truncate(topic, answers.append)
    core.commit()
    assert answers == [None]
    assert view(core, topic) == []
    assert core.store.segments.live_bytes() == 0
    publish(core, topic, ("k1", b"20"))
    compact(core, topic)
    assert view(core, topic) == [("k1", b"20")]


def test_last_position_is_that_of_the_view_while_nothing_follows_it(core: Core) -> None:
    topic = core.topic()
    assert topic.compaction.last_position() is None
    publish_batch(core, topic, ("a", b"1"), ("b", b"1"), ("c", b""))
    position = topic.log.position(0)
    publish(core, topic, ("c", b""), (None, b"x"))
    compact(core, topic)
    assert topic.compaction.last_position() == (*position, 1)
    publish(core, topic, ("b", b"2"))
    assert topic.compaction.last_position() is None
    last = topic.log.position(3)
    compact(core, topic)
    assert topic.compaction.last_position() == (*last, -1)
    publish(core, topic, ("a", b""), ("b", b""))
    compact(core, topic)
    assert topic.compaction.last_position() == (-1, -1, -1)


def test_old_positions_and_times_are_found_in_the_view(core: Core) -> None:
    topic = core.topic()
    times = []
    for i in range(20):
        times.append(core.clock.now_ms())
        publish(core, topic, (f"k{i % 12}", b"%d" % i))
        core.clock.advance_ms(10)
    positions = [topic.log.position(i) for i in range(20)]
    compact(core, topic)
    core.advance(1000)
    publish(core, topic, ("new", b"20"))
    expected = list(range(8, 21))
    for i in range(20):
        for name, start in (
            ("p", topic.compaction.trimmed_from(*positions[i])),
            ("t", topic.compaction.trimmed_published_at_or_after(times[i])),
        ):
            subscription = topic.create_subscription(f"{name}{i}", "earliest", durable=False)
            found = [int(payload) for _, payload in contents(attach(subscription, owed=start)[2])]
            assert found == [value for value in expected if value >= i]
    assert topic.compaction.trimmed_from(-1, -1) == 0
    assert topic.compaction.trimmed_from(*topic.log.position(20)) == -1
