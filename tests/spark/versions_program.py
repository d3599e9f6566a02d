"""Reads, writes and runs the jobs on one Spark: ``versions_program.py SERVICE-URL ADMIN-URL TOPIC``.

It prints what it found as JSON, and keeps checkpoints, an archive and tables in the working directory. On standard
error it names each step before it begins, with the seconds until then.
"""

from __future__ import annotations

import io
import json
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pyspark
from heliograph_spark.cli import app
from pyiceberg.catalog import load_catalog
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

#: A row of several types, which becomes a message in Avro.
RECORD = """SELECT 'k' AS __key, 7L AS id, 'Köln' AS city, 1.5D AS ratio, timestamp_micros(1700000000123456L) AS at,
    date '2024-03-01' AS day, array('a', 'b') AS tags,
    named_struct('lat', 50.9D, 'lon', CAST(NULL AS double)) AS place"""
FIELDS = ("id", "city", "ratio", "at", "day", "tags", "place")


class Program:
    """The queries of one Spark on one topic, and on its copies."""

    def __init__(self, service_url: str, admin_url: str, topic: str) -> None:
        step("starting Spark")
        builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
        builder = builder.config("spark.sql.python.filterPushdown.enabled", "true")
        builder = builder.config("spark.sql.session.timeZone", "UTC").config("spark.ui.showConsoleProgress", "false")
        self.spark = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
        self._urls = {"service.url": service_url, "admin.url": admin_url}
        self._topic = topic
        self._records = f"{topic}-records"

    def write(self, topic: str, *words: str) -> None:
        """Write words, each under itself as a key, with a batch query."""
        rows = self.spark.createDataFrame([(word, word.encode()) for word in words], "__key string, value binary")
        rows.write.format("pulsar").options(**self._urls, topic=topic).mode("append").save()

    def read(self, topic: str, **options: str) -> list[str]:
        """Return the words of a topic in their order, with their keys."""
        rows = self.spark.read.format("pulsar").options(**self._urls, topic=topic, **options).load()
        found = rows.where(f"__topic = 'persistent://public/default/{topic}'").collect()
        return [_word(bytes(row["__key"]), bytes(row["value"])) for row in found]

    def write_record(self) -> list[dict[str, object]]:
        """Write a record to a topic of its own and return what a batch query reads of it."""
        options = self._urls | {"topic": self._records}
        self.spark.sql(RECORD).write.format("pulsar").options(**options).mode("append").save()
        rows = self.spark.read.format("pulsar").options(**options).load().select(*FIELDS)
        # Python would have the time in the zone of the machine.
        rows = rows.withColumn("at", rows["at"].cast("timestamp_ntz"))
        return [_plain(row.asDict(recursive=True)) for row in rows.collect()]

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
        step("writing and reading a batch")
        self.write(topic, "one", "two")
        found: dict[str, object] = {"spark": pyspark.__version__, "batch": sorted(self.read(topic))}
        step("writing and reading a record")
        found["record"] = self.write_record()
        step("copying by a stream")
        query = self.copying(copy, predefinedSubscription="copies").start()
        query.processAllAvailable()
        self.write(topic, "three")
        query.processAllAvailable()
        query.stop()
        self.write(topic, "four")
        step("copying by the stream that goes on from its checkpoint")
        self.copying(copy, predefinedSubscription="copies").trigger(availableNow=True).start().awaitTermination()
        found["stream"] = sorted(self.read(copy))
        step("reading with filters that are pushed down")
        found["filters"] = _or_refusal(lambda: sorted(self.read(topic, pushDownFilters="true")))
        step("copying by a stream of limited micro-batches")
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
        """Archive, replay and compact the topics, measure the broker, and return what each job found."""
        broker = ["--service-url", self._urls["service.url"], "--admin-url", self._urls["admin.url"]]
        of_topic = ["--topic", self._topic]
        archiving = [*broker, *of_topic, "--topic", self._records, "--path", "archive"]
        archive = _result("archive", *archiving)
        # Nothing is new: the second run goes on from the checkpoint of the first.
        again = _result("archive", *archiving)
        # As after a run that was killed before its micro-batches counted.
        for left in [*Path("archive").rglob("_complete-*"), *Path("archive/_checkpoint").rglob("commits/*")]:
            left.unlink()
        repeated = _result("archive", *archiving)
        files = Archived(self._topic, self._records)
        upserts = _tables(*broker, *of_topic, "--upsert", "--checkpoint", "last-state", "--subscription", "last")
        tables = _tables(*broker, *of_topic, "--checkpoint", "state", "--subscription", "tables")
        maintain = _result("maintain", "--catalog", "lake", *_lake())
        replay = _result("replay", *broker, *of_topic, "--path", "archive", "--to", f"{self._topic}-copy")
        compact = _result("compact", *of_topic, "--path", "archive", "--to", "tables")
        usage = _result("usage", *broker, "--to", "report", "--archive", "archive")
        return {
            "archive": [archive.get("rows"), again.get("rows"), repeated.get("rows"), archive.get("error")],
            "files": [files.words, files.records, files.makers],
            "iceberg": [tables.get("rows"), upserts.get("rows"), tables.get("error") or upserts.get("error")],
            "maintain": [maintain.get("merged"), maintain.get("error")],
            "tables": _rows_of_tables(),
            "replay": [replay.get("rows"), replay.get("error")],
            "compact": [compact.get("rows"), compact.get("error")],
            "usage": [usage.get("error"), Path("report/usage.html").is_file()],
        }


