"""Topics of many ledgers: what is lost is named with its place, what is not lost is read, and all cores can read it."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest
from heliograph_spark.decode import columns
from heliograph_spark.jobs.archive import ArchiveOptions, ArchiveResult, archive
from heliograph_spark.plan.errors import DataLossError
from heliograph_spark.plan.options import read_options
from heliograph_spark.plan.ranges import Range
from heliograph_spark.plan.topics import ledgers_of
from heliograph_spark.run.archived import read_archive
from heliograph_spark.run.decoding import entry_columns
from heliograph_spark.run.reading import read_range
from heliograph_spark.run.schemas import RAW, columns_of
from heliograph_spark.run.session import Broker
from heliograph_spark.run.source import PulsarDataSource
from heliograph_spark.wire.brokers import shared
from heliograph_spark.wire.partitions import end_of, start_of
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tests.support.broker_process import BrokerProcess
from tests.support.clients import connect, fresh_name, publish, rest
from tests.support.entries import make_entry
from tests.support.polling import eventually
from tests.support.wire_client import Type, WireClient

#: Entries of a ledger.
LEDGER = 10
HELD = "heliograph-archive"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with small ledgers."""
    settings = {"HELIOGRAPH_LEDGER_MAX_ENTRIES": str(LEDGER)}
    with BrokerProcess(tmp_path_factory.mktemp("small") / "data", environment=settings) as running:
        yield running


@pytest.fixture
def client(small: BrokerProcess) -> Iterator[pulsar.Client]:
    opened = connect(small.service_url)
    yield opened
    opened.close()


class Topic:
    """A topic of a namespace of its own, which keeps everything until :meth:`forget`."""

    def __init__(self, broker: BrokerProcess, client: pulsar.Client) -> None:
        namespace = fresh_name("n")
        rest(broker, "PUT", f"namespaces/public/{namespace}")
        self.path = f"persistent/public/{namespace}/t"
        self.name = f"persistent://public/{namespace}/t"
        self.broker = broker
        self._client = client
        self._namespace = namespace
        self._number = 0
        self._retain(-1)

    def _retain(self, limit: int) -> None:
        limits = {"retentionTimeInMinutes": limit, "retentionSizeInMB": limit}
        rest(self.broker, "POST", f"namespaces/public/{self._namespace}/retention", limits)

    def publish(self, count: int) -> list[Any]:
        """Publish the next numbers, each in an entry of its own."""
        self._number += count
        return publish(self._client, self.name, [b"%d" % n for n in range(self._number - count, self._number)])

    def forget(self) -> None:
        """Have all entries deleted that no subscription holds, and those that follow kept."""
        self._retain(0)
        eventually(lambda: self.stored == 0, within_s=180, what="entries being deleted")
        self._retain(-1)

    @property
    def stored(self) -> int:
        return int(rest(self.broker, "GET", f"{self.path}/internalStats")["numberOfEntries"])

    @property
    def options(self) -> dict[str, str]:
        return {"service.url": self.broker.service_url, "admin.url": self.broker.http_url, "topic": self.name}


@pytest.fixture
def make(small: BrokerProcess, client: pulsar.Client) -> Callable[..., Topic]:
    return lambda: Topic(small, client)


def read(spark: SparkSession, options: dict[str, str]) -> DataFrame:
    return spark.read.format("pulsar").options(**options).load()


def values(frame: DataFrame) -> list[int]:
    return sorted(int(bytes(row.value)) for row in frame.select("value").collect())


def run(spark: SparkSession, topic: Topic, path: Path, **options: str) -> ArchiveResult:
    reached = Broker(topic.broker.service_url, topic.broker.http_url, options)
    return archive(spark, ArchiveOptions(broker=reached, path=str(path), topics=(topic.name,)))


def stream(spark: SparkSession, options: dict[str, str], path: Path) -> list[int]:
    """Read what is new since the last call into files; return all that they have."""
    frame = spark.readStream.format("pulsar").options(**{"startingOffsets": "earliest"} | options).load()
    writer = frame.writeStream.format("parquet").option("path", str(path / "out"))
    query = writer.option("checkpointLocation", str(path / "state")).trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    finally:
        query.stop()
    return values(spark.read.parquet(str(path / "out")))


