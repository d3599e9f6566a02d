"""``archive`` on the real broker: what lies in its files, what the broker may delete, and what the job refuses."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet
import pytest
from heliograph_spark.jobs.archive import ArchiveOptions, ArchiveResult, archive
from heliograph_spark.jobs.archiving.partitioning import divided
from heliograph_spark.plan import subscription_hold as holding
from heliograph_spark.plan.errors import PulsarSourceError
from heliograph_spark.plan.options import read_options
from heliograph_spark.run.archived import archived_files, archived_topics, read_archive, topic_directory
from heliograph_spark.run.session import Broker
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.functions import spark_partition_id

from tests.support.broker_process import BrokerProcess
from tests.support.clients import (
    backlog,
    create_namespace,
    create_partitions,
    ignore_receipt,
    publish,
    publish_record,
    rest,
)
from tests.support.polling import eventually
from tests.support.rest import keep_nothing

from .conftest import COMMAND, Runs

HELD = "heliograph-archive"


class Reading(pulsar.schema.Record):  # type: ignore[misc]
    place = pulsar.schema.String()
    degrees = pulsar.schema.Double()


class WiderReading(pulsar.schema.Record):  # type: ignore[misc]
    place = pulsar.schema.String()
    degrees = pulsar.schema.Double()
    height = pulsar.schema.Integer()


class OtherReading(pulsar.schema.Record):  # type: ignore[misc]
    place = pulsar.schema.String()
    degrees = pulsar.schema.String()


def run(spark: SparkSession, broker: BrokerProcess, path: Path, **options: Any) -> ArchiveResult:
    """Archive with these options; an underscore in ``source`` options is a dot."""
    source = options.pop("source", {})
    urls = options.pop("service_url", broker.service_url), options.pop("admin_url", broker.http_url)
    reached = Broker(*urls, source)
    return archive(spark, ArchiveOptions(broker=reached, path=str(path), **options))


def named(topic: str) -> str:
    return f"persistent://public/default/{topic}"


def numbers(spark: SparkSession, path: Path, topic: str) -> list[int]:
    rows = read_archive(spark, str(path), topic).selectExpr("CAST(CAST(value AS STRING) AS INT) AS n").collect()
    return sorted(row.n for row in rows)


def data_files(path: Path) -> list[Path]:
    return sorted(path.glob("topic=*/date=*/*.parquet"))


@pytest.mark.usefixtures("planner")
def test_a_partitioned_topic_is_in_few_files_once_and_only_what_comes_later_is_added(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    create_partitions(broker, topic, 3)
    producer = client.create_producer(topic, batching_enabled=True, batching_max_messages=10, block_if_queue_full=True)
    for number in range(3000):
        producer.send_async(b"%d" % number, ignore_receipt, partition_key=str(number % 7), event_timestamp=1 + number)
    producer.flush()
    done = run(spark, broker, tmp_path / "a", topics=(topic,), source={"maxEntriesPerSplit": "20"})
    assert (done.rows, done.topics, done.lag, done.error) == (3000, 1, 0, None)
    # There are ten splits and more, and one file, since they have less than 4 MiB in all.
    files = data_files(tmp_path / "a")
    assert (len(files), done.files, done.bytes) == (1, 1, files[0].stat().st_size)
    assert sum(backlog(broker, f"{topic}-partition-{number}", HELD) for number in range(3)) == 0
    found = read_archive(spark, str(tmp_path / "a"), named(topic))
    assert found.columns == [
        *("value", "__key", "__topic", "__messageId", "__publishTime", "__eventTime", "__messageProperties", "date")
    ]
    assert found.selectExpr("count(DISTINCT __topic, __messageId)").collect()[0][0] == 3000
    assert found.filter("date != CAST(__publishTime AS DATE)").count() == 0
    assert found.selectExpr("sum(unix_millis(__eventTime))").collect()[0][0] == 3000 * 3001 // 2
    assert numbers(spark, tmp_path / "a", named(topic)) == list(range(3000))

    assert run(spark, broker, tmp_path / "a", topics=(topic,)).rows == 0
    rest(broker, "POST", f"persistent/public/default/{topic}/partitions", 4)
    publish(client, f"{topic}-partition-3", [b"3000"])
    publish(client, f"{topic}-partition-0", [b"3001"])
    assert run(spark, broker, tmp_path / "a", topics=(topic,)).rows == 2
    assert numbers(spark, tmp_path / "a", named(topic)) == list(range(3002))
    # A reader without Spark gets the same.
    assert pyarrow.dataset.dataset(tmp_path / "a", format="parquet", partitioning="hive").count_rows() == 3002


def test_a_comma_in_a_topics_name_names_no_other_topic(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    comma = f"{topic},{topic}-other"
    publish(client, topic, [b"1"])
    publish(client, f"{topic}-other", [b"2"])
    publish(client, named(comma), [b"3"])
    done = run(spark, broker, tmp_path, topics=(named(comma),))
    assert (done.rows, done.topics, done.error) == (1, 1, None)
    assert archived_topics(spark, str(tmp_path)) == [named(comma)]
    assert numbers(spark, tmp_path, named(comma)) == [3]
    # Several topics are named one by one.
    done = run(spark, broker, tmp_path, topics=(named(comma), topic, f"{topic}-other", named(topic)))
    assert (done.rows, done.topics, done.error) == (2, 3, None)


def test_topics_of_different_schemas_lie_side_by_side_with_their_own_columns(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    create_partitions(broker, f"{topic}-bytes", 2)
    publish(client, f"{topic}-bytes", [b"1", b"2"])
    readings = client.create_producer(f"{topic}-json", schema=pulsar.schema.JsonSchema(Reading))
    readings.send(Reading(place="Aachen", degrees=2.5))
    done = run(spark, broker, tmp_path, pattern=f"{topic}-.*")
    assert (done.rows, done.topics, done.error) == (3, 2, None)
    assert archived_topics(spark, str(tmp_path)) == [named(f"{topic}-bytes"), named(f"{topic}-json")]
    (row,) = read_archive(spark, str(tmp_path), named(f"{topic}-json")).select("place", "degrees").collect()
    assert tuple(row) == ("Aachen", 2.5)
    assert numbers(spark, tmp_path, named(f"{topic}-bytes")) == [1, 2]


@pytest.mark.long
def test_a_field_that_is_added_is_null_in_older_files_and_one_of_another_type_is_refused(
    spark: SparkSession, runs: Runs, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    create_namespace(broker, topic, "ALWAYS_COMPATIBLE")
    name = f"persistent://public/{topic}/readings"
    holder = client.subscribe(name, "holder")

    publish_record(client, name, Reading(place="a", degrees=1.0))
    assert run(spark, broker, tmp_path, topics=(name,)).rows == 1
    publish_record(client, name, WiderReading(place="b", degrees=2.0, height=3))
    assert run(spark, broker, tmp_path, topics=(name,)).rows == 1
    rows = runs(
        lambda session: (
            read_archive(session, str(tmp_path), name).orderBy("place").select("place", "degrees", "height").collect()
        )
    )
    assert [tuple(row) for row in rows] == [("a", 1.0, None), ("b", 2.0, 3)]
    publish_record(client, name, OtherReading(place="c", degrees="cold"))
    refused = run(spark, broker, tmp_path, topics=(name,))
    assert (refused.rows, refused.lag) == (0, 1)
    assert refused.error is not None
    assert f"field 'degrees' of {name} is double in the archive and string" in refused.error
    assert read_archive(spark, str(tmp_path), name).count() == 2
    holder.close()


@pytest.mark.usefixtures("trims_exactly")
def test_what_is_not_archived_is_held_and_what_is_archived_is_let_go(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    rest(broker, "PUT", f"namespaces/public/{topic}")
    keep_nothing(broker.http_url, f"public/{topic}")
    name = f"public/{topic}/t"
    holder = client.subscribe(name, "holder")
    publish(client, name, [b"%d" % number for number in range(5)])
    assert run(spark, broker, tmp_path, topics=(name,)).rows == 5
    ids = publish(client, name, [b"%d" % number for number in range(5, 9)])
    holder.acknowledge_cumulative(ids[-1])
    holder.close()

    def stored() -> int:
        return int(rest(broker, "GET", f"persistent/{name}/internalStats")["numberOfEntries"])

    # Only the archive's subscription keeps the last four.
    eventually(lambda: stored() == 4, within_s=180, what="the archived messages being deleted")
    assert run(spark, broker, tmp_path, topics=(name,)).rows == 4
    eventually(lambda: stored() == 0, within_s=180, what="all messages being deleted")
    assert numbers(spark, tmp_path, f"persistent://{name}") == list(range(9))


@pytest.mark.usefixtures("planner")
@pytest.mark.usefixtures("trims_exactly")
def test_messages_that_are_gone_are_named_and_skipped_only_when_asked(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    rest(broker, "PUT", f"namespaces/public/{topic}")
    keep_nothing(broker.http_url, f"public/{topic}")
    name = f"persistent://public/{topic}/t"
    holder = client.subscribe(name, "holder")
    publish(client, name, [b"0", b"1"])
    assert run(spark, broker, tmp_path, topics=(name,)).rows == 2
    # Somebody deletes the archive's subscription, and nothing holds what comes now.
    rest(broker, "DELETE", f"persistent/public/{topic}/t/subscription/{HELD}")
    ids = publish(client, name, [b"%d" % number for number in range(2, 6)])
    holder.acknowledge_cumulative(ids[2])
    holder.close()
    stats = f"persistent/public/{topic}/t/internalStats"
    eventually(lambda: rest(broker, "GET", stats)["numberOfEntries"] == 1, within_s=180, what="messages being deleted")
    refused = run(spark, broker, tmp_path, topics=(name,))
    assert refused.rows == 0
    assert refused.error is not None
    assert f"{name}: the messages after " in refused.error
    assert "failOnDataLoss=false" in refused.error
    assert numbers(spark, tmp_path, name) == [0, 1]
    assert run(spark, broker, tmp_path, topics=(name,), source={"failOnDataLoss": "false"}).error is None
    assert numbers(spark, tmp_path, name) == [0, 1, 5]


@pytest.mark.usefixtures("planner")
def test_a_topic_that_is_recreated_without_one_of_its_partitions_names_it_and_goes_on_only_when_asked(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    create_partitions(broker, topic, 2)
    publish(client, f"{topic}-partition-0", [b"0"])
    assert run(spark, broker, tmp_path, topics=(topic,)).rows == 1
    rest(broker, "DELETE", f"persistent/public/default/{topic}/partitions?force=true")
    publish(client, topic, [b"1"])
    refused = run(spark, broker, tmp_path, topics=(topic,))
    assert (refused.rows, refused.lag) == (0, 1)
    assert refused.error is not None
    assert re.search(f"{topic}-partition-[01] is gone, of which the query has read up to", refused.error)
    done = run(spark, broker, tmp_path, topics=(topic,), source={"failOnDataLoss": "false"})
    assert (done.rows, done.lag, done.error) == (1, 0, None)
    assert numbers(spark, tmp_path, named(topic)) == [0, 1]


@pytest.mark.usefixtures("planner")
def test_a_batch_that_was_half_in_its_places_when_the_job_was_killed_is_written_once(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    create_partitions(broker, topic, 2)
    publish(client, topic, [b"%d" % number for number in range(40)])
    small = {"source": {"maxBytesPerTrigger": "800"}, "file_bytes": 400}
    first = run(spark, broker, tmp_path, topics=(topic,), **small)
    assert (first.rows, first.error) == (40, None)
    assert first.files >= 4
    # As a job leaves it that is killed between the renames of its last batch: Spark does not know the batch is done,
    # one of its files is in its place, another one still in staging, and so is one of the release before this one.
    (state,) = (tmp_path / "_checkpoint").glob("topic=*")
    last = max(int(each.name) for each in (state / "commits").glob("[0-9]*"))
    for each in [state / "commits" / str(last), state / "commits" / f".{last}.crc"]:
        each.unlink(missing_ok=True)
    (complete,) = tmp_path.glob(f"topic=*/_complete-*-{last + 1:08}")
    complete.unlink()
    found = numbers(spark, tmp_path, named(topic))
    assert 0 < len(found) < 40
    moved, *_ = sorted(tmp_path.glob(f"topic=*/date=*/*-{last:08}-*.parquet"))
    for left in (tmp_path / "_staging" / f"{Path(topic_directory('', named(topic))).name}{own}" for own in ("+1", "")):
        (left / moved.parent.name).mkdir(parents=True)
        shutil.copy(moved, left / moved.parent.name)
    moved.unlink()
    beside = tmp_path / "_staging" / f"{Path(topic_directory('', named(topic) + '-b')).name}+1"
    beside.mkdir()
    again = run(spark, broker, tmp_path, topics=(topic,), **small)
    assert again.error is None
    assert numbers(spark, tmp_path, named(topic)) == list(range(40))
    assert list((tmp_path / "_staging").glob("topic=*")) == [beside]


def test_a_batch_is_read_when_all_its_files_are_in_their_places(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    publish(client, topic, [b"0", b"1"])
    assert run(spark, broker, tmp_path, topics=(topic,)).rows == 2
    (file,) = data_files(tmp_path)
    # One more file of the next batch, which a job is about to put into its places; it is not even opened.
    half = file.with_name(file.name.replace("-00000000-", "-00000001-"))
    half.write_bytes(b"half a batch")
    assert numbers(spark, tmp_path, named(topic)) == [0, 1]
    assert archived_files(spark, str(tmp_path), named(topic)) == [f"{file.parent.name}/{file.name}"]
    publish(client, topic, [b"2"])
    reader = read_archive(spark, str(tmp_path), named(topic))
    assert run(spark, broker, tmp_path, topics=(topic,)).rows == 1
    # It goes on with the files it has listed.
    assert reader.count() == 2
    assert numbers(spark, tmp_path, named(topic)) == [0, 1, 2]
    assert len(archived_files(spark, str(tmp_path), named(topic))) == 2
    publish(client, topic, [b"3"])
    assert run(spark, broker, tmp_path, topics=(topic,)).rows == 1
    # The one before the last is for who lists them now; earlier ones are gone.
    assert sorted(each.name[-9:] for each in tmp_path.glob("topic=*/_complete-*")) == ["-00000002", "-00000003"]


@pytest.mark.usefixtures("planner")
def test_a_batch_that_only_spark_does_not_know_to_be_done_stays_as_readers_have_it(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    publish(client, topic, [b"0", b"1"])
    assert run(spark, broker, tmp_path, topics=(topic,)).rows == 2
    before = [(file, file.stat().st_ino) for file in data_files(tmp_path)]
    (state,) = (tmp_path / "_checkpoint").glob("topic=*")
    for each in [state / "commits" / "0", state / "commits" / ".0.crc"]:
        each.unlink(missing_ok=True)
    again = run(spark, broker, tmp_path, topics=(topic,))
    assert (again.rows, again.lag, again.error) == (0, 0, None)
    assert [(file, file.stat().st_ino) for file in data_files(tmp_path)] == before


@pytest.mark.usefixtures("planner")
def test_a_checkpoint_older_than_the_files_is_refused_and_nothing_is_left_out(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    publish(client, topic, [b"0"])
    assert run(spark, broker, tmp_path, topics=(topic,)).rows == 1
    shutil.copytree(tmp_path / "_checkpoint", tmp_path / "older")
    publish(client, topic, [b"1"])
    assert run(spark, broker, tmp_path, topics=(topic,)).rows == 1
    shutil.rmtree(tmp_path / "_checkpoint")
    (tmp_path / "older").rename(tmp_path / "_checkpoint")
    # The batch that was complete as number 1 would now be this message, too.
    publish(client, topic, [b"2"])
    refused = run(spark, broker, tmp_path, topics=(topic,))
    assert refused.rows == 0
    assert refused.error is not None
    assert "it is older than" in refused.error
    assert "goes on with batch 1: name the newest checkpoint, or another path and another" in refused.error
    assert numbers(spark, tmp_path, named(topic)) == [0, 1]


def test_splits_are_read_side_by_side_however_few_the_files_are(spark: SparkSession) -> None:
    def mark(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        assert task is not None
        for batch in batches:
            yield batch.append_column("task", pa.array([task.partitionId()] * batch.num_rows, pa.int32()))

    read = spark.range(0, 80, 1, 8).mapInArrow(mark, "id bigint, task int")
    cores = spark.sparkContext.defaultParallelism
    assert cores == 2
    one, more = divided(read, 8, cores - 1, cores), divided(read, 8, cores + 1, cores)
    assert (one.rdd.getNumPartitions(), more.rdd.getNumPartitions()) == (1, 3)
    rows = one.collect()
    assert sorted(row.id for row in rows) == list(range(80))
    assert {row.task for row in rows} == set(range(8))
    # With a file for each core a task reads its neighbours itself.
    rows = more.withColumn("file", spark_partition_id()).collect()
    assert {(row.file, row.task) for row in rows} == {(0, 0), (1, 1), (2, 2)}
    assert [row.id for row in rows] == list(range(80))
    assert divided(read, 8, 8, cores) is read
    # A field of any name stays.
    assert divided(read.withColumnRenamed("task", "__file"), 8, cores - 1, cores).columns == ["id", "__file"]


def test_a_checkpoint_that_is_gone_does_not_write_everything_again(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    publish(client, topic, [b"0"])
    assert run(spark, broker, tmp_path / "a", topics=(topic,)).rows == 1
    refused = run(spark, broker, tmp_path / "a", topics=(topic,), checkpoint=str(tmp_path / "other"))
    assert refused.error is not None
    assert "every message would be written again" in refused.error
    assert len(data_files(tmp_path / "a")) == 1


def test_what_is_left_is_not_said_to_be_nothing_where_the_subscription_is_gone(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    publish(client, topic, [b"0"])
    urls = {"service.url": broker.service_url, "admin.url": broker.http_url, "topic": topic}
    with pytest.raises(PulsarSourceError, match=f"{topic} has no subscription heliograph-archive"):
        holding.backlog(read_options(urls, streaming=True).connection, [named(topic)], "heliograph-archive")


@pytest.mark.long
def test_a_topic_that_fails_does_not_stop_the_others(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    for name in (f"{topic}-a", f"{topic}-b"):
        publish(client, name, [b"0"])
    other = client.subscribe(f"{topic}-a", HELD, initial_position=pulsar.InitialPosition.Earliest)
    done = run(spark, broker, tmp_path, pattern=f"{topic}-.*")
    other.close()
    assert (done.rows, done.topics) == (1, 2)
    assert done.error is not None
    assert f"{named(topic)}-a: another consumer has the subscription {HELD}" in done.error
    assert archived_topics(spark, str(tmp_path)) == [named(f"{topic}-b")]


def command(broker: BrokerProcess, path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    given = {"HELIOGRAPH_SERVICE_URL": broker.service_url, "HELIOGRAPH_ADMIN_URL": broker.http_url}
    return subprocess.run(
        [*COMMAND, "archive", "--path", str(path), "--master", "local[2]", *arguments],
        env=os.environ | given,
        capture_output=True,
        text=True,
        timeout=500,
    )


def check_times(file: Path) -> None:
    """Check that times have statistics in the file, by which readers leave row groups alone."""
    group = pyarrow.parquet.ParquetFile(file).metadata.row_group(0)
    columns = {group.column(number).path_in_schema: group.column(number) for number in range(group.num_columns)}
    for name in ("__publishTime", "__eventTime"):
        assert columns[name].physical_type == "INT64"
    assert columns["__publishTime"].statistics.has_min_max


@pytest.mark.long
def test_the_command_ends_with_one_line_of_json_on_stdout_and_in_the_file(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    publish(client, topic, [b"0", b"1"])
    done = command(
        broker, tmp_path / "a", "--topic", topic, "--result", str(tmp_path / "result"), "--file-size", "1.5Mi"
    )
    assert done.returncode == 0, done.stderr
    output = json.loads(done.stdout)
    assert json.loads((tmp_path / "result").read_text()) == output
    values = [output[name] for name in ("job", "rows", "files", "topics", "lag", "error")]
    assert values == ["archive", 2, 1, 1, 0, None]
    assert f"{named(topic)}: batch 0: 2 rows in 1 files" in done.stderr
    assert numbers(spark, tmp_path / "a", named(topic)) == [0, 1]
    (file,) = data_files(tmp_path / "a")
    check_times(file)


@pytest.mark.long
def test_times_have_statistics_in_files_that_spark_writes_itself(
    broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    publish(client, topic, [b"0", b"1"])
    # With a setting of Hadoop's for Parquet, Arrow does not write.
    by_hadoop = ("--conf", "spark.hadoop.parquet.page.size=65536")
    done = command(broker, tmp_path / "a", "--topic", topic, *by_hadoop)
    assert done.returncode == 0, done.stderr
    (file,) = data_files(tmp_path / "a")
    assert pyarrow.parquet.ParquetFile(file).metadata.created_by.startswith("parquet-mr")
    check_times(file)


@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        (("--format", "orc"), "'orc' is neither parquet nor iceberg"),
        (("--day-complete-after", "90"), "'90' is not a duration; valid:"),
        (("--file-size", "128MB"), "'128MB' is not a size of files; valid:"),
        (("--result", "not/there"), "there is no directory 'not'"),
        (("--file-size", "infinite"), "'infinite' is not a size of files"),
    ],
)
def test_an_argument_that_cannot_be_understood_is_wrong_usage(
    broker: BrokerProcess, tmp_path: Path, arguments: tuple[str, ...], output: str
) -> None:
    refused = command(broker, tmp_path / "a", "--topic", "t", *arguments)
    assert refused.returncode == 2, refused.stderr
    assert output in " ".join(refused.stderr.split())


@pytest.mark.parametrize(
    ("options", "output"),
    [
        ({"topics": ("not-there",)}, "there is no topic persistent://public/default/not-there"),
        ({"pattern": "no/where/.*"}, "there is no namespace 'no/where'"),
        ({"pattern": "fits-nothing-.*"}, "no topic fits the pattern 'fits-nothing-.*'"),
        ({"topics": ("t",), "source": {"startingOffset": "earliest"}}, "is it 'startingOffsets'"),
        ({"topics": ("t",), "admin_url": None}, "admin.url (--admin-url): is missing"),
        ({"topics": ("t",), "pattern": "t.*"}, "--topic and --topics-pattern: both given; valid: --topic NAME"),
        ({"topics": ("t",), "admin_url": "http://127.0.0.1:1"}, "no answer that can be used (admin.url)"),
    ],
)
def test_what_is_wrong_is_named_and_nothing_is_written(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path, options: dict[str, Any], output: str
) -> None:
    try:
        refused = run(spark, broker, tmp_path / "a", **options).error
    except PulsarSourceError as error:
        refused = str(error)
    assert refused is not None
    assert output in refused
    assert data_files(tmp_path / "a") == []


@pytest.mark.long
def test_a_directory_that_cannot_be_made_is_named_before_anything_is_read(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    publish(client, topic, [b"0"])
    (tmp_path / "file").write_text("in the way")
    refused = command(broker, tmp_path / "file" / "a", "--topic", topic)
    assert refused.returncode == 1
    assert f"{tmp_path}/file/a" in json.loads(refused.stdout)["error"]
    assert rest(broker, "GET", f"persistent/public/default/{topic}/subscriptions") == []


def test_a_broker_that_goes_away_leaves_an_error_and_nothing_in_part(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    publish(client, topic, [b"0"])
    refused = run(
        spark,
        broker,
        tmp_path,
        topics=(topic,),
        service_url="pulsar://127.0.0.1:1",
        source={"pulsar.client.operationTimeoutMs": "1000"},
    )
    assert refused.error is not None
    assert named(topic) in refused.error
    assert data_files(tmp_path) == []
    assert not Path(topic_directory(str(tmp_path), named(topic))).exists()
