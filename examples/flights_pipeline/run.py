"""The flights on their way through Spark: archived, replayed, compacted, reported, and every number checked.

Run by ``scripts/flights-pipeline``. The jobs are those of the command ``heliograph-spark``, called as the functions
that they are, so that one Spark does them all.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import csv
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from heliograph_api.admin.admin_client import AdminClient, AdminError
from heliograph_spark.jobs.archive import ArchiveOptions, Tables, archive
from heliograph_spark.jobs.compact import CompactOptions, compact, read_table
from heliograph_spark.jobs.replay import ReplayOptions, replay
from heliograph_spark.jobs.usage import UsageOptions, usage
from heliograph_spark.plan.errors import PulsarSourceError
from heliograph_spark.run.session import Broker, SessionOptions, build_session, reason
from pyiceberg.catalog import load_catalog
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from examples.flights.checks import Checks
from examples.flights.child_broker import BrokerFailed, ChildBroker
from examples.flights.dataset import DataSetMissing

from .flights import Expected, PublishFailed, publish

MANIFEST = Path(__file__).with_name("pipeline.yaml")
TOPIC = "persistent://nyc13/pipeline/flights"
AGAIN = "persistent://nyc13/pipeline/again"
#: The Iceberg tables of the topic have every flight, and the last one of each aircraft.
TABLE = "archive.nyc13_pipeline_flights"
LAST_TABLE = f"{TABLE}_last"
_PLOT = re.compile(r'<img id="(\w+)"[^>]*src="data:image/png;base64,([^"]+)"')


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the pipeline; returns the exit code: 0 if every number is right, else 1."""
    options = _parse(arguments)
    try:
        with ExitStack() as stack:
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="heliograph-flights-")))
            broker = ChildBroker(scratch / "data")
            stack.callback(broker.stop)
            # Spark's default of 200 parts for what is grouped is more than there are aircraft for each.
            spark = build_session("flights", SessionOptions(options.master, {"spark.sql.shuffle.partitions": "8"}))
            stack.callback(spark.stop)
            checks = _run(broker, spark, options.out or scratch / "out", options.limit)
            if options.plots is not None:
                _keep_plots((options.out or scratch / "out") / "report" / "usage.html", options.plots)
    except (BrokerFailed, DataSetMissing, AdminError, PublishFailed, PulsarSourceError, PySparkException) as error:
        print(f"flights-pipeline: {reason(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("flights-pipeline: interrupted", file=sys.stderr)
        return 130
    for failure in checks.failures:
        print(f"  wrong: {failure}", file=sys.stderr)
    if checks.failures:
        print(f"{len(checks.failures)} of {checks.count} numbers are wrong", file=sys.stderr)
        return 1
    print(f"all {checks.count} numbers agree with the data set")
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/flights-pipeline", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="keep archive, table and report here (default: nowhere)"
    )
    parser.add_argument("--plots", type=Path, metavar="DIR", help="put the report's plots here as PNG")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N flights (default: all 336,776)")
    parser.add_argument("--master", default="local[*]", help="where Spark runs (default: here, on every core)")
    options = parser.parse_args(arguments)
    if options.limit is not None and options.limit < 1:
        parser.error("--limit should be at least 1")
    return options


def _run(broker: ChildBroker, spark: SparkSession, out: Path, limit: int | None) -> Checks:
    expected, checks = Expected(limit), Checks()
    asyncio.run(_apply(broker.http_url))
    urls = Broker(broker.service_url, broker.http_url)
    sent = _timed("published", lambda: publish(broker.service_url, TOPIC, limit), lambda count: count)
    checks.equal("published", expected.messages, sent)

    path = str(out / "archive")
    archived = _timed("archived", lambda: archive(spark, ArchiveOptions(urls, path, (TOPIC,))), lambda done: done.rows)
    checks.equal("archive: error", None, archived.error)
    checks.equal("archive: messages", expected.messages, archived.rows)
    checks.equal("archive: messages not archived", 0, archived.lag)

    tables = _check_tables(checks, expected, urls, spark, out)

    again = ReplayOptions(urls, path, TOPIC, AGAIN, producer_name="replay")
    replayed = _timed("replayed", lambda: replay(spark, again), lambda done: done.rows)
    checks.equal("replay: messages", expected.messages, replayed.rows)
    checks.equal("replay: schema", "JSON", replayed.schema)
    # The table has the same messages: under the same name the topic drops all of them.
    of_table = replace(again, path=None, tables=tables)
    replayed = _timed(f"replayed from {TABLE}", lambda: replay(spark, of_table), lambda done: done.rows)
    checks.equal(f"replay from {TABLE}: messages", expected.messages, replayed.rows)

    table = CompactOptions(path, str(out / "table"), (TOPIC,))
    compacted = _timed("compacted", lambda: compact(spark, table), lambda done: done.rows, "aircraft")
    checks.equal("compact: error", None, compacted.error)
    checks.equal("compact: aircraft", len(expected.last), compacted.rows)
    # Some thousand rows, one for each aircraft, however many flights there are.
    rows = {bytes(row["__key"]).decode(): row for row in read_table(spark, table.to, TOPIC).collect()}
    found = {key: {name: row[name] for name in expected.last.get(key, {})} for key, row in rows.items()}
    for key, flight in expected.last.items():
        checks.equal(f"compact: last flight of {key}", flight, found.get(key))

    report = UsageOptions(urls, str(out / "report"), ("nyc13",), archive=path, clock="event")
    _timed("reported", lambda: usage(spark, report), lambda done: done.messages)
    _check_report(checks, expected, out / "report")
    return checks


