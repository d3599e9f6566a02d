"""Publish and consume with the official Python client: what a message carries, how topics are named."""

from __future__ import annotations

import time

import pulsar
import pytest

from tests.support.clients import (
    BATCH_WAITS_MS,
    DEADLINE_MS,
    RunningBroker,
    backlog,
    connect,
    ignore_receipt,
    payloads,
    receive_many,
)
from tests.support.polling import eventually

TYPES = [
    pulsar.ConsumerType.Exclusive,
    pulsar.ConsumerType.Shared,
    pulsar.ConsumerType.Failover,
    pulsar.ConsumerType.KeyShared,
]


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
@pytest.mark.parametrize("batching", [False, True], ids=["unbatched", "batched"])
def test_everything_published_arrives_once_and_in_order(
    client: pulsar.Client, broker: RunningBroker, topic: str, kind: pulsar.ConsumerType, batching: bool
) -> None:
    consumer = client.subscribe(topic, "s", consumer_type=kind)
    producer = client.create_producer(topic, batching_enabled=batching)
    sent = [b"message %d" % i for i in range(200)]
    for payload in sent:
        producer.send_async(payload, ignore_receipt, partition_key="k")
    producer.flush()
    assert payloads(receive_many(consumer, len(sent))) == sent
    eventually(lambda: backlog(broker, topic, "s") == 0, what="an empty backlog")


def test_message_carries_what_the_producer_set(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, producer_name="the-producer")
    before = int(time.time() * 1000)
    sent_id = producer.send(
        b"payload",
        properties={"a": "1", "empty": "", "ünï": "çødé"},
        partition_key="key",
        ordering_key="order",
        event_timestamp=1_234_567_890_123,
        sequence_id=77,
    )
    message = consumer.receive(DEADLINE_MS)
    assert message.data() == b"payload"
    assert message.properties() == {"a": "1", "empty": "", "ünï": "çødé"}
    assert message.partition_key() == "key"
    assert message.ordering_key() == "order"
    assert message.event_timestamp() == 1_234_567_890_123
    assert before - 1 <= message.publish_timestamp() <= int(time.time() * 1000) + 1
    assert message.producer_name() == "the-producer"
    assert message.topic_name() == f"persistent://public/default/{topic}"
    assert message.redelivery_count() == 0
    assert message.message_id() == sent_id
    assert producer.last_sequence_id() == 77


def test_batched_messages_keep_their_own_properties(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=BATCH_WAITS_MS)
    for i in range(5):
        producer.send_async(
            b"%d" % i,
            ignore_receipt,
            properties={"n": str(i)},
            partition_key=f"k{i}",
            event_timestamp=i + 1,
        )
    producer.flush()
    messages = receive_many(consumer, 5)
    assert [(m.properties(), m.partition_key(), m.event_timestamp()) for m in messages] == [
        ({"n": str(i)}, f"k{i}", i + 1) for i in range(5)
    ]
    assert len({(m.message_id().ledger_id(), m.message_id().entry_id()) for m in messages}) == 1
    assert [m.message_id().batch_index() for m in messages] == list(range(5))


