"""Metrics of streaming queries as Prometheus scrapes them, and the entries that a query went past in its log."""

from __future__ import annotations

import json
import logging
import queue
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import heliograph_spark
import pytest
from heliograph_spark.decode import columns
from heliograph_spark.plan.errors import PulsarSourceError
from heliograph_spark.plan.options import read_options
from heliograph_spark.plan.positions import read_offsets
from heliograph_spark.plan.ranges import Range
from heliograph_spark.plan.topics import ledgers_of
from heliograph_spark.run import stream_metrics
from heliograph_spark.run.decoding import entry_columns
from heliograph_spark.run.reading import read_range
from heliograph_spark.run.schemas import RAW, columns_of
from heliograph_spark.run.source import PulsarDataSource, StreamReader
from heliograph_spark.wire.brokers import shared
from heliograph_spark.wire.partitions import end_of, start_of
from prometheus_client.parser import text_string_to_metric_families
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tests.support.clients import fresh_name
from tests.support.polling import eventually
from tests.support.ports import free_ports

from .conftest import COMMAND
from .test_many_ledgers import Topic, client, make, small

__all__ = ["client", "make", "small"]

WITHIN_S = 240.0


@pytest.fixture
def metrics(spark: SparkSession) -> Iterator[stream_metrics.MetricsServer]:
    spark.conf.set("spark.sql.streaming.noDataProgressEventInterval", "1000")
    server = heliograph_spark.serve_metrics(spark, 0, "127.0.0.1")
    yield server
    server.close()


