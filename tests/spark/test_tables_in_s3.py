"""The jobs with tables in a bucket: pyiceberg and Spark each reach it by a client of their own."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pulsar
import pytest
from heliograph_spark.jobs.archive import ArchiveOptions, ArchiveResult, Tables, archive
from heliograph_spark.jobs.archiving.topic_table import TopicTable
from heliograph_spark.jobs.maintain import MaintainOptions, maintain
from heliograph_spark.jobs.replay import ReplayOptions, replay
from heliograph_spark.plan.errors import JobError
from heliograph_spark.run.directories import open_directory
from heliograph_spark.run.session import Broker
from heliograph_spark.tables.locations import of_hadoop
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table
from pyspark.sql import SparkSession

from tests.support.clients import RunningBroker, create_namespace, fresh_name, publish, rest
from tests.support.s3_server import Bucket

from .conftest import COMMAND

GUIDE = Path(__file__).parents[2] / "docs" / "tables.md"


class Order(pulsar.schema.Record):  # type: ignore[misc]
    number = pulsar.schema.Integer()


class NotedOrder(pulsar.schema.Record):  # type: ignore[misc]
    number = pulsar.schema.Integer()
    note = pulsar.schema.String()


class Lake:
    """A catalog whose tables are in a bucket that the session's Spark reaches, and the jobs on one topic."""

    def __init__(self, spark: SparkSession, broker: RunningBroker, bucket: Bucket, topic: str, directory: Path) -> None:
        self.spark = spark
        self._broker = Broker(broker.service_url, broker.http_url)
        self.bucket = bucket
        self.topic = topic
        self.properties = {
            "type": "sql",
            "uri": f"sqlite:///{directory}/catalog.db",
            "warehouse": f"s3://{bucket.name}/tables",
            "s3.endpoint": bucket.endpoint,
            "s3.region": "us-east-1",
            "s3.access-key-id": bucket.access_key,
            "s3.secret-access-key": bucket.secret_key,
        }
        keys = {"access.key": bucket.access_key, "secret.key": bucket.secret_key}
        reached = {"endpoint": bucket.endpoint, "endpoint.region": "us-east-1", "path.style.access": "true"}
        for name, value in (keys | reached | {"attempts.maximum": "1"}).items():
            self.configure(name, value)

    def configure(self, name: str, value: str) -> None:
        context: Any = self.spark.sparkContext
        context._jsc.hadoopConfiguration().set(f"fs.s3a.{name}", value)

    def archive(
        self, state: str = "state", *, last: bool = False, properties: dict[str, str] | None = None
    ) -> ArchiveResult:
        """Archive into the table of all messages or of the last values; ``state`` is in the bucket or a location."""
        tables = Tables("lake", self.properties | (properties or {}), last_values=last)
        checkpoint = state if "://" in state else f"s3a://{self.bucket.name}/{state}"
        subscription = f"archive-{last}"
        options = ArchiveOptions(
            self._broker, topics=(self.topic,), tables=tables, checkpoint=checkpoint, subscription=subscription
        )
        return archive(self.spark, options)

    def table(self, *, last: bool = False) -> Table:
        catalog = load_catalog("lake", **self.properties)
        (name,) = [each for each in catalog.list_tables("archive") if each[-1].endswith("_last") == last]
        try:
            return catalog.load_table(name)
        finally:
            catalog.close()

    def files(self) -> set[str]:
        """Return the data files of messages that are in the bucket, also those that no snapshot has."""
        there = (self.bucket.files / "tables").rglob("data/**/*.parquet")
        return {f"s3://{self.bucket.name}/{each.relative_to(self.bucket.files)}" for each in there}


