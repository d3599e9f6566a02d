"""The tasks that write a micro-batch of an archive into files: how many they are, and which splits each reads."""

from __future__ import annotations

from pathlib import Path

import pulsar
import pytest
from heliograph_spark.jobs.archive import ArchiveOptions, archive
from heliograph_spark.plan.options import read_options
from heliograph_spark.plan.ranges import Range
from heliograph_spark.run.files_source import MessageFilesReader, WantedFiles, task_count
from heliograph_spark.run.places import Place
from heliograph_spark.run.session import Broker
from heliograph_spark.run.source import PulsarDataSource, Split
from heliograph_spark.run.spark_versions import ReadAllAvailable
from pyspark.sql import SparkSession

from tests.support.broker_process import BrokerProcess
from tests.support.clients import create_partitions, publish

MIB = 1 << 20


def planned(
    broker: BrokerProcess, topic: str, cores: int, entries_per_split: int, file_bytes: int = 128 * MIB
) -> list[list[Range]]:
    """Return what each task reads of a micro-batch of all that the topic has."""
    given = {
        "service.url": broker.service_url,
        "admin.url": broker.http_url,
        "topic": topic,
        "startingOffsets": "earliest",
        "maxEntriesPerSplit": str(entries_per_split),
    }
    columns = PulsarDataSource(given).schema()
    wanted = WantedFiles(Place("not-written"), "date", columns, file_bytes)
    reader = MessageFilesReader(columns, read_options(given, streaming=True), wanted, cores)
    try:
        start = reader.initialOffset()
        tasks = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
    finally:
        reader.stop()
    return [[split.range for split in task.splits if isinstance(split, Split)] for task in tasks]


def test_the_splits_of_many_partitions_with_little_each_are_read_by_a_task_for_each_core(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    create_partitions(broker, topic, 16)
    for number in range(16):
        publish(client, f"{topic}-partition-{number}", [bytes(MIB + 1)])
    tasks = planned(broker, topic, cores=4, entries_per_split=128)
    assert [len(splits) for splits in tasks] == [4, 4, 4, 4]
    # Each partition once, and those of a task are neighbours, as the messages of a file are.
    numbers = [int(split.topic.rpartition("-")[2]) for splits in tasks for split in splits]
    assert sorted(numbers) == list(range(16))
    # 16 MiB are worth no more tasks than that, nor are there more than splits.
    assert len(planned(broker, topic, cores=16, entries_per_split=128)) == 4
    assert len(planned(broker, topic, cores=4, entries_per_split=128, file_bytes=2 * MIB)) == 9
    assert len(planned(broker, topic, cores=4, entries_per_split=128, file_bytes=1)) == 16


def test_the_splits_of_one_partition_are_read_by_a_task_for_each_core_in_their_order(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    publish(client, topic, [bytes(MIB + 1)] * 16)
    tasks = planned(broker, topic, cores=3, entries_per_split=2)
    assert [len(splits) for splits in tasks] == [2, 3, 3]
    splits = [split for task in tasks for split in task]
    assert [split.end for split in splits[:-1]] == [split.start for split in splits[1:]]
    # One split is read by one task.
    assert [len(splits) for splits in planned(broker, topic, cores=3, entries_per_split=16)] == [1]


@pytest.mark.parametrize(
    ("splits", "stored", "cores", "expected"),
    [
        (0, 0, 2, 0),
        (16, 0, 2, 1),
        # Two tasks would have less than 4 MiB each.
        (16, 8 * MIB - 1, 2, 1),
        (16, 8 * MIB, 2, 2),
        (16, 100 * MIB, 2, 2),
        (16, 129 * MIB, 2, 2),
        (16, 257 * MIB, 2, 3),
        (2, 1000 * MIB, 8, 2),
        (16, 12 * MIB, 8, 3),
    ],
)
def test_tasks_are_as_many_as_cores_unless_the_batch_is_small_or_makes_more_files(
    splits: int, stored: int, cores: int, expected: int
) -> None:
    assert task_count(splits, stored, 128 * MIB, cores) == expected


def test_an_archive_of_many_partitions_is_read_by_all_cores(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    assert spark.sparkContext.defaultParallelism == 2
    create_partitions(broker, topic, 8)
    for number in range(8):
        publish(client, f"{topic}-partition-{number}", [bytes(MIB + 1)])
    reached = Broker(broker.service_url, broker.http_url)
    done = archive(spark, ArchiveOptions(reached, str(tmp_path), topics=(topic,)))
    assert (done.rows, done.files, done.lag, done.error) == (8, 2, 0, None)
