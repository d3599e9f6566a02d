"""``readStream`` and ``writeStream``: messages once over restarts, bounded triggers, a sink that repeats nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pulsar
import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.support.broker_process import BrokerProcess
from tests.support.clients import backlog, create_partitions, publish, read_all, rest
from tests.support.polling import eventually

WITHIN_S = 300


def stream(spark: SparkSession, broker: BrokerProcess, topic: str, **options: str) -> DataFrame:
    """The frame of a streaming query from the topic's beginning; an underscore in an option's name is a dot."""
    named = {name.replace("_", "."): value for name, value in options.items()}
    source = spark.readStream.format("pulsar").option("service.url", broker.service_url).option("topic", topic)
    return source.option("startingOffsets", "earliest").options(**named).load()


def matching(spark: SparkSession, broker: BrokerProcess, topic: str, fails: str) -> DataFrame:
    """The frame of a streaming query of the topics whose names begin like this; ``fails`` if one of them is gone."""
    urls = {"service.url": broker.service_url, "admin.url": broker.http_url, "startingOffsets": "earliest"}
    source = spark.readStream.format("pulsar").options(**urls).option("failOnDataLoss", fails)
    return source.option("topicsPattern", f"{topic}-.*").load()


def run_to_files(frame: DataFrame, directory: Path) -> int:
    """Write what is available now to Parquet; returns the number of triggers that had something."""
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(directory / "checkpoint"))
    query = writer.option("path", str(directory / "rows")).trigger(availableNow=True).start()
    assert query.awaitTermination(WITHIN_S), "the query did not end"
    return sum(1 for each in query.recentProgress if each.numInputRows)


def rows(spark: SparkSession, directory: Path) -> list[bytes]:
    return sorted(bytes(row.value) for row in spark.read.parquet(str(directory / "rows")).select("value").collect())


def test_a_restarted_query_goes_on_where_it_was_and_reads_partitions_added_meanwhile(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    create_partitions(broker, topic, 2)
    first = [b"a%02d" % number for number in range(20)]
    publish(client, topic, first)
    run_to_files(stream(spark, broker, topic), tmp_path)
    assert rows(spark, tmp_path) == first
    second = [b"b%02d" % number for number in range(7)]
    rest(broker, "POST", f"persistent/public/default/{topic}/partitions", 3)
    publish(client, topic, second, batching_enabled=True)
    publish(client, f"{topic}-partition-2", [b"c"])
    run_to_files(stream(spark, broker, topic), tmp_path)
    assert rows(spark, tmp_path) == [*first, *second, b"c"]


def test_a_topic_that_is_gone_ends_the_query_unless_it_goes_on_without(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        publish(client, f"{topic}-{name}", [name.encode()])

    def frame(fails: str) -> DataFrame:
        return matching(spark, broker, topic, fails)

    run_to_files(frame("true"), tmp_path)
    assert rows(spark, tmp_path) == [b"a", b"b"]
    rest(broker, "DELETE", f"persistent/public/default/{topic}-b?force=true")
    publish(client, f"{topic}-a", [b"c"])
    with pytest.raises(Exception, match=f"{topic}-b is gone, of which the query has read up to"):
        run_to_files(frame("true"), tmp_path)
    assert rows(spark, tmp_path) == [b"a", b"b"]
    run_to_files(frame("false"), tmp_path)
    assert rows(spark, tmp_path) == [b"a", b"b", b"c"]


def test_a_repeated_batch_with_a_topic_that_is_gone_ends_the_query_unless_it_goes_on_without(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        publish(client, f"{topic}-{name}", [name.encode()])
    read: list[bytes] = []

    def fail(*_: object) -> None:
        raise RuntimeError("killed")

    def keep(batch: DataFrame, _: int) -> None:
        read.extend(bytes(row.value) for row in batch.collect())

    def go(function: Callable[[DataFrame, int], None], fails: str) -> None:
        writer = matching(spark, broker, topic, fails).writeStream.foreachBatch(function)
        query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
        assert query.awaitTermination(WITHIN_S), "the query did not end"

    with pytest.raises(Exception, match="killed"):
        go(fail, "true")
    rest(broker, "DELETE", f"persistent/public/default/{topic}-b?force=true")
    with pytest.raises(Exception, match=f"{topic}-b is gone, of which the query has read up to"):
        go(keep, "true")
    assert read == []
    go(keep, "false")
    assert read == [b"a"]
    # A batch of nothing else.
    publish(client, f"{topic}-c", [b"c"])
    with pytest.raises(Exception, match="killed"):
        go(fail, "false")
    rest(broker, "DELETE", f"persistent/public/default/{topic}-c?force=true")
    go(keep, "false")
    publish(client, f"{topic}-a", [b"d"])
    go(keep, "false")
    assert read == [b"a", b"d"]


def test_a_trigger_takes_about_so_many_bytes_and_all_of_them_everything(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    sent = [b"%04d" % number * 250 for number in range(30)]
    publish(client, topic, sent)
    frame = stream(spark, broker, topic, maxBytesPerTrigger="12000", admin_url=broker.http_url)
    triggers = run_to_files(frame, tmp_path)
    assert 3 <= triggers <= 4
    assert rows(spark, tmp_path) == sent


def test_a_trigger_takes_so_many_entries_of_all_partitions(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    create_partitions(broker, topic, 2)
    sent = [b"%02d" % number for number in range(30)]
    publish(client, f"{topic}-partition-0", sent[:20])
    publish(client, f"{topic}-partition-1", sent[20:])
    frame = stream(spark, broker, topic, maxOffsetsPerTrigger="12", admin_url=broker.http_url)
    read: list[list[bytes]] = []
    writer = frame.writeStream.foreachBatch(lambda batch, _: read.append([bytes(row.value) for row in batch.collect()]))
    query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    assert query.awaitTermination(WITHIN_S), "the query did not end"
    assert [len(batch) for batch in read] == [12, 12, 6]
    # A third of it is of the partition that has a third.
    assert [sum(value >= sent[20] for value in batch) for batch in read] == [4, 4, 2]
    assert sorted(value for batch in read for value in batch) == sent


def test_a_subscription_holds_what_is_not_written_yet(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    publish(client, topic, [b"1", b"2"])
    frame = stream(spark, broker, topic, predefinedSubscription="spark")
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.option("path", str(tmp_path / "rows")).start()
    try:
        eventually(lambda: query.recentProgress and rows(spark, tmp_path) == [b"1", b"2"], within_s=WITHIN_S)
        publish(client, topic, [b"3"])
        # A batch is committed when the next one is made, so at most the last batch is still held.
        eventually(lambda: rows(spark, tmp_path) == [b"1", b"2", b"3"], within_s=WITHIN_S, what="the third message")
        eventually(lambda: backlog(broker, topic, "spark") <= 1, within_s=WITHIN_S, what="written messages to go")
    finally:
        query.stop()


def test_a_topic_that_is_found_later_is_held_while_the_batch_that_begins_it_is_written(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    publish(client, f"{topic}-a", [b"1"])
    written, go_on = threading.Event(), threading.Event()

    def write(batch: DataFrame, number: int) -> None:
        batch.collect()
        if number:
            assert go_on.wait(WITHIN_S)
        written.set()

    held = {"admin.url": broker.http_url, "predefinedSubscription": "spark", "startingOffsets": "earliest"}
    source = spark.readStream.format("pulsar").option("service.url", broker.service_url).options(**held)
    frame = source.option("topicsPattern", f"{topic}-.*").load()
    query = frame.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path)).start()
    try:
        assert written.wait(WITHIN_S)
        publish(client, f"{topic}-b", [b"2"])
        eventually(
            lambda: "spark" in rest(broker, "GET", f"persistent/public/default/{topic}-b/subscriptions"),
            within_s=WITHIN_S,
            what="the new topic to be held",
        )
    finally:
        go_on.set()
        query.stop()


@pytest.mark.long
def test_a_topic_that_is_found_later_has_the_schema_of_the_query_or_ends_it(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    publish(client, f"{topic}-a", [b"1"])

    def frame() -> DataFrame:
        urls = {"service.url": broker.service_url, "admin.url": broker.http_url, "startingOffsets": "earliest"}
        return spark.readStream.format("pulsar").options(**urls).option("topicsPattern", f"{topic}-.*").load()

    writer = frame().writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.option("path", str(tmp_path / "rows")).start()
    try:
        eventually(lambda: query.recentProgress and rows(spark, tmp_path) == [b"1"], within_s=WITHIN_S)
        publish(client, f"{topic}-b", [b"2"])
        eventually(lambda: rows(spark, tmp_path) == [b"1", b"2"], within_s=WITHIN_S, what="the topic of bytes")
        texts = client.create_producer(f"{topic}-c", schema=pulsar.schema.StringSchema())
        texts.send("7")
        eventually(lambda: not query.isActive, within_s=WITHIN_S, what="the query ended by the topic of texts")
        assert f"{topic}-c has a schema of type STRING" in str(query.exception())
    finally:
        query.stop()
    assert rows(spark, tmp_path) == [b"1", b"2"]


@pytest.mark.long
def test_a_query_whose_pattern_fits_nothing_yet_reads_bytes_and_ends_at_a_topic_with_a_schema(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    urls = {"service.url": broker.service_url, "admin.url": broker.http_url, "startingOffsets": "earliest"}
    frame = spark.readStream.format("pulsar").options(**urls).option("topicsPattern", f"{topic}-.*").load()
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.option("path", str(tmp_path / "rows")).start()
    try:
        eventually(lambda: (tmp_path / "checkpoint" / "offsets" / "0").exists(), within_s=WITHIN_S, what="the query")
        publish(client, f"{topic}-a", [b"1"])
        eventually(lambda: query.recentProgress and rows(spark, tmp_path) == [b"1"], within_s=WITHIN_S)
        texts = client.create_producer(f"{topic}-b", schema=pulsar.schema.StringSchema())
        texts.send("7")
        eventually(lambda: not query.isActive, within_s=WITHIN_S, what="the query ended by the topic of texts")
        assert f"{topic}-b has a schema of type STRING, and the query was planned with another one, of type BYTES" in (
            str(query.exception())
        )
    finally:
        query.stop()
    assert rows(spark, tmp_path) == [b"1"]


@pytest.mark.parametrize("name", ["", "archive"])
def test_a_repeated_batch_is_sent_once_with_a_producer_name_and_twice_without(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path, name: str
) -> None:
    rest(broker, "PUT", f"namespaces/public/{topic}")
    rest(
        broker, "POST", f"namespaces/public/{topic}/retention", {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
    )
    rest(broker, "POST", f"namespaces/public/{topic}/deduplication", True)
    target = f"public/{topic}/target"
    publish(client, topic, [b"%d" % number for number in range(10)])

    def run() -> None:
        sink = stream(spark, broker, topic).select("value").writeStream.format("pulsar")
        if name:
            sink = sink.option("pulsar.producer.producerName", name)
        sink = sink.option("service.url", broker.service_url).option("topic", target)
        query = sink.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        assert query.awaitTermination(WITHIN_S), "the query did not end"

    run()
    # As if the query had been killed after it sent everything and before Spark knew of it.
    committed = [
        *(tmp_path / "checkpoint" / "commits").glob("[0-9]*"),
        *(tmp_path / "checkpoint" / "commits").glob(".*.crc"),
    ]
    assert committed
    for each in committed:
        each.unlink()
    run()
    found = read_all(client.create_reader(target, pulsar.MessageId.earliest))
    assert sorted(found) == sorted([b"%d" % number for number in range(10)] * (1 if name else 2))
