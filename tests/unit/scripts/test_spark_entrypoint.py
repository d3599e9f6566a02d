"""images/spark-entrypoint: what the image runs as the command, as a driver and as an executor."""

from __future__ import annotations

import itertools
import subprocess
from pathlib import Path

import pytest

from tests.support.programs import Programs

ENTRYPOINT = Path(__file__).resolve().parents[3] / "images" / "spark-entrypoint"
#: As Spark starts a driver in a pod, and so does its operator.
DRIVER = [
    *("driver", "--properties-file", "/opt/spark/conf/spark.properties"),
    *("--class", "org.apache.spark.deploy.PythonRunner", "local:///opt/heliograph/heliograph-spark.py"),
    *("archive", "--topic", "a topic", "--path", "s3a://bucket/archive"),
]
EXECUTOR = {
    "SPARK_EXECUTOR_MEMORY": "1g",
    "SPARK_DRIVER_URL": "spark://driver",
    "SPARK_EXECUTOR_ID": "1",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_APPLICATION_ID": "app",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.2",
    "SPARK_EXECUTOR_POD_NAME": "pod",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_JAVA_OPT_0": "-Da=b c",
    "SPARK_JAVA_OPT_1": "-Dd",
}


@pytest.fixture
def homes(tmp_path: Path, programs: Programs) -> dict[str, str]:
    """Spark and Java whose programs record how they are called."""
    programs.add("heliograph-spark")
    programs.add("spark-submit", 'for each; do echo "argument $each" >>"$0.arguments"; done')
    programs.add("java", 'for each; do echo "argument $each" >>"$0.arguments"; done')
    for home in ("spark", "java"):
        (tmp_path / home).mkdir()
        (tmp_path / home / "bin").symlink_to(tmp_path / "programs")
    return {"SPARK_HOME": str(tmp_path / "spark"), "JAVA_HOME": str(tmp_path / "java")}


def start(homes: dict[str, str], tmp_path: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    path = f"{tmp_path / 'programs'}:/usr/bin:/bin"
    environment = {"PATH": path} | homes | variables
    return subprocess.run(["/bin/sh", ENTRYPOINT, *arguments], env=environment, capture_output=True, text=True)


def given(tmp_path: Path, program: str) -> list[str]:
    lines = (tmp_path / "programs" / f"{program}.arguments").read_text().splitlines()
    return [line.removeprefix("argument ") for line in lines]


def test_any_other_argument_is_one_of_the_command(homes: dict[str, str], programs: Programs, tmp_path: Path) -> None:
    assert start(homes, tmp_path, "archive", "--path", "a").returncode == 0
    assert start(homes, tmp_path).returncode == 0
    assert programs.calls() == ["heliograph-spark archive --path a", "heliograph-spark "]


def test_a_driver_is_started_by_spark_submit_in_its_pod_with_every_argument(
    homes: dict[str, str], programs: Programs, tmp_path: Path
) -> None:
    done = start(homes, tmp_path, *DRIVER, SPARK_DRIVER_BIND_ADDRESS="10.0.0.1")
    assert done.returncode == 0, done.stderr
    assert [call.split()[0] for call in programs.calls()] == ["spark-submit"]
    passed = given(tmp_path, "spark-submit")
    assert passed[-len(DRIVER) + 1 :] == DRIVER[1:]
    settings = [each for option, each in itertools.pairwise(passed) if option == "--conf"]
    assert "spark.driver.bindAddress=10.0.0.1" in settings
    assert passed[passed.index("--deploy-mode") + 1] == "client"


def test_a_driver_without_its_address_is_refused(homes: dict[str, str], programs: Programs, tmp_path: Path) -> None:
    done = start(homes, tmp_path, *DRIVER)
    assert done.returncode == 2
    assert "SPARK_DRIVER_BIND_ADDRESS" in done.stderr
    assert programs.calls() == []


def test_an_executor_is_java_with_sparks_options(homes: dict[str, str], programs: Programs, tmp_path: Path) -> None:
    done = start(homes, tmp_path, "executor", **EXECUTOR)
    assert done.returncode == 0, done.stderr
    passed = given(tmp_path, "java")
    assert passed[:4] == ["-Da=b c", "-Dd", "-Xms1g", "-Xmx1g"]
    assert "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend" in passed
    assert passed[passed.index("--driver-url") + 1] == "spark://driver"
    assert len(programs.calls()) == 1
