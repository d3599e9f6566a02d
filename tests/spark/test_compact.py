"""``compact`` against the broker's own compaction of the same topic, and what it does when it cannot go on."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pulsar
import pytest
from heliograph_spark.jobs.archive import ArchiveOptions, archive
from heliograph_spark.jobs.compact import CompactOptions, compact, read_table
from heliograph_spark.plan.errors import JobError
from heliograph_spark.run.archived import topic_directory
from heliograph_spark.run.session import Broker
from pyspark.sql import SparkSession

from tests.support.broker_process import BrokerProcess
from tests.support.clients import create_partitions, ignore_receipt, rest
from tests.support.polling import eventually

from .conftest import Runs


def archived(spark: SparkSession, broker: BrokerProcess, topic: str, path: Path) -> str:
    done = archive(spark, ArchiveOptions(Broker(broker.service_url, broker.http_url), str(path), (topic,)))
    assert done.error is None
    return f"persistent://public/default/{topic}"


def as_the_broker_has_it(broker: BrokerProcess, client: pulsar.Client, topic: str) -> dict[bytes, bytes]:
    """Have the topic compacted and read that."""
    path = f"persistent/public/default/{topic}/compaction"
    rest(broker, "PUT", path)
    eventually(lambda: rest(broker, "GET", path)["status"] == "SUCCESS", within_s=180, what="the compaction")
    reader = client.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=True)
    found = {}
    while reader.has_message_available():
        message = reader.read_next(10_000)
        if not message.partition_key():
            # Apache Pulsar leaves an empty message in a batch where it took one away, which the client does not hide.
            assert not message.data()
            continue
        assert message.partition_key().encode() not in found
        found[message.partition_key().encode()] = bytes(message.data())
    reader.close()
    return found


def in_the_table(spark: SparkSession, path: Path, topic: str) -> dict[bytes, bytes]:
    rows = read_table(spark, str(path), topic).select("__key", "value").collect()
    found = {bytes(row["__key"]): bytes(row["value"]) for row in rows}
    assert len(found) == len(rows)
    return found


@pytest.mark.long
def test_the_table_is_what_the_broker_keeps_of_the_topic_and_follows_it(
    spark: SparkSession, runs: Runs, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    drawn = random.Random(3)
    batched = client.create_producer(topic, batching_enabled=True, batching_max_messages=7)

    def publish(count: int) -> None:
        for number in range(count):
            # Some keys are deleted, some come back, and some messages have none.
            content = b"" if drawn.random() < 0.3 else b"%d" % number
            key = f"k{drawn.randrange(40)}" if drawn.random() < 0.95 else None
            batched.send_async(content, ignore_receipt, partition_key=key)
        batched.flush()

    options = CompactOptions(str(tmp_path / "archive"), str(tmp_path / "tables"))
    publish(400)
    name = archived(spark, broker, topic, tmp_path / "archive")
    first = runs(lambda session: compact(session, options))
    expected = as_the_broker_has_it(broker, client, topic)
    assert 0 < len(expected) < 40
    assert in_the_table(spark, tmp_path / "tables", name) == expected
    assert (first.rows, first.topics, first.unchanged, first.error) == (len(expected), 1, 0, None)

    again = runs(lambda session: compact(session, options))
    assert (again.rows, again.unchanged, again.tables) == (first.rows, 1, first.tables)

    before = read_table(spark, str(tmp_path / "tables"), name)
    publish(100)
    archived(spark, broker, topic, tmp_path / "archive")
    assert runs(lambda session: compact(session, options)).unchanged == 0
    assert in_the_table(spark, tmp_path / "tables", name) == as_the_broker_has_it(broker, client, topic)
    # A reader that began before has the whole table.
    assert before.count() == first.rows


def test_a_record_is_a_row_of_its_fields_and_one_without_any_deletes_its_key(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    class Seen(pulsar.schema.Record):  # type: ignore[misc]
        place = pulsar.schema.String()

    create_partitions(broker, topic, 2)
    producer = client.create_producer(topic, schema=pulsar.schema.JsonSchema(Seen))
    for key, place in [("a", "x"), ("b", "x"), ("a", "y"), ("b", None), ("c", "z")]:
        producer.send(Seen(place=place), partition_key=key)
    name = archived(spark, broker, topic, tmp_path / "archive")
    assert compact(spark, CompactOptions(str(tmp_path / "archive"), str(tmp_path / "tables"))).error is None
    rows = read_table(spark, str(tmp_path / "tables"), name).orderBy("__key").select("__key", "place").collect()
    assert [(bytes(row["__key"]), row.place) for row in rows] == [(b"a", "y"), (b"c", "z")]


def test_a_damaged_file_is_named_and_the_table_stays(
    spark: SparkSession, runs: Runs, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    options = CompactOptions(str(tmp_path / "archive"), str(tmp_path / "tables"))
    producer = client.create_producer(topic)
    producer.send(b"1", partition_key="k")
    name = archived(spark, broker, topic, tmp_path / "archive")
    assert compact(spark, options).error is None
    producer.send(b"2", partition_key="k")
    archived(spark, broker, topic, tmp_path / "archive")
    *_, file = sorted(Path(topic_directory(str(options.path), name)).glob("date=*/*.parquet"))
    file.write_bytes(file.read_bytes()[:-20] + b"x" * 20)
    refused = runs(lambda session: compact(session, options))
    assert refused.error is not None
    assert "\n" not in refused.error
    assert file.name in refused.error
    assert refused.tables == {}
    assert in_the_table(spark, tmp_path / "tables", name) == {b"k": b"1"}


def test_runs_side_by_side_make_one_whole_table_and_leave_nothing_beside_it(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    producer = client.create_producer(topic)
    for number in range(500):
        producer.send_async(b"%d" % number, ignore_receipt, partition_key=f"k{number % 300}")
    producer.flush()
    name = archived(spark, broker, topic, tmp_path / "archive")
    options = CompactOptions(str(tmp_path / "archive"), str(tmp_path / "tables"))
    # A killed run has left files of the version that is made now; it may be one that runs, and goes with the next one.
    left = tmp_path / "tables" / "_staging" / Path(topic_directory("", name)).name / "00000001-killed"
    left.mkdir(parents=True)
    with ThreadPoolExecutor(3) as runs:
        done = list(runs.map(lambda _: compact(spark, options), range(3)))
    assert any(each.error is None for each in done)
    assert all(each.error is None or "another run has made version 1" in each.error for each in done)
    expected = {b"k%d" % (number % 300): b"%d" % number for number in range(500)}
    assert in_the_table(spark, tmp_path / "tables", name) == expected
    assert [each.name for each in left.parent.iterdir()] == [left.name]
    producer.send(b"x", partition_key="k0")
    archived(spark, broker, topic, tmp_path / "archive")
    assert compact(spark, options).error is None
    assert in_the_table(spark, tmp_path / "tables", name) == expected | {b"k0": b"x"}
    assert list(left.parent.iterdir()) == []


def test_what_is_said_of_a_table_and_cannot_be_read_is_named(spark: SparkSession, tmp_path: Path) -> None:
    directory = Path(topic_directory(str(tmp_path), "t"))
    directory.mkdir()
    (directory / "_version-00000001.json").write_text("{")
    with pytest.raises(JobError, match=r"_version-00000001\.json: the description of a table cannot be read"):
        read_table(spark, str(tmp_path), "t")


def test_what_is_not_there_is_named(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(JobError, match="there is no such directory"):
        compact(spark, CompactOptions(str(tmp_path / "a"), str(tmp_path / "b")))
    with pytest.raises(JobError, match=r"Hadoop and Spark would take \[ and \] in it for a pattern"):
        compact(spark, CompactOptions(str(tmp_path / "[a]"), str(tmp_path / "b")))
    with pytest.raises(JobError, match="this is no archive"):
        compact(spark, CompactOptions(str(tmp_path), str(tmp_path / "b")))
    (tmp_path / "topic=persistent%3A%2F%2Fpublic%2Fdefault%2Ft").mkdir()
    with pytest.raises(
        JobError, match="persistent://public/default/other is not archived there; there are persistent://"
    ):
        compact(spark, CompactOptions(str(tmp_path), str(tmp_path / "b"), ("other",)))
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(JobError, match="Parent path is not a directory"):
        compact(spark, CompactOptions(str(tmp_path), str(tmp_path / "file" / "b")))
    with pytest.raises(JobError, match="there is no table of t"):
        read_table(spark, str(tmp_path / "b"), "t")
