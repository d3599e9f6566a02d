"""Official clients with more going on: reading what the cache no longer holds, consumers that come, go and refuse."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Callable
from urllib.error import HTTPError

import pulsar
import pytest

from tests.support.clients import (
    DEADLINE_MS,
    RunningBroker,
    backlog,
    connect,
    ignore_receipt,
    payloads,
    receive_available,
    receive_many,
    rest,
    stats,
)
from tests.support.polling import eventually

Kind = pulsar.ConsumerType


def test_late_subscribers_read_a_backlog_larger_than_the_cache(
    client: pulsar.Client, broker: RunningBroker, topic: str
) -> None:
    names = {"exclusive": Kind.Exclusive, "shared": Kind.Shared, "key-shared": Kind.KeyShared}
    for name in names:
        client.subscribe(topic, name).close()
    source = random.Random(3)
    sent = [b"%06d" % i + source.randbytes(40_000) for i in range(2000)]
    producer = client.create_producer(topic, block_if_queue_full=True)
    for i, payload in enumerate(sent):
        producer.send_async(payload, ignore_receipt, partition_key=f"k{i % 50}")
    producer.flush()
    for name, kind in names.items():
        count = 1 if kind == Kind.Exclusive else 2
        consumers = [client.subscribe(topic, name, consumer_type=kind, receiver_queue_size=200) for _ in range(count)]
        received: list[list[pulsar.Message]] = [[] for _ in consumers]

        def drained(
            consumers: list[pulsar.Consumer] = consumers, received: list[list[pulsar.Message]] = received
        ) -> bool:
            for consumer, share in zip(consumers, received, strict=True):
                for message in receive_available(consumer, quiet_ms=30):
                    consumer.acknowledge(message)
                    share.append(message)
            return sum(map(len, received)) >= len(sent)

        eventually(drained, within_s=180, what=f"the whole backlog of {name}")
        if kind == Kind.Exclusive:
            assert payloads(received[0]) == sent
        assert sorted(p for share in received for p in payloads(share)) == sent
        if kind == Kind.KeyShared:
            for share in received:
                for key in {m.partition_key() for m in share}:
                    of_key = payloads([m for m in share if m.partition_key() == key])
                    assert of_key == sorted(of_key)
        eventually(lambda name=name: backlog(broker, topic, name) == 0, what="an empty backlog")  # type: ignore[misc]


@pytest.mark.parametrize("batching", [False, True], ids=["unbatched", "batched"])
def test_shared_consumers_that_nack_and_leave_lose_nothing(
    client: pulsar.Client, broker: RunningBroker, topic: str, batching: bool
) -> None:
    source = random.Random(11)

    def join() -> pulsar.Consumer:
        return client.subscribe(
            topic,
            "s",
            consumer_type=Kind.Shared,
            receiver_queue_size=source.choice([1, 5, 50]),
            negative_ack_redelivery_delay_ms=100,
            batch_index_ack_enabled=True,
        )

    consumers = [join() for _ in range(3)]
    producer = client.create_producer(topic, batching_enabled=batching, batching_max_messages=7)
    total = 600
    for i in range(total):
        producer.send_async(b"%d" % i, ignore_receipt)
    producer.flush()
    acked: set[int] = set()

    def step() -> bool:
        index = source.randrange(len(consumers))
        consumer = consumers[index]
        for message in receive_available(consumer, quiet_ms=10):
            if source.random() < 0.2:
                consumer.negative_acknowledge(message)
            else:
                consumer.acknowledge(message)
                acked.add(int(message.data()))
        if source.random() < 0.1:
            consumer.close()
            consumers[index] = join()
        return len(acked) == total

    eventually(step, within_s=180, what="every message acknowledged once at least")
    # A nack and an ack of the same message may cross, so what still comes again is acknowledged until nothing is left.

    def emptied() -> bool:
        for consumer in consumers:
            for message in receive_available(consumer, quiet_ms=10):
                assert int(message.data()) in acked
                consumer.acknowledge(message)
        return backlog(broker, topic, "s") == 0

    eventually(emptied, within_s=120, what="an empty backlog")
    shown = stats(broker, topic)["subscriptions"]["s"]
    assert shown["unackedMessages"] == 0
    assert shown["backlogSize"] == 0


class OrderKeeper:
    """Listeners of one Key_Shared subscription: each message is processed after all smaller ones of its key."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.next: dict[str, int] = defaultdict(int)
        self.violations: list[str] = []

    def listener(self, name: str) -> Callable[[pulsar.Consumer, pulsar.Message], None]:
        def hear(consumer: pulsar.Consumer, message: pulsar.Message) -> None:
            key, number = message.partition_key(), int(message.data())
            with self._lock:
                if number > self.next[key]:
                    self.violations.append(f"{name} got {key}/{number} before {self.next[key]}")
                self.next[key] = max(self.next[key], number + 1)
            try:
                consumer.acknowledge(message)
            except pulsar.AlreadyClosed:
                return  # this consumer is leaving: the message will come again to another one

        return hear


