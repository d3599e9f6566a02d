"""``spark.read.format("pulsar")`` against the real broker: what is read, from where to where, and what is refused."""

from __future__ import annotations

import json
import time
from typing import Any

import pulsar
import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.support.broker_process import BrokerProcess
from tests.support.clients import BATCH_WAITS_MS, create_partitions, fresh_name, publish, rest
from tests.support.polling import eventually
from tests.support.rest import keep_nothing

from .conftest import Elsewhere


class Reading(pulsar.schema.Record):  # type: ignore[misc]
    place = pulsar.schema.String()
    degrees = pulsar.schema.Double()


class WiderReading(pulsar.schema.Record):  # type: ignore[misc]
    place = pulsar.schema.String()
    degrees = pulsar.schema.Double()
    height = pulsar.schema.Integer(default=7, required_default=True)


def read(spark: SparkSession, broker: BrokerProcess, **options: str) -> DataFrame:
    """The frame of a batch query; an underscore in an option's name is a dot."""
    named = {name.replace("_", "."): value for name, value in options.items()}
    return spark.read.format("pulsar").option("service.url", broker.service_url).options(**named).load()


def values(frame: DataFrame) -> list[bytes]:
    return sorted(bytes(row.value) for row in frame.select("value").collect())


def test_a_message_is_a_row_with_its_metadata(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    producer = client.create_producer(topic)
    sent = producer.send(b"content", {"p": "q"}, partition_key="k", event_timestamp=1_700_000_000_123)
    producer.send(b"bare")
    full, bare = read(spark, broker, topic=topic).orderBy("__publishTime").collect()
    assert (bytes(full.value), bytes(full["__key"]), full["__messageProperties"]) == (b"content", b"k", {"p": "q"})
    assert full["__topic"] == f"persistent://public/default/{topic}"
    found = pulsar.MessageId.deserialize(bytes(full["__messageId"]))
    assert (found.ledger_id(), found.entry_id()) == (sent.ledger_id(), sent.entry_id())
    assert full["__eventTime"].timestamp() == pytest.approx(1_700_000_000.123)
    assert (bare["__key"], bare["__eventTime"], bare["__messageProperties"]) == (None, None, {})


def test_each_partition_is_a_split_and_a_large_one_is_several(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    create_partitions(broker, topic, 2)
    sent = [b"%03d" % number for number in range(40)]
    publish(client, topic, sent)
    whole = read(spark, broker, topic=topic)
    assert whole.rdd.getNumPartitions() == 2
    assert values(whole) == sent
    parts = read(spark, broker, topic=topic, maxEntriesPerSplit="5")
    assert parts.rdd.getNumPartitions() == 8
    assert values(parts) == sent


def test_a_batch_is_read_message_by_message_from_and_to_an_offset_within_it(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=BATCH_WAITS_MS)
    ids: list[Any] = []
    for number in range(10):
        producer.send_async(b"%d" % number, lambda _result, message_id: ids.append(message_id))
    producer.flush()
    assert ids[0].entry_id() == ids[9].entry_id(), "the messages were not sent in one batch"
    first, last = (list(each.serialize()) for each in (ids[3], ids[6]))
    frame = read(
        spark, broker, topic=topic, startingOffsets=json.dumps({topic: first}), endingOffsets=json.dumps({topic: last})
    )
    assert values(frame) == [b"3", b"4", b"5", b"6"]


def test_a_message_in_chunks_is_read_once_wherever_the_splits_are_cut(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    whole = [bytes([number]) * 11_000_000 for number in range(2)]
    producer = client.create_producer(topic, chunking_enabled=True, batching_enabled=False)
    small = client.create_producer(topic)
    for content in whole:
        producer.send(content)
        small.send(b"small")
    frame = read(spark, broker, topic=topic, maxEntriesPerSplit="1")
    assert frame.rdd.getNumPartitions() >= 6, "the messages were not sent in chunks"
    found = sorted(frame.selectExpr("length(value)", "hex(left(value, 1))").collect())
    assert [tuple(row) for row in found] == [(5, "73"), (5, "73"), (11_000_000, "00"), (11_000_000, "01")]


def test_a_time_says_where_to_begin_and_where_to_end(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    publish(client, topic, [b"1"])
    published = time.time_ns() // 1_000_000
    # In the same millisecond the first two could not be told apart by time.
    eventually(lambda: time.time_ns() // 1_000_000 > published, what="the next millisecond")
    publish(client, topic, [b"2", b"3"])
    times = [row[0] for row in read(spark, broker, topic=topic).selectExpr("unix_millis(__publishTime)").collect()]
    times.sort()
    from_second = read(spark, broker, topic=topic, startingTime=str(times[0] + 1))
    assert values(from_second) == [b"2", b"3"]
    assert values(read(spark, broker, topic=topic, endingTime=json.dumps({topic: times[0] + 1}))) == [b"1"]
    assert values(read(spark, broker, topic=topic, startingTime=str(times[-1] + 10**6))) == []


def test_topics_are_read_together_by_list_and_by_pattern_and_a_filter_is_for_its_query_only(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client
) -> None:
    prefix = fresh_name("many")
    for name in ("a", "b"):
        publish(client, f"{prefix}-{name}", [name.encode()])
    frame = read(spark, broker, topicsPattern=f"{prefix}-.*", admin_url=broker.http_url)
    assert values(frame.filter(f"__topic = 'persistent://public/default/{prefix}-a'")) == [b"a"]
    assert values(frame) == [b"a", b"b"]
    assert values(read(spark, broker, topics=f"{prefix}-a,{prefix}-b")) == [b"a", b"b"]


def test_a_json_topic_is_columns(spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic, schema=pulsar.schema.JsonSchema(Reading))
    producer.send(Reading(place="Kyoto", degrees=21.5))
    producer.send(Reading(place="Oslo"))
    frame = read(spark, broker, topic=topic)
    assert frame.columns[:2] == ["degrees", "place"] or frame.columns[:2] == ["place", "degrees"]
    assert sorted((row.place, row.degrees) for row in frame.collect()) == [("Kyoto", 21.5), ("Oslo", None)]


def test_an_avro_topic_is_columns_and_older_messages_get_the_defaults_of_its_newest_schema(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    old = client.create_producer(topic, schema=pulsar.schema.AvroSchema(Reading))
    old.send(Reading(place="Kyoto", degrees=21.5))
    new = client.create_producer(topic, schema=pulsar.schema.AvroSchema(WiderReading))
    new.send(WiderReading(place="Oslo", degrees=1.0, height=23))
    rows = read(spark, broker, topic=topic).select("place", "height").collect()
    assert sorted((row.place, row.height) for row in rows) == [("Kyoto", 7), ("Oslo", 23)]
    raw = read(spark, broker, topic=topic, allowDifferentTopicSchemas="true").select("value").collect()
    assert len(raw) == 2
    assert all(isinstance(bytes(row.value), bytes) for row in raw)


def test_a_message_that_is_not_what_the_schema_says_is_named(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    client.create_producer(topic, schema=pulsar.schema.JsonSchema(Reading)).send(Reading(place="Kyoto"))
    (wrong,) = publish(client, topic, [b"no json"])
    with pytest.raises(Exception, match="cannot be read: it is not JSON") as refused:
        read(spark, broker, topic=topic).collect()
    assert f"message {wrong.ledger_id()}:{wrong.entry_id()} of " in str(refused.value)
    assert f"public/default/{topic}" in str(refused.value)


def test_a_topic_whose_retention_nobody_set_is_read_whole_though_all_is_acknowledged(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    rest(broker, "PUT", f"namespaces/public/{topic}")
    sent = [b"%d" % number for number in range(6)]
    unread, read_before = f"public/{topic}/unread", f"public/{topic}/read"
    publish(client, unread, sent)
    consumer = client.subscribe(read_before, "s")
    ids = publish(client, read_before, sent)
    consumer.acknowledge_cumulative(ids[-1])
    consumer.close()
    stats = f"persistent/{read_before}/stats"
    eventually(lambda: rest(broker, "GET", stats)["subscriptions"]["s"]["msgBacklog"] == 0, what="the acknowledgment")
    if not isinstance(broker, Elsewhere):
        # When a topic that keeps nothing has deleted what came later, twice, all topics were checked.
        rest(broker, "PUT", f"namespaces/public/{topic}-brief")
        keep_nothing(broker.http_url, f"public/{topic}-brief")
        brief = f"public/{topic}-brief/t"
        for _ in range(2):
            publish(client, brief, [b"x"])
            eventually(lambda: rest(broker, "GET", f"persistent/{brief}/stats")["storageSize"] == 0, what="it is gone")
    for name in (unread, read_before):
        assert values(read(spark, broker, topic=name)) == sent


def test_expired_offsets_are_named_and_skipped_only_when_asked(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    if isinstance(broker, Elsewhere):
        pytest.skip("Pulsar trims whole ledgers, and minutes later")
    rest(broker, "PUT", f"namespaces/public/{topic}")
    keep_nothing(broker.http_url, f"public/{topic}")
    name = f"public/{topic}/t"
    holder = client.subscribe(name, "holder", initial_position=pulsar.InitialPosition.Earliest)
    ids = publish(client, name, [b"%d" % number for number in range(6)])
    holder.acknowledge_cumulative(ids[3])
    holder.close()
    offsets = json.dumps({name: f"{ids[0].ledger_id()}:{ids[1].entry_id()}"})

    def kept() -> list[bytes]:
        return values(read(spark, broker, topic=name, startingOffsets=offsets, failOnDataLoss="false"))

    eventually(lambda: kept() == [b"4", b"5"], within_s=180, what="the acknowledged messages being trimmed")
    with pytest.raises(Exception, match=r"the messages after \d+:0 and before \d+:4 are gone") as refused:
        read(spark, broker, topic=name, startingOffsets=offsets).collect()
    assert name in str(refused.value)


@pytest.mark.parametrize(
    ("options", "output"),
    [
        ({"topic": "t", "startingOffset": "earliest"}, "'startingoffset' is not known here; is it 'startingoffsets'"),
        ({"topic": "not-there"}, "there is no topic persistent://public/default/not-there"),
        ({"topicsPattern": "no/where/.*"}, "there is no namespace 'no/where'"),
    ],
)
def test_what_is_wrong_with_a_query_is_named(
    spark: SparkSession, broker: BrokerProcess, options: dict[str, str], output: str
) -> None:
    with pytest.raises(Exception, match=r"PulsarSourceError|OptionError") as refused:
        read(spark, broker, **options, admin_url=broker.http_url).collect()
    assert output.lower() in str(refused.value).lower()


def test_a_broker_that_is_not_there_is_named(spark: SparkSession) -> None:
    with pytest.raises(Exception, match=r"connecting to 127\.0\.0\.1:1"):
        (
            spark.read.format("pulsar")
            .option("service.url", "pulsar://127.0.0.1:1")
            .option("pulsar.client.operationTimeoutMs", "1000")
            .option("topic", "t")
            .load()
        )
