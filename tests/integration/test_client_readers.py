"""Readers and seeks: from the ends, from an id, from a time."""

from __future__ import annotations

import time

import pulsar
import pytest

from tests.support.clients import (
    BATCH_WAITS_MS,
    DEADLINE_MS,
    RunningBroker,
    backlog,
    create_partitions,
    ignore_receipt,
    numbers,
    payloads,
    read_all,
    receive_many,
    receive_or_none,
    rest,
)
from tests.support.polling import eventually


@pytest.fixture
def ids(client: pulsar.Client, topic: str) -> list[pulsar.MessageId]:
    """Ten messages, kept by a subscription, and their ids."""
    client.subscribe(topic, "keeper")
    producer = client.create_producer(topic)
    return [producer.send(b"%d" % i) for i in range(10)]


@pytest.mark.usefixtures("ids")
def test_reader_from_earliest(client: pulsar.Client, topic: str) -> None:
    assert read_all(client.create_reader(topic, pulsar.MessageId.earliest)) == numbers(0, 9)


@pytest.mark.usefixtures("ids")
def test_reader_from_latest(client: pulsar.Client, topic: str) -> None:
    reader = client.create_reader(topic, pulsar.MessageId.latest)
    assert not reader.has_message_available()
    client.create_producer(topic).send(b"10")
    assert reader.read_next(DEADLINE_MS).data() == b"10"
    assert not reader.has_message_available()


@pytest.mark.usefixtures("ids")
def test_reader_from_latest_inclusive_starts_at_the_last_message(client: pulsar.Client, topic: str) -> None:
    reader = client.create_reader(topic, pulsar.MessageId.latest, start_message_id_inclusive=True)
    assert reader.has_message_available()
    assert reader.read_next(DEADLINE_MS).data() == b"9"
    assert not reader.has_message_available()


@pytest.mark.parametrize("index", [0, 4, 9])
@pytest.mark.parametrize("inclusive", [False, True], ids=["exclusive", "inclusive"])
def test_reader_from_a_message_id(
    client: pulsar.Client, topic: str, ids: list[pulsar.MessageId], index: int, inclusive: bool
) -> None:
    reader = client.create_reader(topic, ids[index], start_message_id_inclusive=inclusive)
    assert read_all(reader) == numbers(index if inclusive else index + 1, 9)


def test_reader_inside_a_batch(client: pulsar.Client, topic: str) -> None:
    client.subscribe(topic, "keeper")
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=BATCH_WAITS_MS)
    ids: list[pulsar.MessageId] = []
    for i in range(10):
        producer.send_async(b"%d" % i, lambda _result, message_id: ids.append(message_id))
    producer.flush()
    eventually(lambda: len(ids) == 10, what="all receipts")
    assert {i.entry_id() for i in ids} == {ids[0].entry_id()}
    assert read_all(client.create_reader(topic, ids[3])) == numbers(4, 9)
    assert read_all(client.create_reader(topic, ids[3], start_message_id_inclusive=True)) == numbers(3, 9)


@pytest.mark.usefixtures("ids")
def test_reader_leaves_no_backlog_behind(client: pulsar.Client, broker: RunningBroker, topic: str) -> None:
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    read_all(reader)
    reader.close()
    path = f"persistent/public/default/{topic}/subscriptions"
    eventually(lambda: rest(broker, "GET", path) == ["keeper"], what="the reader's subscription to be gone")


def test_two_readers_are_independent(client: pulsar.Client, topic: str, ids: list[pulsar.MessageId]) -> None:
    first = client.create_reader(topic, pulsar.MessageId.earliest)
    second = client.create_reader(topic, ids[5])
    assert read_all(first) == numbers(0, 9)
    assert read_all(second) == numbers(6, 9)


def test_reader_seeks_by_id_and_by_time(client: pulsar.Client, topic: str, ids: list[pulsar.MessageId]) -> None:
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    times = [reader.read_next(DEADLINE_MS).publish_timestamp() for _ in ids]
    reader.seek(ids[7])
    assert read_all(reader) == numbers(8, 9)
    reader.seek(pulsar.MessageId.earliest)
    assert read_all(reader) == numbers(0, 9)
    reader.seek(times[0])
    assert read_all(reader)[-1] == b"9"
    reader.seek(times[-1] + 60_000)
    assert read_all(reader) == []


def test_reader_over_partitions(client: pulsar.Client, broker: RunningBroker, topic: str) -> None:
    create_partitions(broker, topic, 3)
    client.subscribe(topic, "keeper")
    producer = client.create_producer(topic)
    for i in range(30):
        producer.send(b"%d" % i)
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert sorted(read_all(reader)) == sorted(numbers(0, 29))


