"""Runs the commands of the guides to Spark as they stand, on a broker of its own address."""

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
from tests.support.polling import eventually

from .conftest import COMMAND
from .kills.killed import end

DOCS = Path(__file__).parents[2] / "docs"
GUIDE = DOCS / "pipeline.md"


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


def guides() -> str:
    """Return the guides to the jobs of Spark, in their order."""
    return "\n".join((DOCS / name).read_text() for name in ("jobs.md", "tables.md", "spark-operation.md"))


def guide_commands(jobs: str) -> list[str]:
    """Return the commands of the guides for jobs, which a regular expression selects."""
    return re.findall(rf"^heliograph-spark ((?:{jobs}) .*)$", guides(), re.MULTILINE)


@pytest.mark.long
def test_the_command_of_the_guide_follows_topics(broker: BrokerProcess, client: pulsar.Client, tmp_path: Path) -> None:
    (command,) = [each for each in guide_commands("archive") if "--follow" in each]
    given = {"HELIOGRAPH_SERVICE_URL": broker.service_url, "HELIOGRAPH_ADMIN_URL": broker.http_url}
    job = subprocess.Popen(
        [*COMMAND, *shlex.split(command)],
        cwd=tmp_path,
        env=os.environ | given,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        client.create_producer("orders-followed").send(b"order")
        files = "archive/topic=*orders-followed/date=*/*.parquet"
        eventually(lambda: list(tmp_path.glob(files)), within_s=240, what="the topic being archived")
        job.terminate()
        output, _ = job.communicate(timeout=240)
    finally:
        end(job)
    assert job.returncode == 0
    assert json.loads(output.splitlines()[-1])["rows"] >= 1


@pytest.mark.long
def test_the_commands_of_the_guide_archive_a_topic_in_files_and_tables_and_make_its_last_values(
    broker: BrokerProcess, client: pulsar.Client, tmp_path: Path
) -> None:
    (catalog,) = re.findall(r"```yaml\n(catalog:.*?)```", guides(), re.DOTALL)
    assert "file:///srv/lake" in catalog
    (tmp_path / ".pyiceberg.yaml").write_text(catalog.replace("file:///srv/lake", (tmp_path / "lake").as_uri()))
    # That of a bucket goes on over the end of its line, and is run with a bucket; that for a server, with a server.
    jobs = guide_commands("archive|maintain|compact")
    commands = [each for each in jobs if not re.search(r"--follow|--master sc://|\\$", each)]
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
        rows.append(json.loads(done.stdout.splitlines()[-1]).get("rows"))
    assert rows == [3, 2, 3, None, 2]
