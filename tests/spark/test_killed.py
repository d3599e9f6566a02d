"""Jobs and queries that are killed at any moment and started again write every message once.

A few times over thousands of messages with every run; with ``HELIOGRAPH_SPARK_KILLS=20`` and
``HELIOGRAPH_SPARK_MESSAGES=100000`` that takes some ten minutes each.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pulsar
import pytest
from heliograph_spark.run.archived import read_archive
from pyspark.sql import SparkSession

from tests.support.broker_process import BrokerProcess
from tests.support.clients import create_partitions, ignore_receipt, read_all, rest

from .conftest import COMMAND

PROGRAM = Path(__file__).with_name("sink_program.py")
ROUNDS = int(os.environ.get("HELIOGRAPH_SPARK_KILLS", "3"))
MESSAGES = int(os.environ.get("HELIOGRAPH_SPARK_MESSAGES", "12000"))
STARTED_WITHIN_S = 180.0


class Killed:
    """A command that goes on from its checkpoint, and is killed with all its processes."""

    def __init__(self, arguments: list[str], checkpoint: Path, log: Path) -> None:
        self._arguments = arguments
        self._checkpoint = checkpoint
        self._log = log

    def _commits(self) -> int:
        return len(list(self._checkpoint.glob("commits/[0-9]*")) or list(self._checkpoint.glob("*/commits/[0-9]*")))

    def _output(self) -> str:
        return self._log.read_text()[-3000:]

    def _start(self, *more: str) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            # In a group of its own, so that Spark's Java process is killed at the same moment.
            return subprocess.Popen([*self._arguments, *more], stdout=log, stderr=log, start_new_session=True)

    def run_and_kill(self, after_s: float) -> bool:
        """Start it, with something to write, and kill it this time after its first commit; False if it had ended."""
        before = self._commits()
        process = self._start()
        deadline = time.monotonic() + STARTED_WITHIN_S
        try:
            while self._commits() == before:
                assert process.poll() is None, self._output()
                assert time.monotonic() < deadline, f"nothing was committed:\n{self._output()}"
                time.sleep(0.05)
            time.sleep(after_s)
            return process.poll() is None
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def finish(self, *more: str) -> None:
        assert self._start(*more).wait(900) == 0, self._output()


def publish_and_kill(producer: pulsar.Producer, message: Callable[[int], None], job: Killed, seed: int) -> None:
    """Publish a share of the messages before each kill, and one more that nobody reads before the last run."""
    moments = random.Random(seed)
    hit = 0
    for each in range(ROUNDS):
        for number in range(each * MESSAGES // ROUNDS, (each + 1) * MESSAGES // ROUNDS):
            message(number)
        producer.flush()
        hit += job.run_and_kill(moments.uniform(0, 2.5))
    print(f"{hit} of {ROUNDS} kills found it at work")
    assert hit > ROUNDS // 2
    message(MESSAGES)
    producer.flush()


@pytest.mark.timeout(3000)
def test_every_message_is_archived_once_however_often_the_job_is_killed(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    create_partitions(broker, topic, 2)
    batched = client.create_producer(topic, batching_enabled=True, batching_max_messages=20, block_if_queue_full=True)
    arguments = [*COMMAND, "archive", "--topic", topic, "--path", str(tmp_path / "archive"), "--master", "local[2]"]
    arguments += ["--service-url", broker.service_url, "--admin-url", broker.http_url, "--file-size", "4000"]
    arguments += ["--option", "maxBytesPerTrigger=10000", "--option", "maxEntriesPerSplit=50"]
    job = Killed(arguments, tmp_path / "archive" / "_checkpoint", tmp_path / "log")
    publish_and_kill(batched, lambda number: batched.send_async(b"%d" % number, ignore_receipt), job, seed=6)
    job.finish("--option", "maxBytesPerTrigger=1000000")
    rows = read_archive(spark, str(tmp_path / "archive"), f"persistent://public/default/{topic}")
    rows = rows.selectExpr("CAST(CAST(value AS STRING) AS LONG) AS n", "struct(__topic, __messageId) AS id")
    count, distinct, ids, total = rows.selectExpr(
        "count(*)", "count(DISTINCT n)", "count(DISTINCT id)", "sum(n)"
    ).collect()[0]
    assert (count, distinct, ids) == (MESSAGES + 1, MESSAGES + 1, MESSAGES + 1)
    assert total == MESSAGES * (MESSAGES + 1) // 2
    for partition in range(2):
        stats = rest(broker, "GET", f"persistent/public/default/{topic}-partition-{partition}/stats")
        assert stats["subscriptions"]["heliograph-archive"]["msgBacklog"] == 0


@pytest.mark.timeout(3000)
def test_every_row_is_sent_once_however_often_the_query_is_killed(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    rest(broker, "PUT", f"namespaces/public/{topic}")
    unlimited = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
    rest(broker, "POST", f"namespaces/public/{topic}/retention", unlimited)
    rest(broker, "POST", f"namespaces/public/{topic}/deduplication", True)
    target = f"persistent://public/{topic}/target"
    rest(broker, "PUT", f"persistent/public/{topic}/target/partitions", 2)
    batched = client.create_producer(topic, batching_enabled=True, batching_max_messages=20, block_if_queue_full=True)
    arguments = [sys.executable, str(PROGRAM), broker.service_url, broker.http_url, topic, target]
    job = Killed([*arguments, str(tmp_path / "state")], tmp_path / "state", tmp_path / "log")

    def message(number: int) -> None:
        batched.send_async(b"%d" % number, ignore_receipt, partition_key=str(number % 11))

    publish_and_kill(batched, message, job, seed=7)
    job.finish("once")
    found = [
        int(each)
        for partition in range(2)
        for each in read_all(client.create_reader(f"{target}-partition-{partition}", pulsar.MessageId.earliest))
    ]
    assert (len(found), len(set(found))) == (MESSAGES + 1, MESSAGES + 1)
    assert sum(found) == MESSAGES * (MESSAGES + 1) // 2
