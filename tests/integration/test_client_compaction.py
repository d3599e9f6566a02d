"""The compacted view through the official client: readers and consumers, seeks, batches, trimmed originals, restart."""

from __future__ import annotations

import time
import urllib.error
from collections.abc import Callable
from typing import Any

import pulsar
import pytest
from heliograph_api.protocol import wire_pb2 as wire

from tests.support.broker_process import BrokerProcess
from tests.support.clients import (
    BATCH_WAITS_MS,
    DEADLINE_MS,
    RunningBroker,
    backlog,
    connect,
    ignore_receipt,
    payloads,
    receive_many,
    receive_or_none,
    rest,
    stats,
)
from tests.support.polling import eventually
from tests.support.wire_client import WireClient, WireError


def keep_all(broker: RunningBroker, topic: str) -> None:
    """Make a topic that retains what is acknowledged."""
    rest(broker, "PUT", f"persistent/public/default/{topic}")
    retention = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
    rest(broker, "POST", f"persistent/public/default/{topic}/retention", retention)


def keep_nothing(broker: RunningBroker, topic: str) -> None:
    """Make a topic that deletes acknowledged messages at once, and is compacted."""
    rest(broker, "PUT", f"persistent/public/default/{topic}")
    retention = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
    rest(broker, "POST", f"persistent/public/default/{topic}/retention", retention)


def compact(broker: RunningBroker, topic: str) -> None:
    path = f"persistent/public/default/{topic}/compaction"
    rest(broker, "PUT", path)
    eventually(lambda: rest(broker, "GET", path)["status"] != "RUNNING", what="compaction")
    assert rest(broker, "GET", path)["status"] == "SUCCESS"


def publish(producer: pulsar.Producer, *messages: tuple[str | None, bytes]) -> list[pulsar.MessageId]:
    return [producer.send(payload, partition_key=key) for key, payload in messages]


def compacted_reader(client: pulsar.Client, topic: str, start: Any = pulsar.MessageId.earliest) -> pulsar.Reader:
    return client.create_reader(topic, start, is_read_compacted=True)


def read_all(reader: pulsar.Reader) -> list[tuple[str, bytes]]:
    found = []
    while reader.has_message_available():
        message = reader.read_next(DEADLINE_MS)
        found.append((message.partition_key(), bytes(message.data())))
    return found


@pytest.mark.parametrize("batching", [False, True], ids=["unbatched", "batched"])
@pytest.mark.parametrize("compression", ["NONE", "LZ4", "ZLib", "ZSTD", "SNAPPY"])
def test_reader_of_the_view_gets_the_last_value_of_each_key(
    client: pulsar.Client, broker: RunningBroker, topic: str, compression: str, batching: bool
) -> None:
    keep_all(broker, topic)
    producer = client.create_producer(
        topic,
        batching_enabled=batching,
        batching_max_publish_delay_ms=BATCH_WAITS_MS,
        compression_type=pulsar.CompressionType.__members__[compression],
    )
    ids: dict[bytes, pulsar.MessageId] = {}

    def send(key: str | None, payload: bytes) -> None:
        producer.send_async(payload, lambda _, message_id: ids.__setitem__(payload, message_id), partition_key=key)

    for i in range(30):
        send(f"k{i % 4}", b"value %d " % i + b"x" * 500)
    send(None, b"without key")
    producer.flush()
    eventually(lambda: len(ids) == 31, what="receipts")
    # Not compressed: the client itself does not decompress an empty ZLIB payload.
    publish(client.create_producer(topic), ("k3", b""))
    compact(broker, topic)
    send("k1", b"later")
    producer.flush()
    reader = compacted_reader(client, topic)
    found = []
    while reader.has_message_available():
        message = reader.read_next(DEADLINE_MS)
        found.append((message.partition_key(), bytes(message.data())[:8].strip(), message.message_id()))
    assert [(key, data) for key, data, _ in found] == [
        ("k2", b"value 26"),
        ("k0", b"value 28"),
        ("k1", b"value 29"),
        ("k1", b"later"),
    ]
    for (_, _, message_id), i in zip(found, (26, 28, 29), strict=False):
        assert message_id == ids[b"value %d " % i + b"x" * 500]
    plain = client.create_reader(topic, pulsar.MessageId.earliest)
    assert len(read_all(plain)) == 33


