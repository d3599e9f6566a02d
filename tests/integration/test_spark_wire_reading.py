"""Entries as the pipeline's own client reads them: all, in order, with their metadata, from every place of a topic."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pulsar
import pytest
from heliograph_spark.plan.errors import PulsarSourceError
from heliograph_spark.plan.positions import BEGINNING, Position
from heliograph_spark.wire.brokers import Brokers
from heliograph_spark.wire.entry_reader import EARLIEST, LATEST, EntryReader, Start

from tests.support.broker_process import BrokerProcess
from tests.support.clients import numbers, publish, publish_batch, rest
from tests.support.entry_reading import (
    connection_to,
    contents,
    everything,
    position_of,
    read_count,
    read_to_end,
    read_until,
    whole,
)
from tests.support.polling import eventually

#: Topics of these tests have many ledgers.
ENTRIES_A_LEDGER = 20


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {"HELIOGRAPH_LEDGER_MAX_ENTRIES": str(ENTRIES_A_LEDGER)}
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", environment=settings) as running:
        rest(
            running,
            "POST",
            "namespaces/public/default/retention",
            {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1},
        )
        yield running


@pytest.fixture
def brokers(broker: BrokerProcess) -> Iterator[Brokers]:
    made = Brokers(connection_to(broker.service_url))
    yield made
    made.close()


def forget_all(broker: BrokerProcess, topic: str) -> None:
    """Let the broker keep nothing of a topic that no subscription needs."""
    path = f"persistent/public/default/{topic}/retention"
    rest(broker, "POST", path, {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0})


def stored_entries(broker: BrokerProcess, topic: str) -> int:
    """Return the number of entries in a topic's ledgers."""
    return int(rest(broker, "GET", f"persistent/public/default/{topic}/internalStats")["numberOfEntries"])


def compact(broker: BrokerProcess, topic: str) -> None:
    path = f"persistent/public/default/{topic}/compaction"
    rest(broker, "PUT", path)
    eventually(lambda: rest(broker, "GET", path)["status"] == "SUCCESS", what="compaction")


def test_entries_of_many_ledgers_come_once_and_in_order(client: pulsar.Client, brokers: Brokers, topic: str) -> None:
    ids = publish(client, topic, numbers(1, 130))
    entries = everything(brokers, topic)
    assert contents(entries) == numbers(1, 130)
    assert [(e.ledger, e.entry) for e in entries] == [(i.ledger_id(), i.entry_id()) for i in ids]
    assert len({entry.ledger for entry in entries}) == 7
    first = entries[0].metadata
    assert [(pair.key, pair.value) for pair in first.properties] == [("at", "0")]
    assert abs(first.publish_time - time.time() * 1000) < 600_000
    assert {(entry.messages, entry.redelivery_count, entry.ack_set) for entry in entries} == {(1, 0, ())}


def test_batches_come_as_they_are_stored(client: pulsar.Client, brokers: Brokers, topic: str) -> None:
    for first in range(1, 1000, 100):
        publish_batch(client, topic, numbers(first, first + 99))
    entries = everything(brokers, topic)
    assert [entry.messages for entry in entries] == [100] * 10
    assert contents(entries) == numbers(1, 1000)


@pytest.mark.parametrize("codec", ["LZ4", "ZLib", "ZSTD", "SNAPPY"])
def test_payloads_stay_compressed(client: pulsar.Client, brokers: Brokers, topic: str, codec: str) -> None:
    publish(client, topic, [b"a" * 10_000], compression_type=getattr(pulsar.CompressionType, codec))
    (entry,) = everything(brokers, topic)
    assert len(entry.payload) < 1000
    assert entry.metadata.uncompressed_size == 10_000
    assert contents([entry]) == [b"a" * 10_000]


def test_keys_come_as_they_were_published(client: pulsar.Client, brokers: Brokers, topic: str) -> None:
    producer = client.create_producer(topic)
    producer.send(b"1", partition_key="text", ordering_key="order", event_timestamp=77)
    producer.send(b"2")
    keyed, plain = everything(brokers, topic)
    assert (keyed.metadata.partition_key, keyed.metadata.ordering_key) == ("text", b"order")
    assert keyed.metadata.event_time == 77
    assert not plain.metadata.HasField("partition_key")


