"""Producers: names, access modes, initial subscription, sequence ids, delayed delivery."""

from __future__ import annotations

import threading
import time
from datetime import timedelta

import pulsar
import pytest

from tests.support.clients import (
    BATCH_WAITS_MS,
    DEADLINE_MS,
    RunningBroker,
    connect,
    create_partitions,
    payloads,
    receive_many,
    receive_or_none,
)
from tests.support.polling import DEADLINE_S, eventually

Mode = pulsar.ProducerAccessMode


def test_generated_names_are_unique(client: pulsar.Client, broker: RunningBroker, topic: str) -> None:
    other = connect(broker.service_url)
    try:
        producers = [owner.create_producer(topic) for owner in (client, other) for _ in range(20)]
        names = {producer.producer_name() for producer in producers}
        assert len(names) == 40
        assert all(names)
    finally:
        other.close()


def test_a_given_name_in_use_is_refused_and_free_after_close(client: pulsar.Client, topic: str) -> None:
    first = client.create_producer(topic, producer_name="me")
    with pytest.raises(pulsar.ProducerBusy):
        client.create_producer(topic, producer_name="me")
    first.close()
    assert client.create_producer(topic, producer_name="me").producer_name() == "me"


def test_exclusive_refuses_others(client: pulsar.Client, topic: str) -> None:
    first = client.create_producer(topic, access_mode=Mode.Exclusive)
    for mode in (Mode.Shared, Mode.Exclusive):
        with pytest.raises((pulsar.ProducerFenced, pulsar.ProducerBusy)):
            client.create_producer(topic, access_mode=mode)
    first.send(b"still mine")
    first.close()
    client.create_producer(topic, access_mode=Mode.Exclusive)


def test_exclusive_is_refused_beside_a_shared_producer(client: pulsar.Client, topic: str) -> None:
    client.create_producer(topic)
    with pytest.raises((pulsar.ProducerFenced, pulsar.ProducerBusy)):
        client.create_producer(topic, access_mode=Mode.Exclusive)


def test_wait_for_exclusive_takes_over(client: pulsar.Client, broker: RunningBroker, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    first = client.create_producer(topic, access_mode=Mode.Exclusive)
    waiting = connect(broker.service_url)
    taken: list[pulsar.Producer] = []
    thread = threading.Thread(
        target=lambda: taken.append(waiting.create_producer(topic, access_mode=Mode.WaitForExclusive))
    )
    thread.start()
    try:
        thread.join(0.5)
        assert thread.is_alive(), "the second producer must wait while the first one is there"
        first.send(b"first")
        first.close()
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
        taken[0].send(b"second")
        assert payloads(receive_many(consumer, 2)) == [b"first", b"second"]
        with pytest.raises((pulsar.ProducerFenced, pulsar.ProducerBusy)):
            client.create_producer(topic)
    finally:
        waiting.close()
        thread.join()


def test_exclusive_with_fencing_evicts(client: pulsar.Client, broker: RunningBroker, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    old = client.create_producer(topic, access_mode=Mode.Exclusive)
    old.send(b"old")
    other = connect(broker.service_url)
    try:
        new = other.create_producer(topic, access_mode=Mode.ExclusiveWithFencing)
        new.send(b"new")
        with pytest.raises(pulsar.PulsarException):
            old.send(b"from the evicted")
        new.send(b"newer")
        assert payloads(receive_many(consumer, 3)) == [b"old", b"new", b"newer"]
    finally:
        other.close()


def test_sequence_ids_continue_for_a_named_producer(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic, producer_name="p", initial_sequence_id=41)
    producer.send(b"a")
    assert producer.last_sequence_id() == 42
    producer.send(b"b", sequence_id=100)
    assert producer.last_sequence_id() == 100


def test_lazily_started_partitioned_producer(client: pulsar.Client, broker: RunningBroker, topic: str) -> None:
    create_partitions(broker, topic, 3)
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, lazy_start_partitioned_producers=True)
    for i in range(9):
        producer.send(b"%d" % i, partition_key=str(i))
    assert sorted(payloads(receive_many(consumer, 9))) == [b"%d" % i for i in range(9)]


@pytest.mark.parametrize("kind", [pulsar.ConsumerType.Shared, pulsar.ConsumerType.KeyShared], ids=lambda k: k.name)
def test_delayed_message_comes_when_due(client: pulsar.Client, topic: str, kind: pulsar.ConsumerType) -> None:
    consumer = client.subscribe(topic, "s", consumer_type=kind)
    producer = client.create_producer(topic)
    producer.send(b"much later", deliver_after=timedelta(hours=1))
    producer.send(b"now")
    assert consumer.receive(DEADLINE_MS).data() == b"now"
    due = time.time() + 1.2
    producer.send(b"later", deliver_at=int(due * 1000))
    message = consumer.receive(DEADLINE_MS)
    arrived = time.time()
    assert message.data() == b"later"
    assert arrived >= due - 0.01
    assert receive_or_none(consumer, 100) is None


def test_delayed_messages_come_in_the_order_they_are_due(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic)

    def published(lead_ms: int) -> bool:
        """Publish them, and return whether that was done before the first was due."""
        base = int(time.time() * 1000) + lead_ms
        for i in (3, 1, 2, 0):
            producer.send(b"%d" % i, deliver_at=base + i * 150)
        return time.time() * 1000 < base

    for lead_ms in (700, 5_000, 20_000):
        if published(lead_ms):
            break
        # A slow machine: these come in whatever order.
        receive_many(consumer, 4)
    assert payloads(receive_many(consumer, 4)) == [b"0", b"1", b"2", b"3"]


def test_scheduled_messages_of_a_batching_producer_go_singly(client: pulsar.Client, topic: str) -> None:
    """So each is delivered at its own time, and those batched before and after it at once."""
    consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=BATCH_WAITS_MS)
    ids: dict[bytes, pulsar.MessageId] = {}

    def send(payload: bytes, **options: timedelta) -> None:
        def sent(_result: pulsar.Result, message_id: pulsar.MessageId) -> None:
            ids[payload] = message_id

        producer.send_async(payload, sent, **options)

    send(b"a")
    send(b"b")
    send(b"in an hour", deliver_after=timedelta(hours=1))
    send(b"soon", deliver_after=timedelta(milliseconds=500))
    send(b"c")
    send(b"d")
    producer.flush()
    eventually(lambda: len(ids) == 6, what="a receipt for each message")
    received = payloads(receive_many(consumer, 5))
    assert sorted(received) == [b"a", b"b", b"c", b"d", b"soon"]
    assert [each for each in received if each != b"soon"] == [b"a", b"b", b"c", b"d"]
    assert receive_or_none(consumer, 100) is None
    assert {name: message_id.batch_index() for name, message_id in ids.items()} == {
        b"a": 0,
        b"b": 1,
        b"in an hour": -1,
        b"soon": -1,
        b"c": 2,
        b"d": 3,
    }
    assert len({message_id.entry_id() for message_id in ids.values()}) == 3


def test_delay_does_not_apply_to_exclusive(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    client.create_producer(topic).send(b"at once", deliver_after=timedelta(hours=1))
    assert consumer.receive(DEADLINE_MS).data() == b"at once"
