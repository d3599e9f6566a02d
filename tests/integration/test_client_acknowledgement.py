"""Acknowledging or not, and what comes again: nacks, timeouts, cumulative and batch-index acks, DLQ."""

from __future__ import annotations

import pulsar
import pytest

from tests.support.clients import (
    DEADLINE_MS,
    RunningBroker,
    backlog,
    ignore_receipt,
    numbers,
    payloads,
    publish_batch,
    receive_many,
    receive_or_none,
)
from tests.support.polling import eventually


@pytest.mark.parametrize("kind", [pulsar.ConsumerType.Shared, pulsar.ConsumerType.KeyShared], ids=lambda k: k.name)
def test_nacked_message_comes_again_counted(client: pulsar.Client, topic: str, kind: pulsar.ConsumerType) -> None:
    consumer = client.subscribe(topic, "s", consumer_type=kind, negative_ack_redelivery_delay_ms=100)
    client.create_producer(topic).send(b"again", partition_key="k")
    for count in range(3):
        message = consumer.receive(DEADLINE_MS)
        assert (message.data(), message.redelivery_count()) == (b"again", count)
        consumer.negative_acknowledge(message)
    message = consumer.receive(DEADLINE_MS)
    consumer.acknowledge(message)
    assert receive_or_none(consumer, 500) is None


