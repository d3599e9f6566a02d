"""``includeColumns``: what a message has beside its content, as columns, for the queries that ask for it."""

from __future__ import annotations

from typing import Any

import pulsar
import pytest
from pyspark.sql import SparkSession

from tests.support.broker_process import BrokerProcess
from tests.support.clients import create_partitions

from .test_batch_read import read
from .test_entries_of_clients import of_client

USUAL = ["__key", "__topic", "__messageId", "__publishTime", "__eventTime", "__messageProperties"]
FURTHER = {
    "__ledger": "bigint",
    "__entry": "bigint",
    "__batchIndex": "int",
    "__partition": "int",
    "__orderingKey": "binary",
    "__producer": "string",
    "__sequenceId": "bigint",
    "__schemaVersion": "binary",
    "__redeliveryCount": "int",
}


def _publish(client: pulsar.Client, topic: str) -> list[int]:
    """Send batches, single messages and one in chunks, with keys and without; return their sequence ids in order."""
    settings: dict[str, Any] = {"schema": pulsar.schema.StringSchema()}
    batched = client.create_producer(
        topic, batching_enabled=True, batching_max_messages=10, batching_max_publish_delay_ms=60_000, **settings
    )
    for number in range(20):
        keys = {"partition_key": f"k{number % 3}", "ordering_key": f"o{number}"} if number % 4 else {}
        batched.send_async(f"batched {number}", lambda *_: None, **keys)
    batched.flush()
    single = client.create_producer(
        topic, batching_enabled=False, chunking_enabled=True, initial_sequence_id=999, **settings
    )
    single.send("single", partition_key="k", ordering_key="o")
    single.send("in chunks " * (6 << 17), ordering_key="of chunks")
    return [*range(20), 1000, 1001]


@pytest.mark.parametrize("partitions", [0, 2])
def test_each_column_is_what_the_official_client_gives(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, partitions: int
) -> None:
    partition = f"persistent://public/default/{topic}"
    if partitions:
        create_partitions(broker, topic, partitions)
        partition += "-partition-1"
    sequence_ids = _publish(client, partition)
    reader = client.create_reader(partition, pulsar.MessageId.earliest)
    expected = [of_client(reader.read_next(60_000)) for _ in sequence_ids]

    frame = read(spark, broker, topic=topic, includeColumns=", ".join(FURTHER))
    assert frame.columns == ["value", *USUAL, *FURTHER]
    assert {name: kind for name, kind in frame.dtypes if name in FURTHER} == FURTHER
    rows = frame.orderBy("__ledger", "__entry", "__batchIndex").collect()
    found = [
        {name: bytes(each) if isinstance(each, bytearray) else each for name, each in row.asDict().items()}
        for row in rows
    ]
    assert [row["__sequenceId"] for row in found] == sequence_ids
    compared = ["__messageId", *(name for name in FURTHER if name != "__sequenceId")]
    assert [{name: row[name] for name in compared} for row in found] == [
        {name: row[name] for name in compared} for row in expected
    ]
    # What the two agree on says something.
    assert {row["__partition"] for row in found} == {1 if partitions else -1}
    assert [row["__batchIndex"] for row in found] == [*range(10), *range(10), -1, -1]
    assert [row["__orderingKey"] for row in found][-2:] == [b"o", b"of chunks"]
    assert all(row["__schemaVersion"] and row["__producer"] for row in found)


def test_a_query_has_only_the_columns_that_it_asks_for(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    client.create_producer(topic).send(b"content", ordering_key="o")
    assert read(spark, broker, topic=topic).columns == ["value", *USUAL]
    one = read(spark, broker, topic=topic, includeColumns="__orderingKey,__key,__orderingKey")
    assert one.columns == ["value", *USUAL, "__orderingKey"]
    own = spark.read.format("pulsar").option("service.url", broker.service_url).option("topic", topic)
    (row,) = own.schema("__sequenceId bigint, value binary, __orderingKey binary").load().collect()
    assert row.asDict() == {"__sequenceId": 0, "value": b"content", "__orderingKey": b"o"}


def test_a_column_that_is_not_there_is_named(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    client.create_producer(topic).send(b"content")
    with pytest.raises(Exception, match="includeColumns: '__legder' is no column of metadata; there are __ledger, "):
        read(spark, broker, topic=topic, includeColumns="__entry,__legder")


def test_a_field_with_the_name_of_such_a_column_is_refused_by_name(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    fields = {"__ledger": pulsar.schema.Integer()}
    record = type("Book", (pulsar.schema.Record,), fields)
    client.create_producer(topic, schema=pulsar.schema.AvroSchema(record)).send(record(__ledger=1))
    with pytest.raises(Exception, match=r"field '__ledger' of .* has the name of a column of metadata"):
        read(spark, broker, topic=topic)


def test_rows_that_were_read_with_them_are_written_with_their_ordering_keys(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    client.create_producer(topic).send(b"content", partition_key="k", ordering_key="o")
    rows = read(spark, broker, topic=topic, includeColumns=",".join(FURTHER)).drop("__topic")
    sink = rows.write.format("pulsar").option("service.url", broker.service_url).option("topic", f"{topic}-again")
    sink.mode("append").save()
    message = client.create_reader(f"{topic}-again", pulsar.MessageId.earliest).read_next(60_000)
    assert (message.data(), message.partition_key(), message.ordering_key()) == (b"content", "k", "o")


def test_properties_are_headers_as_a_query_of_kafka_reads_them(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    producer = client.create_producer(topic)
    for number, properties in enumerate(({"trace": "7", "from": "käse"}, {}, {"trace": "9"})):
        producer.send(b"%d" % number, properties=properties)
    frame = read(spark, broker, topic=topic, includeHeaders="true")
    assert frame.columns == ["value", *USUAL, "headers"]
    assert dict(frame.dtypes)["headers"] == "array<struct<key:string,value:binary>>"
    found = frame.selectExpr("CAST(value AS STRING) AS value", "headers", "__messageProperties").orderBy("value")
    rows = [
        (row.headers and {each.key: bytes(each.value).decode() for each in row.headers}, row["__messageProperties"])
        for row in found.collect()
    ]
    assert rows == [
        ({"trace": "7", "from": "käse"}, {"trace": "7", "from": "käse"}),
        # As Kafka's source gives it.
        (None, {}),
        ({"trace": "9"}, {"trace": "9"}),
    ]
    exploded = frame.selectExpr("explode(headers) AS header").where("header.key = 'trace'")
    assert sorted(bytes(row.header.value) for row in exploded.collect()) == [b"7", b"9"]
    # Without the properties beside them, and of messages that are not taken.
    own = spark.read.format("pulsar").options(**{"service.url": broker.service_url, "topic": topic})
    shaped = own.option("includeHeaders", "true").schema("headers array<struct<key:string,value:binary>>").load()
    assert [row.headers and len(row.headers) for row in shaped.collect()] == [2, None, 1]
    with pytest.raises(Exception, match="has no column 'headers'"):
        own.option("includeHeaders", "false").schema("headers array<struct<key:string,value:binary>>").load().collect()


def test_a_field_named_headers_stays_a_field_unless_headers_are_asked_for(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    record = type("Letter", (pulsar.schema.Record,), {"headers": pulsar.schema.Integer()})
    client.create_producer(topic, schema=pulsar.schema.AvroSchema(record)).send(record(headers=3))
    assert [row.headers for row in read(spark, broker, topic=topic).collect()] == [3]
    with pytest.raises(Exception, match=r"field 'headers' of .* has the name of the column that includeHeaders adds"):
        read(spark, broker, topic=topic, includeHeaders="true")