def scrape_text(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        text: str = answer.read().decode()
        return text


def scrape(metrics: stream_metrics.MetricsServer, query: str) -> dict[tuple[str, str | None], float]:
    """Return the samples of a query by name and topic, without times and failures."""
    return {
        (sample.name.removeprefix("heliograph_spark_"), sample.labels.get("topic")): sample.value
        for family in text_string_to_metric_families(scrape_text(metrics.port))
        for sample in family.samples
        if sample.labels["query"] == query and not sample.name.endswith(("timestamp_seconds", "failures_total"))
    }


class Batches:
    """Micro-batches that end one by one, when the test asks."""

    def __init__(self) -> None:
        self._begun: queue.Queue[list[int]] = queue.Queue()
        self._permits: queue.Queue[None] = queue.Queue()

    def write(self, batch: DataFrame, number: int) -> None:
        self._begun.put(sorted(int(bytes(row.value)) for row in batch.select("value").collect()))
        self._permits.get(timeout=WITHIN_S)

    def next(self) -> list[int]:
        """Return the messages of the next one, which has not ended."""
        return self._begun.get(timeout=WITHIN_S)

    def end(self, count: int = 1) -> None:
        for _ in range(count):
            self._permits.put(None)


@pytest.mark.long
def test_a_query_says_what_it_has_read_and_lost_and_how_far_it_is_behind(
    spark: SparkSession, make: Callable[..., Topic], metrics: stream_metrics.MetricsServer, tmp_path: Path
) -> None:
    topic, name, batches = make(), fresh_name("q"), Batches()
    topic.publish(30)
    asked = topic.options | {"startingOffsets": "earliest", "failOnDataLoss": "false", "maxBytesPerTrigger": "600"}
    writer = spark.readStream.format("pulsar").options(**asked).load().writeStream.foreachBatch(batches.write)
    query = writer.queryName(name).option("checkpointLocation", str(tmp_path)).start()
    try:
        first = batches.next()
        assert 1 <= len(first) < 30
        assert scrape(metrics, name) == {}
        batches.end()
        second = batches.next()
        read = [*first, *second]
        assert read == list(range(len(read)))
        lag, lost = ("lag_entries", topic.name), ("lost_entries_total", topic.name)
        expected = {lag: 30, lost: 0, ("rows_total", None): len(first)}
        eventually(lambda: scrape(metrics, name) == expected, what="the values of the first micro-batch")
        # What it has not read is deleted, and then there is more.
        topic.forget()
        topic.publish(1)
        batches.end()
        assert batches.next() == [30]
        expected = {lag: 30 - len(first), lost: 0, ("rows_total", None): len(read)}
        eventually(lambda: scrape(metrics, name) == expected, what="those of the second")
        batches.end()
        expected = {lag: 1, lost: 30 - len(read), ("rows_total", None): len(read) + 1}
        idle = expected | {lag: 0}
        eventually(lambda: scrape(metrics, name) in (expected, idle), what="those of the third", within_s=WITHIN_S)
        eventually(lambda: scrape(metrics, name) == idle, what="having read all", within_s=WITHIN_S)
    finally:
        batches.end(9)
        query.stop()
    ended = {sample: value for sample, value in idle.items() if sample != lag}
    eventually(lambda: scrape(metrics, name) == ended, what="the end of the query")
    # The offset has the sum of all runs.
    last = json.loads(query.lastProgress.json)["sources"][0]["endOffset"]
    assert read_offsets(last)[topic.name].lost == 30 - len(read)


def ended_with_error(query: StreamingQuery) -> str:
    """Wait for the end of a query, and return what it failed with."""
    with pytest.raises(StreamingQueryException) as failed:
        query.awaitTermination(int(WITHIN_S))
    return str(failed.value)


def failures(metrics: stream_metrics.MetricsServer, query: str) -> dict[str, float]:
    """Return how often a query failed, by the reason."""
    return {
        sample.labels["reason"]: sample.value
        for family in text_string_to_metric_families(scrape_text(metrics.port))
        for sample in family.samples
        if sample.name == "heliograph_spark_query_failures_total" and sample.labels["query"] == query
    }


def test_a_query_that_a_loss_has_ended_is_counted_and_what_it_said_stays(
    spark: SparkSession, make: Callable[..., Topic], metrics: stream_metrics.MetricsServer, tmp_path: Path
) -> None:
    topic, name = make(), fresh_name("q")
    topic.publish(30)

    def start(fail: str) -> StreamingQuery:
        asked = topic.options | {"startingOffsets": "earliest", "failOnDataLoss": fail}
        writer = spark.readStream.format("pulsar").options(**asked).load().writeStream.format("noop")
        return writer.queryName(name).option("checkpointLocation", str(tmp_path)).start()

    query = start("true")
    query.processAllAvailable()
    eventually(lambda: failures(metrics, name) == {"loss": 0, "other": 0}, what="the series of the query")
    # Between two triggers the broker deletes what comes while the query is not there.
    query.stop()
    topic.publish(20)
    topic.forget()
    topic.publish(1)
    for count in (1, 2):
        assert "DataLossError" in ended_with_error(start("true"))
        eventually(lambda count=count: failures(metrics, name) == {"loss": count, "other": 0}, what="a failure")  # type: ignore[misc]
        assert scrape(metrics, name)["query_ended_by_lost_entries", topic.name] == 20
    query = start("false")
    query.processAllAvailable()
    lost = ("lost_entries_total", topic.name)
    eventually(lambda: scrape(metrics, name).get(lost) == 20, what="the loss that it went past")
    assert ("query_ended_by_lost_entries", topic.name) not in scrape(metrics, name)
    query.stop()
    eventually(lambda: ("lag_entries", topic.name) not in scrape(metrics, name), what="the end of the query")
    assert failures(metrics, name) == {"loss": 2, "other": 0}


def test_a_query_that_fails_otherwise_keeps_its_lag(
    spark: SparkSession, make: Callable[..., Topic], metrics: stream_metrics.MetricsServer, tmp_path: Path
) -> None:
    topic, name = make(), fresh_name("q")
    topic.publish(3)

    def write(_batch: DataFrame, number: int) -> None:
        if number:
            raise ValueError("the second micro-batch")

    asked = topic.options | {"startingOffsets": "earliest"}
    writer = spark.readStream.format("pulsar").options(**asked).load().writeStream.foreachBatch(write)
    query = writer.queryName(name).option("checkpointLocation", str(tmp_path)).start()
    query.processAllAvailable()
    topic.publish(1)
    assert "the second micro-batch" in ended_with_error(query)
    eventually(lambda: failures(metrics, name) == {"loss": 0, "other": 1}, what="the failure")
    assert ("lag_entries", topic.name) in scrape(metrics, name)


@pytest.mark.long
def test_an_archive_serves_its_metrics_while_it_runs(make: Callable[..., Topic], tmp_path: Path) -> None:
    first, second = make(), make()
    first.publish(3)
    second.publish(4)
    (port,) = free_ports(1)
    urls = ("--service-url", first.broker.service_url, "--admin-url", first.broker.http_url)
    job = ("archive", "--topic", first.name, "--topic", second.name, "--path", tmp_path, "--metrics-port", str(port))
    with subprocess.Popen((*COMMAND, *job, *urls), stdout=subprocess.PIPE) as process:
        eventually(
            lambda: 'heliograph_spark_rows_total{query="' in scrape_text(port),
            within_s=WITHIN_S,
            not_yet=(OSError,),
            what="the metrics of the archive",
        )
        output, _ = process.communicate(timeout=WITHIN_S)
    assert json.loads(output)["rows"] == 7


def test_other_queries_and_other_sources_have_no_series(
    spark: SparkSession, metrics: stream_metrics.MetricsServer, tmp_path: Path
) -> None:
    name = fresh_name("q")
    writer = spark.readStream.format("rate").load().writeStream.format("noop").queryName(name)
    query = writer.option("checkpointLocation", str(tmp_path)).start()
    eventually(lambda: query.lastProgress, what="a progress of the query")
    query.stop()
    assert scrape(metrics, name) == {}


def _reader(topic: Topic, fail: str) -> StreamReader:
    source = PulsarDataSource({**topic.options, "startingOffsets": "earliest", "failOnDataLoss": fail})
    reader = source.streamReader(columns_of(RAW, topic.name))
    assert isinstance(reader, StreamReader)
    return reader


def test_the_log_names_what_a_stream_goes_past(make: Callable[..., Topic], caplog: pytest.LogCaptureFixture) -> None:
    topic = make()
    topic.publish(3)
    reader = _reader(topic, "false")
    begun = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    topic.publish(20)
    topic.forget()
    topic.publish(1)
    end = reader.latestOffset(begun, ReadAllAvailable())
    with caplog.at_level(logging.WARNING):
        reader.partitions(begun, end)
    place = read_offsets(begun)[topic.name]
    assert f"{topic.name}: the messages after {place} and before " in caplog.text
    assert "are gone, 20 entries" in caplog.text
    assert read_offsets(end)[topic.name].lost == 20
    reader.stop()


def test_what_a_repeated_batch_loses_is_counted_with_the_next_one(make: Callable[..., Topic]) -> None:
    topic = make()
    topic.publish(2)
    killed = _reader(topic, "false")
    begun = killed.latestOffset(killed.initialOffset(), ReadAllAvailable())
    topic.publish(15)
    planned = killed.latestOffset(begun, ReadAllAvailable())
    assert read_offsets(planned)[topic.name].lost == 0
    killed.stop()
    topic.forget()
    topic.publish(1)
    reader = _reader(topic, "false")
    reader.partitions(begun, planned)
    assert read_offsets(reader.latestOffset(planned, ReadAllAvailable()))[topic.name].lost == 15
    reader.stop()


def test_the_log_names_what_was_deleted_while_a_task_reads(
    monkeypatch: pytest.MonkeyPatch, make: Callable[..., Topic], caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(columns, "BATCH_ROWS", 1)
    monkeypatch.setattr(columns, "_FULL_ROWS", 1)
    topic = make()
    topic.publish(40)
    asked = {"pulsar.reader.receiverQueueSize": "1", "startingOffsets": "earliest", "failOnDataLoss": "false"}
    options = read_options(topic.options | asked, streaming=True)
    brokers = shared(options.connection)
    start, end = start_of(brokers, topic.name, options, "earliest"), end_of(brokers, topic.name, options)
    assert end is not None
    wanted = Range(topic.name, start, end, ledgers_of(options.connection, topic.name).stored)
    batches = read_range(brokers, wanted, options, entry_columns(brokers, topic.name, columns_of(RAW, "t"), RAW))
    found: list[Any] = [next(batches) for _ in range(3)]
    topic.forget()
    topic.publish(1)
    with caplog.at_level(logging.WARNING):
        found.extend(batches)
    assert len(found) < 40
    assert f"{topic.name}: {40 - len(found)} of the entries after" in caplog.text


def test_without_the_client_of_prometheus_the_error_says_what_to_install(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.delitem(sys.modules, "heliograph_spark.run.stream_metrics")
    with pytest.raises(PulsarSourceError, match=r"pip install 'heliograph-spark\[metrics\]'"):
        heliograph_spark.serve_metrics(spark, 0)
