"""The command on a server of Spark Connect: its jobs, what ends it, and what does not run there."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pulsar
import pytest
from heliograph_spark.jobs.compact import read_table
from heliograph_spark.run.connect import has_ended
from pyarrow import fs
from pyspark.sql import SparkSession

from tests.support.broker_process import BrokerProcess
from tests.support.clients import RunningBroker, ignore_receipt
from tests.support.polling import eventually
from tests.support.s3_server import Bucket

from .conftest import COMMAND
from .connect_server import connect_server
from .kills.killed import end
from .test_compact import archived
from .test_docs import guide_commands
from .test_files import reached
from .test_replay import archive, messages
from .test_replay_order import deduplicated

ENDED_WITHIN_S = 300.0
SECRET = "token=a-secret-of-the-test"


def run(job: str, *arguments: str, **variables: str) -> tuple[int, dict[str, Any], list[str]]:
    """Run the command to its end; return its code, its result, and its lines on stderr."""
    done = subprocess.run(
        [*COMMAND, job, *arguments],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=ENDED_WITHIN_S,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, json.loads(done.stdout.splitlines()[-1]), done.stderr.splitlines()


def urls(broker: RunningBroker) -> list[str]:
    return ["--service-url", broker.service_url, "--admin-url", broker.http_url]


def publish_keys(client: pulsar.Client, topic: str, count: int) -> None:
    producer = client.create_producer(topic)
    for number in range(count):
        producer.send_async(b"%d" % number, ignore_receipt, partition_key=f"k{number % 5}")
    producer.flush()
    producer.close()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_jobs_run_on_a_server_by_relative_paths_of_this_process(
    spark: SparkSession,
    broker: BrokerProcess,
    client: pulsar.Client,
    topic: str,
    connect_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    publish_keys(client, topic, 50)
    name = archived(spark, broker, topic, tmp_path / "archive")
    code, made, _ = run("compact", "--path", "archive", "--to", "tables", SPARK_REMOTE=connect_url)
    assert (code, made["rows"], made["error"]) == (0, 5, None)
    rows = read_table(spark, str(tmp_path / "tables"), name).collect()
    assert {bytes(row["__key"]): bytes(row["value"]) for row in rows} == {
        b"k%d" % (number % 5): b"%d" % number for number in range(45, 50)
    }

    (command,) = [each for each in guide_commands("compact") if "--master sc://" in each]
    for documented, here in (("/shared", str(tmp_path)), ("sc://spark.example.com:15002", connect_url)):
        assert documented in command
        command = command.replace(documented, here)
    code, made, _ = run(*shlex.split(command))
    assert (code, made["rows"], made["unchanged"]) == (0, 5, 1)

    target = deduplicated(broker, 2)
    given = ["--path", "archive", "--topic", topic, "--to", target, "--checkpoint", "state", "--master", connect_url]
    code, sent, lines = run("replay", *given, *urls(broker))
    assert (code, sent["rows"], sent["before"], sent["error"]) == (0, 50, 0, None)
    assert lines[0] == f"heliograph-spark replay: connecting to {connect_url}"
    code, sent, _ = run("replay", *given, *urls(broker))
    assert (code, sent["rows"], sent["before"]) == (0, 0, 50)
    assert sorted(int(message.data()) for message in messages(client, target)) == list(range(50))


@pytest.mark.long
@pytest.mark.timeout(600)
def test_ctrl_c_ends_the_tasks_of_the_server_and_the_next_run_goes_on(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, connect_url: str, tmp_path: Path
) -> None:
    publish_keys(client, topic, 50)
    archived(spark, broker, topic, tmp_path / "archive")
    target = deduplicated(broker, 1)
    paths = ["--path", str(tmp_path / "archive"), "--checkpoint", str(tmp_path / "state")]
    given = ["replay", "--topic", topic, "--to", target, "--master", connect_url, *paths, *urls(broker)]
    job = subprocess.Popen(
        [*COMMAND, *given, "--rate", "2"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        assert job.stderr is not None
        while b"sending 50 messages" not in (line := job.stderr.readline()):
            assert line, "the job has ended"
        deadline = time.monotonic() + 120
        while not messages(client, target):
            assert time.monotonic() < deadline, "nothing is sent"
        os.killpg(job.pid, signal.SIGINT)
        output, errors = job.communicate(timeout=120)
    finally:
        end(job)
    assert job.returncode == 130
    assert json.loads(output.splitlines()[-1])["error"] == "interrupted by Ctrl-C"
    assert errors.decode() == "heliograph-spark replay: interrupted by Ctrl-C\n"
    # At this rate the tasks would go on for 25 s, and hold the name of the producer.
    code, sent, _ = run(*given)
    assert (code, sent["before"] + sent["rows"]) == (0, 50)
    assert 0 < sent["before"] < 50
    assert [int(message.data()) for message in messages(client, target)] == list(range(50))


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_job_that_fails_on_a_server_says_why_in_one_line(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, connect_url: str, tmp_path: Path
) -> None:
    publish_keys(client, topic, 5)
    name = archived(spark, broker, topic, tmp_path / "archive")
    (file,) = (tmp_path / "archive").glob("topic=*/date=*/*.parquet")
    file.write_bytes(file.read_bytes()[:-20] + b"x" * 20)
    given = ["--path", str(tmp_path / "archive"), "--to", str(tmp_path / "tables"), "--master", connect_url]
    code, made, lines = run("compact", *given)
    assert (code, made["tables"]) == (1, {})
    assert file.name in made["error"]
    assert made["error"].startswith(name)
    assert lines[-1] == f"heliograph-spark compact: {made['error']}"

    code, made, lines = run("compact", *given, "--conf", "spark.executor.memory=1g")
    assert code == 1
    assert made["error"].startswith("--conf spark.executor.memory: a session of Spark Connect does not take it: ")
    assert lines[-1] == f"heliograph-spark compact: {made['error']}"


@pytest.mark.long
def test_a_server_that_does_not_answer_is_named_without_its_token(tmp_path: Path) -> None:
    given = ["compact", "--path", str(tmp_path), "--to", str(tmp_path / "tables")]
    named = ["--master", f"sc://127.0.0.1:1/;{SECRET}"], ["--conf", "spark.remote=sc://127.0.0.1:1"]
    # Each waits for the server for a while, so they wait side by side.
    with ThreadPoolExecutor() as pool:
        under_way = [pool.submit(run, *given, *arguments) for arguments in named]
        under_way.append(pool.submit(run, *given, SPARK_REMOTE="sc://127.0.0.1:1"))
    for code, made, lines in (each.result() for each in under_way):
        assert code == 1
        expected = "sc://127.0.0.1:1: no server of Spark Connect answers there; valid: sc://HOST:PORT"
        assert made["error"].startswith(expected)
        connecting = "heliograph-spark compact: connecting to sc://127.0.0.1:1"
        assert lines == [connecting, f"heliograph-spark compact: {made['error']}"]


@pytest.mark.parametrize(
    ("arguments", "variables", "error"),
    [
        (
            ["--master", "local[2]"],
            {"SPARK_REMOTE": "sc://127.0.0.1:1"},
            "master local[2] and Spark Connect at sc://127.0.0.1:1: both given; valid: one of them",
        ),
        ([], {"SPARK_REMOTE": "local[2]"}, "spark.remote or SPARK_REMOTE local[2]: valid: sc://HOST:PORT; without it,"),
        (["--master", "sc://127.0.0.1:1/path"], {}, "sc://127.0.0.1:1/path: [INVALID_CONNECT_URL]"),
    ],
)
def test_an_address_that_is_not_one_of_a_server_is_named(
    tmp_path: Path, arguments: list[str], variables: dict[str, str], error: str
) -> None:
    code, made, _ = run("compact", "--path", str(tmp_path), "--to", str(tmp_path / "to"), *arguments, **variables)
    assert code == 1
    assert made["error"].startswith(error)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_session_that_is_asked_whether_it_has_ended_does_not_end_for_want_of_questions(tmp_path: Path) -> None:
    """A job that follows topics relies on it between two visits."""
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    manager = "spark.connect.session.manager"
    conf = {f"{manager}.defaultSessionTimeout": "5s", f"{manager}.maintenanceInterval": "1s"}
    with connect_server(tmp_path, conf) as url, ExitStack() as stack:
        # While the server is there: at the end of this process they would look for it for minutes.
        asked, idle = (stack.enter_context(ConnectSession.builder.remote(url).create()) for _ in range(2))
        assert not has_ended(idle)
        log = tmp_path / "connect.log"

        def idle_is_dropped() -> bool:
            assert not has_ended(asked)
            return re.search(f"{idle.session_id}.* that expired", log.read_text()) is not None

        eventually(idle_is_dropped, within_s=ENDED_WITHIN_S, what="the end of the session that asks nothing")
        assert not has_ended(asked)
        assert has_ended(idle)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_server_with_other_files_is_named(
    broker: BrokerProcess, client: pulsar.Client, tenant: str, tmp_path: Path
) -> None:
    """Its default file system is another one: what Spark writes to a path is not at this path here."""
    (tmp_path / "server").mkdir()
    elsewhere = {"spark.hadoop.fs.defaultFS": "viewfs://elsewhere/", **_mounted(tmp_path / "elsewhere")}
    with connect_server(tmp_path / "server", elsewhere) as url:
        report = str(tmp_path / "report")
        code, made, lines = run("usage", "--to", report, "--tenant", tenant, "--master", url, *urls(broker))
    assert code == 1
    assert f"{report}/_staging/" in made["error"]
    assert "Spark has written files there, and they are not seen here; valid: a path that is the same" in made["error"]
    assert lines[-1] == f"heliograph-spark usage: {made['error']}"


def _mounted(directory: Path) -> dict[str, str]:
    directory.mkdir()
    return {"spark.hadoop.fs.viewfs.mounttable.elsewhere.linkFallback": directory.as_uri()}


@pytest.mark.long
@pytest.mark.timeout(600)
def test_reports_and_tables_are_in_a_bucket_which_each_side_reaches_by_its_own_client(
    spark: SparkSession,
    broker: BrokerProcess,
    client: pulsar.Client,
    topic: str,
    tenant: str,
    bucket: Bucket,
    tmp_path: Path,
) -> None:
    publish_keys(client, topic, 20)
    archive(spark, broker, topic, tmp_path / "archive")
    publish_keys(client, f"persistent://{tenant}/n/t", 20)
    # As objects: Hadoop reads none without a checksum of the store's.
    store = fs.S3FileSystem(
        access_key=bucket.access_key,
        secret_key=bucket.secret_key,
        endpoint_override=bucket.endpoint,
        region="us-east-1",
    )
    fs.copy_files(str(tmp_path / "archive"), f"{bucket.name}/archive", destination_filesystem=store)
    (tmp_path / "server").mkdir()
    with connect_server(tmp_path / "server", reached(bucket)) as url:
        at = f"s3a://{bucket.name}"
        given = ["--path", f"{at}/archive", "--to", f"{at}/tables", "--master", url]
        # A session shows where the server's bucket is, and no keys: they are the client's own.
        keys = {"access.key": bucket.access_key, "secret.key": bucket.secret_key}
        conf = [word for name, key in keys.items() for word in ("--conf", f"spark.hadoop.fs.s3a.{name}={key}")]
        code, made, lines = run("compact", *given, *conf)
        assert code == 0, lines
        assert (made["rows"], made["unchanged"]) == (5, 0)
        code, made, lines = run("compact", *given, **bucket.environment)
        assert code == 0, lines
        assert (made["rows"], made["unchanged"]) == (5, 1)
        for _ in range(2):
            report_of = ["--to", f"{at}/report", "--tenant", tenant, "--master", url, *urls(broker)]
            code, made, lines = run("usage", *report_of, **bucket.environment)
            assert code == 0, lines
            assert made["messages"] == 20
    tables = bucket.files / "tables"
    assert [each.name for each in tables.glob("topic=*/_version-*")] == ["_version-00000001.json"]
    assert len(list(tables.glob("topic=*/version=*/*.parquet"))) >= 1
    report = bucket.files / "report"
    assert sorted(each.name for each in report.iterdir() if each.is_file() or any(each.rglob("*.*"))) == [
        "csv",
        "parquet",
        "usage.html",
    ]
