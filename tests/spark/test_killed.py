"""A query that is killed at any moment and started again writes every message once.

A few times over thousands of messages with every run; with ``HELIOGRAPH_SPARK_KILLS=20`` and
``HELIOGRAPH_SPARK_MESSAGES=100000`` that takes some ten minutes.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pulsar
import pytest
from pyspark.sql import SparkSession

from tests.integration.clients import create_partitions, ignore_receipt
from tests.support.broker_process import BrokerProcess

PROGRAM = Path(__file__).with_name("archive_program.py")
ROUNDS = int(os.environ.get("HELIOGRAPH_SPARK_KILLS", "3"))
MESSAGES = int(os.environ.get("HELIOGRAPH_SPARK_MESSAGES", "20000"))
STARTED_WITHIN_S = 120.0


def commits(directory: Path) -> int:
    return len(list((directory / "state" / "commits").glob("[0-9]*")))


def start(broker: BrokerProcess, topic: str, directory: Path, *more: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, str(PROGRAM), broker.service_url, broker.http_url, topic, str(directory), *more]
    with (directory / "log").open("ab") as log:
        # In a group of its own, so that Spark's Java process is killed at the same moment.
        return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)


def run_and_kill(broker: BrokerProcess, topic: str, directory: Path, after_s: float) -> None:
    """Start the query, which has something to write, and kill it so long after its first commit."""
    before = commits(directory)
    process = start(broker, topic, directory)
    deadline = time.monotonic() + STARTED_WITHIN_S
    try:
        while commits(directory) == before:
            assert process.poll() is None, (directory / "log").read_text()[-3000:]
            assert time.monotonic() < deadline, f"nothing was committed:\n{(directory / 'log').read_text()[-3000:]}"
            time.sleep(0.05)
        time.sleep(after_s)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.timeout(3000)
def test_every_message_is_in_the_files_once_however_often_the_query_is_killed(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    create_partitions(broker, topic, 2)
    batched = client.create_producer(topic, batching_enabled=True, batching_max_messages=20, block_if_queue_full=True)
    moments = random.Random(6)
    for each in range(ROUNDS):
        for number in range(each * MESSAGES // ROUNDS, (each + 1) * MESSAGES // ROUNDS):
            batched.send_async(b"%d" % number, ignore_receipt)
        batched.flush()
        run_and_kill(broker, topic, tmp_path, moments.uniform(0, 2.5))
    # What was published while nobody read comes after.
    batched.send(b"%d" % MESSAGES)
    last = start(broker, topic, tmp_path, "once")
    assert last.wait(600) == 0, (tmp_path / "log").read_text()[-3000:]
    found = spark.read.parquet(str(tmp_path / "rows")).selectExpr("CAST(value AS LONG) AS n")
    count, distinct, total = found.selectExpr("count(*)", "count(DISTINCT n)", "sum(n)").collect()[0]
    assert (count, distinct, total) == (MESSAGES + 1, MESSAGES + 1, MESSAGES * (MESSAGES + 1) // 2)