def test_reader_at_the_end_of_the_view_knows_that_nothing_is_left(
    client: pulsar.Client, broker: RunningBroker, topic: str
) -> None:
    keep_all(broker, topic)
    producer = client.create_producer(topic)
    publish(producer, ("a", b"1"), ("b", b"1"), ("a", b""))
    compact(broker, topic)
    reader = compacted_reader(client, topic)
    assert read_all(reader) == [("b", b"1")]
    assert not reader.has_message_available()
    publish(producer, ("c", b"1"))
    assert read_all(reader) == [("c", b"1")]
    publish(producer, ("b", b""), ("c", b""))
    compact(broker, topic)
    assert read_all(compacted_reader(client, topic)) == []


def test_view_outlives_the_originals_and_seeks_find_their_places(
    client: pulsar.Client, broker: RunningBroker, topic: str
) -> None:
    keep_nothing(broker, topic)
    compact(broker, topic)
    producer = client.create_producer(topic)
    ids = publish(producer, *((f"k{i % 6}", b"%d" % i) for i in range(10)))
    between = int(time.time() * 1000) + 1
    eventually(lambda: time.time() * 1000 > between, what="the next ms")
    ids += publish(producer, *((f"k{i % 6}", b"%d" % i) for i in range(10, 14)))
    compact(broker, topic)
    eventually(lambda: stats(broker, topic)["storageSize"] == 0, what="the originals trimmed")
    publish(producer, ("k0", b"14"))
    every = [*((f"k{i % 6}", b"%d" % i) for i in range(8, 14)), ("k0", b"14")]
    reader = compacted_reader(client, topic)
    assert read_all(reader) == every
    reader.seek(pulsar.MessageId.earliest)
    assert read_all(reader) == every
    reader.seek(between)
    assert read_all(reader) == every[2:]
    # A reader's seek goes behind the message, as its start does.
    reader.seek(ids[8])
    assert read_all(reader) == every[1:]
    assert read_all(compacted_reader(client, topic, ids[9])) == every[2:]
    assert read_all(client.create_reader(topic, ids[3], is_read_compacted=True)) == every


@pytest.mark.parametrize("kind", [pulsar.ConsumerType.Exclusive, pulsar.ConsumerType.Failover])
def test_backlog_of_a_consumer_of_the_view_comes_to_zero(
    client: pulsar.Client, broker: RunningBroker, topic: str, kind: pulsar.ConsumerType
) -> None:
    client.subscribe(topic, "s", kind).close()
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=50)
    for i in range(40):
        producer.send_async(b"%d" % i, ignore_receipt, partition_key=f"k{i % 7}")
        if i % 10 == 9:
            producer.flush()
    compact(broker, topic)
    # Without it the client acknowledges a batch only when it has seen all of it, and never sees what is left out.
    consumer = client.subscribe(topic, "s", kind, is_read_compacted=True, batch_index_ack_enabled=True)
    assert payloads(receive_many(consumer, 7)) == [b"%d" % i for i in range(33, 40)]
    assert receive_or_none(consumer, 100) is None
    eventually(lambda: backlog(broker, topic, "s") == 0, what="an empty backlog")


def test_consumer_that_comes_after_the_originals_went_gets_the_view_once(
    client: pulsar.Client, broker: RunningBroker, topic: str
) -> None:
    keep_nothing(broker, topic)
    compact(broker, topic)
    publish(client.create_producer(topic), *((f"k{i % 3}", b"%d" % i) for i in range(9)))
    compact(broker, topic)
    eventually(lambda: stats(broker, topic)["storageSize"] == 0, what="the originals trimmed")

    def subscribe() -> pulsar.Consumer:
        return client.subscribe(topic, "s", is_read_compacted=True, initial_position=pulsar.InitialPosition.Earliest)

    consumer = subscribe()
    messages = receive_many(consumer, 3, acknowledge=False)
    assert payloads(messages) == [b"6", b"7", b"8"]
    consumer.acknowledge(messages[0])
    consumer.close()
    consumer = subscribe()
    assert payloads(receive_many(consumer, 2)) == [b"7", b"8"]
    consumer.close()
    consumer = subscribe()
    assert receive_or_none(consumer, 200) is None


