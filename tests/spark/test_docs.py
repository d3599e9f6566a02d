"""Runs the commands of docs/pipeline.md as they stand, on a broker of its own address."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pulsar
import pytest
from pyspark.sql import SparkSession

from tests.support.broker_process import BrokerProcess

from .conftest import COMMAND

GUIDE = Path(__file__).parents[2] / "docs" / "pipeline.md"


def test_the_example_of_the_guide_writes_reads_and_archives(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert "pulsar://localhost:6650" in code
    code = code.replace("pulsar://localhost:6650", broker.service_url)
    for directory in ("words-archive", "words-checkpoint"):
        code = code.replace(f'"{directory}"', repr(str(tmp_path / directory)))
    exec(compile(code, str(GUIDE), "exec"), {"spark": spark})
    assert "| k2|  two|" in capsys.readouterr().out
    archived = spark.read.parquet(str(tmp_path / "words-archive")).selectExpr("CAST(__key AS STRING) AS key", "value")
    assert sorted(map(tuple, archived.collect())) == [("k1", "one"), ("k2", "two")]


def test_the_commands_of_the_guide_archive_a_topic_and_make_its_table(
    broker: BrokerProcess, client: pulsar.Client, tmp_path: Path
) -> None:
    commands = re.findall(r"^heliograph-spark ((?:archive|compact) .*)$", GUIDE.read_text(), re.MULTILINE)
    producer = client.create_producer("orders")
    for key in ("a", "b", "a"):
        producer.send(b"order", partition_key=key)
    given = {"HELIOGRAPH_SERVICE_URL": broker.service_url, "HELIOGRAPH_ADMIN_URL": broker.http_url}
    rows = []
    for each in commands:
        done = subprocess.run(
            [*COMMAND, *shlex.split(each)], cwd=tmp_path, env=os.environ | given, capture_output=True, timeout=500
        )
        assert done.returncode == 0, done.stderr.decode()[-3000:]
        rows.append(json.loads(done.stdout.splitlines()[-1])["rows"])
    assert rows == [3, 2]
