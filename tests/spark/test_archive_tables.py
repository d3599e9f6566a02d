"""``archive`` into Iceberg tables on the real broker: every message once, whatever is killed, and who reads it."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pulsar
import pytest
from heliograph_spark.jobs.archive import ArchiveOptions, ArchiveResult, Tables, archive
from heliograph_spark.jobs.archiving.topic_table import TopicTable
from heliograph_spark.plan.errors import JobError, OptionError
from heliograph_spark.run.session import Broker
from heliograph_spark.tables.reading import read_scan
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table
from pyspark.sql import SparkSession

from tests.support.broker_process import BrokerProcess
from tests.support.clients import backlog, create_namespace, create_partitions, publish, publish_record

from .conftest import COMMAND

HELD = "heliograph-archive"


class Reading(pulsar.schema.Record):  # type: ignore[misc]
    place = pulsar.schema.String()
    degrees = pulsar.schema.Float()
    count = pulsar.schema.Integer()
    tags = pulsar.schema.Array(pulsar.schema.String())


class WiderReading(pulsar.schema.Record):  # type: ignore[misc]
    place = pulsar.schema.String()
    degrees = pulsar.schema.Double()
    count = pulsar.schema.Long()
    tags = pulsar.schema.Array(pulsar.schema.String())
    height = pulsar.schema.Integer()


class OtherReading(pulsar.schema.Record):  # type: ignore[misc]
    place = pulsar.schema.String()
    degrees = pulsar.schema.String()


def named(topic: str) -> str:
    return f"persistent://public/default/{topic}"


def properties(path: Path) -> dict[str, str]:
    path.mkdir(exist_ok=True)
    return {"type": "sql", "uri": f"sqlite:///{path}/catalog.db", "warehouse": path.as_uri()}


def run(spark: SparkSession, broker: BrokerProcess, path: Path, **options: Any) -> ArchiveResult:
    reached = Broker(broker.service_url, broker.http_url, options.pop("source", {}))
    tables = Tables("lake", properties(path))
    given: dict[str, Any] = {"checkpoint": str(path / "state"), "tables": tables} | options
    return archive(spark, ArchiveOptions(broker=reached, **given))


def table_of(path: Path, topic: str, namespace: str = "public_default") -> Table:
    name = "archive." + re.sub("[^0-9a-z]", "_", f"{namespace}_{topic}".lower())
    catalog = load_catalog("lake", **properties(path))
    try:
        return catalog.load_table(name)
    finally:
        catalog.close()


def numbers(path: Path, topic: str) -> list[int]:
    return sorted(int(row["value"]) for row in table_of(path, topic).scan().to_arrow().to_pylist())


def test_a_topic_is_in_its_table_once_and_each_reader_has_it(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    create_partitions(broker, topic, 2)
    producer = client.create_producer(topic)
    for number in range(300):
        producer.send_async(
            b"%d" % number, None, partition_key=str(number % 7), event_timestamp=1 + number, properties={"a": "b"}
        )
    producer.flush()
    done = run(spark, broker, tmp_path, topics=(topic,))
    table = table_of(tmp_path, topic)
    files = [task.file for task in table.scan().plan_files()]
    assert (done.rows, done.topics, done.lag, done.error) == (300, 1, 0, None)
    assert (done.files, done.bytes) == (len(files), sum(file.file_size_in_bytes for file in files))
    assert sum(backlog(broker, f"{topic}-partition-{number}", HELD) for number in range(2)) == 0
    assert run(spark, broker, tmp_path, topics=(topic,)).rows == 0
    publish(client, f"{topic}-partition-0", [b"300"])
    assert run(spark, broker, tmp_path, topics=(topic,)).rows == 1
    assert numbers(tmp_path, topic) == list(range(301))

    table = table_of(tmp_path, topic)
    assert [str(field.transform) for field in table.spec().fields] == ["day"]
    # Spark reads the files that the table's current snapshot names, DuckDB reads the table by pyiceberg.
    read = spark.read.parquet(*(task.file.file_path for task in table.scan().plan_files()))
    assert read.selectExpr("count(DISTINCT __topic, __messageId)").collect()[0][0] == 301
    assert read.selectExpr("sum(unix_millis(__eventTime))").collect()[0][0] == 300 * 301 // 2
    duck = table.scan().to_duckdb("archived")
    query = "SELECT count(*), sum(CAST(decode(value) AS INT)), min(__messageProperties['a']) FROM archived"
    assert duck.execute(query).fetchall() == [(301, 300 * 301 // 2, "b")]
    duck.close()


def end_at_commit(ends: pytest.MonkeyPatch, *, committed: bool) -> None:
    """Have runs end at a commit, which is done before that or is not."""
    whole: Callable[..., None] = TopicTable._commit

    def commit(self: TopicTable, *arguments: Any) -> None:
        if committed:
            whole(self, *arguments)
        raise JobError("the run ends here")

    ends.setattr(TopicTable, "_commit", commit)


@pytest.mark.usefixtures("planner")
@pytest.mark.parametrize("moment", ["before the files", "before the commit", "after the commit"])
def test_a_run_that_ends_at_any_moment_of_a_commit_is_repeated_and_adds_its_messages_once(
    spark: SparkSession,
    broker: BrokerProcess,
    client: pulsar.Client,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
) -> None:
    publish(client, topic, [b"0"])
    assert run(spark, broker, tmp_path, topics=(topic,)).rows == 1
    publish(client, topic, [b"1", b"2"])
    with monkeypatch.context() as ends:

        def delete_left(self: TopicTable, *_: Any) -> None:
            raise JobError("the run ends here")

        if moment == "before the files":
            ends.setattr(TopicTable, "_delete_left", delete_left)
        else:
            end_at_commit(ends, committed=moment == "after the commit")
        ended = run(spark, broker, tmp_path, topics=(topic,))
    assert ended.error is not None
    assert "the run ends here" in ended.error
    # The subscription is acknowledged only up to what Spark knows to be committed.
    assert (ended.lag, backlog(broker, topic, HELD)) == (2, 2)
    assert numbers(tmp_path, topic) == ([0, 1, 2] if moment == "after the commit" else [0])
    again = run(spark, broker, tmp_path, topics=(topic,))
    assert (again.rows, again.lag, again.error) == (0 if moment == "after the commit" else 2, 0, None)
    assert numbers(tmp_path, topic) == [0, 1, 2]
    # No file is there that is not in the table.
    table = table_of(tmp_path, topic)
    there = {file.name for file in (tmp_path / "archive").rglob("*.parquet")}
    assert there == {task.file.file_path.rpartition("/")[2] for task in table.scan().plan_files()}


def test_a_run_that_lost_its_subscription_adds_nothing_after_the_next_run_has_begun(
    spark: SparkSession,
    broker: BrokerProcess,
    client: pulsar.Client,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    publish(client, topic, [b"0"])
    assert run(spark, broker, tmp_path, topics=(topic,)).rows == 1
    publish(client, topic, [b"1"])
    whole: Callable[..., None] = TopicTable._commit
    late: list[Callable[[], None]] = []
    with monkeypatch.context() as slow:

        def commit(self: TopicTable, *arguments: Any) -> None:
            late.append(lambda: whole(self, *arguments))
            raise JobError("the run is cut off")

        slow.setattr(TopicTable, "_commit", commit)
        assert run(spark, broker, tmp_path, topics=(topic,)).error is not None
    assert run(spark, broker, tmp_path, topics=(topic,)).rows == 1
    with pytest.raises(JobError, match=r"^lake\.archive\.public_default_.*: "):
        late[0]()
    assert numbers(tmp_path, topic) == [0, 1]


def test_columns_are_added_and_become_wider_and_each_reader_has_older_rows_with_them(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    create_namespace(broker, topic, "ALWAYS_COMPATIBLE")
    name = f"persistent://public/{topic}/readings"
    holder = client.subscribe(name, "holder")

    publish_record(client, name, Reading(place="a", degrees=1.5, count=1, tags=["x"]))
    first = run(spark, broker, tmp_path, topics=(name,))
    assert (first.rows, first.error) == (1, None)
    publish_record(client, name, WiderReading(place="b", degrees=2.5, count=1 << 40, tags=[], height=3))
    second = run(spark, broker, tmp_path, topics=(name,))
    assert (second.rows, second.error) == (1, None)
    table = table_of(tmp_path, "readings", f"public_{topic}")
    scan = table.scan(selected_fields=("place", "degrees", "count", "tags", "height"))
    # The files are not merged: one lacks the column, and has the narrower types.
    assert len(list(scan.plan_files())) == 2
    expected = [("a", 1.5, 1, ["x"], None), ("b", 2.5, 1 << 40, [], 3)]
    by_pyiceberg = scan.to_arrow().select(scan.selected_fields).to_pylist()
    assert sorted(tuple(row.values()) for row in by_pyiceberg) == expected
    duck = scan.to_duckdb("readings")
    query = f"SELECT {', '.join(scan.selected_fields)} FROM readings ORDER BY place"
    assert duck.execute(query).fetchall() == expected
    duck.close()
    by_spark = read_scan(spark, scan, "readings").select(*scan.selected_fields)
    assert [tuple(row) for row in by_spark.orderBy("place").collect()] == expected
    publish_record(client, name, OtherReading(place="c", degrees="cold"))
    refused = run(spark, broker, tmp_path, topics=(name,))
    assert (refused.rows, refused.lag) == (0, 1)
    assert refused.error is not None
    assert f"field 'degrees' of {name} is double in the archive and string" in refused.error
    holder.close()


def test_complete_days_are_marked_in_the_table_and_a_late_message_removes_the_mark_with_its_commit(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    publish(client, topic, [b"0"])
    reached = Broker(broker.service_url, broker.http_url)

    def archived(at_s: float) -> Table:
        options = ArchiveOptions(
            reached, tables=Tables("lake", properties(tmp_path)), topics=(topic,), checkpoint=str(tmp_path / "state")
        )
        assert archive(spark, options, lambda: at_s).error is None
        return table_of(tmp_path, topic)

    def marks(table: Table) -> dict[str, int]:
        prefix = "heliograph.complete-day."
        found = {key.removeprefix(prefix): json.loads(text) for key, text in table.properties.items() if prefix in key}
        return {day: int(mark["messages"]) for day, mark in found.items()}

    (row,) = archived(0).scan().to_arrow().to_pylist()
    day = row["__publishTime"].date().isoformat()
    assert marks(table_of(tmp_path, topic)) == {}
    later = row["__publishTime"].timestamp() + 2 * 86400
    assert marks(archived(later)) == {day: 1}
    publish(client, topic, [b"1"])
    assert sum(marks(archived(0)).values()) in (0, 1)
    assert sum(marks(archived(later)).values()) == 2


def test_a_table_of_another_topic_and_a_checkpoint_that_is_gone_are_refused(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    publish(client, f"{topic}-a", [b"0"])
    publish(client, f"{topic}_a", [b"1"])
    assert run(spark, broker, tmp_path, topics=(f"{topic}-a",)).rows == 1
    other = run(spark, broker, tmp_path, topics=(f"{topic}_a",))
    assert other.error is not None
    assert (
        f"this table is of the topic {named(topic)}-a; archive {named(topic)}_a into another namespace" in other.error
    )
    gone = run(spark, broker, tmp_path, topics=(f"{topic}-a",), checkpoint=str(tmp_path / "other"))
    assert gone.error is not None
    assert "every message would be written again" in gone.error
    assert numbers(tmp_path, f"{topic}-a") == [0]
    with pytest.raises(OptionError, match="needs a checkpoint"):
        run(spark, broker, tmp_path, topics=(f"{topic}-a",), checkpoint=None)
    with pytest.raises(OptionError, match=r"path \(--path\): is missing"):
        run(spark, broker, tmp_path, topics=(f"{topic}-a",), tables=None)
    with pytest.raises(JobError, match=r"^catalog lake: "):
        archive(
            spark,
            ArchiveOptions(
                Broker(broker.service_url, broker.http_url),
                tables=Tables("lake", {"type": "sql"}),
                checkpoint=str(tmp_path),
                topics=(f"{topic}-a",),
            ),
        )


@pytest.mark.long
@pytest.mark.usefixtures("planner")
def test_the_last_values_change_with_each_batch_once_and_only_the_partitions_of_its_keys_are_written(
    spark: SparkSession,
    broker: BrokerProcess,
    client: pulsar.Client,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options: dict[str, Any] = {"topics": (topic,), "tables": Tables("lake", properties(tmp_path), last_values=True)}
    producer = client.create_producer(topic)

    def send(**values: str) -> None:
        for key, value in values.items():
            producer.send(value.encode(), partition_key=key)

    def last() -> tuple[dict[str, str], set[str]]:
        scan = table_of(tmp_path, f"{topic}_last").scan()
        rows = [(row["__key"].decode(), row["value"].decode()) for row in scan.to_arrow().to_pylist()]
        assert len(dict(rows)) == len(rows)
        return dict(rows), {task.file.file_path for task in scan.plan_files()}

    send(a="1", b="1", c="1")
    send(a="2")
    assert run(spark, broker, tmp_path, **options).error is None
    before, files = last()
    assert before == {"a": "2", "b": "1", "c": "1"}
    # An empty value deletes its key. The run ends after its commit, and Spark does not know of it.
    send(b="", d="1")
    with monkeypatch.context() as ends:
        end_at_commit(ends, committed=True)
        assert run(spark, broker, tmp_path, **options).error is not None
    assert run(spark, broker, tmp_path, **options).rows == 0
    after, changed = last()
    assert after == {"a": "2", "c": "1", "d": "1"}
    # The files of a and c are the same ones.
    assert len(files & changed) == 2
    send(d="", b="2")
    assert run(spark, broker, tmp_path, **options).error is None
    assert last()[0] == {"a": "2", "b": "2", "c": "1"}


def command(broker: BrokerProcess, *arguments: str) -> subprocess.CompletedProcess[str]:
    given = {"HELIOGRAPH_SERVICE_URL": broker.service_url, "HELIOGRAPH_ADMIN_URL": broker.http_url}
    return subprocess.run(
        [*COMMAND, "archive", "--master", "local[2]", *arguments],
        env=os.environ | given,
        capture_output=True,
        text=True,
        timeout=500,
    )


@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        (("--format", "iceberg"), "'--catalog': is missing; --format iceberg writes into a catalog"),
        (("--catalog", "lake", "--path", "a"), "'--catalog': is for archives in tables, which need --format iceberg"),
        (("--format", "iceberg", "--catalog", "lake", "--catalog-property", "type"), "a value is not KEY=VALUE"),
    ],
)
def test_options_of_tables_that_do_not_fit_are_wrong_usage(
    broker: BrokerProcess, arguments: tuple[str, ...], output: str
) -> None:
    refused = command(broker, "--topic", "t", *arguments)
    assert refused.returncode == 2, refused.stderr
    assert output in " ".join(re.sub("[│╭╰─╮╯]", " ", refused.stderr).split())