def test_key_shared_order_holds_while_consumers_join_and_leave(
    client: pulsar.Client, broker: RunningBroker, topic: str
) -> None:
    source = random.Random(5)
    keeper = OrderKeeper()
    clients = [connect(broker.service_url) for _ in range(2)]
    try:

        def join(number: int) -> pulsar.Consumer:
            return source.choice(clients).subscribe(
                topic,
                "s",
                consumer_type=Kind.KeyShared,
                consumer_name=f"c{number}",
                receiver_queue_size=20,
                message_listener=keeper.listener(f"c{number}"),
            )

        consumers = [join(0), join(1)]
        producer = client.create_producer(topic)
        keys = [f"k{i}" for i in range(40)]
        for round_number in range(30):
            for key in keys:
                producer.send_async(b"%d" % round_number, ignore_receipt, partition_key=key)
            producer.flush()
            if round_number % 3 == 1:
                consumers.append(join(round_number + 2))
            if round_number % 3 == 2:
                consumers.pop(source.randrange(len(consumers))).close()
        eventually(lambda: all(keeper.next[key] == 30 for key in keys), within_s=120, what="every key to its end")
        assert keeper.violations == []
        eventually(lambda: backlog(broker, topic, "s") == 0, what="an empty backlog")
    finally:
        for connected in clients:
            connected.close()


def test_producer_and_consumer_survive_their_topics_deletion(
    client: pulsar.Client, broker: RunningBroker, topic: str
) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    producer.send(b"old")
    assert consumer.receive(DEADLINE_MS).data() == b"old"
    rest(broker, "DELETE", f"persistent/public/default/{topic}?force=true")

    # Both reconnect by themselves, and with that the topic is recreated.
    def consumers() -> int:
        return len(stats(broker, topic)["subscriptions"]["s"]["consumers"])

    eventually(lambda: consumers() == 1, not_yet=(HTTPError, KeyError), what="the consumer to be back")
    producer.send(b"new")
    assert consumer.receive(DEADLINE_MS).data() == b"new"
    assert backlog(broker, topic, "s") == 1


def test_publishers_of_many_connections_keep_their_own_order(
    client: pulsar.Client, broker: RunningBroker, topic: str
) -> None:
    consumer = client.subscribe(topic, "s")
    clients = [connect(broker.service_url) for _ in range(4)]
    try:
        producers = [owner.create_producer(topic, batching_enabled=i % 2 == 0) for i, owner in enumerate(clients)]
        for i in range(250):
            for number, producer in enumerate(producers):
                producer.send_async(b"%d %d" % (number, i), ignore_receipt)
        for producer in producers:
            producer.flush()
        heard: dict[bytes, list[int]] = defaultdict(list)
        for message in receive_many(consumer, 1000):
            number, i = message.data().split()
            heard[number].append(int(i))
        assert all(numbers == list(range(250)) for numbers in heard.values())
        assert len(heard) == 4
    finally:
        for connected in clients:
            connected.close()
