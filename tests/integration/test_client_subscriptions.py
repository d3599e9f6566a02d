"""The four subscription types share messages among consumers, as consumers come and go."""

from __future__ import annotations

from collections import defaultdict

import pulsar
import pytest

from tests.support.clients import (
    DEADLINE_MS,
    RunningBroker,
    backlog,
    connect,
    create_partitions,
    ignore_receipt,
    payloads,
    receive_available,
    receive_many,
    receive_or_none,
    receive_shares,
    rest,
    stats,
)
from tests.support.polling import eventually


def test_exclusive_refuses_a_second_consumer(client: pulsar.Client, topic: str) -> None:
    first = client.subscribe(topic, "s")
    with pytest.raises(pulsar.ConsumerBusy):
        client.subscribe(topic, "s")
    first.close()
    client.subscribe(topic, "s")


def test_subscription_refuses_a_consumer_of_another_type(client: pulsar.Client, topic: str) -> None:
    client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    for other in (pulsar.ConsumerType.Failover, pulsar.ConsumerType.KeyShared, pulsar.ConsumerType.Exclusive):
        with pytest.raises(pulsar.ConsumerBusy):
            client.subscribe(topic, "s", consumer_type=other)


def test_type_may_change_once_all_consumers_have_left(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    client.create_producer(topic).send(b"kept")
    consumer.receive(DEADLINE_MS)
    consumer.close()
    for kind in (pulsar.ConsumerType.Exclusive, pulsar.ConsumerType.KeyShared, pulsar.ConsumerType.Failover):
        consumer = client.subscribe(topic, "s", consumer_type=kind)
        assert consumer.receive(DEADLINE_MS).data() == b"kept"
        consumer.close()


def test_shared_spreads_messages_and_delivers_each_once(client: pulsar.Client, topic: str) -> None:
    consumers = [
        client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared, receiver_queue_size=10) for _ in range(3)
    ]
    producer = client.create_producer(topic)
    sent = [b"%d" % i for i in range(30)]
    for payload in sent:
        producer.send(payload)
    received = [payloads(share) for share in receive_shares(30, *consumers)]
    assert all(received), "every consumer has a share"
    assert sorted(p for share in received for p in share) == sorted(sent)


def test_shared_consumer_that_closes_gives_its_unacked_messages_to_the_others(
    client: pulsar.Client, topic: str
) -> None:
    kind = pulsar.ConsumerType.Shared
    leaving = client.subscribe(topic, "s", consumer_type=kind)
    producer = client.create_producer(topic)
    for i in range(20):
        producer.send(b"%d" % i)
    held = receive_many(leaving, 10, acknowledge=False)
    leaving.acknowledge(held[0])
    staying = client.subscribe(topic, "s", consumer_type=kind)
    leaving.close()
    received = receive_many(staying, 19)
    assert sorted(payloads(received)) == sorted(b"%d" % i for i in range(1, 20))


