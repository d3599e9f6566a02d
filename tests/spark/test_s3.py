"""An archive in a bucket, by Hadoop's own client, against a server that speaks S3."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pulsar
import pytest
from pyarrow import dataset, parquet

from tests.support.clients import RunningBroker, publish
from tests.support.s3_server import Bucket

from .conftest import COMMAND

RUN_WITHIN_S = 240.0


def archive(
    bucket: Bucket, broker: RunningBroker, topic: str, secret_key: str, **more: str
) -> subprocess.CompletedProcess[str]:
    """Run the command with the environment that a Secret of the Topic's would give it; ``more`` are S3A's settings."""
    arguments = ["--service-url", broker.service_url, "--admin-url", broker.http_url, "--topic", topic]
    arguments += ["--path", f"s3a://{bucket.name}/shop", "--master", "local[2]"]
    others = {f"spark.hadoop.fs.s3a.{name.replace('_', '.')}": value for name, value in more.items()}
    for name, value in (settings() | others).items():
        arguments += ["--conf", f"{name}={value}"]
    return run([*COMMAND, "archive", *arguments], bucket, secret_key)


def settings() -> dict[str, str]:
    return {
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
        "spark.hadoop.fs.s3a.attempts.maximum": "1",
    }


def run(command: list[str], bucket: Bucket, secret_key: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env=os.environ
        | {
            "AWS_ACCESS_KEY_ID": bucket.access_key,
            "AWS_SECRET_ACCESS_KEY": secret_key,
            "AWS_ENDPOINT_URL": bucket.endpoint,
        },
        capture_output=True,
        text=True,
        timeout=RUN_WITHIN_S,
        check=False,
    )


def rows(bucket: Bucket) -> list[str]:
    files = dataset.dataset(bucket.files / "shop", partitioning="hive", ignore_prefixes=["_", "."], format="parquet")
    values = files.to_table(columns=["value"]).column("value").to_pylist()
    return sorted(bytes(value).decode() for value in values)


@pytest.mark.timeout(600)
def test_an_archive_in_a_bucket_has_every_message_once_and_a_second_run_adds_only_what_is_new(
    bucket: Bucket, broker: RunningBroker, client: pulsar.Client, topic: str
) -> None:
    publish(client, topic, [f"{number:03}".encode() for number in range(200)])
    done = archive(bucket, broker, topic, bucket.secret_key)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1])["rows"] == 200
    publish(client, topic, [f"{number:03}".encode() for number in range(200, 250)])
    # Arrow's client does not have this setting.
    done = archive(bucket, broker, topic, bucket.secret_key, requester_pays_enabled="false")
    assert json.loads(done.stdout.splitlines()[-1])["rows"] == 50
    files = (bucket.files / "shop").rglob("*.parquet")
    writers = {parquet.ParquetFile(each).metadata.created_by.split()[0] for each in files}
    assert writers == {"parquet-cpp-arrow", "parquet-mr"}
    assert rows(bucket) == [f"{number:03}" for number in range(250)]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_credentials_that_are_wrong_end_the_run_with_the_servers_word(
    bucket: Bucket, broker: RunningBroker, client: pulsar.Client, topic: str
) -> None:
    publish(client, topic, [b"one"])
    done = archive(bucket, broker, topic, "another-secret")
    assert done.returncode == 1
    error = json.loads(done.stdout.splitlines()[-1])["error"]
    assert "Signature" in error or "403" in error, error
    assert list(bucket.files.iterdir()) == []


#: Four writers want each of ten names: at once where a request has the condition, one after the other where it cannot.
WRITERS = """
import json, sys
from concurrent.futures import ThreadPoolExecutor
from heliograph_spark.run.directories import open_directory
from heliograph_spark.run.session import SessionOptions, build_session

spark = build_session("names", SessionOptions("local[1]", json.loads(sys.argv[1])))
directory = open_directory(spark, sys.argv[2])
found = []
with ThreadPoolExecutor(int(sys.argv[3])) as writers:
    for name in map(str, range(10)):
        write = lambda number: directory.write_new(name, f"{number}", aside=f"_{name}-{number}")
        found.append((list(writers.map(write, range(4))), directory.read_text(name)))
found.append(directory.write_new("0", "late", aside="_late"))
spark.stop()
print(json.dumps(found))
"""


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("conditional", [True, False])
def test_a_name_in_a_bucket_is_given_to_the_one_whose_file_is_there(bucket: Bucket, conditional: bool) -> None:
    given = settings() | {"spark.hadoop.fs.s3a.create.conditional.enabled": str(conditional).lower()}
    writers = "4" if conditional else "1"
    command = [sys.executable, "-c", WRITERS, json.dumps(given), f"s3a://{bucket.name}/names", writers]
    done = run(command, bucket, bucket.secret_key)
    assert done.returncode == 0, done.stderr[-3000:]
    *names, late = json.loads(done.stdout.splitlines()[-1])
    assert late is False
    for written, text in names:
        assert [number for number, is_its in enumerate(written) if is_its] == [int(text)]
    assert sorted(each.name for each in (bucket.files / "names").iterdir()) == [str(name) for name in range(10)]


#: An archive three days later, when today is complete.
LATER = """
import json, sys, time
from heliograph_spark.jobs.archive import ArchiveOptions, archive
from heliograph_spark.run.session import Broker, SessionOptions, build_session

service_url, admin_url, topic, path, conf = sys.argv[1:]
spark = build_session("days", SessionOptions("local[1]", json.loads(conf)))
options = ArchiveOptions(Broker(service_url, admin_url, {}), path, (topic,))
print(archive(spark, options, lambda: time.time() + 3 * 86400))
spark.stop()
"""


@pytest.mark.long
@pytest.mark.timeout(600)
def test_complete_days_in_a_bucket_are_marked_and_marked_again_after_a_late_message(
    bucket: Bucket, broker: RunningBroker, client: pulsar.Client, topic: str
) -> None:
    arguments = [broker.service_url, broker.http_url, topic, f"s3a://{bucket.name}/shop", json.dumps(settings())]
    for count in (1, 2):
        publish(client, topic, [b"one"])
        done = run([sys.executable, "-c", LATER, *arguments], bucket, bucket.secret_key)
        assert done.returncode == 0, done.stderr[-3000:]
        assert "error=None" in done.stdout
        marks = list((bucket.files / "shop").glob("topic=*/date=*/_SUCCESS"))
        assert sum(json.loads(mark.read_text())["messages"] for mark in marks) == count
        assert list((bucket.files / "shop").glob("topic=*/date=*/*.unfinished")) == []
    assert rows(bucket) == ["one", "one"]
