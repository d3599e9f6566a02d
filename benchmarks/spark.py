"""Reading a topic with Spark by the number of splits, and archiving it: how fast, and with how much memory.

Run it with ``benchmarks/run-spark``, after ``scripts/setup spark``; see its ``--help``.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Annotated

import psutil
import pulsar
import typer
from heliograph_spark.run.session import SessionOptions, build_session
from pyspark.sql import SparkSession

from tests.support.broker_process import BrokerProcess
from tests.support.clients import ignore_receipt, rest

COMMAND = str(Path(sys.executable).with_name("heliograph-spark"))
_SPLITS = (1, 2, 4)
#: Messages in an entry: the client's batches.
_BATCH = 100
_SAMPLED_EVERY_S = 0.1


class Peak:
    """The largest resident memory (MiB) that a process and those below it had: Java's, and of any one Python's."""

    def __init__(self, pid: int) -> None:
        self.java = 0.0
        self.python = 0.0
        self._pid = pid
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow)

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _follow(self) -> None:
        while not self._ended.wait(_SAMPLED_EVERY_S):
            try:
                root = psutil.Process(self._pid)
                for each in [root, *root.children(recursive=True)]:
                    self._seen(each)
            except psutil.NoSuchProcess:
                continue

    def _seen(self, process: psutil.Process) -> None:
        try:
            name, used = process.name(), process.memory_info().rss / (1 << 20)
        except psutil.NoSuchProcess:
            return
        if name == "java":
            self.java = max(self.java, used)
        else:
            self.python = max(self.python, used)


def fill(broker: BrokerProcess, topic: str, messages: int, payload: int, batch: int = _BATCH) -> None:
    """Publish so many messages with a key to a topic that keeps them, in batches of ``batch`` or, with 1, alone."""
    client = pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    producer = client.create_producer(
        topic,
        batching_enabled=batch > 1,
        batching_max_messages=max(batch, 2),
        batching_max_publish_delay_ms=1000,
        block_if_queue_full=True,
    )
    content = b"x" * payload
    for number in range(messages):
        producer.send_async(content, ignore_receipt, partition_key=str(number % 1000))
    producer.flush()
    client.close()


def read_rate(spark: SparkSession, broker: BrokerProcess, topic: str, messages: int, splits: int, runs: int) -> float:
    """Messages a second, the median of some runs."""
    stats = rest(broker, "GET", f"persistent/public/default/{topic}/internalStats")
    rates = []
    for _ in range(runs):
        frame = spark.read.format("pulsar").option("service.url", broker.service_url).option("topic", topic)
        frame = frame.option("maxEntriesPerSplit", str(-(-stats["numberOfEntries"] // splits))).load()
        began = time.monotonic()
        frame.write.format("noop").mode("overwrite").save()
        rates.append(messages / (time.monotonic() - began))
    return statistics.median(rates)


def archive(broker: BrokerProcess, topic: str, directory: Path, messages: int) -> tuple[float, int, Peak]:
    """Seconds from the start of the command to its end, files, and the memory of its processes."""
    urls = ["--service-url", broker.service_url, "--admin-url", broker.http_url]
    began = time.monotonic()
    process = subprocess.Popen(
        [COMMAND, "archive", "--topic", topic, "--path", str(directory), "--file-size", "16Mi", *urls],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with Peak(process.pid) as peak:
        output, _ = process.communicate()
    seconds = time.monotonic() - began
    result = json.loads(output)
    if process.returncode or result["rows"] != messages:
        raise RuntimeError(f"the archive of {messages} messages ended with {result}")
    return seconds, result["files"], peak


def main(
    messages: Annotated[int, typer.Option(min=1000, help="Messages of the larger topic; the other has a tenth.")] = (
        1_000_000
    ),
    payload: Annotated[int, typer.Option(min=1, help="Bytes of a message.")] = 100,
    runs: Annotated[int, typer.Option(min=1, help="Number of reads for each number of splits.")] = 3,
) -> None:
    """Measure, on this machine, with broker and Spark side by side, both kept to its cores."""
    with tempfile.TemporaryDirectory(prefix="heliograph-benchmark-") as scratch:
        directory = Path(scratch)
        with BrokerProcess(directory / "data") as broker:
            forever = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
            rest(broker, "POST", "namespaces/public/default/retention", forever)
            small, large = messages // 10, messages
            for topic, count in (("small", small), ("large", large)):
                fill(broker, topic, count, payload)
            print("| messages archived | seconds | files | Java's memory (MiB) | largest Python (MiB) |", flush=True)
            print("|---|---|---|---|---|")
            for topic, count in (("small", small), ("large", large)):
                seconds, files, peak = archive(broker, topic, directory / topic, count)
                print(f"| {count:,} | {seconds:.1f} | {files} | {peak.java:,.0f} | {peak.python:,.0f} |", flush=True)
            spark = build_session("benchmark", SessionOptions(master=f"local[{max(_SPLITS)}]"))
            read_rate(spark, broker, "small", small, 1, 1)
            print("\n| splits | messages a second |\n|---|---|")
            for splits in _SPLITS:
                print(f"| {splits} | {read_rate(spark, broker, 'large', large, splits, runs):,.0f} |", flush=True)
            spark.stop()


if __name__ == "__main__":
    typer.run(main)
