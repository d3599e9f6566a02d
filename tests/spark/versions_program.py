"""Reads, writes and runs the jobs on one Spark: ``versions_program.py SERVICE-URL ADMIN-URL TOPIC``.

It prints what it found as JSON, and keeps checkpoints and an archive in the working directory.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from typing import Any

import pyspark
from heliograph_spark.cli import app
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession


class Program:
    """The queries of one Spark on one topic, and on its copies."""

    def __init__(self, service_url: str, admin_url: str, topic: str) -> None:
        builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
        builder = builder.config("spark.sql.python.filterPushdown.enabled", "true")
        self.spark = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
        self._urls = {"service.url": service_url, "admin.url": admin_url}
        self._topic = topic

    def write(self, topic: str, *words: str) -> None:
        """Write words, each under itself as a key, with a batch query."""
        rows = self.spark.createDataFrame([(word, word.encode()) for word in words], "__key string, value binary")
        rows.write.format("pulsar").options(**self._urls, topic=topic).mode("append").save()

    def read(self, topic: str, **options: str) -> list[str]:
        """Return the words of a topic in their order, with their keys."""
        rows = self.spark.read.format("pulsar").options(**self._urls, topic=topic, **options).load()
        found = rows.where(f"__topic = 'persistent://public/default/{topic}'").collect()
        return [f"{bytes(row['__key']).decode()}={bytes(row['value']).decode()}" for row in found]

    def copying(self, to: str, **options: str) -> Any:
        """Return the writer of a stream from the topic to another one, which goes on from its checkpoint."""
        given = self._urls | {"topic": self._topic, "startingOffsets": "earliest"} | options
        rows: DataFrame = self.spark.readStream.format("pulsar").options(**given).load()
        # Without admin.url nothing asks whether the topic deduplicates.
        sink = {"service.url": self._urls["service.url"], "topic": to, "pulsar.producer.producerName": f"of-{to}"}
        writer = rows.select("__key", "value").writeStream.format("pulsar").options(**sink)
        return writer.option("checkpointLocation", to)

    def run(self) -> dict[str, object]:
        """Run all queries and return what each found."""
        topic, copy = self._topic, f"{self._topic}-copy"
        self.write(topic, "one", "two")
        found: dict[str, object] = {"spark": pyspark.__version__, "batch": sorted(self.read(topic))}
        query = self.copying(copy, predefinedSubscription="copies").start()
        query.processAllAvailable()
        self.write(topic, "three")
        query.processAllAvailable()
        query.stop()
        self.write(topic, "four")
        # Restarted from its checkpoint.
        self.copying(copy, predefinedSubscription="copies").trigger(availableNow=True).start().awaitTermination()
        found["stream"] = sorted(self.read(copy))
        found["filters"] = _or_refusal(lambda: sorted(self.read(topic, pushDownFilters="true")))
        limited = f"{topic}-limited"
        found["limited"] = _or_refusal(
            lambda: (
                self.copying(limited, maxOffsetsPerTrigger="1").trigger(availableNow=True).start().awaitTermination(),
                sorted(self.read(limited)),
            )[1]
        )
        self.spark.stop()
        return found

    def run_jobs(self) -> dict[str, object]:
        """Archive, replay and compact the topic, measure the broker, and return what each job reports."""
        broker = ["--service-url", self._urls["service.url"], "--admin-url", self._urls["admin.url"]]
        of_topic = ["--topic", self._topic]
        archive = _result("archive", *broker, *of_topic, "--path", "archive")
        # Nothing is new: the second run goes on from the checkpoint of the first.
        again = _result("archive", *broker, *of_topic, "--path", "archive")
        replay = _result("replay", *broker, *of_topic, "--path", "archive", "--to", f"{self._topic}-copy")
        compact = _result("compact", *of_topic, "--path", "archive", "--to", "tables")
        usage = _result("usage", *broker, "--to", "report", "--archive", "archive")
        return {
            "archive": [archive.get("rows"), again.get("rows"), archive.get("error")],
            "replay": [replay.get("rows"), replay.get("error")],
            "compact": compact.get("error"),
            "usage": usage.get("error"),
        }


def _or_refusal(run: Callable[[], object]) -> object:
    """Return the result of some queries, or the part of Spark's error that is this package's own."""
    try:
        return run()
    except PySparkException as error:
        refused = [line for line in str(error).splitlines() if "OptionError" in line]
        return refused[-1].partition("OptionError: ")[2] if refused else str(error)


def _result(*arguments: str) -> dict[str, object]:
    """Return the result of a job, which is its last line."""
    with redirect_stdout(io.StringIO()) as out, suppress(SystemExit):
        app([*arguments, *(["--master", "local[2]", "--conf", "spark.ui.enabled=false"])])
    result: dict[str, object] = json.loads(out.getvalue().splitlines()[-1])
    return result


def main() -> None:
    program = Program(*sys.argv[1:])
    found = program.run()
    print(json.dumps(found | program.run_jobs()))


if __name__ == "__main__":
    main()