def test_null_and_empty_payloads(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    producer.send(b"")
    producer.send(None)
    producer.send(b"\x00")
    first, second, third = receive_many(consumer, 3)
    assert (first.data(), first.has_null_value()) == (b"", False)
    assert second.has_null_value()
    assert (third.data(), third.has_null_value()) == (b"\x00", False)


def test_short_and_full_names_are_the_same_topic(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(f"persistent://public/default/{topic}", "s")
    client.create_producer(topic).send(b"short")
    client.create_producer(f"public/default/{topic}").send(b"middle")
    assert payloads(receive_many(consumer, 2)) == [b"short", b"middle"]


@pytest.mark.parametrize("local", ["with space", "ünïcode", "slash%2Finside", "a.b:c=d~e", "x" * 120])
def test_unusual_topic_names(client: pulsar.Client, topic: str, local: str) -> None:
    name = f"persistent://public/default/{topic}-{local}"
    consumer = client.subscribe(name, "s")
    client.create_producer(name).send(b"here")
    assert consumer.receive(DEADLINE_MS).data() == b"here"


def test_missing_tenant_and_namespace_are_refused(client: pulsar.Client) -> None:
    for name in ("persistent://nobody/default/t", "persistent://public/nowhere/t"):
        with pytest.raises(pulsar.PulsarException):
            client.create_producer(name)
        with pytest.raises(pulsar.PulsarException):
            client.subscribe(name, "s")


def test_subscription_starts_at_latest_or_earliest(client: pulsar.Client, topic: str) -> None:
    keeper = client.subscribe(topic, "keeper")
    producer = client.create_producer(topic)
    producer.send(b"before")
    latest = client.subscribe(topic, "latest", initial_position=pulsar.InitialPosition.Latest)
    earliest = client.subscribe(topic, "earliest", initial_position=pulsar.InitialPosition.Earliest)
    producer.send(b"after")
    assert payloads(receive_many(latest, 1)) == [b"after"]
    assert payloads(receive_many(earliest, 2)) == [b"before", b"after"]
    assert payloads(receive_many(keeper, 2)) == [b"before", b"after"]


def test_every_subscription_gets_every_message(client: pulsar.Client, topic: str) -> None:
    consumers = [client.subscribe(topic, f"s{i}") for i in range(5)]
    producer = client.create_producer(topic)
    sent = [b"%d" % i for i in range(20)]
    for payload in sent:
        producer.send(payload)
    assert [payloads(receive_many(consumer, 20)) for consumer in consumers] == [sent] * 5


def test_message_ids_increase_and_are_what_the_producer_was_told(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    sent = [producer.send(b"%d" % i) for i in range(10)]
    received = [message.message_id() for message in receive_many(consumer, 10)]
    assert received == sent
    assert received == sorted(received)
    assert len(set(map(str, received))) == 10


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_non_persistent_topic_delivers_to_who_listens(
    client: pulsar.Client, topic: str, kind: pulsar.ConsumerType
) -> None:
    name = f"non-persistent://public/default/{topic}"
    producer = client.create_producer(name)
    producer.send(b"nobody hears this")
    consumer = client.subscribe(name, "s", consumer_type=kind, initial_position=pulsar.InitialPosition.Earliest)
    for i in range(10):
        producer.send(b"%d" % i)
    messages = receive_many(consumer, 10)
    assert payloads(messages) == [b"%d" % i for i in range(10)]
    assert messages[0].topic_name() == name


def test_a_listener_is_called_for_each_message(client: pulsar.Client, topic: str) -> None:
    heard: list[bytes] = []

    def listener(consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        heard.append(bytes(message.data()))
        consumer.acknowledge(message)

    client.subscribe(topic, "s", message_listener=listener)
    producer = client.create_producer(topic)
    sent = [b"%d" % i for i in range(50)]
    for payload in sent:
        producer.send(payload)
    eventually(lambda: heard == sent, what="the listener to have heard all")


def test_small_receiver_queue_still_gets_everything(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", receiver_queue_size=1)
    producer = client.create_producer(topic, batching_enabled=True)
    for i in range(500):
        producer.send_async(b"%d" % i, ignore_receipt)
    producer.flush()
    assert payloads(receive_many(consumer, 500)) == [b"%d" % i for i in range(500)]


def test_zero_receiver_queue(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared, receiver_queue_size=0)
    producer = client.create_producer(topic)
    for i in range(5):
        producer.send(b"%d" % i)
    received = []
    for _ in range(5):
        message = consumer.receive()
        received.append(bytes(message.data()))
        consumer.acknowledge(message)
    assert received == [b"%d" % i for i in range(5)]


def test_batch_receive(broker: RunningBroker, topic: str) -> None:
    with_policy = connect(broker.service_url)
    try:
        consumer = with_policy.subscribe(
            topic, "s", batch_receive_policy=pulsar.ConsumerBatchReceivePolicy(10, 1_000_000, DEADLINE_MS)
        )
        producer = with_policy.create_producer(topic)
        for i in range(10):
            producer.send(b"%d" % i)
        assert payloads(list(consumer.batch_receive())) == [b"%d" % i for i in range(10)]
    finally:
        with_policy.close()


def test_http_service_url_finds_the_broker(broker: RunningBroker, topic: str) -> None:
    by_http = connect(broker.http_url)
    try:
        consumer = by_http.subscribe(topic, "s")
        producer = by_http.create_producer(topic)
        producer.send(b"looked up over HTTP")
        assert consumer.receive(DEADLINE_MS).data() == b"looked up over HTTP"
        assert by_http.get_topic_partitions(topic) == [f"persistent://public/default/{topic}"]
    finally:
        by_http.close()


def test_many_topics_over_one_connection(client: pulsar.Client, topic: str) -> None:
    names = [f"{topic}-{i}" for i in range(150)]
    consumer = client.subscribe(names, "s", receiver_queue_size=10)
    for name in names:
        producer = client.create_producer(name)
        producer.send(name.encode())
        producer.close()
    received = receive_many(consumer, len(names))
    assert {(m.topic_name().rsplit("/", 1)[1], m.data().decode()) for m in received} == {(n, n) for n in names}


def test_two_clients_share_one_topic(client: pulsar.Client, broker: RunningBroker, topic: str) -> None:
    other = connect(broker.service_url)
    try:
        consumer = other.subscribe(topic, "s")
        client.create_producer(topic).send(b"across connections")
        assert consumer.receive(DEADLINE_MS).data() == b"across connections"
    finally:
        other.close()
