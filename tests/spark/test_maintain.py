"""``maintain`` on tables that ``archive`` has filled from the real broker: the rows stay, and the files become few."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path

import pulsar
import pytest
from heliograph_spark.jobs.archive import ArchiveOptions, archive
from heliograph_spark.jobs.maintain import MaintainOptions, maintain
from heliograph_spark.plan.errors import JobError
from heliograph_spark.run.session import Broker
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table
from pyspark.sql import SparkSession

from tests.support.broker_process import BrokerProcess
from tests.support.clients import publish

from .conftest import Runs
from .lakes import lake


def loaded(path: Path) -> Table:
    """Load the only table."""
    catalog = load_catalog("lake", **lake(path).properties)
    (identifier,) = catalog.list_tables("archive")
    try:
        return catalog.load_table(identifier)
    finally:
        catalog.close()


def rows(table: Table) -> list[tuple[bytes, bytes]]:
    return sorted((row["value"], row["__messageId"]) for row in table.scan().to_arrow().to_pylist())


def data_files(path: Path) -> list[Path]:
    return sorted((path / "archive").rglob("*.parquet"))


def test_small_files_become_one_and_files_of_no_snapshot_go_but_the_rows_and_the_record_stay(
    spark: SparkSession, runs: Runs, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    options = ArchiveOptions(
        Broker(broker.service_url, broker.http_url, {"maxBytesPerTrigger": "300"}),
        topics=(topic,),
        file_bytes=300,
        tables=lake(tmp_path),
        checkpoint=str(tmp_path / "state"),
    )
    publish(client, topic, [b"%d" % number for number in range(12)])
    assert archive(spark, options).error is None
    before = rows(loaded(tmp_path))
    written = data_files(tmp_path)
    assert len(written) >= 3
    # As a killed run leaves its files: below the table, and in no snapshot.
    left = written[0].parent.parent / "killed" / "left.parquet"
    left.parent.mkdir()
    shutil.copy(written[0], left)
    far = loaded(tmp_path).metadata.last_updated_ms / 1000 + 10 * 86_400

    kept = runs(lambda session: maintain(session, MaintainOptions(lake(tmp_path)), lambda: far - 10 * 86_400))
    days = len({file.parent.name for file in written})
    assert (kept.tables, kept.merged, kept.written, kept.error) == (1, len(written), days, None)
    assert (kept.snapshots, kept.deleted) == (0, 0)
    assert rows(loaded(tmp_path)) == before
    assert set(written) < set(data_files(tmp_path))

    done = runs(lambda session: maintain(session, MaintainOptions(lake(tmp_path), (topic,)), lambda: far))
    assert (done.merged, done.error) == (0, None)
    assert done.snapshots >= 3
    table = loaded(tmp_path)
    assert len(table.snapshots()) == 1
    assert rows(table) == before
    assert {file.name for file in data_files(tmp_path)} == {
        task.file.file_path.rpartition("/")[2] for task in table.scan().plan_files()
    }
    assert [each for each in (tmp_path / "archive").rglob("data/**/") if not list(each.rglob("*.parquet"))] == []
    # The archive goes on where it was: its record is no snapshot's.
    publish(client, topic, [b"12"])
    again = archive(spark, options)
    assert (again.rows, again.error) == (1, None)
    assert len(rows(loaded(tmp_path))) == 13

    with pytest.raises(
        JobError,
        match=r"lake\.archive: persistent://public/default/other has no table there; there are tables of persistent://",
    ):
        runs(lambda session: maintain(session, MaintainOptions(lake(tmp_path), ("other",))))


def test_a_table_without_rows_is_maintained(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    # A message without a key has no last value.
    publish(client, topic, [b"one"])
    tables = replace(lake(tmp_path), last_values=True)
    reached = Broker(broker.service_url, broker.http_url)
    options = ArchiveOptions(reached, topics=(topic,), tables=tables, checkpoint=str(tmp_path / "state"))
    assert archive(spark, options).error is None
    kept = maintain(spark, MaintainOptions(tables), lambda: time.time() + 10 * 86_400)
    assert (kept.tables, kept.error) == (1, None)
    assert rows(loaded(tmp_path)) == []
