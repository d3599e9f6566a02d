"""What docs/pipeline.md shows is run as it stands, on a broker of its own address."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.broker_process import BrokerProcess

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