def test_a_message_in_chunks_comes_as_its_chunks_over_a_ledger_border(
    client: pulsar.Client, broker: BrokerProcess, brokers: Brokers, topic: str
) -> None:
    publish(client, topic, numbers(1, ENTRIES_A_LEDGER - 2))
    content = bytes(range(256)) * 80_000
    publish(client, topic, [content], chunking_enabled=True)
    chunks = everything(brokers, topic)[ENTRIES_A_LEDGER - 2 :]
    assert [chunk.metadata.chunk_id for chunk in chunks] == list(range(len(chunks)))
    assert len(chunks) == chunks[0].metadata.num_chunks_from_msg > 3
    assert len({chunk.ledger for chunk in chunks}) == 2
    assert b"".join(chunk.payload for chunk in chunks) == content


def test_reading_begins_at_or_after_any_entry(client: pulsar.Client, brokers: Brokers, topic: str) -> None:
    publish(client, topic, numbers(1, 65))
    entries = everything(brokers, topic)
    for at in (0, 1, 18, 19, 20, 21, 40, 63, 64):
        assert everything(brokers, topic, Start.at(position_of(entries[at]))) == entries[at:]
        if at < 64:
            assert everything(brokers, topic, Start.after(position_of(entries[at]))) == entries[at + 1 :]
    # A ledger's last entry is followed by the first of the next one, also for one that has no such entry.
    assert everything(brokers, topic, Start.at(Position(entries[0].ledger, 1000))) == entries[20:]
    assert everything(brokers, topic, Start.after(BEGINNING)) == entries
    assert everything(brokers, topic, Start.at(Position(entries[0].ledger - 1, 5))) == entries


def test_after_a_message_of_a_batch_comes_the_rest_of_the_batch(
    client: pulsar.Client, brokers: Brokers, topic: str
) -> None:
    publish_batch(client, topic, numbers(1, 5))
    publish_batch(client, topic, numbers(6, 9))
    first, second = everything(brokers, topic)
    assert everything(brokers, topic, Start.after(Position(first.ledger, first.entry, 2))) == [first, second]
    assert everything(brokers, topic, Start.at(Position(first.ledger, first.entry, 2))) == [first, second]
    assert everything(brokers, topic, Start.after(Position(first.ledger, first.entry))) == [second]


def test_where_the_start_is_trimmed_what_is_left_follows(
    client: pulsar.Client, broker: BrokerProcess, brokers: Brokers, topic: str
) -> None:
    client.subscribe(topic, "s")
    consumer = client.subscribe(topic, "held", initial_position=pulsar.InitialPosition.Earliest)
    client.subscribe(topic, "s2").close()
    ids = publish(client, topic, numbers(1, 65))
    entries = everything(brokers, topic)
    for name in ("s", "s2"):
        rest(broker, "POST", f"persistent/public/default/{topic}/subscription/{name}/skip_all")
    consumer.acknowledge_cumulative(ids[44])
    forget_all(broker, topic)
    eventually(lambda: len(everything(brokers, topic)) < 30, what="trimming")
    left = everything(brokers, topic)
    assert 20 <= len(left) < 30
    assert left == entries[-len(left) :]
    assert everything(brokers, topic, Start.at(position_of(entries[3]))) == left


def test_a_reader_of_the_latest_gets_what_is_published_after_it_connected(
    client: pulsar.Client, broker: BrokerProcess, brokers: Brokers, topic: str
) -> None:
    publish(client, topic, numbers(1, 45))
    with EntryReader(brokers, whole(topic), LATEST) as reader:
        assert reader.read(0.2) == []
        publish(client, topic, numbers(46, 48))
        assert contents(read_count(reader, 3)) == numbers(46, 48)
    with EntryReader(brokers, whole(topic), LATEST) as reader:
        assert reader.read(0.2) == []
        # The place was found once: a reader that loses its broker before anything came loses nothing.
        rest(broker, "PUT", f"persistent/public/default/{topic}/unload")
        publish(client, topic, numbers(49, 50))
        assert contents(read_count(reader, 2)) == numbers(49, 50)


def test_a_reader_of_the_latest_of_an_empty_topic_gets_its_first_message(
    client: pulsar.Client, broker: BrokerProcess, brokers: Brokers, topic: str
) -> None:
    producer = client.create_producer(topic)
    with EntryReader(brokers, whole(topic), LATEST) as reader:
        assert reader.read(0.1) == []
        rest(broker, "PUT", f"persistent/public/default/{topic}/unload")
        producer.send(b"first")
        assert contents(read_count(reader, 1)) == [b"first"]


