"""The data source and its jobs on each version of Spark that docs/pipeline.md names; an older one is refused.

Where a version has Iceberg's own runtime, that reads the tables.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pulsar
import pyspark
import pytest
from heliograph_spark.jobs.archive import ArchiveOptions, Tables, archive
from heliograph_spark.jobs.maintain import MaintainOptions, maintain
from heliograph_spark.run.session import Broker
from pyspark.sql import SparkSession

from tests.support import java_tools, rest_catalog
from tests.support.broker_process import BrokerProcess
from tests.support.clients import create_namespace, publish_record

from .conftest import PIPELINE
from .test_rest_catalog import NotedOrder, Order

PROGRAM = Path(__file__).with_name("versions_program.py")
ICEBERG_PROGRAM = Path(__file__).with_name("iceberg_program.py")
#: The version of Spark that Iceberg's runtime is for.
WITH_ICEBERG = "4.0.0"
#: Where scripts/spark-versions has installed the other versions, each in a directory of its name.
INSTALLED = os.environ.get("HELIOGRAPH_SPARK_VERSIONS")
#: The oldest one, and the newest of each minor version.
VERSIONS = ("4.0.0", "4.1.4", "4.2.1", pyspark.__version__)
#: The longest time (s) of the program, which takes three minutes of CPU on a machine that may be busy.
WITHIN_S = 1500


def environment(*first: Path) -> dict[str, str]:
    """Return the variables of a program that finds the packages in these directories before all others."""
    paths = os.pathsep.join([*map(str, first), str(PIPELINE), os.environ.get("PYTHONPATH", "")])
    variables = {name: value for name, value in os.environ.items() if name not in ("SPARK_HOME", "SPARK_MASTER")}
    return variables | {"PYTHONPATH": paths, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}


@pytest.mark.long
@pytest.mark.timeout(WITHIN_S + 100)
@pytest.mark.parametrize("version", VERSIONS)
def test_the_source_the_sink_and_the_jobs_run(broker: BrokerProcess, topic: str, tmp_path: Path, version: str) -> None:
    if INSTALLED is None and version != pyspark.__version__:
        pytest.skip("scripts/spark-versions fetches other versions of Spark (1.4 GB), and runs this on each")
    found = results_of(version, PROGRAM, [broker.service_url, broker.http_url, topic], tmp_path)
    release = tuple(map(int, version.split(".")[:2]))
    every = ["four=four", "one=one", "three=three", "two=two"]
    record = {
        "id": 7,
        "city": "Köln",
        "ratio": 1.5,
        "at": "2023-11-14T22:13:20.123456",
        "day": "2024-03-01",
        "tags": ["a", "b"],
        "place": {"lat": 50.9, "lon": None},
    }
    refused = "{} needs Spark {} or later, and this is Spark " + version + ": leave it out"
    assert found == {
        "spark": version,
        "batch": ["one=one", "two=two"],
        "record": [record],
        "stream": every,
        "filters": every if release >= (4, 1) else refused.format("pushDownFilters", "4.1"),
        "limited": every if release >= (4, 2) else refused.format("maxOffsetsPerTrigger", "4.2"),
        # The rows of a run, of one with nothing new, and of one after a run that was killed.
        "archive": [5, 0, 5, None],
        # Arrow wrote them in Spark's tasks.
        "files": [every, [record], ["parquet-cpp-arrow"]],
        "iceberg": [4, 4, None],
        "maintain": [0, None],
        "tables": [every, every],
        "replay": [4, None],
        "compact": [4, None],
        "usage": [None, True],
    }


@pytest.mark.timeout(WITHIN_S + 100)
def test_icebergs_own_runtime_reads_and_rewrites_tables_by_their_names(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    if INSTALLED is None:
        pytest.skip(f"scripts/spark-versions fetches Spark {WITH_ICEBERG} and Iceberg's runtime for it")
    create_namespace(broker, topic, "ALWAYS_COMPATIBLE")
    name = f"persistent://public/{topic}/orders"
    # Without a subscription the broker would not keep what is published before the first run.
    client.subscribe(name, "holder")
    (runtime,) = (java_tools.FETCHED / "spark-iceberg").glob("*.jar")
    with rest_catalog.rest_catalog(tmp_path, Path(pyspark.__file__).parent / "jars") as uri:
        tables = Tables("lake", {"type": "rest", "uri": uri})

        def run(*orders: Order | NotedOrder) -> None:
            for order in orders:
                publish_record(client, name, order)
            reached = Broker(broker.service_url, broker.http_url)
            done = archive(
                spark, ArchiveOptions(reached, topics=(name,), tables=tables, checkpoint=str(tmp_path / "state"))
            )
            assert (done.rows, done.error) == (len(orders), None)

        def read(*, rewrites: bool) -> object:
            return results_of(WITH_ICEBERG, ICEBERG_PROGRAM, [uri, str(runtime), str(rewrites)], tmp_path)

        run(*(Order(number=number) for number in range(3)))
        # A column is added, and the files have different ones.
        run(NotedOrder(number=3, note="later"))
        rows = [[0, None], [1, None], [2, None], [3, "later"]]
        assert read(rewrites=True) == {"spark": WITH_ICEBERG, "rows": rows, "after": rows, "files": 1}
        # The archive goes on with the files of the other engine.
        run(NotedOrder(number=4, note="after"))
        assert maintain(spark, MaintainOptions(tables)).error is None
        rows.append([4, "after"])
        assert read(rewrites=False) == {"spark": WITH_ICEBERG, "rows": rows, "files": 1}


def results_of(version: str, program: Path, arguments: list[str], directory: Path) -> object:
    """Return what a program finds on a version of Spark; if it fails, the assertion shows its steps and errors."""
    overlay = [] if version == pyspark.__version__ else [Path(str(INSTALLED), version)]
    command = [sys.executable, str(program), *arguments]
    log = directory / "errors"
    with log.open("w") as errors:
        try:
            done = subprocess.run(
                command,
                cwd=directory,
                env=environment(*overlay),
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                timeout=WITHIN_S,
            )
        except subprocess.TimeoutExpired:
            pytest.fail(f"the program did not end within {WITHIN_S} s: {log.read_text()[-4000:]}")
    assert done.returncode == 0, log.read_text()[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_an_older_spark_is_refused_with_the_versions_that_are_supported(tmp_path: Path) -> None:
    (tmp_path / "pyspark").mkdir()
    # The modules that such a Spark has, as far as they are imported before its version is read.
    (tmp_path / "pyspark" / "__init__.py").write_text('__version__ = "3.5.5"\n')
    (tmp_path / "pyspark" / "sql.py").write_text("class SparkSession: ...\n")
    (tmp_path / "pyspark" / "errors.py").write_text("class AnalysisException(Exception): ...\n")
    text = "Spark 3.5.5 has no data sources in Python; valid: Spark 4.0 to 4.3"
    job = [sys.executable, "-m", "heliograph_spark", "archive", "--path", "archive"]
    done = subprocess.run(job, env=environment(tmp_path), capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"heliograph-spark: {text}")
    registering = [sys.executable, "-c", "import heliograph_spark; heliograph_spark.register(None)"]
    done = subprocess.run(registering, env=environment(tmp_path), capture_output=True, text=True, timeout=100)
    assert f"PulsarSourceError: {text}" in done.stderr.splitlines()[-1]