def test_table_view_shows_the_last_value_of_each_key(client: pulsar.Client, topic: str) -> None:
    client.subscribe(topic, "keeper")
    producer = client.create_producer(topic)
    for i in range(30):
        producer.send(b"%d" % i, partition_key=f"k{i % 3}")
    view = client.create_table_view(topic)
    assert {key: view.get(key) for key in ("k0", "k1", "k2")} == {"k0": b"27", "k1": b"28", "k2": b"29"}
    view.close()


@pytest.mark.parametrize("kind", [pulsar.ConsumerType.Exclusive, pulsar.ConsumerType.Shared], ids=lambda k: k.name)
def test_consumer_seeks_back_and_forth_by_id(
    client: pulsar.Client, broker: RunningBroker, topic: str, kind: pulsar.ConsumerType
) -> None:
    keeper = client.subscribe(topic, "keeper")
    consumer = client.subscribe(topic, "s", consumer_type=kind, start_message_id_inclusive=True)
    producer = client.create_producer(topic)
    ids = [producer.send(b"%d" % i) for i in range(10)]
    receive_many(consumer, 10)
    eventually(lambda: backlog(broker, topic, "s") == 0, what="an empty backlog")
    # A seek to an id makes that message the next one (this client skips it unless told to include it).
    consumer.seek(ids[4])
    assert backlog(broker, topic, "s") == 6
    assert payloads(receive_many(consumer, 6)) == numbers(4, 9)
    consumer.seek(pulsar.MessageId.earliest)
    assert payloads(receive_many(consumer, 10)) == numbers(0, 9)
    consumer.seek(ids[2])
    consumer.seek(pulsar.MessageId.latest)
    producer.send(b"10")
    assert payloads(receive_many(consumer, 1)) == [b"10"]
    assert backlog(broker, topic, "keeper") == 11
    keeper.close()


def test_seek_by_id_of_an_exclusive_start_goes_on_after_it(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    ids = [producer.send(b"%d" % i) for i in range(5)]
    receive_many(consumer, 5, acknowledge=False)
    consumer.seek(ids[2])
    assert payloads(receive_many(consumer, 2)) == numbers(3, 4)


def test_consumer_seeks_by_publish_time(client: pulsar.Client, topic: str) -> None:
    # Messages that every subscription has passed, by acknowledging or by a seek, are soon trimmed: one stays behind.
    client.subscribe(topic, "keeper")
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    for i in range(5):
        producer.send(b"%d" % i)
    before = receive_many(consumer, 5, acknowledge=False)
    last = before[-1].publish_timestamp()
    # The clock must have moved on, or the two halves could not be told apart by time.
    eventually(lambda: time.time() * 1000 > last + 5, what="the clock to move on")
    for i in range(5, 10):
        producer.send(b"%d" % i)
    receive_many(consumer, 5, acknowledge=False)
    consumer.seek(last + 3)
    assert payloads(receive_many(consumer, 5, acknowledge=False)) == numbers(5, 9)
    consumer.seek(before[0].publish_timestamp() - 1000)
    assert payloads(receive_many(consumer, 10, acknowledge=False)) == numbers(0, 9)
    consumer.seek(int(time.time() * 1000) + 60_000)
    producer.send(b"10")
    assert payloads(receive_many(consumer, 1)) == [b"10"]


def test_seek_inside_a_batch_by_id(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", batch_index_ack_enabled=True)
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=BATCH_WAITS_MS)
    for i in range(10):
        producer.send_async(b"%d" % i, ignore_receipt)
    producer.flush()
    messages = receive_many(consumer, 10, acknowledge=False)
    consumer.seek(messages[6].message_id())
    assert consumer.receive(DEADLINE_MS).data() in (b"6", b"7")


def test_seek_forgets_individual_acks_after_the_position(client: pulsar.Client, topic: str) -> None:
    client.subscribe(topic, "keeper")
    consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared, start_message_id_inclusive=True)
    producer = client.create_producer(topic)
    ids = [producer.send(b"%d" % i) for i in range(6)]
    for message in receive_many(consumer, 6, acknowledge=False):
        if message.data() in (b"1", b"3"):
            consumer.acknowledge(message)
    consumer.seek(ids[0])
    assert payloads(receive_many(consumer, 6)) == numbers(0, 5)
    assert receive_or_none(consumer, 200) is None


def test_last_message_id(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    ids = [producer.send(b"%d" % i) for i in range(3)]
    last = consumer.get_last_message_id()
    assert (last.ledger_id(), last.entry_id()) == (ids[-1].ledger_id(), ids[-1].entry_id())