def test_exclusive_consumer_that_reconnects_continues_at_the_first_unacked(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    for i in range(10):
        producer.send(b"%d" % i)
    for message in receive_many(consumer, 10, acknowledge=False)[:4]:
        consumer.acknowledge(message)
    consumer.close()
    assert payloads(receive_many(client.subscribe(topic, "s"), 6)) == [b"%d" % i for i in range(4, 10)]


def test_failover_passes_to_the_next_in_line(client: pulsar.Client, topic: str) -> None:
    kind = pulsar.ConsumerType.Failover
    producer = client.create_producer(topic)
    # On a topic that is not partitioned the order of subscribing decides, whatever the names.
    line = [client.subscribe(topic, "s", consumer_type=kind, consumer_name=name) for name in ("m", "z", "a")]
    for i in range(5):
        producer.send(b"%d" % i)
    first = receive_many(line[0], 5, acknowledge=False)
    assert receive_or_none(line[1], 100) is None
    assert receive_or_none(line[2], 100) is None
    line[0].acknowledge(first[0])
    line[0].close()
    # Not acknowledged and later messages go to one consumer, in order.
    producer.send(b"5")
    takes_over = eventually(
        lambda: next((c for c in line[1:] if (m := receive_or_none(c, 100)) and m.data() == b"1"), None),
        what="another consumer to take over at the first unacknowledged message",
    )
    assert payloads(receive_many(takes_over, 4)) == [b"%d" % i for i in range(2, 6)]
    idle = line[2] if takes_over is line[1] else line[1]
    assert receive_or_none(idle, 100) is None


def test_failover_spreads_partitions_over_consumers(client: pulsar.Client, broker: RunningBroker, topic: str) -> None:
    create_partitions(broker, topic, 4)
    kind = pulsar.ConsumerType.Failover
    first = client.subscribe(topic, "s", consumer_type=kind, consumer_name="a")
    second = client.subscribe(topic, "s", consumer_type=kind, consumer_name="b")

    def active() -> set[str]:
        answer = [stats(broker, f"{topic}-partition-{i}")["subscriptions"]["s"] for i in range(4)]
        return {sub["activeConsumerName"] for sub in answer if len(sub["consumers"]) == 2}

    assert eventually(lambda: len(active()) == 2, what="both consumers active on some partition")
    producer = client.create_producer(topic)
    for i in range(40):
        producer.send(b"%d" % i)
    shares = receive_shares(40, first, second)
    assert all(shares)
    partitions = [{m.message_id().partition() for m in share} for share in shares]
    assert partitions[0].isdisjoint(partitions[1])


class KeyHolders:
    """Consumers of one Key_Shared subscription, and the check that no key is ever out at two of them."""

    def __init__(self) -> None:
        self.outstanding: dict[str, list[tuple[pulsar.Consumer, pulsar.Message]]] = defaultdict(list)
        self.log: list[tuple[str, int]] = []

    def take(self, consumer: pulsar.Consumer) -> int:
        """Receive what is there without acknowledging; returns how many."""
        messages = receive_available(consumer, quiet_ms=120)
        for message in messages:
            key = message.partition_key()
            for holder, held in self.outstanding[key]:
                assert holder is consumer, f"{held.data()!r} of key {key} is still unacknowledged at another consumer"
            self.outstanding[key].append((consumer, message))
            self.log.append((key, int(message.data())))
        return len(messages)

    def acknowledge_all(self) -> None:
        for held in self.outstanding.values():
            for consumer, message in held:
                consumer.acknowledge(message)
        self.outstanding.clear()

    def forget(self, consumer: pulsar.Consumer) -> None:
        """The consumer has left: what it held will come again."""
        for key, held in self.outstanding.items():
            lost = [int(message.data()) for holder, message in held if holder is consumer]
            self.outstanding[key] = [(h, m) for h, m in held if h is not consumer]
            self.log = [(k, n) for k, n in self.log if k != key or n not in lost]


def test_key_shared_keeps_one_holder_a_key_across_joins_and_leaves(client: pulsar.Client, topic: str) -> None:
    kind = pulsar.ConsumerType.KeyShared
    keys = [f"key-{i}" for i in range(24)]
    producer = client.create_producer(topic)
    counter = 0

    def publish(rounds: int) -> None:
        nonlocal counter
        for _ in range(rounds):
            for key in keys:
                producer.send_async(b"%d" % counter, ignore_receipt, partition_key=key)
                counter += 1
        producer.flush()

    def join(name: str) -> pulsar.Consumer:
        return client.subscribe(topic, "s", consumer_type=kind, consumer_name=name)

    holders = KeyHolders()
    consumers = [join("a"), join("b")]
    publish(2)

    def taken() -> bool:
        return sum([holders.take(consumer) for consumer in consumers]) == 0 and len(holders.log) >= counter

    eventually(taken, what="the first messages")
    assert len(holders.log) == counter
    consumers.append(join("c"))  # joins while every key is held
    publish(2)
    for consumer in consumers:
        holders.take(consumer)
    holders.acknowledge_all()
    for consumer in consumers:
        holders.take(consumer)
    leaving = consumers.pop(0)  # leaves while it holds messages
    publish(1)
    for consumer in (leaving, *consumers):
        holders.take(consumer)
    holders.forget(leaving)
    leaving.close()
    publish(1)

    def drained() -> bool:
        for consumer in consumers:
            holders.take(consumer)
        holders.acknowledge_all()
        return len(holders.log) >= counter

    eventually(drained, what="every message of every key")
    by_key: dict[str, list[int]] = defaultdict(list)
    for key, number in holders.log:
        by_key[key].append(number)
    assert sorted(by_key) == sorted(keys)
    for key, numbers in by_key.items():
        assert numbers == list(range(keys.index(key), counter, len(keys))), key


def test_key_shared_spreads_keys_and_takes_batches_by_key(client: pulsar.Client, topic: str) -> None:
    kind = pulsar.ConsumerType.KeyShared
    consumers = [client.subscribe(topic, "s", consumer_type=kind) for _ in range(2)]
    producer = client.create_producer(
        topic,
        batching_enabled=True,
        batching_type=pulsar.BatchingType.KeyBased,
        batching_max_publish_delay_ms=200,
    )
    for i in range(300):
        producer.send_async(b"%d" % i, ignore_receipt, partition_key=f"k{i % 30}")
    producer.flush()
    shares = receive_shares(300, *consumers)
    keys = [{m.partition_key() for m in share} for share in shares]
    assert all(keys)
    assert keys[0].isdisjoint(keys[1])
    for share in shares:
        for key in {m.partition_key() for m in share}:
            numbers = [int(m.data()) for m in share if m.partition_key() == key]
            assert numbers == list(range(int(key[1:]), 300, 30))


def test_key_shared_sticky_ranges_are_kept_and_overlaps_refused(client: pulsar.Client, topic: str) -> None:
    kind = pulsar.ConsumerType.KeyShared

    def sticky(low: int, high: int) -> pulsar.ConsumerKeySharedPolicy:
        return pulsar.ConsumerKeySharedPolicy(key_shared_mode=pulsar.KeySharedMode.Sticky, sticky_ranges=[(low, high)])

    low = client.subscribe(topic, "s", consumer_type=kind, key_shared_policy=sticky(0, 32767))
    with pytest.raises(pulsar.ConsumerAssignError):
        client.subscribe(topic, "s", consumer_type=kind, key_shared_policy=sticky(32000, 40000))
    high = client.subscribe(topic, "s", consumer_type=kind, key_shared_policy=sticky(32768, 65535))
    producer = client.create_producer(topic)
    for i in range(100):
        producer.send(b"%d" % i, partition_key=str(i))
    shares = [{m.partition_key() for m in share} for share in receive_shares(100, low, high)]
    assert all(shares)
    assert shares[0] | shares[1] == {str(i) for i in range(100)}
    assert shares[0].isdisjoint(shares[1])


def test_unsubscribe_removes_the_subscription(client: pulsar.Client, broker: RunningBroker, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    client.create_producer(topic).send(b"forgotten")
    consumer.receive(DEADLINE_MS)
    assert rest(broker, "GET", f"persistent/public/default/{topic}/subscriptions") == ["s"]
    consumer.unsubscribe()
    assert rest(broker, "GET", f"persistent/public/default/{topic}/subscriptions") == []
    again = client.subscribe(topic, "s")
    client.create_producer(topic).send(b"new")
    assert again.receive(DEADLINE_MS).data() == b"new"


def test_unsubscribe_is_refused_while_others_are_connected(client: pulsar.Client, topic: str) -> None:
    kind = pulsar.ConsumerType.Shared
    first = client.subscribe(topic, "s", consumer_type=kind)
    second = client.subscribe(topic, "s", consumer_type=kind)
    with pytest.raises(pulsar.PulsarException):
        first.unsubscribe()
    client.create_producer(topic).send(b"still here")

    def received() -> list[bytes]:
        # The client may have given up the one that asked.
        return payloads([m for c in (first, second) if c.is_connected() for m in receive_available(c, quiet_ms=50)])

    assert eventually(received, what="the message") == [b"still here"]


def test_backlog_waits_for_a_subscription_without_consumers(
    client: pulsar.Client, broker: RunningBroker, topic: str
) -> None:
    client.subscribe(topic, "s").close()
    producer = client.create_producer(topic, batching_enabled=True)
    for i in range(100):
        producer.send_async(b"%d" % i, ignore_receipt)
    producer.flush()
    assert backlog(broker, topic, "s") == 100
    other = connect(broker.service_url)
    try:
        assert payloads(receive_many(other.subscribe(topic, "s"), 100)) == [b"%d" % i for i in range(100)]
    finally:
        other.close()
    eventually(lambda: backlog(broker, topic, "s") == 0, what="an empty backlog")