def test_nack_on_exclusive_redelivers(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", negative_ack_redelivery_delay_ms=100)
    producer = client.create_producer(topic)
    for i in range(3):
        producer.send(b"%d" % i)
    messages = receive_many(consumer, 3, acknowledge=False)
    consumer.acknowledge(messages[0])
    consumer.negative_acknowledge(messages[2])
    # On an ordered subscription everything from the first unacknowledged message comes again.
    assert payloads(receive_many(consumer, 2)) == [b"1", b"2"]


def test_nack_of_one_message_of_a_batch_brings_only_what_is_unacked(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(
        topic,
        "s",
        consumer_type=pulsar.ConsumerType.Shared,
        negative_ack_redelivery_delay_ms=100,
        batch_index_ack_enabled=True,
    )
    publish_batch(client, topic, numbers(0, 4))
    messages = receive_many(consumer, 5, acknowledge=False)
    for message in messages[:4]:
        consumer.acknowledge(message)
    consumer.negative_acknowledge(messages[4])
    again = consumer.receive(DEADLINE_MS)
    assert (again.data(), again.redelivery_count()) == (b"4", 1)
    consumer.acknowledge(again)
    assert receive_or_none(consumer, 500) is None


def test_redeliver_unacknowledged_messages(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic)
    for i in range(10):
        producer.send(b"%d" % i)
    for message in receive_many(consumer, 10, acknowledge=False)[:5]:
        consumer.acknowledge(message)
    consumer.redeliver_unacknowledged_messages()
    again = receive_many(consumer, 5)
    assert sorted(payloads(again)) == [b"5", b"6", b"7", b"8", b"9"]
    assert {m.redelivery_count() for m in again} == {1}


def test_ack_timeout_brings_the_message_again(client: pulsar.Client, topic: str) -> None:
    # 10 s is the shortest timeout that the client takes.
    consumer = client.subscribe(
        topic, "s", consumer_type=pulsar.ConsumerType.Shared, unacked_messages_timeout_ms=10_000
    )
    producer = client.create_producer(topic)
    producer.send(b"acked")
    producer.send(b"forgotten")
    first, second = receive_many(consumer, 2, acknowledge=False)
    consumer.acknowledge(first)
    again = consumer.receive(DEADLINE_MS)
    assert (again.data(), again.redelivery_count()) == (b"forgotten", 1)
    assert again.message_id() == second.message_id()
    consumer.acknowledge(again)


def test_cumulative_ack_covers_everything_before(client: pulsar.Client, broker: RunningBroker, topic: str) -> None:
    for kind in (pulsar.ConsumerType.Exclusive, pulsar.ConsumerType.Failover):
        name = f"{topic}-{kind.name}"
        consumer = client.subscribe(name, "s", consumer_type=kind)
        producer = client.create_producer(name)
        for i in range(10):
            producer.send(b"%d" % i)
        messages = receive_many(consumer, 10, acknowledge=False)
        consumer.acknowledge_cumulative(messages[6])
        eventually(lambda n=name: backlog(broker, n, "s") == 3, what="a backlog of 3")  # type: ignore[misc]
        consumer.close()
        consumer = client.subscribe(name, "s", consumer_type=kind)
        assert payloads(receive_many(consumer, 3)) == [b"7", b"8", b"9"]


@pytest.mark.parametrize("kind", [pulsar.ConsumerType.Shared, pulsar.ConsumerType.KeyShared], ids=lambda k: k.name)
def test_cumulative_ack_is_refused_on_shared_types(
    client: pulsar.Client, topic: str, kind: pulsar.ConsumerType
) -> None:
    consumer = client.subscribe(topic, "s", consumer_type=kind)
    client.create_producer(topic).send(b"x")
    with pytest.raises(pulsar.CumulativeAcknowledgementNotAllowedError):
        consumer.acknowledge_cumulative(consumer.receive(DEADLINE_MS))


def test_batch_index_acks_survive_the_consumer(client: pulsar.Client, broker: RunningBroker, topic: str) -> None:
    def subscribe() -> pulsar.Consumer:
        return client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared, batch_index_ack_enabled=True)

    consumer = subscribe()
    publish_batch(client, topic, numbers(0, 9))
    messages = receive_many(consumer, 10, acknowledge=False)
    assert len({m.message_id().entry_id() for m in messages}) == 1
    for message in messages:
        if int(message.data()) % 3 == 0:
            consumer.acknowledge(message)
    eventually(lambda: backlog(broker, topic, "s") == 6, what="a backlog of 6 messages in one entry")
    consumer.close()
    consumer = subscribe()
    again = receive_many(consumer, 6)
    assert payloads(again) == [b"1", b"2", b"4", b"5", b"7", b"8"]
    eventually(lambda: backlog(broker, topic, "s") == 0, what="an empty backlog")


def test_cumulative_ack_inside_a_batch(client: pulsar.Client, broker: RunningBroker, topic: str) -> None:
    consumer = client.subscribe(topic, "s", batch_index_ack_enabled=True)
    publish_batch(client, topic, numbers(0, 9))
    messages = receive_many(consumer, 10, acknowledge=False)
    consumer.acknowledge_cumulative(messages[3])
    eventually(lambda: backlog(broker, topic, "s") == 6, what="a backlog of 6")
    consumer.close()
    consumer = client.subscribe(topic, "s", batch_index_ack_enabled=True)
    assert payloads(receive_many(consumer, 6)) == [b"%d" % i for i in range(4, 10)]


def test_cumulative_ack_inside_the_first_batch_without_index_acks_acknowledges_nothing(
    client: pulsar.Client, broker: RunningBroker, topic: str
) -> None:
    """The client names the entry before the batch, which is -1 for the first one of a ledger."""
    consumer = client.subscribe(topic, "s")
    publish_batch(client, topic, numbers(0, 9))
    producer = client.create_producer(topic)
    last = producer.send(b"10")
    first, *others = receive_many(consumer, 11, acknowledge=False)
    consumer.acknowledge_cumulative(first)
    consumer.close()
    consumer = client.subscribe(topic, "s")
    assert backlog(broker, topic, "s") == 11
    assert payloads(receive_many(consumer, 11, acknowledge=False)) == payloads([first, *others])
    consumer.acknowledge_cumulative(last)
    eventually(lambda: backlog(broker, topic, "s") == 0, what="an empty backlog")


def test_batch_is_done_when_every_message_is_acked_without_index_acks(
    client: pulsar.Client, broker: RunningBroker, topic: str
) -> None:
    consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    publish_batch(client, topic, numbers(0, 9))
    messages = receive_many(consumer, 10, acknowledge=False)
    for message in messages[:9]:
        consumer.acknowledge(message)
    assert backlog(broker, topic, "s") == 10
    consumer.acknowledge(messages[9])
    eventually(lambda: backlog(broker, topic, "s") == 0, what="an empty backlog")


def test_acks_out_of_order_leave_exact_holes(client: pulsar.Client, broker: RunningBroker, topic: str) -> None:
    kind = pulsar.ConsumerType.Shared
    consumer = client.subscribe(topic, "s", consumer_type=kind)
    producer = client.create_producer(topic)
    for i in range(100):
        producer.send_async(b"%d" % i, ignore_receipt)
    producer.flush()
    for message in receive_many(consumer, 100, acknowledge=False):
        if int(message.data()) % 7:
            consumer.acknowledge(message)
    left = [b"%d" % i for i in range(0, 100, 7)]
    eventually(lambda: backlog(broker, topic, "s") == len(left), what=f"a backlog of {len(left)}")
    consumer.close()
    consumer = client.subscribe(topic, "s", consumer_type=kind)
    assert payloads(receive_many(consumer, len(left))) == left


def test_dead_letter_policy_of_the_client(client: pulsar.Client, broker: RunningBroker, topic: str) -> None:
    dead = f"{topic}-dead"
    consumer = client.subscribe(
        topic,
        "s",
        consumer_type=pulsar.ConsumerType.Shared,
        negative_ack_redelivery_delay_ms=100,
        dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(
            max_redeliver_count=2, dead_letter_topic=dead, initial_subscription_name="keeper"
        ),
    )
    client.create_producer(topic).send(b"poison", properties={"p": "1"})
    for count in range(3):
        message = consumer.receive(DEADLINE_MS)
        assert message.redelivery_count() == count
        consumer.negative_acknowledge(message)

    def dead_count() -> bool:
        # The client publishes to the dead letter topic when the message comes once more.
        again = receive_or_none(consumer, 100)
        assert again is None, "the message must not reach the application a fourth time"
        return backlog(broker, topic, "s") == 0

    eventually(dead_count, what="the poison message to leave its subscription")
    keeper = client.subscribe(dead, "keeper", consumer_type=pulsar.ConsumerType.Shared)
    letter = keeper.receive(DEADLINE_MS)
    assert letter.data() == b"poison"
    assert letter.properties()["p"] == "1"
