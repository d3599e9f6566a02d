"""Archive, sink and replay beside reading, on the same messages and in the same session of Spark.

Run it with ``benchmarks/run-writing``, after ``scripts/setup spark``; see its ``--help``.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from heliograph_spark.jobs.archive import ArchiveOptions, archive
from heliograph_spark.jobs.replay import ReplayOptions, replay
from heliograph_spark.run.session import Broker, SessionOptions, build_session
from pyspark.sql import SparkSession

from tests.support.broker_process import BrokerProcess
from tests.support.clients import rest

from .kept_topics import Shape, keeping_broker, publish, shapes_of
from .spark_reader import read

_CORES = 2
#: One file for each core that writes.
_FILE_BYTES = 64 << 20


class Steps:
    """The steps with the messages of one shape; each returns the number of messages that it had."""

    def __init__(self, spark: SparkSession, broker: BrokerProcess, shape: Shape, scratch: Path) -> None:
        self._spark = spark
        self._broker = broker
        self._shape = shape
        self._scratch = scratch
        self._run = 0
        self._options = {"service.url": broker.service_url, "admin.url": broker.http_url}
        self._urls = Broker(broker.service_url, broker.http_url)

    def begin(self) -> None:
        """Give the steps of one run topics and directories of their own."""
        self._run += 1
        self._archive = self._scratch / f"archive-{self._run}"

    def read(self) -> int:
        """Read the topic into nothing."""
        request = self._shape.request(_CORES)
        return read(self._spark, self._broker.service_url, self._broker.http_url, request, connector=False).messages

    def archive(self) -> int:
        """Archive the topic under a new subscription."""
        options = ArchiveOptions(
            self._urls,
            str(self._archive),
            topics=(self._shape.topic,),
            subscription=f"archive-{self._run}",
            file_bytes=_FILE_BYTES,
        )
        done = archive(self._spark, options)
        if done.error is not None:
            raise RuntimeError(done.error)
        return done.rows

    def write(self) -> int:
        """Write the archived values and keys to a new topic by ``format("pulsar")``."""
        topic = f"{self._shape.topic}-written-{self._run}"
        rows = self._spark.read.parquet(str(self._archive)).select("__key", "value").coalesce(_CORES)
        rows.write.format("pulsar").options(**self._options, topic=topic).mode("append").save()
        return self._stored(topic)

    def replay(self) -> int:
        """Publish the archive to a new topic."""
        topic = f"{self._shape.topic}-replayed-{self._run}"
        rest(self._broker, "PUT", topic.replace("://", "/"))
        options = ReplayOptions(self._urls, str(self._archive), topic=self._shape.topic, to=topic)
        done = replay(self._spark, options)
        if done.error is not None:
            raise RuntimeError(done.error)
        return self._stored(topic)

    def _stored(self, topic: str) -> int:
        stats = rest(self._broker, "GET", topic.replace("://", "/") + "/stats")
        return int(stats["msgInCounter"])


def rates_of(shape: Shape, steps: Steps, runs: int, *, archive_only: bool) -> dict[str, float]:
    """Return messages a second of each step, medians. Raises :class:`RuntimeError` if a step missed a message."""
    named: dict[str, Callable[[], int]] = {"read, two splits": steps.read, "`archive`": steps.archive}
    if not archive_only:
        named |= {"sink": steps.write, "`replay`": steps.replay}
    rates: dict[str, list[float]] = {name: [] for name in named}
    for run in range(runs + 1):
        steps.begin()
        for name, step in named.items():
            began = time.monotonic()
            count = step()
            seconds = time.monotonic() - began
            if count != shape.messages:
                raise RuntimeError(f"{name}: {count} of {shape}")
            # The first one shows a JVM what to compile.
            if run:
                rates[name].append(count / seconds)
            print(f"{shape.name}: {name}: {count / seconds:,.0f}", file=sys.stderr, flush=True)
    return {name: statistics.median(each) for name, each in rates.items()}


def main(
    messages: Annotated[
        int, typer.Option(min=1000, help="Messages in batches; not batched it is a fifth.")
    ] = 1_000_000,
    runs: Annotated[int, typer.Option(min=1, help="Runs that count; one more comes before.")] = 3,
    archive_only: Annotated[bool, typer.Option("--archive-only", help="Without the sink and the replay.")] = False,
) -> None:
    """Measure, on this machine, with the broker beside Spark on two cores.

    Every step is checked: one that missed a message ends the command. Times are those of the whole job without the
    start of Spark.
    """
    shapes = shapes_of(messages)
    found: dict[str, list[str]] = {}
    settings = SessionOptions(master=f"local[{_CORES}]", conf={"spark.ui.enabled": "false"})
    with keeping_broker() as (broker, scratch):
        spark = build_session("writing", settings)
        for shape in shapes:
            publish(broker, shape)
            steps = Steps(spark, broker, shape, scratch / f"{shape.payload}-{shape.batch}")
            rates = rates_of(shape, steps, runs, archive_only=archive_only)
            for name, rate in rates.items():
                found.setdefault(name, []).append(f"{rate:,.0f} ({100 * rate / rates['read, two splits']:.0f} %)")
        spark.stop()
    print("| messages a second (of the rate of reading) |", " | ".join(each.name for each in shapes), "|")
    print("|---" * (len(shapes) + 1) + "|")
    for name, cells in found.items():
        print(f"| {name} |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    typer.run(main)
