"""Times of day and versions of a topic's schema in archives, in tables and after a replay."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pulsar
import pytest
from heliograph_spark.jobs.archive import ArchiveOptions, archive
from heliograph_spark.jobs.replay import ReplayOptions, replay
from heliograph_spark.run.archived import read_archive
from heliograph_spark.run.session import Broker
from pyiceberg.catalog import Catalog
from pyspark.sql import SparkSession
from pyspark.sql import types as t

from tests.support.broker_process import BrokerProcess
from tests.support.clients import create_namespace, fresh_name, publish_record, rest

from .lakes import lake
from .test_batch_read import Reading, WiderReading, read
from .test_schema_write import give_schema, send
from .test_sender import stored


def archived(spark: SparkSession, broker: BrokerProcess, topic: str, path: Path, **source: str) -> None:
    """Archive a topic into files in ``path / "files"``, and into a table of the catalog there."""
    reached = Broker(broker.service_url, broker.http_url, source)
    for target in (
        {"path": str(path / "files")},
        {"tables": lake(path), "checkpoint": str(path / "state"), "subscription": "heliograph-tables"},
    ):
        done = archive(spark, ArchiveOptions(reached, topics=(topic,), **target))
        assert done.error is None


def table_rows(catalog: Catalog) -> list[dict[str, Any]]:
    """Return the rows of the one table."""
    (name,) = catalog.list_tables("archive")
    rows: list[dict[str, Any]] = catalog.load_table(name).scan().to_arrow().to_pylist()
    return rows


def sent_again(spark: SparkSession, broker: BrokerProcess, topic: str, path: Path, target: str) -> None:
    done = replay(spark, ReplayOptions(Broker(broker.service_url, broker.http_url), str(path / "files"), topic, target))
    assert done.error is None


@pytest.mark.parametrize("kind", ["TIME", "LOCAL_TIME"])
def test_times_of_day_are_archived_as_numbers_and_sent_as_they_were(
    spark: SparkSession,
    broker: BrokerProcess,
    client: pulsar.Client,
    catalog: Catalog,
    topic: str,
    tmp_path: Path,
    kind: str,
) -> None:
    numbers = [0, 45_000_123, 86_399_999]
    give_schema(broker, topic, kind)
    send(broker, topic, t.StructType().add("value", "long"), *((number,) for number in numbers))
    archived(spark, broker, topic, tmp_path)
    files = read_archive(spark, str(tmp_path / "files"), f"persistent://public/default/{topic}")
    assert dict(files.dtypes)["value"] == "bigint"
    assert sorted(row.value for row in files.collect()) == numbers
    assert sorted(row["value"] for row in table_rows(catalog)) == numbers
    target = fresh_name("again")
    rest(broker, "PUT", f"persistent/public/default/{target}")
    give_schema(broker, target, kind)
    sent_again(spark, broker, topic, tmp_path, target)
    assert stored(client, target) == [struct.pack(">q", number) for number in numbers]


def test_an_archive_that_asks_for_it_has_the_version_of_the_schema_and_a_replay_that_of_its_target(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, catalog: Catalog, topic: str, tmp_path: Path
) -> None:
    create_namespace(broker, topic, "ALWAYS_COMPATIBLE")
    name = f"persistent://public/{topic}/readings"
    # Without a subscription the broker would not keep what is published before the first run.
    client.subscribe(name, "holder")
    publish_record(client, name, Reading(place="Oslo", degrees=1.5))
    publish_record(client, name, WiderReading(place="Kyoto", degrees=2.5, height=3))
    versions = {"Oslo": struct.pack(">q", 0), "Kyoto": struct.pack(">q", 1)}
    archived(spark, broker, name, tmp_path, includeColumns="__schemaVersion")
    files = read_archive(spark, str(tmp_path / "files"), name).collect()
    assert {row.place: bytes(row["__schemaVersion"]) for row in files} == versions
    assert {row["place"]: row["__schemaVersion"] for row in table_rows(catalog)} == versions
    # With it the registry has the schema that the message was written with.
    heights = [
        "height" in rest(broker, "GET", f"schemas/public/{topic}/readings/schema/{version}")["data"]
        for version in (0, 1)
    ]
    assert heights == [False, True]

    target = fresh_name("again")
    rest(broker, "PUT", f"persistent/public/default/{target}")
    sent_again(spark, broker, name, tmp_path, target)
    found = read(spark, broker, topic=target, includeColumns="__schemaVersion").collect()
    assert {row.place: bytes(row["__schemaVersion"]) for row in found} == dict.fromkeys(versions, versions["Oslo"])
