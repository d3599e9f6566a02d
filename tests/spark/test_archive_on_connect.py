"""``archive`` on a server of Spark Connect: into files and tables, once and following, against what was published."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any

import pulsar
import pyarrow.parquet as pq
import pytest
from heliograph_spark.run.archived import read_archive
from pyspark.sql import SparkSession

from tests.support.broker_process import BrokerProcess
from tests.support.clients import backlog, create_partitions, ignore_receipt, publish
from tests.support.polling import eventually
from tests.support.ports import free_ports

from .conftest import COMMAND
from .kills.killed import end
from .test_archive import HELD, named, run
from .test_archive_tables import Reading, properties, table_of

WITHIN_S = 500.0


def command(connect_url: str, broker: BrokerProcess, *arguments: str) -> list[str]:
    urls = ["--service-url", broker.service_url, "--admin-url", broker.http_url]
    return [*COMMAND, "archive", "--master", connect_url, *urls, *arguments]


def archived(connect_url: str, broker: BrokerProcess, *arguments: str) -> dict[str, Any]:
    """Return the result of a run."""
    done = subprocess.run(command(connect_url, broker, *arguments), capture_output=True, text=True, timeout=WITHIN_S)
    assert done.returncode == 0, done.stderr[-3000:]
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert (result["job"], result["error"]) == ("archive", None)
    return result


def publish_keyed(client: pulsar.Client, topic: str, numbers: range) -> None:
    producer = client.create_producer(topic, batching_enabled=True, batching_max_messages=10, block_if_queue_full=True)
    for number in numbers:
        producer.send_async(
            b"%d" % number, ignore_receipt, partition_key=f"k{number % 7}", properties={"n": str(number)}
        )
    producer.flush()
    producer.close()


def rows_of(files: list[Path]) -> list[tuple[bytes, bytes, dict[str, str]]]:
    """Return keys, values and properties by the values' numbers."""
    rows = [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]
    found = [(row["__key"], row["value"], dict(row["__messageProperties"])) for row in rows]
    return sorted(found, key=lambda row: int(row[1]))


def keyed(count: int) -> list[tuple[bytes, bytes, dict[str, str]]]:
    return [(b"k%d" % (number % 7), b"%d" % number, {"n": str(number)}) for number in range(count)]


