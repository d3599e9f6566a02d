"""Options of the official Python client that rest on the broker's ordinary part: lists, tables, routing, chunks."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pulsar

from tests.support.broker_process import BrokerProcess
from tests.support.clients import (
    DEADLINE_MS,
    RunningBroker,
    backlog,
    connect,
    create_partitions,
    numbers,
    payloads,
    publish,
    receive_many,
    receive_or_none,
    stats,
)
from tests.support.entries import make_entry
from tests.support.polling import DEADLINE_S, eventually
from tests.support.wire_client import WireClient


def test_readme_example(broker: RunningBroker, topic: str) -> None:
    """The steps of the client's own example: a producer, a consumer on its defaults, and an acknowledgment."""
    client = pulsar.Client(broker.service_url)
    consumer = client.subscribe(topic, "my-subscription")
    producer = client.create_producer(topic)
    for number in range(10):
        producer.send(f"Hello-{number}".encode())
    for number in range(10):
        message = consumer.receive(DEADLINE_MS)
        assert message.data() == f"Hello-{number}".encode()
        consumer.acknowledge(message)
    client.close()


def test_list_of_topics(client: pulsar.Client, broker: RunningBroker, topic: str) -> None:
    names = [f"{topic}-{number}" for number in range(3)]
    create_partitions(broker, names[2], 2)
    consumer = client.subscribe(names, "s", consumer_type=pulsar.ConsumerType.Shared)
    for name in names:
        publish(client, name, numbers(0, 9))
    found = [
        message.topic_name().rpartition("/")[2].partition("-partition-")[0] for message in receive_many(consumer, 30)
    ]
    assert {name: found.count(name) for name in names} == dict.fromkeys(names, 10)


def test_single_partition_keeps_the_order_of_a_producer(
    client: pulsar.Client, broker: RunningBroker, topic: str
) -> None:
    create_partitions(broker, topic, 3)
    consumer = client.subscribe(topic, "s")
    publish(client, topic, numbers(0, 49), message_routing_mode=pulsar.PartitionsRoutingMode.UseSinglePartition)
    messages = receive_many(consumer, 50)
    assert payloads(messages) == numbers(0, 49)
    assert len({message.topic_name() for message in messages}) == 1


def test_listener_gets_every_message(client: pulsar.Client, topic: str) -> None:
    received: list[bytes] = []
    done = threading.Event()

    def listen(consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        received.append(bytes(message.data()))
        consumer.acknowledge(message)
        if len(received) == 100:
            done.set()

    client.subscribe(topic, "s", message_listener=listen)
    publish(client, topic, numbers(0, 99))
    assert done.wait(DEADLINE_MS / 1000)
    assert received == numbers(0, 99)


def test_table_view_has_the_last_value_of_each_key(client: pulsar.Client, topic: str) -> None:
    client.subscribe(topic, "keeper").close()
    publish(client, topic, numbers(0, 29), keys=3)
    view = client.create_table_view(topic)
    assert {key: view.get(key) for key in ("k0", "k1", "k2")} == {"k0": b"27", "k1": b"28", "k2": b"29"}
    publish(client, topic, [b"new"], keys=1)
    eventually(lambda: view.get("k0") == b"new", what="the new value to be in the table")
    assert len(view) == 3
    view.close()


def test_incomplete_chunks_are_acknowledged_when_too_many_are_pending(
    client: pulsar.Client, broker: RunningBroker, topic: str
) -> None:
    consumer = client.subscribe(
        topic, "s", max_pending_chunked_message=1, auto_ack_oldest_chunked_message_on_queue_full=True
    )
    name = f"persistent://public/default/{topic}"
    with WireClient(broker.service_url) as wired:
        # Three producers that end after the first of two chunks.
        for number in range(3):
            chunk = make_entry(b"half", chunk=(0, 2), sequence_id=number, total_chunk_msg_size=8)
            wired.publish(wired.producer(name), chunk, sequence_id=number)
    eventually(lambda: backlog(broker, topic, "s") == 1, what="all but the last incomplete message to be acknowledged")
    publish(client, topic, [b"whole"])
    assert consumer.receive(DEADLINE_MS).data() == b"whole"


def test_chunks_are_counted_in_the_statistics(client: pulsar.Client, broker: RunningBroker, topic: str) -> None:
    client.subscribe(topic, "keeper")
    producer = client.create_producer(topic, chunking_enabled=True)

    def chunk_rate() -> float:
        producer.send(bytes(6 << 20))
        return float(stats(broker, topic)["publishers"][0]["chunkedMessageRate"])

    assert eventually(chunk_rate, what="the rate of chunked messages") > 0


def test_ack_timeouts_on_key_shared_end_in_the_default_dead_letter_topic(client: pulsar.Client, topic: str) -> None:
    name = f"persistent://public/default/{topic}"
    dead = client.subscribe(f"{name}-s-DLQ", "letters", consumer_type=pulsar.ConsumerType.Shared)
    consumer = client.subscribe(
        name,
        "s",
        consumer_type=pulsar.ConsumerType.KeyShared,
        # 10 s is the shortest timeout that the client takes.
        unacked_messages_timeout_ms=10_000,
        dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(max_redeliver_count=1),
    )
    client.create_producer(name).send(b"poison", partition_key="k")
    for count in range(2):
        assert consumer.receive(2 * DEADLINE_MS).redelivery_count() == count

    def dead_letter() -> pulsar.Message | None:
        # The client publishes the letter when the message comes once more to one that waits for it.
        assert receive_or_none(consumer, 500) is None
        return receive_or_none(dead, 100)

    letter = eventually(dead_letter, within_s=2 * DEADLINE_S, what="the letter")
    assert letter is not None
    assert (letter.data(), letter.partition_key()) == (b"poison", "k")
    assert letter.properties()["REAL_TOPIC"] == name


def test_non_persistent_topic_comes_back_by_itself_after_a_restart(
    broker_factory: Callable[..., BrokerProcess], topic: str
) -> None:
    with broker_factory() as broker:
        name = f"non-persistent://public/default/{topic}"
        client = connect(broker.service_url)
        consumer = client.subscribe(name, "s", consumer_type=pulsar.ConsumerType.Shared)
        producer = client.create_producer(name)
        producer.send(b"before")
        assert consumer.receive(DEADLINE_MS).data() == b"before"
        broker.kill9()
        broker.start()

        def again() -> bool:
            # The client reconnects both by itself; a message that comes before the consumer is lost.
            producer.send(b"after")
            try:
                return bytes(consumer.receive(200).data()) == b"after"
            except pulsar.Timeout:
                return False

        eventually(again, what="the topic to deliver after the restart")
        client.close()