@pytest.mark.parametrize("sub_type", [wire.CommandSubscribe.Shared, wire.CommandSubscribe.Key_Shared])
def test_shared_subscriptions_cannot_read_the_view(broker: RunningBroker, topic: str, sub_type: int) -> None:
    # On the wire, for the client itself refuses it too.
    with WireClient(broker.service_url) as client:
        with pytest.raises(WireError, match="readCompacted only allowed on failover or exclusive") as refusal:
            client.subscribe(topic, read_compacted=True, subType=sub_type)
        assert refusal.value.code == wire.NotAllowedError
        with pytest.raises(WireError, match="readCompacted only valid on persistent topics"):
            client.subscribe(f"non-persistent://public/default/{topic}", read_compacted=True)


def test_compactions_own_subscription_is_not_for_clients(client: pulsar.Client, topic: str) -> None:
    with pytest.raises(pulsar.PulsarException):
        client.subscribe(topic, "__compaction")


def test_cursor_of_the_compaction_is_shown_and_keeps_nobody_from_deleting(
    client: pulsar.Client, broker: RunningBroker, topic: str
) -> None:
    producer = client.create_producer(topic)
    publish(producer, ("a", b"1"))
    compact(broker, topic)
    publish(producer, ("a", b"2"), ("b", b"1"))
    shown = stats(broker, topic)
    assert shown["subscriptions"]["__compaction"]["msgBacklog"] == 2
    assert shown["backlogSize"] == 0
    producer.close()
    rest(broker, "DELETE", f"persistent/public/default/{topic}")
    with pytest.raises(urllib.error.HTTPError):
        stats(broker, topic)


@pytest.mark.parametrize("end", ["terminate", "kill9"])
def test_view_survives_a_restart(broker_factory: Callable[..., BrokerProcess], end: str) -> None:
    process = broker_factory()
    process.start()
    client = connect(process.service_url)
    try:
        keep_nothing(process, "t")
        compact(process, "t")
        producer = client.create_producer("t")
        publish(producer, *((f"k{i % 5}", b"%d" % i) for i in range(50)))
        compact(process, "t")
        eventually(lambda: stats(process, "t")["storageSize"] == 0, what="the originals trimmed")
        reader = compacted_reader(client, "t")
        expected = [(f"k{i % 5}", b"%d" % i) for i in range(45, 50)]
        assert read_all(reader) == expected
        reader.close()
        getattr(process, end)()
        process.start()
        assert read_all(compacted_reader(client, "t")) == expected
        publish(producer, ("k0", b"50"))
        compact(process, "t")
        assert read_all(compacted_reader(client, "t")) == [*expected[1:], ("k0", b"50")]
    finally:
        client.close()


@pytest.mark.parametrize("delay_s", [0.0, 0.1, 0.4])
def test_kill_in_the_middle_of_a_compaction_loses_nothing(
    broker_factory: Callable[..., BrokerProcess], delay_s: float
) -> None:
    process = broker_factory()
    process.start()
    client = connect(process.service_url)
    try:
        keep_nothing(process, "t")
        compact(process, "t")
        producer = client.create_producer("t", batching_enabled=True, block_if_queue_full=True)
        expected: dict[str, bytes] = {}

        def publish_some(count: int, text: bytes) -> None:
            for i in range(count):
                key, payload = f"k{i * 7 % 500}", b"%s %d" % (text, i)
                producer.send_async(payload, ignore_receipt, partition_key=key)
                expected[key] = payload
            producer.flush()

        publish_some(5000, b"first")
        compact(process, "t")
        publish_some(5000, b"second")
        publish_some(100, b"third")
        rest(process, "PUT", "persistent/public/default/t/compaction")
        # Any moment will do: the point is that the outcome is the same.
        time.sleep(delay_s)
        process.kill9()
        process.start()
        assert dict(read_all(compacted_reader(client, "t"))) == expected
        compact(process, "t")
        found = read_all(compacted_reader(client, "t"))
        assert dict(found) == expected
        assert len(found) == len(expected) == 500
    finally:
        client.close()
