"""An archive acknowledges messages when a loss of power leaves them in it, as nobody else keeps them then."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pulsar
import pytest
from heliograph_spark.jobs.archive import ArchiveOptions, archive
from heliograph_spark.plan.positions import Position
from heliograph_spark.plan.subscription_hold import Hold
from heliograph_spark.run.files import Directory
from heliograph_spark.run.hadoop_files import HadoopDirectory
from heliograph_spark.run.local_files import LocalDirectory
from heliograph_spark.run.merges import replace_files
from heliograph_spark.run.session import Broker
from pyspark.sql import SparkSession

from tests.support.broker_process import BrokerProcess
from tests.support.clients import publish

from .lakes import lake


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The numbers (inodes) of the files and directories that are on the disk, as a run of this process has asked."""
    found: set[int] = set()
    whole: Callable[[int], None] = os.fsync

    def sync(file: int) -> None:
        whole(file)
        found.add(os.fstat(file).st_ino)

    monkeypatch.setattr(os, "fsync", sync)
    return found


@pytest.mark.usefixtures("planner")
@pytest.mark.parametrize("in_tables", [False, True])
def test_messages_are_acknowledged_when_their_files_and_the_checkpoint_are_on_the_disk(
    spark: SparkSession,
    broker: BrokerProcess,
    client: pulsar.Client,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    synced: set[int],
    in_tables: bool,
) -> None:
    publish(client, topic, [b"0", b"1"])
    whole: Callable[[Hold, Mapping[str, Position]], None] = Hold.acknowledge
    acknowledged: list[set[str]] = []

    def acknowledge(hold: Hold, done: Mapping[str, Position]) -> None:
        if any(position.entry >= 0 for position in done.values()):
            needed = {
                path for path in tmp_path.rglob("*") if path.suffix in (".parquet", ".avro") or "topic=" in str(path)
            }
            needed |= set(tmp_path.glob("archive/*/metadata/*.json"))
            acknowledged.append({str(path) for path in needed if path.stat().st_ino not in synced})
        whole(hold, done)

    monkeypatch.setattr(Hold, "acknowledge", acknowledge)
    reached = Broker(broker.service_url, broker.http_url)
    where = {"tables": lake(tmp_path)} if in_tables else {"path": str(tmp_path / "files")}
    done = archive(spark, ArchiveOptions(reached, topics=(topic,), checkpoint=str(tmp_path / "state"), **where))
    assert (done.rows, done.error) == (2, None)
    assert acknowledged == [set()]


def test_merged_files_are_on_the_disk_before_those_that_they_replace_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, synced: set[int]
) -> None:
    root, topic = LocalDirectory(str(tmp_path)), LocalDirectory(str(tmp_path / "topic=t"))
    for name in ("topic=t/date=2026-01-01/a.parquet", "topic=t/date=2026-01-01/b.parquet", "_staging/own/c.parquet"):
        root.make(name.rpartition("/")[0])
        root.write_text(name, name)
    day = tmp_path / "topic=t" / "date=2026-01-01"
    whole: Callable[[LocalDirectory, str, str], None] = LocalDirectory.write_whole
    at_the_record = []

    def write_whole(directory: LocalDirectory, name: str, text: str) -> None:
        if name.startswith("_merged-"):
            at_the_record.append({day.stat().st_ino, *(each.stat().st_ino for each in day.glob("merged-*"))} - synced)
        whole(directory, name, text)

    monkeypatch.setattr(LocalDirectory, "write_whole", write_whole)
    old = ["date=2026-01-01/a.parquet", "date=2026-01-01/b.parquet"]
    replace_files(root, topic, "topic=t", "date=2026-01-01", old, ["_staging/own/c.parquet"])
    assert at_the_record == [set()]
    assert [each.name for each in day.iterdir()] == ["merged-00000000-00000.parquet"]


@pytest.mark.parametrize("kind", ["hadoop", "local"])
def test_a_file_that_no_other_run_may_have_written_is_on_the_disk_when_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, synced: set[int], kind: str
) -> None:
    named = []
    directory: Directory
    if kind == "local":
        directory, link = LocalDirectory(str(tmp_path)), os.link

        def linked(old: Path, new: Path) -> None:
            named.append(old.stat().st_ino in synced)
            link(old, new)

        monkeypatch.setattr(os, "link", linked)
    else:
        directory, link_by = HadoopDirectory(request.getfixturevalue("spark"), str(tmp_path)), HadoopDirectory._link

        def linked_by_java(at: HadoopDirectory, old: str, new: str) -> bool:
            named.append(Path(at.path, old).stat().st_ino in synced)
            return link_by(at, old, new)

        monkeypatch.setattr(HadoopDirectory, "_link", linked_by_java)
    assert directory.write_new("offsets", "0", aside="_own")
    assert named == [True]