def _check_tables(checks: Checks, expected: Expected, urls: Broker, spark: SparkSession, out: Path) -> Tables:
    """Archive into Iceberg tables, of all flights and of the last ones, and read them back by another library.

    Returns those of all flights.
    """
    properties = {"type": "sql", "uri": f"sqlite:///{out}/tables.db", "warehouse": (out / "tables").resolve().as_uri()}
    for name, last_values in ((TABLE, False), (LAST_TABLE, True)):
        tables = Tables("flights", properties, last_values=last_values)
        state = str(out / f"{name}.state")
        options = ArchiveOptions(urls, topics=(TOPIC,), tables=tables, subscription=name, checkpoint=state)
        done = _timed(f"into {name}", lambda options=options: archive(spark, options), lambda done: done.rows)
        checks.equal(f"{name}: error", None, done.error)
        checks.equal(f"{name}: messages not archived", 0, done.lag)
    catalog = load_catalog("flights", **properties)
    aircraft = catalog.load_table(TABLE).scan(selected_fields=("__key",)).to_arrow()["__key"].to_pylist()
    checks.equal(f"{TABLE}: messages", expected.messages, len(aircraft))
    of_aircraft = Counter(key.decode() for key in aircraft if key is not None)
    checks.equal(f"{TABLE}: flights of each aircraft", expected.of_aircraft, of_aircraft)
    last = catalog.load_table(LAST_TABLE).scan().to_arrow().to_pylist()
    catalog.close()
    checks.equal(f"{LAST_TABLE}: aircraft", len(expected.last), len(last))
    rows = {row["__key"].decode(): row for row in last}
    for key, flight in expected.last.items():
        found = {name: rows[key][name] for name in flight} if key in rows else None
        checks.equal(f"{LAST_TABLE}: last flight of {key}", flight, found)
    return Tables("flights", properties)


def _timed(what: str, work: Any, count: Any, of: str = "messages") -> Any:
    began = time.monotonic()
    done = work()
    print(f"{what}: {count(done):,} {of} in {time.monotonic() - began:.1f} s", flush=True)
    return done


async def _apply(http_url: str) -> None:
    async with AdminClient(http_url) as admin:
        await admin.apply(MANIFEST.read_text(encoding="utf-8"))


def _table(report: Path, name: str) -> list[dict[str, str]]:
    rows: list[dict[str, str]] = []
    for part in sorted((report / "csv" / name).glob("*.csv")):
        with part.open(newline="", encoding="utf-8") as file:
            rows.extend(csv.DictReader(file))
    return rows


def _check_report(checks: Checks, expected: Expected, report: Path) -> None:
    """Both topics hold the same flights, so what is counted of them is the same, and the same as in the CSV file."""
    topics = {row["topic"]: row for row in _table(report, "topics")}
    checks.equal("report: topics", sorted((TOPIC, AGAIN)), sorted(topics))
    biggest, flights = max(expected.of_aircraft.items(), key=lambda each: each[1])
    for topic, row in topics.items():
        checks.equal(f"report: messages of {topic}", expected.messages, int(row["messages"]))
        checks.equal(f"report: aircraft in {topic}", len(expected.of_aircraft), int(row["keys"]))
        of_biggest = expected.of_aircraft[row["biggest_key"]]
        checks.equal(f"report: flights of the busiest aircraft in {topic}, {biggest}", flights, of_biggest)
        checks.equal(f"report: share of it in {topic}", flights / expected.messages, float(row["key_skew"]))
    checks.equal("report: bytes", expected.bytes, int(topics[TOPIC]["bytes"]))
    checks.equal("report: archived", expected.messages, int(topics[TOPIC]["archived_messages"]))
    keys = _table(report, "keys")
    for topic in topics:
        messages = {row["key"]: int(row["messages"]) for row in keys if row["topic"] == topic}
        checks.equal(f"report: flights of each aircraft in {topic}", dict(expected.of_aircraft), messages)
    sizes = {row["key"]: int(row["bytes"]) for row in keys if row["topic"] == TOPIC}
    checks.equal("report: bytes of each aircraft", dict(expected.bytes_of_aircraft), sizes)
    lags = [row for row in _table(report, "subscriptions") if row["partition"].startswith(TOPIC)]
    unread = sum(int(row["messages"]) for row in lags if row["subscription"] == "audit")
    checks.equal("report: what audit has not read", expected.messages, unread)
    unarchived = sum(int(row["messages"]) for row in lags if row["subscription"] == "heliograph-archive")
    checks.equal("report: what is not archived", 0, unarchived)
    for row in _table(report, "partitions"):
        if row["forecast_error"]:
            print(
                f"{row['partition']}: {float(row['quota_use'] or 0):.0%} of the quota, {row['forecast_model']} forecast"
                f" {float(row['forecast_error']):.1%} off on held-back data"
            )


def _keep_plots(page: Path, directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, png in _PLOT.findall(page.read_text(encoding="utf-8")):
        (directory / f"flights-{name}.png").write_bytes(base64.b64decode(png))


if __name__ == "__main__":
    sys.exit(main())
