"""The driver's part of a streaming trigger by the number of partitions: how long its questions to the broker take.

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
from heliograph_spark.run.source import PulsarDataSource
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tests.support.broker_process import BrokerProcess
from tests.support.clients import create_partitions, ignore_receipt, rest

_STEPS = ("start", "nothing new", "a message in each", "splits", "commit")
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


def main(
    partitions: Annotated[str, typer.Option(help="Numbers of partitions, with commas.")] = "1,100,1000",
    runs: Annotated[int, typer.Option(min=1, help="Number of triggers for each; their median counts.")] = 3,
) -> None:
    """Measure, on this machine, beside the broker."""
    print(f"| partitions | {' | '.join(f'{step} (ms)' for step in _STEPS)} |", flush=True)
    print("|---" * (len(_STEPS) + 1) + "|")
    scratch = tempfile.TemporaryDirectory(prefix="heliograph-benchmark-")
    with scratch as directory, BrokerProcess(Path(directory) / "data") as broker:
        forever = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
        rest(broker, "POST", "namespaces/public/default/retention", forever)
        client = pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        for each in map(int, partitions.split(",")):
            found = measure(broker, client, each, runs)
            print(f"| {each:,} | {' | '.join(f'{1000 * step:,.0f}' for step in found)} |", flush=True)
        client.close()


if __name__ == "__main__":
    typer.run(main)