@pytest.fixture
def lake(spark: SparkSession, broker: RunningBroker, bucket: Bucket, topic: str, tmp_path: Path) -> Lake:
    create_namespace(broker, topic, "ALWAYS_COMPATIBLE")
    return Lake(spark, broker, bucket, f"persistent://public/{topic}/orders", tmp_path)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_tables_in_a_bucket_are_written_once_widened_maintained_and_read_by_each_reader(
    lake: Lake, spark: SparkSession, client: pulsar.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = client.subscribe(lake.topic, "holder")
    orders = client.create_producer(lake.topic, schema=pulsar.schema.JsonSchema(Order))
    for number in range(3):
        orders.send(Order(number=number), partition_key=f"k{number % 2}")
    first = lake.archive()
    assert (first.rows, first.lag, first.error) == (3, 0, None)

    # A run leaves files, and the next one, whose table has one column more, deletes them.
    noted = client.create_producer(lake.topic, schema=pulsar.schema.JsonSchema(NotedOrder))
    noted.send(NotedOrder(number=3, note="later"), partition_key="k1")
    with monkeypatch.context() as ends:

        def commit(*_: Any) -> None:
            raise JobError("the run ends here")

        ends.setattr(TopicTable, "_commit", commit)
        assert "the run ends here" in str(lake.archive().error)
    assert len(lake.files()) == 2
    again = lake.archive()
    assert (again.rows, again.lag, again.error) == (1, 0, None)
    files = {task.file.file_path for task in lake.table().scan().plan_files()}
    assert lake.files() == files

    # As a killed run leaves it: below the table, and in no snapshot.
    open_directory(spark, of_hadoop(lake.table().location())).write_text("data/killed/left.parquet", "left")
    ten_days_later = lake.table().metadata.last_updated_ms / 1000 + 10 * 86_400
    kept = maintain(spark, MaintainOptions(Tables("lake", lake.properties)), lambda: ten_days_later)
    assert (kept.tables, kept.error) == (1, None)
    assert (kept.merged, kept.written) == (2, 1)
    table = lake.table()
    assert len(table.snapshots()) == 1
    (file,) = (task.file.file_path for task in table.scan().plan_files())
    assert lake.files() == {file}
    assert [each for each in lake.bucket.files.rglob("data/**/") if not list(each.rglob("*.parquet"))] == []

    rows = table.scan().to_arrow().sort_by("number").select(["number", "note"]).to_pylist()
    assert [tuple(row.values()) for row in rows] == [(0, None), (1, None), (2, None), (3, "later")]
    query = "SELECT count(*), sum(number), max(note) FROM orders"
    duck = table.scan().to_duckdb("orders")
    assert duck.execute(query).fetchall() == [(4, 6, "later")]
    duck.close()
    spark.read.parquet(of_hadoop(file)).createOrReplaceTempView("orders")
    assert [tuple(row) for row in spark.sql(query).collect()] == [(4, 6, "later")]

    # The last values are read from the bucket and replaced there.
    assert lake.archive("last", last=True).error is None
    noted.send(NotedOrder(number=4, note="last"), partition_key="k0")
    assert lake.archive("last", last=True).error is None
    last = lake.table(last=True).scan().to_arrow().to_pylist()
    assert {row["__key"]: row["number"] for row in last} == {b"k0": 4, b"k1": 3}
    holder.close()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_table_in_a_bucket_is_read_with_the_keys_of_its_catalog(
    lake: Lake, spark: SparkSession, broker: RunningBroker, client: pulsar.Client
) -> None:
    publish(client, lake.topic, [b"one", b"two"])
    assert lake.archive().rows == 2
    target = fresh_name("again")
    rest(broker, "PUT", f"persistent/public/default/{target}")
    reached = Broker(broker.service_url, broker.http_url)
    given = ReplayOptions(reached, None, lake.topic, target, tables=Tables("lake", lake.properties))
    # Those of Spark are for another bucket.
    for name in ("access.key", "secret.key"):
        lake.configure(f"bucket.{lake.bucket.name}.{name}", "another")
    assert replay(spark, given).rows == 2
    refused = lake.properties | {"s3.secret-access-key": "another-secret"}
    with pytest.raises(JobError, match="ACCESS_DENIED"):
        replay(spark, replace(given, tables=Tables("lake", refused)))


@pytest.mark.long
@pytest.mark.timeout(600)
def test_what_is_wrong_with_a_bucket_is_named_with_what_would_be_right(lake: Lake, client: pulsar.Client) -> None:
    publish(client, lake.topic, [b"one"])
    lake.configure("bucket.refused.secret.key", "another-secret")
    fsspec = "pyiceberg.io.fsspec.FsspecFileIO"
    runs: list[tuple[str, dict[str, str], tuple[str, ...]]] = [
        ("state", {"s3.secret-access-key": "another-secret"}, ("ACCESS_DENIED", "s3.secret-access-key")),
        ("s3a://refused/state", {}, ("s3a://refused/state", "AWS_SECRET_ACCESS_KEY")),
        ("state", {"warehouse": "s3://missing/tables"}, ("s3a://missing/tables", "make the bucket")),
        ("state", {"py-io-impl": fsspec}, ("No module named 's3fs'", "pip install", "py-io-impl=")),
    ]
    for state, properties, named in runs:
        error = lake.archive(state, properties=properties).error
        assert error is not None
        assert [each for each in named if each not in error] == [], error
    with pytest.raises(JobError, match="is named s3a"):
        lake.archive("s3://bucket/state")
    assert lake.files() == set()
    assert lake.archive().rows == 1


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_command_of_the_guide_writes_a_table_in_a_bucket(
    bucket: Bucket, broker: RunningBroker, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    commands = re.findall(r"^heliograph-spark (archive [^`]*)```", GUIDE.read_text(), re.MULTILINE)
    (command,) = [each for each in commands if "warehouse=s3://" in each]
    publish(client, topic, [b"order"])
    (tmp_path / ".pyiceberg.yaml").write_text("catalog:\n  lake:\n    type: sql\n    uri: sqlite:///lake.db\n")
    here = {"https://s3.example.com": bucket.endpoint, "//lake/": f"//{bucket.name}/", "topic orders": f"topic {topic}"}
    for written, meant in (here | {"\\\n": ""}).items():
        assert written in command
        command = command.replace(written, meant)
    given = {"HELIOGRAPH_SERVICE_URL": broker.service_url, "HELIOGRAPH_ADMIN_URL": broker.http_url}
    keys = {"AWS_ACCESS_KEY_ID": bucket.access_key, "AWS_SECRET_ACCESS_KEY": bucket.secret_key}
    done = subprocess.run(
        [*COMMAND, *shlex.split(command), "--master", "local[2]"],
        cwd=tmp_path,
        env=os.environ | given | keys,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1])["rows"] == 1
    assert len(list(bucket.files.glob("tables/archive/*/data/*/*/*.parquet"))) == 1
