"""Writes the classes that Spark loads into an archive: a Java that maps it starts in half the time.

Run by ``scripts/test`` as ``.venv-spark/bin/python -m tests.spark.class_archive FILE``; there is nothing to do if the
file is newer than the environment. Java refuses an archive that was written by another Java or from other JARs, and
starts without it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.connect.session import SparkSession as ConnectSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from tests.support.java_tools import BRIEF
from tests.support.ports import free_ports

from .connect_server import LOCAL, listening

SCHEMA = "number bigint, text string"


class Numbers(DataSource):  # type: ignore[misc, unused-ignore]
    """A source in Python, as the pipeline's."""

    @classmethod
    def name(cls) -> str:
        return "numbers"

    def reader(self, schema: object) -> DataSourceReader:
        return NumbersReader()


class NumbersReader(DataSourceReader):  # type: ignore[misc, unused-ignore]
    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(0), InputPartition(1)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"number": [1, 2], "text": ["a", "b"]})


def as_they_are(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def query(session: SparkSession, path: str) -> None:
    """Do a little of each kind of work that the tests have."""
    session.dataSource.register(Numbers)
    numbers = session.read.format("numbers").schema(SCHEMA).load()
    numbers.withColumn("day", f.lit("2024-01-01")).write.partitionBy("day").parquet(path)
    read = session.read.parquet(path)
    read.groupBy("text").agg(f.sum("number"), f.max("day")).orderBy("text").collect()
    read.join(numbers.drop("text"), "number").mapInArrow(as_they_are, read.schema).count()
    session.createDataFrame([(1, "a")], SCHEMA).toArrow()
    read.createOrReplaceTempView("read")
    session.sql("SELECT count(*), text FROM read WHERE number > 1 GROUP BY text").collect()


def count(frame: DataFrame, batch: int) -> None:
    frame.count()


def stream(session: SparkSession, path: str, state: str) -> None:
    writer = session.readStream.schema(SCHEMA).parquet(path).writeStream.foreachBatch(count)
    writer.option("checkpointLocation", state).trigger(availableNow=True).start().awaitTermination()


def main(archive: Path) -> None:
    """Write the archive: Java does, at its end."""
    made = archive.with_suffix(".new")
    os.environ["SPARK_SUBMIT_OPTS"] = " ".join([*BRIEF, f"-XX:ArchiveClassesAtExit={made}", "-Xlog:disable"])
    os.environ["PYSPARK_PYTHON"] = sys.executable
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory() as directory:
        session = (
            SparkSession.builder.master("local[2]")
            .config("spark.plugins", "org.apache.spark.sql.connect.SparkConnectPlugin")
            .config(map=LOCAL | listening(port))
            .getOrCreate()
        )
        query(session, f"{directory}/files")
        stream(session, f"{directory}/files", f"{directory}/state")
        os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
        remote = ConnectSession.builder.remote(f"sc://127.0.0.1:{port}").create()
        query(remote, f"{directory}/remote")  # type: ignore[arg-type, unused-ignore]
        remote.stop()
        java = session.sparkContext._gateway.proc  # type: ignore[union-attr, unused-ignore]
        session.stop()
        java.stdin.close()
        java.wait()
    made.rename(archive)


def is_current(archive: Path) -> bool:
    installed = Path(sys.prefix) / ".installed"
    return archive.exists() and installed.exists() and archive.stat().st_mtime > installed.stat().st_mtime


if __name__ == "__main__":
    if not is_current(Path(sys.argv[1])):
        main(Path(sys.argv[1]))
