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

from .conftest import PIPELINE

PROGRAM = Path(__file__).with_name("unregistered_program.py")


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


@pytest.mark.long
@pytest.mark.parametrize("kind", ["classic", "connect"])
def test_a_session_that_registers_nothing_reads_and_writes_a_topic(
    broker: BrokerProcess,
    client: pulsar.Client,
    topic: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    kind: str,
) -> None:
    publish(client, topic, [b"one"])
    remote = [str(request.getfixturevalue("connect_url"))] if kind == "connect" else []
    found = found_by([str(PROGRAM), broker.service_url, topic, str(tmp_path / "checkpoint"), *remote], tmp_path)
    assert found == {"view": ["one"], "frame": ["one"], "registered": ["one"], "copied": ["one", "one"]}


def test_a_process_of_spark_imports_no_pandas_to_have_the_source() -> None:
    """It would take longer than everything else, in each of the processes that plan a query."""
    program = "import sys, heliograph_spark.run.source, heliograph_spark.run.sink; print('pandas' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
