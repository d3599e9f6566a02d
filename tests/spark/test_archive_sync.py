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
from heliograph_spark.run.session import Broker
from pyspark.sql import SparkSession

from tests.support.broker_process import BrokerProcess
from tests.support.clients import publish

from .lakes import lake


@pytest.mark.usefixtures("planner")
@pytest.mark.parametrize("in_tables", [False, True])
def test_messages_are_acknowledged_when_their_files_and_the_checkpoint_are_on_the_disk(
    spark: SparkSession,
    broker: BrokerProcess,
    client: pulsar.Client,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    in_tables: bool,
) -> None:
    publish(client, topic, [b"0", b"1"])
    synced: set[int] = set()
    whole_sync: Callable[[int], None] = os.fsync
    whole: Callable[[Hold, Mapping[str, Position]], None] = Hold.acknowledge
    acknowledged: list[set[str]] = []

    def sync(file: int) -> None:
        whole_sync(file)
        synced.add(os.fstat(file).st_ino)

    def acknowledge(hold: Hold, done: Mapping[str, Position]) -> None:
        if any(position.entry >= 0 for position in done.values()):
            needed = {
                path for path in tmp_path.rglob("*") if path.suffix in (".parquet", ".avro") or "topic=" in str(path)
            }
            # A table needs the metadata of its last commit only.
            needed |= {max(tmp_path.glob("archive/*/metadata/*.json"), default=tmp_path / "state")}
            acknowledged.append({str(path) for path in needed if path.stat().st_ino not in synced})
        whole(hold, done)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(Hold, "acknowledge", acknowledge)
    reached = Broker(broker.service_url, broker.http_url)
    where = {"tables": lake(tmp_path)} if in_tables else {"path": str(tmp_path / "files")}
    done = archive(spark, ArchiveOptions(reached, topics=(topic,), checkpoint=str(tmp_path / "state"), **where))
    assert (done.rows, done.error) == (2, None)
    assert acknowledged == [set()]