@pytest.mark.long
@pytest.mark.timeout(2000)
def test_files_have_every_message_once_after_runs_with_and_without_connect(
    connect_url: str, spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    create_partitions(broker, topic, 2)
    path = tmp_path / "archive"
    given = ["--topic", topic, "--path", str(path), "--option", "maxBytesPerTrigger=8000", "--file-size", "3000"]
    publish_keyed(client, topic, range(600))
    first = archived(connect_url, broker, *given)
    assert (first["rows"], first["topics"], first["lag"]) == (600, 1, 0)
    files = sorted(path.glob("topic=*/date=*/*.parquet"))
    assert first["files"] == len(files)
    batches = {int(file.name.split("-")[-2]) for file in files}
    assert len(batches) > 1
    # Tasks of the server have written them, not Spark.
    assert {pq.ParquetFile(file).metadata.created_by.partition(" ")[0] for file in files} == {"parquet-cpp-arrow"}
    assert rows_of(files) == keyed(600)
    assert sum(backlog(broker, f"{topic}-partition-{number}", HELD) for number in range(2)) == 0
    publish_keyed(client, topic, range(600, 700))
    second = archived(connect_url, broker, *given)
    assert (second["rows"], second["lag"]) == (100, 0)
    assert archived(connect_url, broker, *given)["rows"] == 0
    assert rows_of(sorted(path.glob("topic=*/date=*/*.parquet"))) == keyed(700)
    # A run beside Spark's own driver goes on with the same checkpoint, and one on Connect after it.
    publish_keyed(client, topic, range(700, 750))
    assert run(spark, broker, path, topics=(topic,)).rows == 50
    publish_keyed(client, topic, range(750, 800))
    assert archived(connect_url, broker, *given)["rows"] == 50
    assert rows_of(sorted(path.glob("topic=*/date=*/*.parquet"))) == keyed(800)
    assert read_archive(spark, str(path), named(topic)).count() == 800


@pytest.mark.long
@pytest.mark.timeout(2000)
def test_tables_have_every_message_once_and_the_last_value_of_each_key(
    connect_url: str, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    catalog = [part for each in properties(tmp_path).items() for part in ("--catalog-property", "=".join(each))]
    tables = ["--format", "iceberg", "--catalog", "lake", *catalog, "--topic", topic]
    every = [*tables, "--checkpoint", str(tmp_path / "state")]
    last = [*tables, "--upsert", "--checkpoint", str(tmp_path / "last-state"), "--subscription", "last"]
    # Spark writes the rows of these, of more splits than files.
    last += ["--option", "maxEntriesPerSplit=3"]
    producer = client.create_producer(topic, schema=pulsar.schema.AvroSchema(Reading))

    def send(numbers: range) -> None:
        for number in numbers:
            reading = Reading(place=f"p{number}", degrees=number / 2, count=number, tags=["a", str(number)])
            producer.send(reading, partition_key=f"k{number % 3}")

    def expected(numbers: range) -> list[tuple[str, float, int, list[str]]]:
        return [(f"p{number}", number / 2, number, ["a", str(number)]) for number in numbers]

    def found(suffix: str = "") -> list[tuple[str, float, int, list[str]]]:
        rows = table_of(tmp_path, topic + suffix).scan().to_arrow().to_pylist()
        readings = [(row["place"], row["degrees"], row["count"], row["tags"]) for row in rows]
        return sorted(readings, key=lambda reading: reading[2])

    send(range(100))
    assert archived(connect_url, broker, *every)["rows"] == 100
    assert archived(connect_url, broker, *last)["error"] is None
    send(range(100, 130))
    assert archived(connect_url, broker, *every)["rows"] == 30
    assert archived(connect_url, broker, *last)["error"] is None
    assert found() == expected(range(130))
    assert found("_last") == expected(range(127, 130))
    assert backlog(broker, topic, HELD) == backlog(broker, topic, "last") == 0


@pytest.mark.timeout(2000)
def test_topics_are_followed_until_the_job_is_asked_to_end(
    connect_url: str, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    (port,) = free_ports(1)
    path, first, later = tmp_path / "archive", f"{topic}-first", f"{topic}-later"
    publish(client, first, [b"0", b"1"])

    def values(name: str) -> list[int]:
        files = path.glob(f"topic=*{name}/date=*/*.parquet")
        return sorted(int(value) for file in files for value in pq.ParquetFile(file).read()["value"].to_pylist())

    def lag_of(name: str) -> bool:
        text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30).read().decode()
        return f'heliograph_spark_archive_lag_messages{{topic="{named(name)}"}} 0.0' in text

    follow = ["--topics-pattern", f"{topic}-.*", "--path", str(path), "--follow", "--interval", "1s"]
    with (tmp_path / "log").open("wb") as log, (tmp_path / "out").open("wb") as out:
        job = subprocess.Popen(
            command(connect_url, broker, *follow, "--metrics-port", str(port)),
            stdout=out,
            stderr=log,
            start_new_session=True,
            env=os.environ,
        )
    try:
        eventually(lambda: values(first) == [0, 1], within_s=WITHIN_S, what="the first messages archived")
        publish(client, first, [b"2"])
        publish(client, later, [b"0", b"1", b"2"])
        eventually(lambda: values(first) == values(later) == [0, 1, 2], within_s=WITHIN_S, what="all archived")
        eventually(lambda: lag_of(first) and lag_of(later), within_s=WITHIN_S, what="the lag")
        job.send_signal(signal.SIGTERM)
        assert job.wait(WITHIN_S) == 0, (tmp_path / "log").read_text()[-3000:]
    finally:
        end(job)
    result = json.loads((tmp_path / "out").read_text().splitlines()[-1])
    assert [result[each] for each in ("rows", "topics", "lag", "error")] == [6, 2, 0, None]


@pytest.mark.long
@pytest.mark.timeout(2000)
def test_files_have_every_message_once_after_clients_were_killed_while_the_server_read(
    connect_url: str, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    create_partitions(broker, topic, 2)
    path = tmp_path / "archive"
    given = ["--topic", topic, "--path", str(path), "--option", "maxBytesPerTrigger=8000", "--file-size", "4000"]
    publish_keyed(client, topic, range(2000))

    def batches(log: str) -> set[str]:
        return {each.name for each in path.glob(f"_checkpoint/topic=*/{log}/[0-9]*")}

    def is_under_way(before: int) -> bool:
        """Whether a run has written one micro-batch after those, and has planned the next one."""
        done = batches("commits")
        return len(done) > before and batches("offsets") != done

    for _ in range(3):
        written = len(batches("commits"))
        with (tmp_path / "log").open("wb") as log:
            job = subprocess.Popen(command(connect_url, broker, *given), stdout=log, stderr=log, start_new_session=True)
        try:
            eventually(partial(is_under_way, written), within_s=WITHIN_S, what="a micro-batch under way")
        finally:
            end(job)
        assert job.returncode == -signal.SIGKILL, (tmp_path / "log").read_text()[-3000:]
    assert archived(connect_url, broker, *given)["lag"] == 0
    assert rows_of(sorted(path.glob("topic=*/date=*/*.parquet"))) == keyed(2000)
    assert sum(backlog(broker, f"{topic}-partition-{number}", HELD) for number in range(2)) == 0
