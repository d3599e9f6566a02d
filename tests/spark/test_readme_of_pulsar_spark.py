"""The examples of pulsar-spark's README, in Python, with the broker's addresses and the topics of the test."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pulsar
import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.support.broker_process import BrokerProcess
from tests.support.clients import publish, read_all

WITHIN_S = 300


def _pairs(frame: DataFrame) -> list[tuple[str | None, str]]:
    """The rows as the examples select them."""
    return sorted(map(tuple, frame.selectExpr("CAST(__key AS STRING)", "CAST(value AS STRING)").collect()))


def _send(client: pulsar.Client, topic: str, *values: str) -> list[Any]:
    """Send messages with a key, and return their ids as a JSON of offsets has them."""
    producer = client.create_producer(topic, batching_enabled=False)
    return [list(producer.send(each.encode(), partition_key=f"k{each}").serialize()) for each in values]


def test_the_batch_reads_of_the_readme(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    one, two = f"{topic}-1", f"{topic}-2"
    ids1, ids2 = _send(client, one, "a", "b", "c"), _send(client, two, "d", "e", "f")
    source = spark.read.format("pulsar").option("service.url", broker.service_url)

    assert _pairs(source.option("topic", one).load()) == [("ka", "a"), ("kb", "b"), ("kc", "c")]

    source = spark.read.format("pulsar").option("service.url", broker.service_url)
    starting = json.dumps({one: ids1[1], two: ids2[0]})
    ending = json.dumps({one: ids1[2], two: ids2[1]})
    some = source.option("topics", f"{one},{two}").option("startingOffsets", starting).option("endingOffsets", ending)
    assert _pairs(some.load()) == [("kb", "b"), ("kc", "c"), ("kd", "d"), ("ke", "e")]

    # The README has it without admin.url, which a pattern needs here.
    source = spark.read.format("pulsar").option("service.url", broker.service_url)
    source = source.option("admin.url", broker.http_url).option("topicsPattern", f"{topic}.*")
    every = source.option("startingOffsets", "earliest").option("endingOffsets", "latest").load()
    assert [value for _, value in _pairs(every)] == ["a", "b", "c", "d", "e", "f"]


def test_a_batch_read_from_a_time_for_all_topics_and_for_each(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    one, two = f"{topic}-1", f"{topic}-2"
    _send(client, one, "a")
    _send(client, two, "c")
    # A publish time is in milliseconds, so the next message has another one.
    before = time.time_ns() // 1_000_000
    while time.time_ns() // 1_000_000 <= before + 1:
        time.sleep(0.001)
    between = str(before + 1)
    _send(client, one, "b")
    _send(client, two, "d")
    source = spark.read.format("pulsar").option("service.url", broker.service_url).option("topics", f"{one},{two}")
    assert [value for _, value in _pairs(source.option("startingTime", between).load())] == ["b", "d"]
    source = spark.read.format("pulsar").option("service.url", broker.service_url).option("topics", f"{one},{two}")
    each = source.option("startingTime", json.dumps({one: int(between), two: 0}))
    assert [value for _, value in _pairs(each.load())] == ["b", "c", "d"]


@pytest.mark.parametrize("choice", ["topic", "topics", "topicsPattern"])
def test_the_streaming_reads_of_the_readme(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path, choice: str
) -> None:
    one, two = f"{topic}-1", f"{topic}-2"
    publish(client, one, [b"before"])
    publish(client, two, [b"before"])
    chosen = {"topic": one, "topics": f"{one},{two}", "topicsPattern": f"{topic}.*"}[choice]
    admin = {"admin.url": broker.http_url} if choice == "topicsPattern" else {}

    def run() -> list[str]:
        source = spark.readStream.format("pulsar").option("service.url", broker.service_url).option(choice, chosen)
        frame = source.options(**admin).load().selectExpr("CAST(__key AS STRING)", "CAST(value AS STRING)")
        writer = frame.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.option("path", str(tmp_path / "rows")).trigger(availableNow=True).start()
        assert query.awaitTermination(WITHIN_S), "the query did not end"
        return sorted(row.value for row in spark.read.parquet(str(tmp_path / "rows")).collect())

    # A stream begins at the end by default, so the first run finds nothing.
    assert run() == []
    _send(client, one, "a")
    _send(client, two, "b")
    assert run() == (["a"] if choice == "topic" else ["a", "b"])


def test_the_writes_of_the_readme(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    rows = [(f"{topic}-1", "ka", "a"), (f"{topic}-2", "kb", "b")]
    frame = spark.createDataFrame(rows, "__topic string, __key string, value string")
    with_key = frame.selectExpr("CAST(__key AS STRING)", "CAST(value AS STRING)")
    writer = with_key.write.format("pulsar").option("service.url", broker.service_url).option("topic", topic)
    writer.mode("append").save()
    with_topic = frame.selectExpr("__topic", "CAST(__key AS STRING)", "CAST(value AS STRING)")
    with_topic.write.format("pulsar").option("service.url", broker.service_url).mode("append").save()
    assert sorted(read_all(client.create_reader(topic, pulsar.MessageId.earliest))) == [b"a", b"b"]
    for name, _, value in rows:
        assert read_all(client.create_reader(name, pulsar.MessageId.earliest)) == [value.encode()]

    # The same as streams, of what the batch has written.
    source = spark.readStream.format("pulsar").option("service.url", broker.service_url)
    source = source.option("topics", f"{topic}-1,{topic}-2").option("startingOffsets", "earliest").load()
    outputs = {
        "one": (["CAST(__key AS STRING)", "CAST(value AS STRING)"], {"topic": f"{topic}-all"}),
        "each": (["concat(__topic, '-again') AS __topic", "CAST(__key AS STRING)", "CAST(value AS STRING)"], {}),
    }
    for name, (columns, options) in outputs.items():
        stream = source.selectExpr(*columns).writeStream.format("pulsar").option("service.url", broker.service_url)
        stream = stream.options(**options).option("checkpointLocation", str(tmp_path / name))
        query = stream.trigger(availableNow=True).start()
        assert query.awaitTermination(WITHIN_S), "the query did not end"
    assert sorted(read_all(client.create_reader(f"{topic}-all", pulsar.MessageId.earliest))) == [b"a", b"b"]
    assert read_all(client.create_reader(f"{topic}-2-again", pulsar.MessageId.earliest)) == [b"b"]