@pytest.mark.long
def test_a_partition_is_cut_into_splits_by_its_ledgers_and_within_them(
    spark: SparkSession, make: Callable[..., Topic]
) -> None:
    topic = make()
    topic.publish(5 * LEDGER + 3)
    whole = read(spark, topic.options)
    assert whole.rdd.getNumPartitions() == 1
    for options, splits in (
        ({"maxEntriesPerSplit": "4"}, 14),
        ({"maxEntriesPerSplit": "25"}, 3),
        ({"minPartitions": "8"}, 8),
        ({"minPartitions": "2", "maxEntriesPerSplit": "4"}, 14),
        ({"minPartitions": "30"}, 53),
        ({"minPartitions": "1000"}, 53),
    ):
        parts = read(spark, topic.options | options)
        assert parts.rdd.getNumPartitions() == splits, options
        assert values(parts) == list(range(53))


def test_a_micro_batch_has_as_many_splits_as_are_asked_for(make: Callable[..., Topic]) -> None:
    topic = make()
    topic.publish(LEDGER)
    source = PulsarDataSource(topic.options | {"startingOffsets": "earliest", "minPartitions": "6"})
    reader = source.streamReader(columns_of(RAW, topic.name))
    begun = reader.initialOffset()
    assert len(reader.partitions(begun, reader.latestOffset(begun, ReadAllAvailable()))) == LEDGER
    reader.stop()


def test_the_rest_of_a_ledger_that_is_gone_with_it_is_missed_by_the_archive(
    spark: SparkSession, make: Callable[..., Topic], tmp_path: Path
) -> None:
    topic = make()
    topic.publish(3)
    assert run(spark, topic, tmp_path).error is None
    # Two ledgers end meanwhile, and the subscription is moved over all of them, as by a TTL.
    topic.publish(3 * LEDGER - 3)
    rest(topic.broker, "POST", f"{topic.path}/subscription/{HELD}/skip_all")
    topic.forget()
    for later in (0, 2):
        # Also while nothing is stored, so that there is nothing to read.
        topic.publish(later)
        refused = run(spark, topic, tmp_path)
        assert refused.rows == 0
        assert refused.error is not None
        assert f"{topic.name}: the messages after " in refused.error
        assert "are gone, 27 entries" in refused.error
    assert run(spark, topic, tmp_path, failOnDataLoss="false").error is None
    assert values(read_archive(spark, str(tmp_path), topic.name)) == [0, 1, 2, 30, 31]


@pytest.mark.parametrize("knows", ["with the ledgers", "without the ledgers"])
def test_a_stream_that_had_read_all_loses_nothing_when_its_ledgers_go(
    spark: SparkSession, make: Callable[..., Topic], tmp_path: Path, knows: str
) -> None:
    topic = make()
    options = topic.options
    if knows == "without the ledgers":
        del options["admin.url"]
    topic.publish(LEDGER)
    assert stream(spark, options, tmp_path) == list(range(LEDGER))
    topic.forget()
    topic.publish(1)
    if knows == "with the ledgers":
        assert stream(spark, options, tmp_path) == list(range(LEDGER + 1))
    topic.publish(1)
    assert stream(spark, options, tmp_path)[-1] == LEDGER + 1


def test_a_stream_without_a_subscription_misses_what_is_deleted_before_it_reads(
    spark: SparkSession, make: Callable[..., Topic], tmp_path: Path
) -> None:
    topic = make()
    topic.publish(LEDGER - 4)
    stream(spark, topic.options, tmp_path)
    topic.publish(LEDGER)
    topic.forget()
    topic.publish(LEDGER)
    with pytest.raises(Exception, match="are gone, 10 entries"):
        stream(spark, topic.options, tmp_path)


def test_entries_that_are_deleted_while_a_range_is_read_are_missed(
    monkeypatch: pytest.MonkeyPatch, make: Callable[..., Topic]
) -> None:
    monkeypatch.setattr(columns, "_FULL_ROWS", 1)
    topic = make()
    topic.publish(4 * LEDGER)
    asked = {"pulsar.reader.receiverQueueSize": "1", "startingOffsets": "earliest"}
    options = read_options(topic.options | asked, streaming=True)
    brokers = shared(options.connection)
    start, end = start_of(brokers, topic.name, options, "earliest"), end_of(brokers, topic.name, options)
    assert end is not None
    wanted = Range(topic.name, start, end, ledgers_of(options.connection, topic.name).stored)
    batches = read_range(brokers, wanted, options, entry_columns(brokers, topic.name, columns_of(RAW, "t"), RAW))
    found = [int(next(batches)["value"][0].as_py()) for _ in range(3)]
    topic.forget()
    with pytest.raises(DataLossError, match=r"were deleted while the query read them|nothing is stored after"):
        found.extend(int(batch["value"][0].as_py()) for batch in batches)
    assert found == list(range(len(found)))
    assert len(found) < 4 * LEDGER


