"""``write.format("pulsar")``: rows become messages with keys, times and properties, or are refused by name."""

from __future__ import annotations

from datetime import UTC, datetime

import pulsar
import pytest
from heliograph_spark.encode.entries import java_hash
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as f

from tests.support.broker_process import BrokerProcess
from tests.support.clients import DEADLINE_MS, create_partitions

from .test_batch_read import read


def test_a_row_says_its_topic_key_time_and_properties(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)
    frame = spark.createDataFrame(
        [Row(value="one", __topic=f"{topic}-a", __key="k", __eventTime=at, __messageProperties={"p": "q"})]
    ).union(
        spark.createDataFrame(
            [Row(value="two", t=f"{topic}-b", k=None, e=at, m={})],
            "value string, t string, k string, e timestamp, m map<string,string>",
        )
    )
    frame.write.format("pulsar").option("service.url", broker.service_url).mode("append").save()
    consumer = client.subscribe(
        f"{topic}-a", "s", initial_position=pulsar.InitialPosition.Earliest, schema=pulsar.schema.StringSchema()
    )
    message = consumer.receive(DEADLINE_MS)
    assert (message.value(), message.partition_key(), message.properties()) == ("one", "k", {"p": "q"})
    assert message.event_timestamp() == int(at.timestamp() * 1000)
    (other,) = read(spark, broker, topic=f"{topic}-b").collect()
    assert (other.value, other["__key"]) == ("two", None)


def test_columns_become_an_avro_record_and_come_back_as_they_were(
    spark: SparkSession, broker: BrokerProcess, topic: str
) -> None:
    frame = spark.range(20).select(
        "id",
        f.concat(f.lit("n"), "id").alias("name"),
        f.when(f.col("id") > 3, f.col("id") / 2).alias("half"),
        f.array("id", f.lit(None).cast("long")).alias("list"),
        f.create_map(f.lit("k"), "id").alias("map"),
        f.struct(f.col("id").cast("int").alias("inner")).alias("nested"),
        f.timestamp_seconds(f.col("id") + 1_700_000_000).alias("at"),
        f.expr("date '2026-01-01'").alias("day"),
        f.col("id").cast("decimal(10,2)").alias("exact"),
    )
    frame.write.format("pulsar").option("service.url", broker.service_url).option("topic", topic).mode("append").save()
    back = read(spark, broker, topic=topic).select(*frame.columns)
    assert back.schema.simpleString() == frame.schema.simpleString()
    assert sorted(back.collect(), key=lambda row: row.id) == frame.collect()


def test_a_key_goes_to_the_partition_where_java_clients_send_it(
    spark: SparkSession, broker: BrokerProcess, topic: str
) -> None:
    create_partitions(broker, topic, 3)
    frame = spark.range(30).selectExpr("concat('key', id) AS __key", "CAST(id AS STRING) AS value")
    frame.write.format("pulsar").option("service.url", broker.service_url).option("topic", topic).mode("append").save()
    found = read(spark, broker, topic=topic).collect()
    assert len(found) == 30
    for row in found:
        assert row["__topic"].endswith(f"-partition-{java_hash(bytes(row['__key']).decode()) % 3}")
    assert java_hash("heliograph") == 0x7FFFFFFF & _java("heliograph")


def _java(text: str) -> int:
    powers = (pow(31, len(text) - 1 - place) for place in range(len(text)))
    return sum(ord(letter) * int(power) for letter, power in zip(text, powers, strict=True)) & 0xFFFFFFFF


@pytest.mark.parametrize(
    ("columns", "topic_option", "output"),
    [
        ("'x' AS __key", "t", "there is no column to write"),
        ("'x' AS value", "", "of the option topic and the column '__topic' is given"),
        ("'x' AS value, 1 AS __key", "t", "column '__key' cannot be int"),
        ("interval 1 day AS a", "t", "Avro has no type for interval day"),
    ],
)
def test_rows_that_are_no_messages_are_refused_by_column(
    spark: SparkSession, broker: BrokerProcess, columns: str, topic_option: str, output: str
) -> None:
    writer = spark.range(1).selectExpr(*columns.split(", ")).write.format("pulsar").mode("append")
    writer = writer.option("service.url", broker.service_url)
    with pytest.raises(Exception, match="SchemaError") as refused:
        (writer.option("topic", topic_option) if topic_option else writer).save()
    assert output in str(refused.value)
