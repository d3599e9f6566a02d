"""The files that an archive's tasks write themselves: each message once, in its day, with the columns of all files."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pulsar
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from heliograph_spark.jobs.archive import ArchiveOptions, archive
from heliograph_spark.plan.errors import JobError
from heliograph_spark.run import day_files
from heliograph_spark.run.archived import archived_files, topic_directory
from heliograph_spark.run.day_files import DayFiles, MessageFile
from heliograph_spark.run.days import UTC_DAY
from heliograph_spark.run.directories import open_directory
from heliograph_spark.run.files_source import written_files
from heliograph_spark.run.places import Place, _s3_settings, place_of
from heliograph_spark.run.session import Broker
from heliograph_spark.run.spark_versions import arrow_schema
from hypothesis import given, settings
from hypothesis import strategies as st
from pulsar.schema import AvroSchema
from pyspark.sql import SparkSession
from pyspark.sql import types as t

from tests.support.broker_process import BrokerProcess
from tests.support.clients import ignore_receipt

from .test_archive_evolution import NEW, OLD, old_row

DAY_US = 86_400_000_000
COLUMNS = t.StructType().add("n", t.LongType()).add("__publishTime", t.TimestampType())
ARROW = arrow_schema(COLUMNS)
#: What an int64 of microseconds can hold, and Java's days with it.
LAST_US = (1 << 63) - 1
TIMES = st.one_of(
    st.none(),
    st.integers(0, 3).flatmap(lambda day: st.integers(day * DAY_US, (day + 1) * DAY_US - 1)),
    st.sampled_from([0, DAY_US - 1, DAY_US, 253_402_300_799_999_999, 253_402_300_800_000_000, LAST_US]),
)


def messages(times: list[int | None], first: int = 0) -> pa.RecordBatch:
    numbers = pa.array(range(first, first + len(times)), pa.int64())
    return pa.RecordBatch.from_arrays([numbers, pa.array(times, pa.int64()).cast(ARROW[1].type)], schema=ARROW)


def numbers_in(root: Path, files: list[MessageFile]) -> dict[str, list[int]]:
    """Return the numbers of each day, in the order of the files and of their rows; every file is as it is described."""
    found: dict[str, list[int]] = defaultdict(list)
    for file in files:
        path = root / file.path
        assert path.parent.name == f"date={file.day}"
        rows = pq.ParquetFile(path).read(columns=["n"])["n"].to_pylist()
        assert (file.rows, file.bytes) == (len(rows), path.stat().st_size)
        found[file.day] += rows
    return found


def spark_days(spark: SparkSession, times: list[int | None]) -> list[str]:
    """Return the names of the directories in which Spark would write messages of these times."""
    rows = spark.createDataFrame([(at, each) for at, each in enumerate(times)], "at int, t bigint")
    days = rows.selectExpr("at", "timestamp_micros(t) AS __publishTime").selectExpr("at", f"CAST({UTC_DAY} AS STRING)")
    return [row[1] or "__HIVE_DEFAULT_PARTITION__" for row in days.orderBy("at").collect()]


def test_a_day_is_called_as_spark_calls_it(spark: SparkSession, tmp_path: Path) -> None:
    times = [
        None,
        0,
        DAY_US - 1,
        DAY_US,
        951_868_800_000_000,
        253_402_300_799_999_999,
        253_402_300_800_000_000,
        LAST_US,
    ]
    for at, (time, day) in enumerate(zip(times, spark_days(spark, times), strict=True)):
        files = DayFiles(Place(str(tmp_path)), f"batch-{at}", "date", COLUMNS)
        files.add(messages([time]))
        assert numbers_in(tmp_path, files.close()) == {day: [0]}


@settings(max_examples=60)
@given(st.lists(st.lists(TIMES, max_size=8), max_size=8), st.integers(1, 400))
def test_every_message_is_once_in_the_file_of_its_day_and_in_its_order(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[int | None]], buffered: int
) -> None:
    root = tmp_path_factory.mktemp("files")
    expected: dict[int | None, list[int]] = defaultdict(list)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(day_files, "_MOST_BUFFERED_BYTES", buffered)
        patch.setattr(day_files, "_MOST_OPEN", 2)
        files = DayFiles(Place(str(root)), "batch", "date", COLUMNS)
        count = 0
        for times in batches:
            files.add(messages(times, count))
            for time in times:
                expected[None if time is None else time // DAY_US].append(count)
                count += 1
        written = files.close()
    assert sorted(numbers_in(root, written).values()) == sorted(expected.values())
    # Nothing is beside the files that are returned.
    assert {str(path.relative_to(root)) for path in root.rglob("*.parquet")} == {each.path for each in written}


def test_many_days_keep_few_files_open_and_few_bytes_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(day_files, "_MOST_BUFFERED_BYTES", 100_000)
    files = DayFiles(Place(str(tmp_path)), "batch", "date", COLUMNS)
    for batch in range(40):
        files.add(messages([day * DAY_US for day in range(1000)], 1000 * batch))
        assert sum(each.nbytes for waiting in files._waiting.values() for each in waiting) < 100_000
        assert len(files._open) <= 16
    found = numbers_in(tmp_path, files.close())
    assert len(found) == 1000
    assert found["1970-01-03"] == list(range(2, 40_000, 1000))


def test_narrower_columns_become_those_of_the_files(spark: SparkSession, tmp_path: Path) -> None:
    old, new = (spark.createDataFrame([], f"{each}, __publishTime timestamp").schema for each in (OLD, NEW))
    rows = [old_row(number) | {"__publishTime": None} for number in range(60)]
    frame = spark.createDataFrame([tuple(row[name] for name in old.names) for row in rows], old)
    # Fields may be in another order than in the files.
    turned = t.StructType(list(reversed(new.fields)))
    batch = pa.RecordBatch.from_pylist(rows, arrow_schema(old))
    files = DayFiles(Place(str(tmp_path)), "batch", "date", turned)
    files.add(batch.slice(0, 25))
    files.add(batch.slice(25))
    files.close()
    expected = frame.to(new).collect()
    found = spark.read.schema(new).parquet(str(tmp_path / "batch/*/*.parquet")).orderBy("f").collect()
    assert found == sorted(expected, key=lambda row: row["f"])


def test_spark_reads_the_types_of_a_file_and_what_is_older_than_its_calendar(
    spark: SparkSession, tmp_path: Path
) -> None:
    kinds = "i interval day to second, d date, z timestamp_ntz, m map<string, interval day to second>"
    columns = spark.createDataFrame([], f"{kinds}, __publishTime timestamp").schema
    days = timedelta(days=-3, microseconds=1)
    row = (days, date(1500, 2, 28), datetime(1700, 1, 1, 0, 0, 0, 1), {"a": days}, datetime(1899, 1, 1, tzinfo=UTC))
    files = DayFiles(Place(str(tmp_path)), "batch", "date", columns)
    files.add(pa.RecordBatch.from_pylist([dict(zip(columns.names, row, strict=True))], arrow_schema(columns)))
    (file,) = files.close()
    found = spark.read.parquet(f"{tmp_path}/{file.path}")
    assert found.schema == columns
    expected = spark.createDataFrame([row], columns)
    assert found.selectExpr("to_json(struct(*))").collect() == expected.selectExpr("to_json(struct(*))").collect()


def test_a_bucket_is_a_place_only_if_all_its_settings_mean_the_same_to_arrow() -> None:
    keys = {"access.key": "a", "secret.key": "s"}
    # The region does not depend on a task's environment.
    reached = {"access_key": "a", "secret_key": "s", "region": "us-east-1"}
    assert _s3_settings(keys | {"endpoint": "http://host:9000/", "path.style.access": "true"}) == reached | {
        "endpoint_override": "host:9000",
        "force_virtual_addressing": False,
        "scheme": "http",
    }
    assert _s3_settings(keys | {"endpoint": "host", "connection.ssl.enabled": "FALSE", "session.token": "t"}) == (
        reached
        | {"endpoint_override": "host", "force_virtual_addressing": True, "scheme": "http", "session_token": "t"}
    )
    amazon = keys | {"endpoint.region": "eu-west-1", "threads.max": "4", "fast.upload.buffer": "disk"}
    assert _s3_settings(amazon) == reached | {"region": "eu-west-1", "scheme": "https"}
    given_keys = "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider"
    assert _s3_settings(amazon | {"aws.credentials.provider": f" {given_keys} "}) is not None
    for name, value in (
        ("encryption.algorithm", "SSE-KMS"),
        ("proxy.host", "proxy"),
        ("assumed.role.arn", "arn"),
        (
            "aws.credentials.provider",
            f"{given_keys},software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider",
        ),
    ):
        assert _s3_settings(amazon | {name: value}) is None
    # With the endpoint of all regions, Hadoop's client finds the bucket's, and it takes the one in an endpoint's name.
    assert _s3_settings(amazon | {"endpoint": "s3.amazonaws.com"}) == _s3_settings(amazon)
    assert _s3_settings(keys | {"endpoint": "s3.amazonaws.com"}) is None
    assert _s3_settings(keys | {"endpoint": "https://s3.eu-west-1.amazonaws.com/"}) is None
    # Hadoop would look for the keys, or for the region, where Arrow may not.
    assert _s3_settings({"endpoint.region": "eu-west-1"}) is None
    assert _s3_settings(keys) is None


def test_a_local_directory_is_a_place_and_keys_are_not_shown(spark: SparkSession, tmp_path: Path) -> None:
    assert place_of(open_directory(spark, f"{tmp_path}/a%3Ab c")) == Place(f"{tmp_path}/a%3Ab c")
    assert "hidden" not in repr(Place("bucket", {"secret_key": "hidden"}))


def test_files_that_hadoop_is_asked_to_encrypt_are_not_written_by_arrow(spark: SparkSession, tmp_path: Path) -> None:
    context: Any = spark.sparkContext
    hadoop = context._jsc.hadoopConfiguration()
    hadoop.set("parquet.crypto.factory.class", "org.apache.parquet.crypto.keytools.PropertiesDrivenCryptoFactory")
    try:
        assert place_of(open_directory(spark, str(tmp_path))) is None
    finally:
        hadoop.unset("parquet.crypto.factory.class")


def test_what_a_file_system_refuses_is_said_in_the_words_of_a_job(tmp_path: Path) -> None:
    (tmp_path / "batch").touch()
    files = DayFiles(Place(str(tmp_path)), "batch", "date", COLUMNS)
    files.add(messages([0]))
    with pytest.raises(JobError, match=rf"^{tmp_path}: .*batch"):
        files.close()


def test_a_file_that_the_driver_does_not_find_as_it_was_written_is_named(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(b"12")
    root = open_directory(spark, str(tmp_path))
    columns = "path string, day string, rows bigint, bytes bigint"
    rows = spark.createDataFrame([("there", "2024-01-01", 1, 2)], columns)
    assert written_files(rows, root) == [MessageFile("there", "2024-01-01", 1, 2)]
    rows = spark.createDataFrame([("there", "2024-01-01", 1, 3)], columns)
    with pytest.raises(JobError, match=r"there: 1 rows were written there, in 3 bytes, and .* has 2 bytes"):
        written_files(rows, root)
    rows = spark.createDataFrame([("gone", "2024-01-01", 1, 3)], columns)
    with pytest.raises(JobError, match=r"gone: 1 rows were written there, in 3 bytes, and .* is not there"):
        written_files(rows, root)


@pytest.mark.usefixtures("planner")
def test_tasks_write_the_files_of_an_archive_that_spark_reads_as_its_own(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    producer = client.create_producer(topic, batching_enabled=True, batching_max_messages=10, block_if_queue_full=True)
    for number in range(1000):
        producer.send_async(
            b"%d" % number, ignore_receipt, properties={"n": str(number)}, partition_key=str(number % 3)
        )
    producer.flush()
    reached = Broker(broker.service_url, broker.http_url, {"maxEntriesPerSplit": "30"})
    done = archive(spark, ArchiveOptions(reached, str(tmp_path), topics=(topic,)))
    assert (done.rows, done.files, done.error) == (1000, 1, None)
    name = f"persistent://public/default/{topic}"
    (file,) = archived_files(spark, str(tmp_path), name)
    written = Path(topic_directory(str(tmp_path), name)) / file
    assert done.bytes == written.stat().st_size
    # Not by Spark, which would have to make a row of each message.
    assert "parquet-cpp" in pq.ParquetFile(written).metadata.created_by
    rows = spark.read.parquet(str(written))
    read = spark.read.format("pulsar").options(**reached.source_options(topic=topic)).load()
    assert {field.name: field.dataType for field in rows.schema} == {each.name: each.dataType for each in read.schema}
    # In the order of the topic, although several splits are in the file.
    assert rows.select(*read.columns).collect() == read.collect()


@pytest.mark.usefixtures("planner")
def test_names_that_spark_would_not_tell_apart_in_the_files_are_refused_before_any_is_written(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    fields = [{"name": name, "type": "long"} for name in ("id", "ID")]
    schema = AvroSchema(None, schema_definition={"type": "record", "name": "Order", "fields": fields})
    client.create_producer(topic, schema=schema).send({"id": 1, "ID": 2})
    done = archive(spark, ArchiveOptions(Broker(broker.service_url, broker.http_url), str(tmp_path), topics=(topic,)))
    assert done.rows == 0
    assert done.error is not None
    assert "AMBIGUOUS" in done.error, done.error
