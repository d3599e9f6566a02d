"""The example of a declarative pipeline: Spark finds the data source, reads a topic into a table and writes another."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pulsar
import pyspark
import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.clients import publish, read_all

from .conftest import PIPELINE

EXAMPLE = PIPELINE / "examples" / "declarative_pipeline"
GUIDE = PIPELINE.parent / "docs" / "pipeline.md"
RUN = Path(pyspark.__file__).parent / "bin" / "spark-pipelines"


@pytest.mark.long
def test_the_example_reads_a_topic_into_a_table_and_sends_its_rows_to_another_topic(
    broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    project = tmp_path / "project"
    shutil.copytree(EXAMPLE, project, ignore=shutil.ignore_patterns("__pycache__"))
    for name, changed in (
        (
            "words.py",
            {"pulsar://localhost:6650": broker.service_url, '"topic": "words-copy"': f'"topic": "{topic}-copy"'},
        ),
        ("words.py", {'"topic", "words"': f'"topic", "{topic}"'}),
        ("spark-pipeline.yml", {"/tmp/words-storage": str(tmp_path / "storage")}),
    ):
        text = (project / name).read_text()
        for old, new in changed.items():
            assert old in text
            text = text.replace(old, new)
        (project / name).write_text(text)
    (command,) = re.findall(r"^spark-pipelines (.*)$", GUIDE.read_text(), re.MULTILINE)
    publish(client, topic, [b"one", b"two"])
    paths = os.pathsep.join([str(PIPELINE), os.environ.get("PYTHONPATH", "")])
    variables = {name: value for name, value in os.environ.items() if name not in ("SPARK_HOME", "SPARK_MASTER")}
    variables |= {"PYTHONPATH": paths, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        [str(RUN), *shlex.split(command.replace("pipeline/examples/declarative_pipeline", "project"))],
        cwd=tmp_path,
        env=variables | {"PATH": programs},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    assert sorted(read_all(client.create_reader(f"{topic}-copy", pulsar.MessageId.earliest))) == [b"ONE", b"TWO"]
