"""``format("pulsar")`` is known to a session that registers nothing: in Python, in SQL and through Spark Connect."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pulsar
import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.clients import publish

from .conftest import COMMAND, PIPELINE

PROGRAM = Path(__file__).with_name("unregistered_program.py")
ADVICE = (
    "and this is a session of Spark Connect; start them by spark-submit or with the cluster's own address as --master"
)


def found_by(program: list[str], directory: Path) -> dict[str, list[str]]:
    """Return what a program of its own Spark prints, which can import the packages of the pipeline."""
    paths = os.pathsep.join([str(PIPELINE), os.environ.get("PYTHONPATH", "")])
    variables = {"PYTHONPATH": paths, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, *program], cwd=directory, env=os.environ | variables, capture_output=True, timeout=500
    )
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    found: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("remote", [(), ("local[2]",)], ids=["classic", "connect"])
def test_a_session_that_registers_nothing_reads_and_writes_a_topic(
    broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path, remote: tuple[str, ...]
) -> None:
    publish(client, topic, [b"one"])
    found = found_by([str(PROGRAM), broker.service_url, topic, *remote], tmp_path)
    refused = [f"the jobs run beside Spark's own driver, {ADVICE}"] if remote else []
    read = {"view": ["one"], "frame": ["one"], "registered": ["one"], "copied": ["one", "one"]}
    assert found == read | {"refused": refused}


@pytest.mark.parametrize(
    ("arguments", "variables"),
    [
        (["--master", "sc://127.0.0.1:1"], {}),
        (["--conf", "spark.remote=sc://127.0.0.1:1"], {}),
        ([], {"SPARK_REMOTE": "sc://127.0.0.1:1"}),
    ],
)
def test_a_job_is_refused_on_connect_with_what_to_do(
    tmp_path: Path, arguments: list[str], variables: dict[str, str]
) -> None:
    job = [*COMMAND, "archive", "--topic", "words", "--path", "archive", *arguments]
    done = subprocess.run(job, cwd=tmp_path, env=os.environ | variables, capture_output=True, text=True, timeout=100)
    text = f"sc://127.0.0.1:1: the jobs run beside Spark's own driver, {ADVICE}"
    assert (done.returncode, done.stderr) == (1, f"heliograph-spark archive: {text}\n")
