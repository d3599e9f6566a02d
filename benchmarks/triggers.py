"""A streaming trigger by the number of partitions: how long the driver's questions to the broker take, or all of it.

Run it with ``benchmarks/run-triggers``, after ``scripts/setup spark``; see its ``--help``.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, TypeVar

import pulsar
import typer
from heliograph_spark.run.schemas import RAW, columns_of
from heliograph_spark.run.session import SessionOptions, build_session
from heliograph_spark.run.source import PulsarDataSource
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tests.support.broker_process import BrokerProcess
from tests.support.clients import create_partitions, ignore_receipt, rest

_STEPS = ("start", "nothing new", "a message in each", "splits", "commit")
#: Spark's names in ``durationMs`` of a progress.
_PARTS = ("latestOffset", "getBatch", "queryPlanning", "addBatch", "commitOffsets", "triggerExecution")
_T = TypeVar("_T")


class Times:
    """Seconds that each step took, in each run."""

    def __init__(self) -> None:
        self._of: dict[str, list[float]] = {step: [] for step in _STEPS}

    def taken(self, step: str, work: Callable[[], _T]) -> _T:
        began = time.monotonic()
        done = work()
        self._of[step].append(time.monotonic() - began)
        return done

    def medians(self) -> list[float]:
        return [statistics.median(self._of[step]) for step in _STEPS]


def measure(broker: BrokerProcess, client: pulsar.Client, partitions: int, runs: int) -> list[float]:
    """Return the median seconds of each step for a topic of so many partitions, with a subscription."""
    topic = f"of-{partitions}"
    create_partitions(broker, topic, partitions)
    producer = client.create_producer(
        topic, batching_enabled=False, message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution
    )
    options = {"service.url": broker.service_url, "admin.url": broker.http_url, "topic": topic}
    source = PulsarDataSource({**options, "startingOffsets": "earliest", "predefinedSubscription": "held"})
    reader = source.streamReader(columns_of(RAW, topic))
    times = Times()
    offset = times.taken("start", reader.initialOffset)
    for _ in range(runs):
        offset = reader.latestOffset(offset, ReadAllAvailable())
        times.taken("nothing new", partial(reader.latestOffset, offset, ReadAllAvailable()))
        for _ in range(partitions):
            producer.send_async(b"message", ignore_receipt)
        producer.flush()
        end = times.taken("a message in each", partial(reader.latestOffset, offset, ReadAllAvailable()))
        splits = times.taken("splits", partial(reader.partitions, offset, end))
        if len(splits) != partitions:
            raise RuntimeError(f"{len(splits)} splits for {partitions} partitions")
        times.taken("commit", partial(reader.commit, end))
        offset = end
    reader.stop()
    producer.close()
    return times.medians()


def measure_spark(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, partitions: int, runs: int
) -> list[float]:
    """Return the median seconds of the parts of Spark's own triggers, with a message in each partition."""
    topic = f"whole-{partitions}"
    create_partitions(broker, topic, partitions)
    producer = client.create_producer(
        topic, batching_enabled=False, message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution
    )
    options = {"service.url": broker.service_url, "admin.url": broker.http_url, "topic": topic}
    read = spark.readStream.format("pulsar").options(**options, startingOffsets="earliest").load()
    with tempfile.TemporaryDirectory(prefix="heliograph-benchmark-") as state:
        query = read.writeStream.format("noop").option("checkpointLocation", state).start()
        # The first one also starts Python's workers.
        for _ in range(runs + 1):
            for _ in range(partitions):
                producer.send_async(b"message", ignore_receipt)
            producer.flush()
            query.processAllAvailable()
        found = [each for each in query.recentProgress if each.numInputRows]
        query.stop()
    producer.close()
    # A trigger that came while messages were being sent has read a part of them.
    whole = [each.durationMs for each in found[1:] if each.numInputRows == partitions] or [
        each.durationMs for each in found[1:]
    ]
    return [statistics.median(each.get(part, 0) for each in whole) / 1000 for part in _PARTS]


def main(
    partitions: Annotated[str, typer.Option(help="Numbers of partitions, with commas.")] = "1,100,1000",
    runs: Annotated[int, typer.Option(min=1, help="Number of triggers for each; their median counts.")] = 3,
    whole: Annotated[bool, typer.Option("--whole", help="Measure Spark's own triggers, on two cores.")] = False,
) -> None:
    """Measure, on this machine, beside the broker."""
    steps = _PARTS if whole else _STEPS
    print(f"| partitions | {' | '.join(f'{step} (ms)' for step in steps)} |", flush=True)
    print("|---" * (len(steps) + 1) + "|")
    spark = build_session("triggers", SessionOptions("local[2]")) if whole else None
    scratch = tempfile.TemporaryDirectory(prefix="heliograph-benchmark-")
    with scratch as directory, BrokerProcess(Path(directory) / "data") as broker:
        forever = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
        rest(broker, "POST", "namespaces/public/default/retention", forever)
        client = pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        for each in map(int, partitions.split(",")):
            if spark is None:
                found = measure(broker, client, each, runs)
            else:
                found = measure_spark(spark, broker, client, each, runs)
            print(f"| {each:,} | {' | '.join(f'{1000 * step:,.0f}' for step in found)} |", flush=True)
        client.close()
    if spark is not None:
        spark.stop()


if __name__ == "__main__":
    typer.run(main)