class Archived:
    """Words and records in the files of an archive, and the programs that wrote these."""

    def __init__(self, words: str, records: str) -> None:
        self.makers: list[str] = []
        of_words = self._rows(words)
        self.words = sorted(_word(row["__key"], row["value"]) for row in of_words)
        self.records = [_plain({name: row[name] for name in FIELDS}) for row in self._rows(records)]

    def _rows(self, topic: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        for path in Path("archive").glob(f"topic=*%2F{topic}/date=*/*.parquet"):
            with pq.ParquetFile(path) as file:
                rows += file.read().to_pylist()
                self.makers = sorted({*self.makers, file.metadata.created_by.partition(" ")[0]})
        return rows


#: Iceberg's catalog of this program.
_LAKE = {"type": "sql", "uri": "sqlite:///lake.db", "warehouse": Path("lake").absolute().as_uri()}


def _lake() -> list[str]:
    """Return the catalog's properties as options of a job."""
    return [part for name, value in _LAKE.items() for part in ("--catalog-property", f"{name}={value}")]


def _tables(*arguments: str) -> dict[str, object]:
    """Return the result of archiving into tables."""
    return _result("archive", "--format", "iceberg", "--catalog", "lake", *_lake(), *arguments)


def _rows_of_tables() -> list[list[str]]:
    """Return the words of each table in the order of their names."""
    catalog = load_catalog("lake", **_LAKE)
    tables = [catalog.load_table(name) for name in sorted(catalog.list_tables("archive"))]
    found = [table.scan().to_arrow().to_pylist() for table in tables]
    catalog.close()
    return [sorted(_word(row["__key"], row["value"]) for row in rows) for rows in found]


def step(name: str) -> None:
    """Name what begins now on standard error."""
    print(f"{time.monotonic() - _BEGAN:.1f} s: {name}", file=sys.stderr, flush=True)


_BEGAN = time.monotonic()


def _word(key: bytes, value: bytes) -> str:
    return f"{key.decode()}={value.decode()}"


def _plain(record: dict[str, Any]) -> dict[str, object]:
    """Return a record with its times, which are in UTC, as text without a zone."""
    found: dict[str, object] = json.loads(json.dumps(record, default=lambda each: each.isoformat().partition("+")[0]))
    return found


def _or_refusal(run: Callable[[], object]) -> object:
    """Return the result of some queries, or the part of Spark's error that is this package's own."""
    try:
        return run()
    except PySparkException as error:
        refused = [line for line in str(error).splitlines() if "OptionError" in line]
        return refused[-1].partition("OptionError: ")[2] if refused else str(error)


def _result(*arguments: str) -> dict[str, object]:
    """Return the result of a job, which is its last line."""
    step(" ".join(arguments))
    with redirect_stdout(io.StringIO()) as out, suppress(SystemExit):
        app([*arguments, *(["--master", "local[2]", "--conf", "spark.ui.enabled=false"])])
    result: dict[str, object] = json.loads(out.getvalue().splitlines()[-1])
    return result


def main() -> None:
    program = Program(*sys.argv[1:])
    found = program.run()
    found |= program.run_jobs()
    step("done")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