def test_what_compaction_removed_is_not_lost(
    spark: SparkSession, client: pulsar.Client, make: Callable[..., Topic]
) -> None:
    topic = make()
    producer = client.create_producer(topic.name)
    for number in range(3 * LEDGER):
        producer.send(b"%d" % number, partition_key="a")
    producer.send(b"100", partition_key="b")
    rest(topic.broker, "PUT", f"{topic.path}/compaction")
    eventually(
        lambda: rest(topic.broker, "GET", f"{topic.path}/compaction")["status"] == "SUCCESS",
        within_s=180,
        what="the compaction",
    )
    compacted = topic.options | {"pulsar.reader.readCompacted": "true"}
    assert values(read(spark, compacted)) == [3 * LEDGER - 1, 100]
    producer.send(b"101", partition_key="c")
    assert values(read(spark, compacted | {"maxEntriesPerSplit": "4"})) == [3 * LEDGER - 1, 100, 101]


@pytest.fixture
def link(small: BrokerProcess) -> Iterator[WireClient]:
    with WireClient(small.service_url) as opened:
        yield opened


def _publish_chunks(link: WireClient, topic: Topic, name: str, parts: list[bytes], *, of: int | None = None) -> None:
    """Publish a message in chunks of one entry each; only the first of them if it has more."""
    producer = link.producer(topic.name)
    fields: dict[str, Any] = {
        "num_chunks_from_msg": of or len(parts),
        "uuid": name,
        "total_chunk_msg_size": len(b"".join(parts)),
    }
    for number, part in enumerate(parts):
        link.publish(producer, make_entry(part, chunk_id=number, **fields))
    link.request(Type.CLOSE_PRODUCER, Type.SUCCESS, producer_id=producer)


@pytest.mark.parametrize("chunks", [2 * LEDGER + 3, 4 * LEDGER + 5])
def test_a_message_in_chunks_is_read_once_over_the_borders_of_ledgers_and_splits(
    spark: SparkSession, make: Callable[..., Topic], link: WireClient, chunks: int
) -> None:
    topic = make()
    topic.publish(LEDGER - 2)
    _publish_chunks(link, topic, "long", [b"%d" % (number % 10) for number in range(chunks)])
    topic.publish(1)
    long = int(b"".join(b"%d" % (number % 10) for number in range(chunks)))
    for options in ({}, {"maxEntriesPerSplit": "1"}, {"maxEntriesPerSplit": "7"}):
        assert values(read(spark, topic.options | options)) == [*range(LEDGER - 1), long]
    without = {name: value for name, value in topic.options.items() if name != "admin.url"}
    assert values(read(spark, without)) == [*range(LEDGER - 1), long]


def test_a_topic_that_ends_within_a_message_in_chunks_is_read_up_to_there_and_then_on(
    spark: SparkSession, make: Callable[..., Topic], link: WireClient, tmp_path: Path
) -> None:
    topic = make()
    topic.publish(2)
    _publish_chunks(link, topic, "whole", [b"1", b"0", b"0"])
    _publish_chunks(link, topic, "half", [b"7", b"7"], of=3)
    assert values(read(spark, topic.options)) == [0, 1, 100]
    assert stream(spark, topic.options, tmp_path) == [0, 1, 100]
    producer = link.producer(topic.name)
    last: dict[str, Any] = {"chunk_id": 2, "num_chunks_from_msg": 3, "uuid": "half", "total_chunk_msg_size": 3}
    link.publish(producer, make_entry(b"7", **last))
    assert stream(spark, topic.options, tmp_path) == [0, 1, 100, 777]


def test_keys_of_bytes_are_the_bytes(spark: SparkSession, make: Callable[..., Topic], link: WireClient) -> None:
    topic = make()
    key = bytes(range(256))
    producer = link.producer(topic.name)
    text = base64.b64encode(key).decode()
    link.publish(producer, make_entry(b"1", partition_key=text, partition_key_b64_encoded=True))
    link.publish(producer, make_entry(b"2", partition_key=text))
    rows = read(spark, topic.options).orderBy("value").collect()
    assert [bytes(row["__key"]) for row in rows] == [key, text.encode()]