def test_a_reader_goes_to_another_position_and_back(client: pulsar.Client, brokers: Brokers, topic: str) -> None:
    publish(client, topic, numbers(1, 50))
    with EntryReader(brokers, whole(topic), EARLIEST) as reader:
        entries = read_to_end(reader)
        reader.seek(Start.at(position_of(entries[30])))
        assert read_to_end(reader) == entries[30:]
        reader.seek(EARLIEST)
        assert read_to_end(reader) == entries
        reader.seek(LATEST)
        assert reader.read(0.1) == []
        publish(client, topic, [b"51"])
        assert contents(read_count(reader, 1)) == [b"51"]


def test_a_reader_goes_to_a_publish_time(client: pulsar.Client, brokers: Brokers, topic: str) -> None:
    ids = publish(client, topic, numbers(1, 44))
    entries = everything(brokers, topic)
    assert len(ids) == len(entries)
    for at in (0, 13, 19, 20, 43):
        time_ms = entries[at].metadata.publish_time
        expected = next(i for i, each in enumerate(entries) if each.metadata.publish_time >= time_ms)
        with EntryReader(brokers, whole(topic), Start.published(time_ms)) as reader:
            assert read_to_end(reader) == entries[expected:]
            reader.seek(Start.published(time_ms))
            assert read_to_end(reader) == entries[expected:]
    with EntryReader(brokers, whole(topic), Start.published(int(time.time() * 1000) + 3_600_000)) as reader:
        assert reader.read(0.2) == []


def test_the_compacted_messages_are_read_also_where_the_others_are_gone(
    client: pulsar.Client, broker: BrokerProcess, brokers: Brokers, topic: str
) -> None:
    client.subscribe(topic, "s").close()
    publish(client, topic, numbers(1, 90), keys=7)
    compact(broker, topic)
    every = everything(brokers, topic)
    compacted = everything(brokers, topic, is_read_compacted=True)
    assert contents(compacted) == numbers(84, 90)
    with EntryReader(brokers, whole(topic), EARLIEST, {"is_read_compacted": True}) as reader:
        assert reader.last_position() == position_of(every[-1])
    rest(broker, "POST", f"persistent/public/default/{topic}/subscription/s/skip_all")
    forget_all(broker, topic)
    # Not by reading: a reader that has asked for the last entry waits for it in vain once it is trimmed.
    eventually(lambda: stored_entries(broker, topic) == 0, what="trimming")
    assert everything(brokers, topic, is_read_compacted=True) == compacted
    half = Start.after(position_of(compacted[3]))
    assert everything(brokers, topic, half, is_read_compacted=True) == compacted[4:]


def test_the_last_position_is_that_of_the_last_entry_whatever_it_is(
    client: pulsar.Client, brokers: Brokers, topic: str
) -> None:
    producer = client.create_producer(topic)
    with EntryReader(brokers, whole(topic), EARLIEST) as reader:
        assert reader.last_position() is None
        assert not reader.has_more(None)
        single = Position.of_id(producer.send(b"1").serialize())
        assert reader.last_position() == Position(single.ledger, single.entry)
        assert reader.has_more(None)
        assert not reader.has_more(Position(single.ledger, single.entry))
        publish_batch(client, topic, numbers(2, 6))
        batch = reader.last_position()
        assert batch is not None
        assert batch.batch == 4
        assert reader.has_more(Position(batch.ledger, batch.entry, 3))
        assert not reader.has_more(batch)
        assert not reader.has_more(Position(batch.ledger, batch.entry))
        publish(client, topic, [b"x" * 12_000_000], chunking_enabled=True)
        entries = read_to_end(reader)
        assert entries[-1].metadata.chunk_id == entries[-1].metadata.num_chunks_from_msg - 1 > 0
        assert reader.last_position() == position_of(entries[-1])


def test_a_topic_of_which_everything_is_trimmed_has_no_last_position(
    client: pulsar.Client, broker: BrokerProcess, brokers: Brokers, topic: str
) -> None:
    consumer = client.subscribe(topic, "s")
    publish(client, topic, numbers(1, 30))
    rest(broker, "POST", f"persistent/public/default/{topic}/subscription/s/skip_all")
    forget_all(broker, topic)
    with EntryReader(brokers, whole(topic), EARLIEST) as reader:
        eventually(lambda: reader.last_position() is None, what="trimming")
        assert not reader.has_more(BEGINNING)
    with EntryReader(brokers, whole(topic), EARLIEST) as reader:
        assert reader.read(0.1) == []
        publish(client, topic, [b"31"])
        assert contents(read_count(reader, 1)) == [b"31"]
    consumer.close()


