"""The jobs as Spark's own programs start them: ``spark-submit``, and Python with the package's name."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import heliograph_api
import pulsar
import pyspark
import pytest
import yaml

from tests.support.broker_process import BrokerProcess
from tests.support.clients import publish

from .conftest import PIPELINE

SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"
MODULE = [sys.executable, "-m", "heliograph_spark"]
ROOT = PIPELINE.parent
#: Prints where the UI of a job's session is, first by Spark's own settings, then switched off.
SHOW_UI = """
from heliograph_spark.run.session import SessionOptions, build_session
for conf in ({}, {"spark.ui.enabled": "false"}):
    spark = build_session("archive", SessionOptions("local[1]", conf))
    print(spark.sparkContext.uiWebUrl)
    spark.stop()
"""


def output(command: list[str], directory: Path, **more: str) -> list[str]:
    """Return the lines that a command prints, which finds the packages of the pipeline and no Spark that runs."""
    paths = os.pathsep.join([str(PIPELINE), os.environ.get("PYTHONPATH", "")])
    variables = {name: value for name, value in os.environ.items() if name not in ("SPARK_MASTER", "SPARK_LOCAL_IP")}
    programs = os.pathsep.join([str(Path(sys.executable).parent), str(SUBMIT.parent), os.environ["PATH"]])
    variables |= {"PYTHONPATH": paths, "PYSPARK_PYTHON": sys.executable, "PATH": programs} | more
    done = subprocess.run(command, cwd=directory, env=variables, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
    return done.stdout.splitlines()


def commands_of_the_guide() -> str:
    """Return how docs/jobs.md says that spark-submit starts a job."""
    (found,) = re.findall(r"```\n(main=.*?\nspark-submit .*?)```", (ROOT / "docs" / "jobs.md").read_text(), re.DOTALL)
    return str(found)


def of_module(topic: str) -> list[str]:
    return [*MODULE, "archive", "--topic", topic, "--path", "archive"]


def of_guide(topic: str) -> list[str]:
    return ["bash", "-euc", commands_of_the_guide().replace("orders", topic)]


@pytest.mark.long
@pytest.mark.parametrize("start", [of_guide, of_module])
def test_an_archive_is_written(
    start: Callable[[str], list[str]], broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    publish(client, topic, [b"one", b"two"])
    lines = output(
        start(topic), tmp_path, HELIOGRAPH_SERVICE_URL=broker.service_url, HELIOGRAPH_ADMIN_URL=broker.http_url
    )
    result = json.loads(lines[-1])
    assert (result["job"], result["rows"], result["error"]) == ("archive", 2, None)
    assert list((tmp_path / "archive").glob("topic=*/date=*/*.parquet"))


@pytest.mark.long
def test_sparks_own_setting_says_whether_a_job_has_a_ui(tmp_path: Path) -> None:
    on, off = output([sys.executable, "-c", SHOW_UI], tmp_path)[-2:]
    assert on.startswith("http://127.0.0.1:")
    assert off == "None"


def test_the_manifest_for_the_spark_operator_starts_what_the_image_has() -> None:
    (manifest,) = yaml.safe_load_all((ROOT / "images/spark-operator-archive.yaml").read_text())
    assert manifest["apiVersion"] == "sparkoperator.k8s.io/v1beta2"
    assert manifest["kind"] == "ScheduledSparkApplication"
    assert {"schedule", "concurrencyPolicy", "template"} <= manifest["spec"].keys()
    application = manifest["spec"]["template"]
    assert (application["type"], application["mode"]) == ("Python", "cluster")
    assert application["sparkVersion"] == pyspark.__version__
    assert application["image"] == f"heliograph/spark:{heliograph_api.__version__}"
    started = application["mainApplicationFile"].removeprefix("local://")
    assert f"heliograph_spark/__main__.py {started}\n" in (ROOT / "Dockerfile").read_text()
    for part in ("driver", "executor"):
        assert {"cores", "memory", "securityContext"} <= application[part].keys()
        assert application[part]["securityContext"]["runAsUser"] == 10001
        mounted = {f"{each['path']}/token" for each in application[part]["secrets"]}
        assert mounted == {"/etc/heliograph/token/token"}
    assert "serviceAccount" in application["driver"]
    given = application["arguments"]
    assert "--option=pulsar.client.authParams=file:///etc/heliograph/token/token" in given
    assert any(each.startswith("--admin-url=http://default-admin.") for each in given), "the admin API's own Service"
    job, *options = application["arguments"]
    known = set(re.findall(r"--[a-z-]+", "".join(output([*MODULE, job, "--help"], ROOT))))
    assert {option.partition("=")[0] for option in options} <= known
