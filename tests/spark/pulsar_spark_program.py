"""Reads and writes by pulsar-spark, as it is asked to: ``pulsar_spark_program.py JARS``.

A question is one line of JSON: ``do``, which is a method of :class:`Queries`, and its arguments. So is the answer: a
``result``, or an ``error``, which is the text of what was raised.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import struct, to_json

#: As Spark writes every row, so that the rows of two Sparks can be compared.
FORM = {"ignoreNullFields": "false", "timestampFormat": "yyyy-MM-dd HH:mm:ss.SSSSSS"}


def as_text(frame: DataFrame) -> DataFrame:
    """Return the rows as JSON: binary columns in base64, times in UTC to the microsecond."""
    return frame.select(to_json(struct("*"), FORM).alias("value"))


def session(jars: str) -> SparkSession:
    """Start a Spark of two threads with these JARs."""
    local = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.jars": jars,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
    }
    builder = SparkSession.builder.master("local[2]")
    for name, value in local.items():
        builder = builder.config(name, value)
    spark: SparkSession = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


class Queries:
    """Queries with ``format("pulsar")``, whatever that is in this Spark."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._started: Any = None

    def version(self) -> str:
        """Return Spark's version."""
        return str(self._spark.version)

    def pid(self) -> int:
        """Return the number of the process that Spark runs in."""
        return int(self._spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())

    def read(self, options: dict[str, str], select: tuple[str, ...] = ("*",)) -> dict[str, Any]:
        """Return the columns and the rows of a batch query."""
        frame = self._spark.read.format("pulsar").options(**options).load().selectExpr(*select)
        return {"columns": frame.schema.simpleString(), "rows": _rows(as_text(frame))}

    def write(self, sql: str, options: dict[str, str]) -> None:
        """Write the rows of a query to a topic."""
        self._spark.sql(sql).write.format("pulsar").options(**options).mode("append").save()

    def copy(self, options: dict[str, str], select: list[str], to: dict[str, str], checkpoint: str) -> None:
        """Write what a stream finds to a topic, and end at its end."""
        frame = self._spark.readStream.format("pulsar").options(**options).load().selectExpr(*select)
        writer = frame.writeStream.format("pulsar").options(**to).option("checkpointLocation", checkpoint)
        writer.trigger(availableNow=True).start().awaitTermination()

    def follow(self, options: dict[str, str], directory: str, select: tuple[str, ...] = ("*",)) -> list[dict[str, Any]]:
        """Write what a stream finds to files, end at its end, and return the rows of all files."""
        self._stream(options, directory, select).trigger(availableNow=True).start().awaitTermination()
        return self.found(directory)

    def start(self, options: dict[str, str], directory: str, select: tuple[str, ...] = ("*",)) -> None:
        """Let a stream write what it finds to files."""
        self._started = self._stream(options, directory, select).start()

    def end(self) -> str | None:
        """Return why the stream that was started has ended; None if it runs."""
        return None if self._started.isActive else str(self._started.exception())

    def found(self, directory: str) -> list[dict[str, Any]]:
        """Return the rows of the files of a stream."""
        return _rows(self._spark.read.text(f"{directory}/rows"))

    def _stream(self, options: dict[str, str], directory: str, select: tuple[str, ...]) -> Any:
        frame = self._spark.readStream.format("pulsar").options(**options).load().selectExpr(*select)
        writer = as_text(frame).writeStream.format("text").option("path", f"{directory}/rows")
        return writer.option("checkpointLocation", f"{directory}/checkpoint")


def _rows(frame: DataFrame) -> list[dict[str, Any]]:
    return [json.loads(row.value) for row in frame.collect()]


def main() -> None:
    # Lines that the JVM writes to standard output are not answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    queries = Queries(session(sys.argv[1]))
    for line in sys.stdin:
        question = json.loads(line)
        try:
            answer = {"result": getattr(queries, question.pop("do"))(**question)}
        except Exception as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