def test_a_topic_that_is_not_there_is_named_and_not_created(
    broker: BrokerProcess, brokers: Brokers, topic: str
) -> None:
    with (
        EntryReader(brokers, whole(topic), EARLIEST) as reader,
        pytest.raises(PulsarSourceError, match=rf"reading {whole(topic)}: 127\.0\.0\.1:\d+: TopicNotFound: "),
    ):
        reader.read(1)
    with pytest.raises(PulsarSourceError, match=rf"asking for the partitions of {whole(topic)}: .*TopicNotFound"):
        brokers.partitions(whole(topic))
    assert brokers.topics("public/default").count(whole(topic)) == 0


def test_two_readers_over_one_link_each_get_their_own(client: pulsar.Client, broker: BrokerProcess, topic: str) -> None:
    other = f"{topic}-other"
    publish(client, topic, numbers(1, 300))
    publish(client, other, numbers(1001, 1300))
    brokers = Brokers(connection_to(broker.service_url))
    with EntryReader(brokers, whole(topic), EARLIEST) as one, EntryReader(brokers, whole(other), EARLIEST) as two:
        assert brokers.owner(whole(topic)) is brokers.owner(whole(other))
        found: tuple[list[bytes], list[bytes]] = ([], [])
        while len(found[0]) < 300 or len(found[1]) < 300:
            for reader, into in zip((one, two), found, strict=True):
                into += contents(reader.read(0.05))
    assert found == (numbers(1, 300), numbers(1001, 1300))
    brokers.close()


def test_readers_in_several_threads_share_a_link(client: pulsar.Client, brokers: Brokers, topic: str) -> None:
    topics = [f"{topic}-{at}" for at in range(4)]
    for at, each in enumerate(topics):
        publish_batch(client, each, numbers(1, 500))
        publish(client, each, numbers(501 + at, 900))
    found: dict[str, list[bytes]] = {}

    def read(each: str) -> None:
        for _ in range(5):
            found[each] = contents(everything(brokers, each))

    threads = [threading.Thread(target=read, args=(each,)) for each in topics]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert found == {each: numbers(1, 500) + numbers(501 + at, 900) for at, each in enumerate(topics)}


def test_a_reader_that_is_left_alone_keeps_little_and_goes_on(
    client: pulsar.Client, brokers: Brokers, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heliograph_spark.wire.entry_reader.READ_AHEAD_BYTES", 20_000)
    other = f"{topic}-other"
    publish(client, topic, numbers(1, 40))
    producer = client.create_producer(other)
    with EntryReader(brokers, whole(topic), EARLIEST) as slow, EntryReader(brokers, whole(other), EARLIEST) as fast:
        found = read_count(slow, 40)
        # Now its permits are for many small messages, and what comes is large.
        publish(client, topic, [b"%d" % at + b"." * 10_000 for at in range(30)])
        for at in range(30):
            producer.send(b"%d" % at)
            read_count(fast, 1)
        consumer = slow._consumer
        assert consumer is not None
        assert consumer.receiver.closed, "it was given up for its size"
        assert sum(len(data) for _, data in consumer.receiver.arrived) < 60_000
        found += read_until(slow, lambda more: len(more) >= 30)
    assert [content.rstrip(b".") for content in contents(found)] == numbers(1, 40) + numbers(0, 29)


def test_partitions_topics_and_schemas_are_found(
    client: pulsar.Client, broker: BrokerProcess, brokers: Brokers, topic: str
) -> None:
    rest(broker, "PUT", f"persistent/public/default/{topic}/partitions", 3)
    names = [f"{whole(topic)}-partition-{at}" for at in range(3)]
    assert brokers.partitions(whole(topic)) == 3
    assert brokers.partition_names(whole(topic)) == names
    assert set(names) <= set(brokers.topics("public/default"))
    assert brokers.topics("public/nothing") == []
    assert brokers.schema(whole(topic)) is None

    plain = f"{topic}-plain"
    client.create_producer(plain, schema=pulsar.schema.StringSchema()).close()
    assert brokers.partition_names(whole(plain)) == [whole(plain)]
    found = brokers.schema(whole(plain))
    assert found is not None
    assert found.schema.type == 1
    assert brokers.schema(whole(plain), found.version) == found
    assert brokers.schema(whole(plain), b"\0\0\0\0\0\0\0\7") is None
